//! Packets made by hand: which the specification allows a client, and which not.

use super::rows::{After, V3_1_1, V5, all};
use super::{LIMITS, connected};
use bytes::BytesMut;
use tidemill_codec::{Codec, DecodeError};
use tidemill_core::packet::{Packet, Version};

pub(crate) fn codec_after(after: After) -> Codec {
    after.map_or_else(|| Codec::new(LIMITS), connected)
}

fn decode(after: After, bytes: &[u8]) -> Result<Option<Packet>, DecodeError> {
    codec_after(after).decode(&mut BytesMut::from(bytes))
}

#[test]
fn a_client_may_send_what_the_specification_allows_and_nothing_else() {
    let mut wrong = Vec::new();
    for (what, after, bytes, expected) in all() {
        let outcome = decode(*after, bytes);
        let is_right = match (&outcome, expected) {
            (Ok(Some(_)), None) => true,
            (Err(error), Some(reason)) => error.reason() == *reason,
            _ => false,
        };
        if !is_right {
            wrong.push(format!("{what} after {after:?}: {outcome:?}, expected {expected:?}"));
        }
    }

    assert!(wrong.is_empty(), "{} rows are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// 129 levels are legal MQTT but too many for this broker, which answers in SUBACK or PUBACK instead of closing.
#[test]
fn topics_that_are_only_too_deep_pass_but_not_with_a_wildcard_in_a_name() {
    let deep = "/".repeat(128);
    let subscribe = [b"\x82\x85\x01\0\x0a\0\x80".as_slice(), deep.as_bytes(), b"\x01"].concat();
    let publish = |topic: &str, properties: &[u8]| {
        let len = u8::try_from(topic.len()).unwrap();
        let mut body = [&[0, len], topic.as_bytes(), properties].concat();
        let mut packet = vec![
            0x30,
            u8::try_from(body.len() % 128).unwrap() | 0x80,
            u8::try_from(body.len() / 128).unwrap(),
        ];
        packet.append(&mut body);
        packet
    };
    let response = [b"\x84\x01\x08\0\x81".as_slice(), deep.as_bytes(), b"#"].concat();

    assert!(matches!(decode(V3_1_1, &subscribe), Ok(Some(Packet::Subscribe(_)))));
    assert!(matches!(decode(V3_1_1, &publish(&deep, b"")), Ok(Some(Packet::Publish(_)))));
    assert_eq!(decode(V3_1_1, &publish(&format!("{deep}#"), b"")), Err(DecodeError::TopicNameInvalid));
    assert_eq!(
        decode(V5, &publish("t", &response)),
        Err(DecodeError::Protocol("response topic is no topic name"))
    );
}

#[test]
fn a_packet_that_comes_byte_by_byte_has_the_same_outcome() {
    for (what, after, bytes, _) in all() {
        let expected = decode(*after, bytes);
        let mut codec = codec_after(*after);
        let mut input = BytesMut::new();
        let mut outcome = Ok(None);

        for byte in *bytes {
            input.extend_from_slice(&[*byte]);
            outcome = codec.decode(&mut input);
            if outcome != Ok(None) {
                break;
            }
        }

        assert_eq!(outcome, expected, "{what}");
        assert!(expected.is_err() || input.is_empty(), "{what} leaves bytes behind");
    }
}

#[test]
fn the_packet_behind_a_packet_is_left_alone() {
    for (what, after, bytes, expected) in all() {
        if expected.is_some() {
            continue;
        }
        let mut codec = codec_after(*after);
        let mut input = BytesMut::from(*bytes);
        input.extend_from_slice(b"\xc0\0");

        codec.decode(&mut input).unwrap().unwrap();

        assert_eq!(&input[..], b"\xc0\0", "{what}");
        assert_eq!(codec.decode(&mut input), Ok(Some(Packet::PingReq)), "{what}");
    }
}

#[test]
fn before_connect_3_x_clients_hear_only_of_version_and_client_id() {
    let said = |bytes: &[u8]| {
        let mut codec = Codec::new(LIMITS);
        let error = codec.decode(&mut BytesMut::from(bytes)).unwrap_err();
        codec.farewell(&error).map(|packet| {
            let mut out = BytesMut::new();
            codec.encode(&packet, &mut out).unwrap();
            out.to_vec()
        })
    };

    assert_eq!(said(b"\x10\x0d\0\x04MQTT\x07\x02\0\x3c\0\x01c"), Some(b"\x20\x02\0\x01".to_vec()));
    assert_eq!(said(b"\x10\x0c\0\x04MQTT\x04\0\0\x3c\0\0"), Some(b"\x20\x02\0\x02".to_vec()));
    assert_eq!(said(b"\x10\x0d\0\x04MQTT\x04\x03\0\x3c\0\x01c"), None);
    let refused = said(b"\x10\x0e\0\x04MQTT\x05\x03\0\x3c\0\0\x01c").unwrap();
    assert_eq!(refused[..8], *b"\x20\x28\0\x81\x25\x1f\0\x22");
    assert_eq!(refused[8..], *b"malformed packet: flags of CONNECT");
    assert_eq!(said(b"GET /"), None);
}

#[test]
fn after_connect_only_5_0_clients_hear_why_they_are_closed() {
    let said = |version| {
        let mut codec = connected(version);
        let error = codec.decode(&mut BytesMut::from(&b"\xc0\x01x"[..])).unwrap_err();
        codec.farewell(&error).map(|packet| {
            let mut out = BytesMut::new();
            codec.encode(&packet, &mut out).unwrap();
            out.to_vec()
        })
    };

    let told = said(Version::V5).unwrap();
    assert_eq!(told[..2], *b"\xe0\x2a");
    assert_eq!(told[2..7], *b"\x81\x28\x1f\0\x25");
    assert_eq!(told[7..], *b"malformed packet: PINGREQ with a body");
    assert_eq!(said(Version::V3_1_1), None);
}

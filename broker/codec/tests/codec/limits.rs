//! Bounds on what comes in, what goes out, and what is kept.

use super::{CONNECT_3_1_1, connected};
use bytes::{Bytes, BytesMut};
use std::num::NonZeroU32;
use tidemill_codec::{
    Codec, DecodeError, DecodeLimits, EncodeError, Encoder, PublishParts, SHARED_PAYLOAD_BYTES_MIN,
};
use tidemill_core::packet::{
    Ack, AckKind, ConnAck, ConnAckProperties, Disconnect, Packet, PacketId, QoS, ReasonCode, SubAck, Version,
};

const READ_BUFFER_BYTES: usize = 64 * 1024;

fn publish_bytes(payload_len: usize) -> Vec<u8> {
    let payload = vec![b'x'; payload_len];
    let mut out = BytesMut::new();
    Encoder::new(Version::V3_1_1, None).encode_publish(&parts("t", &payload), &mut out).unwrap();
    out.to_vec()
}

fn parts<'a>(topic: &'a str, payload: &'a [u8]) -> PublishParts<'a> {
    PublishParts {
        dup: false,
        retain: false,
        qos: QoS::AtMostOnce,
        packet_id: None,
        topic,
        topic_alias: None,
        payload,
        properties: None,
        message_expiry_secs: None,
        subscription_identifiers: &[],
    }
}

fn limited(bytes: u32) -> Encoder {
    Encoder::new(Version::V5, NonZeroU32::new(bytes))
}

fn payload_of(packet: Option<Packet>) -> Bytes {
    match packet {
        Some(Packet::Publish(publish)) => publish.payload,
        other => panic!("{other:?} is no PUBLISH"),
    }
}

#[test]
fn a_packet_too_large_is_refused_by_its_header_and_nothing_is_reserved() {
    let limits = DecodeLimits { connect_bytes_max: 100, packet_bytes_max: 1_000 };
    let mut codec = Codec::new(limits);
    let mut input = BytesMut::from(&b"\x10\xff\xff\xff\x7f"[..]);
    let capacity = input.capacity();

    let refused = codec.decode(&mut input);

    assert_eq!(refused, Err(DecodeError::TooLarge { bytes: 268_435_460, max: 100 }));
    assert_eq!(input.capacity(), capacity);
    assert_eq!(codec.farewell(&refused.unwrap_err()), None);
}

#[test]
fn the_limit_grows_with_connect_and_counts_the_header() {
    let limits = DecodeLimits { connect_bytes_max: 15, packet_bytes_max: 200 };
    let mut codec = Codec::new(limits);
    assert_eq!(
        Codec::new(limits).decode(&mut BytesMut::from(&b"\x10\x0e"[..])),
        Err(DecodeError::TooLarge { bytes: 16, max: 15 })
    );
    codec.decode(&mut BytesMut::from(CONNECT_3_1_1)).unwrap().unwrap();

    let fits = codec.decode(&mut BytesMut::from(&publish_bytes(200 - 6)[..]));
    let too_large = codec.decode(&mut BytesMut::from(&publish_bytes(200 - 5)[..]));

    assert_eq!(payload_of(fits.unwrap()).len(), 194);
    assert_eq!(too_large, Err(DecodeError::TooLarge { bytes: 201, max: 200 }));
}

#[test]
fn a_packet_that_is_announced_reserves_nothing() {
    let mut codec = connected(Version::V3_1_1);
    let mut input = BytesMut::with_capacity(64);
    input.extend_from_slice(&publish_bytes(100_000)[..20]);

    assert_eq!(codec.decode(&mut input), Ok(None));

    assert_eq!((input.len(), input.capacity()), (20, 64));
    assert_eq!(Codec::packet_bytes(&input), Some(100_007));
}

#[test]
fn a_small_message_that_is_kept_does_not_keep_the_read_buffer() {
    let mut codec = connected(Version::V3_1_1);
    let mut input = BytesMut::with_capacity(READ_BUFFER_BYTES);
    input.extend_from_slice(&publish_bytes(SHARED_PAYLOAD_BYTES_MIN - 1));

    let kept = codec.decode(&mut input).unwrap();

    assert!(input.try_reclaim(READ_BUFFER_BYTES));
    drop(kept);
}

#[test]
fn a_large_payload_is_a_slice_of_the_read_buffer() {
    let mut codec = connected(Version::V3_1_1);
    let mut input = BytesMut::with_capacity(READ_BUFFER_BYTES);
    input.extend_from_slice(&publish_bytes(SHARED_PAYLOAD_BYTES_MIN));

    let kept = payload_of(codec.decode(&mut input).unwrap());

    assert!(!input.try_reclaim(READ_BUFFER_BYTES));
    assert_eq!(kept.len(), SHARED_PAYLOAD_BYTES_MIN);
    drop(kept);
    assert!(input.try_reclaim(READ_BUFFER_BYTES));
}

#[test]
fn codec_and_encoder_are_small() {
    assert!(size_of::<Codec>() <= 16);
    assert!(size_of::<Encoder>() <= 8);
}

#[test]
fn the_encoder_of_a_codec_honours_the_maximum_packet_size_of_connect() {
    let mut codec = Codec::new(super::LIMITS);
    let connect = b"\x10\x13\0\x04MQTT\x05\x02\0\x3c\x05\x27\0\0\0\x0a\0\x01c";
    codec.decode(&mut BytesMut::from(&connect[..])).unwrap().unwrap();

    assert_eq!(codec.encoder(), limited(10));
}

#[test]
fn a_publish_is_written_up_to_the_client_s_maximum_and_not_beyond() {
    let mut out = BytesMut::from(&b"before"[..]);

    limited(10).encode_publish(&parts("t", b"12345"), &mut out).unwrap_err();
    assert_eq!(out, &b"before"[..]);
    let refused = limited(10).encode_publish_head(&parts("t", b"12345"), &mut out);
    assert_eq!(refused, Err(EncodeError::TooLarge { bytes: 11, max: 10 }));
    assert_eq!(out, &b"before"[..]);

    limited(10).encode_publish(&parts("t", b"1234"), &mut out).unwrap();
    assert_eq!(out, &b"before\x30\x08\0\x01t\x001234"[..]);
}

#[test]
fn reason_strings_give_way_to_the_client_s_maximum() {
    let text = Some("x".repeat(100).into());
    let ack = Ack {
        reason_string: text.clone(),
        ..Ack::new(AckKind::PubAck, PacketId::MIN, ReasonCode::QUOTA_EXCEEDED)
    };
    let connack = ConnAck {
        session_present: false,
        reason: ReasonCode::NOT_AUTHORIZED,
        properties: ConnAckProperties { reason_string: text.clone(), ..ConnAckProperties::default() },
    };
    let disconnect = Disconnect { reason_string: text, ..Disconnect::new(ReasonCode::SERVER_BUSY) };
    let written = |packet, max| {
        let mut out = BytesMut::new();
        limited(max).encode(&packet, &mut out).map(|()| out.to_vec())
    };

    assert_eq!(written(Packet::Ack(ack.clone()), 108).unwrap(), b"\x40\x03\0\x01\x97");
    assert_eq!(written(Packet::Ack(ack), 109).unwrap().len(), 109);
    assert_eq!(written(Packet::ConnAck(Box::new(connack)), 100).unwrap(), b"\x20\x03\0\x87\0");
    assert_eq!(written(Packet::Disconnect(disconnect.clone()), 100).unwrap(), b"\xe0\x02\x89\0");
    assert_eq!(written(Packet::Disconnect(disconnect), 1), Err(EncodeError::TooLarge { bytes: 107, max: 1 }));
}

#[test]
fn a_client_that_wants_no_problem_information_gets_no_reason_string() {
    let mut codec = Codec::new(super::LIMITS);
    let connect = b"\x10\x10\0\x04MQTT\x05\x02\0\x3c\x02\x17\0\0\x01c";
    codec.decode(&mut BytesMut::from(&connect[..])).unwrap().unwrap();
    let ack = |reason| Ack {
        reason_string: Some("why".into()),
        ..Ack::new(AckKind::PubAck, PacketId::MIN, reason)
    };
    let mut out = BytesMut::new();

    codec.encode(&Packet::Ack(ack(ReasonCode::QUOTA_EXCEEDED)), &mut out).unwrap();
    codec.encode(&Packet::Ack(ack(ReasonCode::SUCCESS)), &mut out).unwrap();

    assert_eq!(out, &b"\x40\x03\0\x01\x97\x40\x02\0\x01"[..]);
}

#[test]
fn the_words_of_a_suback_give_way_to_the_client_s_maximum_and_to_its_wish() {
    let reasons = vec![ReasonCode::SUCCESS, ReasonCode::QUOTA_EXCEEDED];
    let ack = Packet::SubAck(SubAck { packet_id: PacketId::MIN, reasons });
    let mut codec = Codec::new(super::LIMITS);
    let connect = b"\x10\x10\0\x04MQTT\x05\x02\0\x3c\x02\x17\0\0\x01c";
    codec.decode(&mut BytesMut::from(&connect[..])).unwrap().unwrap();

    for encoder in [limited(20), codec.encoder()] {
        let mut out = BytesMut::new();
        encoder.encode(&ack, &mut out).unwrap();
        assert_eq!(out, &b"\x90\x05\0\x01\0\0\x97"[..]);
    }
    let mut out = BytesMut::new();
    limited(200).encode(&ack, &mut out).unwrap();
    assert!(out.len() > 20);
}

#[test]
fn a_suback_beyond_the_client_s_maximum_is_not_written() {
    let ack = Packet::SubAck(SubAck { packet_id: PacketId::MIN, reasons: vec![ReasonCode::SUCCESS; 10] });
    let mut out = BytesMut::new();

    assert_eq!(limited(14).encode(&ack, &mut out), Err(EncodeError::TooLarge { bytes: 15, max: 14 }));
    assert!(out.is_empty());
    assert_eq!(limited(15).encode(&ack, &mut out), Ok(()));
    assert_eq!(out.len(), 15);
}

#[test]
fn parts_that_contradict_themselves_are_not_written() {
    let mut out = BytesMut::new();
    let encoder = Encoder::new(Version::V5, None);
    let long_topic = "t".repeat(65_536);
    let wrong = [
        PublishParts { packet_id: Some(PacketId::MIN), ..parts("t", b"") },
        PublishParts { qos: QoS::AtLeastOnce, ..parts("t", b"") },
        parts("", b""),
        PublishParts { subscription_identifiers: &[0], ..parts("t", b"") },
        PublishParts { subscription_identifiers: &[268_435_456], ..parts("t", b"") },
        parts(&long_topic, b""),
    ];

    for parts in wrong {
        let refused = encoder.encode_publish(&parts, &mut out);
        assert!(matches!(refused, Err(EncodeError::Unrepresentable(_))), "{parts:?}");
    }
    assert!(out.is_empty());
}

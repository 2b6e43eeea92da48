//! What the broker says, byte for byte.

use bytes::BytesMut;
use std::num::NonZeroU16;
use tidemill_codec::{EncodeError, Encoder};
use tidemill_core::packet::{
    Ack, AckKind, ConnAck, ConnAckProperties, Disconnect, Packet, PacketId, PublishPacket, PublishProperties,
    QoS, ReasonCode, SubAck, UnsubAck, Version,
};

fn written(version: Version, packet: &Packet) -> Vec<u8> {
    let mut out = BytesMut::new();
    Encoder::new(version, None).encode(packet, &mut out).unwrap();
    out.to_vec()
}

fn connack(session_present: bool, reason: ReasonCode) -> Packet {
    Packet::ConnAck(Box::new(ConnAck { session_present, reason, properties: ConnAckProperties::default() }))
}

fn id(number: u16) -> PacketId {
    PacketId::new(number).unwrap()
}

#[test]
fn connack_of_3_x_has_a_return_code() {
    let cases = [
        (ReasonCode::SUCCESS, 0),
        (ReasonCode::UNSUPPORTED_PROTOCOL_VERSION, 1),
        (ReasonCode::CLIENT_IDENTIFIER_NOT_VALID, 2),
        (ReasonCode::SERVER_UNAVAILABLE, 3),
        (ReasonCode::SERVER_BUSY, 3),
        (ReasonCode::QUOTA_EXCEEDED, 3),
        (ReasonCode::BAD_USER_NAME_OR_PASSWORD, 4),
        (ReasonCode::NOT_AUTHORIZED, 5),
        (ReasonCode::BANNED, 5),
    ];

    for (reason, return_code) in cases {
        let bytes = written(Version::V3_1_1, &connack(false, reason));
        assert_eq!(bytes, [0x20, 2, 0, return_code], "{reason}");
    }
    assert_eq!(written(Version::V3_1_1, &connack(true, ReasonCode::SUCCESS)), [0x20, 2, 1, 0]);
    assert_eq!(written(Version::V3_1, &connack(true, ReasonCode::SUCCESS)), [0x20, 2, 0, 0]);
}

#[test]
fn connack_of_5_0_has_a_reason_code_and_properties() {
    let properties = ConnAckProperties {
        session_expiry_secs: Some(60),
        receive_maximum: NonZeroU16::new(100),
        maximum_qos: Some(QoS::AtLeastOnce),
        retain_available: Some(false),
        maximum_packet_bytes: Some(1_048_576),
        assigned_client_id: Some("id".into()),
        topic_alias_maximum: 16,
        reason_string: Some("why".into()),
        wildcard_subscription_available: Some(false),
        subscription_identifiers_available: Some(false),
        shared_subscription_available: Some(false),
        server_keep_alive_secs: Some(30),
        response_information: Some("answers".into()),
    };
    let full =
        Packet::ConnAck(Box::new(ConnAck { session_present: true, reason: ReasonCode::SUCCESS, properties }));

    assert_eq!(written(Version::V5, &connack(true, ReasonCode::SUCCESS)), b"\x20\x03\x01\0\0");
    assert_eq!(written(Version::V5, &connack(false, ReasonCode::BANNED)), b"\x20\x03\0\x8a\0");
    let expected: &[u8] =
        b"\x20\x35\x01\0\x32\x11\0\0\0\x3c\x21\0\x64\x24\x01\x25\0\x27\0\x10\0\0\x12\0\x02id\
        \x22\0\x10\x28\0\x29\0\x2a\0\x13\0\x1e\x1a\0\x07answers\x1f\0\x03why";
    assert_eq!(written(Version::V5, &full), expected);
    assert_eq!(written(Version::V3_1_1, &full), b"\x20\x02\x01\0");
}

#[test]
fn a_reason_that_5_0_does_not_list_for_a_packet_is_written_as_unspecified() {
    assert_eq!(written(Version::V5, &connack(false, ReasonCode::SERVER_SHUTTING_DOWN)), b"\x20\x03\0\x80\0");
    let banned = Packet::Disconnect(Disconnect::new(ReasonCode::BANNED));
    assert_eq!(written(Version::V5, &banned), b"\xe0\x02\x80\0");
}

#[test]
fn suback_failures_are_0x80_in_3_x() {
    let reasons = vec![
        ReasonCode::SUCCESS,
        ReasonCode::GRANTED_QOS_1,
        ReasonCode::GRANTED_QOS_2,
        ReasonCode::TOPIC_FILTER_INVALID,
    ];
    let ack = Packet::SubAck(SubAck { packet_id: id(10), reasons });

    assert_eq!(written(Version::V3_1_1, &ack), b"\x90\x06\0\x0a\0\x01\x02\x80");
    let words = "the filter has more than 128 levels";
    let expected = [&b"\x90\x2d\0\x0a\x26\x1f\0\x23"[..], words.as_bytes(), b"\0\x01\x02\x8f"].concat();
    assert_eq!(written(Version::V5, &ack), expected);
}

#[test]
fn unsuback_has_codes_in_5_0_only() {
    let reasons = vec![ReasonCode::SUCCESS, ReasonCode::NO_SUBSCRIPTION_EXISTED];
    let ack = Packet::UnsubAck(UnsubAck { packet_id: id(10), reasons });

    assert_eq!(written(Version::V3_1, &ack), b"\xb0\x02\0\x0a");
    assert_eq!(written(Version::V5, &ack), b"\xb0\x05\0\x0a\0\0\x11");
}

#[test]
fn acknowledgements_are_as_short_as_they_can_be() {
    let ack = |kind, reason| Packet::Ack(Ack::new(kind, id(10), reason));
    let worded = Packet::Ack(Ack {
        reason_string: Some("why".into()),
        ..Ack::new(AckKind::PubAck, id(10), ReasonCode::QUOTA_EXCEEDED)
    });

    for version in [Version::V3_1, Version::V3_1_1, Version::V5] {
        assert_eq!(written(version, &ack(AckKind::PubAck, ReasonCode::SUCCESS)), b"\x40\x02\0\x0a");
        assert_eq!(written(version, &ack(AckKind::PubRec, ReasonCode::SUCCESS)), b"\x50\x02\0\x0a");
        assert_eq!(written(version, &ack(AckKind::PubRel, ReasonCode::SUCCESS)), b"\x62\x02\0\x0a");
        assert_eq!(written(version, &ack(AckKind::PubComp, ReasonCode::SUCCESS)), b"\x70\x02\0\x0a");
    }
    assert_eq!(
        written(Version::V5, &ack(AckKind::PubAck, ReasonCode::NO_MATCHING_SUBSCRIBERS)),
        b"\x40\x03\0\x0a\x10"
    );
    assert_eq!(written(Version::V5, &worded), b"\x40\x0a\0\x0a\x97\x06\x1f\0\x03why");
    assert_eq!(written(Version::V3_1_1, &worded), b"\x40\x02\0\x0a");
}

#[test]
fn properties_of_a_message_stay_behind_in_3_x_and_are_unaltered_in_5_0() {
    let publish = Packet::Publish(PublishPacket {
        dup: false,
        retain: true,
        qos: QoS::AtLeastOnce,
        packet_id: Some(id(10)),
        topic: "t".into(),
        topic_alias: None,
        payload: b"m".as_slice().into(),
        properties: Some(Box::new(PublishProperties {
            payload_is_utf8: Some(false),
            message_expiry_secs: Some(0),
            content_type: Some("c".into()),
            response_topic: Some("r".into()),
            correlation_data: Some(b"d".as_slice().into()),
            subscription_identifiers: vec![1, 128],
            user_properties: vec![("a".into(), "b".into()), ("a".into(), "c".into())],
        })),
    });

    assert_eq!(written(Version::V3_1_1, &publish), b"\x33\x06\0\x01t\0\x0am");
    let expected: &[u8] =
        b"\x33\x2d\0\x01t\0\x0a\x26\x09\0\x01d\x02\0\0\0\0\x03\0\x01c\x01\0\x08\0\x01r\x0b\x01\x0b\
        \x80\x01\x26\0\x01a\0\x01b\x26\0\x01a\0\x01cm";
    assert_eq!(written(Version::V5, &publish), expected);
}

#[test]
fn disconnect_says_where_to_go() {
    let moved = Packet::Disconnect(Disconnect {
        server_reference: Some("other".into()),
        ..Disconnect::new(ReasonCode::USE_ANOTHER_SERVER)
    });

    assert_eq!(written(Version::V5, &moved), b"\xe0\x0a\x9c\x08\x1c\0\x05other");
}

#[test]
fn pingresp_is_the_same_in_all_versions() {
    for version in [Version::V3_1, Version::V3_1_1, Version::V5] {
        assert_eq!(written(version, &Packet::PingResp), b"\xd0\0");
    }
}

#[test]
fn auth_does_not_exist_in_3_x() {
    let mut out = BytesMut::new();
    let auth = Packet::Auth(ReasonCode::CONTINUE_AUTHENTICATION);

    assert_eq!(written(Version::V5, &auth), b"\xf0\x02\x18\0");
    let refused = Encoder::new(Version::V3_1_1, None).encode(&auth, &mut out);
    assert!(matches!(refused, Err(EncodeError::Unrepresentable(_))));
    assert!(out.is_empty());
}

//! Another codec reads what this one writes: `mqtt-protocol-core`, which shares no code with ours or with `rmqtt-codec`.
//!
//! It keeps every field in the order of the wire, so that what it writes again must be the same bytes.

use super::generate::{client_packet, connect, user_properties};
use bytes::BytesMut;
use mqtt_protocol_core::mqtt::packet::{v3_1_1, v5_0};
use mqtt_protocol_core::mqtt::result_code::MqttError;
use proptest::prelude::*;
use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;
use tidemill_codec::Encoder;
use tidemill_core::packet::{
    ConnAck, ConnAckProperties, Disconnect, Packet, PublishPacket, QoS, ReasonCode, SubAck, UnsubAck, Version,
};

/// The other codec's packet as bytes again, and how much of the body it took.
type Reread = Result<(Vec<u8>, usize), MqttError>;

macro_rules! reread {
    ($packet:path, $($argument:expr),+) => {
        <$packet>::parse($($argument),+).map(|(packet, taken)| (packet.to_continuous_buffer(), taken))
    };
}

/// Reads one packet of 3.1.1 or 5.0; `body` is what is behind its length.
fn reread(version: Version, first_byte: u8, body: &[u8]) -> Reread {
    if version.is_v5() { reread_v5(first_byte, body) } else { reread_v3(first_byte, body) }
}

fn reread_v3(first_byte: u8, body: &[u8]) -> Reread {
    match first_byte >> 4 {
        1 => reread!(v3_1_1::Connect, body),
        2 => reread!(v3_1_1::Connack, body),
        3 => reread!(v3_1_1::Publish, first_byte & 0xF, Arc::from(body)),
        4 => reread!(v3_1_1::Puback, body),
        5 => reread!(v3_1_1::Pubrec, body),
        6 => reread!(v3_1_1::Pubrel, body),
        7 => reread!(v3_1_1::Pubcomp, body),
        8 => reread!(v3_1_1::Subscribe, body),
        9 => reread!(v3_1_1::Suback, body),
        10 => reread!(v3_1_1::Unsubscribe, body),
        11 => reread!(v3_1_1::Unsuback, body),
        12 => reread!(v3_1_1::Pingreq, body),
        13 => reread!(v3_1_1::Pingresp, body),
        14 => reread!(v3_1_1::Disconnect, body),
        _ => Err(MqttError::MalformedPacket),
    }
}

fn reread_v5(first_byte: u8, body: &[u8]) -> Reread {
    match first_byte >> 4 {
        1 => reread!(v5_0::Connect, body),
        2 => reread!(v5_0::Connack, body),
        3 => reread!(v5_0::Publish, first_byte & 0xF, Arc::from(body)),
        4 => reread!(v5_0::Puback, body),
        5 => reread!(v5_0::Pubrec, body),
        6 => reread!(v5_0::Pubrel, body),
        7 => reread!(v5_0::Pubcomp, body),
        8 => reread!(v5_0::Subscribe, body),
        9 => reread!(v5_0::Suback, body),
        10 => reread!(v5_0::Unsubscribe, body),
        11 => reread!(v5_0::Unsuback, body),
        12 => reread!(v5_0::Pingreq, body),
        13 => reread!(v5_0::Pingresp, body),
        14 => reread!(v5_0::Disconnect, body),
        15 => reread!(v5_0::Auth, body),
        _ => Err(MqttError::MalformedPacket),
    }
}

/// What the other codec refuses for another reason than a fault of ours.
fn is_beyond_it(packet: &Packet) -> bool {
    match packet {
        // An AUTH needs a method; ours has none, because the broker offers none and never sends one.
        Packet::Auth(_) => true,
        // MQTT 5.0 section 3.1.2.9: a password needs no user name.
        Packet::Connect(connect) => connect.password.is_some() && connect.user_name.is_none(),
        _ => false,
    }
}

/// Writes `packet` and has the other codec read it. It speaks no 3.1.
fn check(version: Version, packet: &Packet) -> Result<(), TestCaseError> {
    if version == Version::V3_1 || is_beyond_it(packet) {
        return Ok(());
    }
    let mut bytes = BytesMut::new();
    Encoder::new(version, None).encode(packet, &mut bytes).unwrap();
    let header = 1 + bytes[1..].iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;

    let again = reread(version, bytes[0], &bytes[header..]);

    let (again, taken) =
        again.map_err(|error| TestCaseError::fail(format!("{error:?} from {bytes:02x?}")))?;
    prop_assert_eq!(taken, bytes.len() - header, "it left a rest");
    prop_assert_eq!(again, bytes);
    Ok(())
}

fn to_client(publish: PublishPacket, identifiers: Vec<u32>) -> Packet {
    let properties = publish.properties.map(|mut properties| {
        properties.subscription_identifiers = identifiers;
        properties
    });
    Packet::Publish(PublishPacket { properties, ..publish })
}

fn connack() -> impl Strategy<Value = Packet> {
    let reasons = prop_oneof![
        Just(ReasonCode::SUCCESS),
        Just(ReasonCode::NOT_AUTHORIZED),
        Just(ReasonCode::SERVER_BUSY),
        Just(ReasonCode::BAD_AUTHENTICATION_METHOD)
    ];
    (any::<[bool; 4]>(), reasons, any::<[u16; 3]>(), any::<u32>(), "[^\0]{0,20}").prop_map(
        |(flags, reason, [maximum, aliases, keep_alive], bytes, text)| {
            let only = |is_there: bool| is_there.then_some(false);
            let properties = ConnAckProperties {
                session_expiry_secs: flags[0].then_some(bytes),
                receive_maximum: NonZeroU16::new(maximum),
                maximum_qos: flags[1].then_some(QoS::AtLeastOnce),
                retain_available: only(flags[2]),
                maximum_packet_bytes: NonZeroU32::new(bytes).map(NonZeroU32::get),
                assigned_client_id: flags[3].then(|| text.as_str().into()),
                topic_alias_maximum: aliases,
                reason_string: flags[0].then(|| text.as_str().into()),
                wildcard_subscription_available: only(flags[1]),
                subscription_identifiers_available: only(flags[2]),
                shared_subscription_available: only(flags[3]),
                server_keep_alive_secs: flags[0].then_some(keep_alive),
                response_information: flags[1].then(|| text.as_str().into()),
            };
            let session_present = flags[1] && reason == ReasonCode::SUCCESS;
            Packet::ConnAck(Box::new(ConnAck { session_present, reason, properties }))
        },
    )
}

proptest! {
    #[test]
    fn another_codec_reads_every_packet_of_a_client_as_it_was_meant(
        (version, packet) in super::generate::version()
            .prop_flat_map(|version| (Just(version), client_packet(version)))
    ) {
        check(version, &packet)?;
    }

    #[test]
    fn another_codec_reads_every_connect_as_it_was_meant(connect in connect()) {
        check(connect.version, &Packet::Connect(Box::new(connect)))?;
    }

    #[test]
    fn another_codec_reads_what_the_broker_says(
        publish in super::generate::publish(Version::V5),
        identifiers in prop::collection::vec(1..=268_435_455_u32, 0..4),
        connack in connack(),
        user_properties in user_properties(),
        text in "[^\0]{0,20}",
        granted in prop::collection::vec(prop_oneof![0..3_u8, Just(0x80_u8)], 1..5),
        id in super::generate::packet_id(),
    ) {
        let reasons: Vec<_> = granted.into_iter().map(ReasonCode).collect();
        let gone = [ReasonCode::SUCCESS, ReasonCode::NO_SUBSCRIPTION_EXISTED, ReasonCode::NOT_AUTHORIZED];
        let disconnect = Disconnect {
            reason_string: Some(text.as_str().into()),
            server_reference: Some(text.as_str().into()),
            user_properties,
            ..Disconnect::new(ReasonCode::SERVER_SHUTTING_DOWN)
        };
        for version in [Version::V3_1_1, Version::V5] {
            check(version, &connack)?;
            check(version, &Packet::SubAck(SubAck { packet_id: id, reasons: reasons.clone() }))?;
            check(version, &Packet::UnsubAck(UnsubAck { packet_id: id, reasons: gone.to_vec() }))?;
            check(version, &Packet::PingResp)?;
        }
        check(Version::V5, &to_client(publish, identifiers))?;
        check(Version::V5, &Packet::Disconnect(disconnect))?;
    }
}

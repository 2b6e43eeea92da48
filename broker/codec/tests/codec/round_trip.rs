//! What is written is what is read.

use super::generate::{ack, client_packet, connect, publish, version};
use super::{LIMITS, connected};
use bytes::BytesMut;
use proptest::prelude::*;
use rmqtt_codec::{types, v3, v5};
use std::num::NonZeroU32;
use tidemill_codec::{Codec, Encoder, PublishParts};
use tidemill_core::packet::{Ack, AckKind, Packet, PublishPacket, QoS, Version};
use tokio_util::codec::{Decoder as _, Encoder as _};

fn written(version: Version, packet: &Packet) -> BytesMut {
    let mut out = BytesMut::new();
    Encoder::new(version, None).encode(packet, &mut out).unwrap();
    out
}

fn quality(qos: QoS) -> types::QoS {
    types::QoS::try_from(qos as u8).unwrap()
}

/// What `rmqtt-codec` writes for `publish`; `None` for a value that it cannot hold.
fn written_by_rmqtt(version: Version, publish: &PublishPacket) -> Option<BytesMut> {
    let message = publish.properties.as_deref().cloned().unwrap_or_default();
    if message.payload_is_utf8 == Some(false) {
        return None;
    }
    let properties = v5::PublishProperties {
        topic_alias: publish.topic_alias,
        correlation_data: message.correlation_data,
        message_expiry_interval: message.message_expiry_secs.map(|secs| NonZeroU32::new(secs).unwrap()),
        content_type: message.content_type,
        user_properties: message.user_properties,
        is_utf8_payload: message.payload_is_utf8.unwrap_or(false),
        response_topic: message.response_topic,
        subscription_ids: message
            .subscription_identifiers
            .iter()
            .map(|identifier| NonZeroU32::new(*identifier).unwrap())
            .collect(),
    };
    let inner = Box::new(types::Publish {
        dup: publish.dup,
        retain: publish.retain,
        qos: quality(publish.qos),
        topic: publish.topic.clone(),
        packet_id: publish.packet_id.map(|packet_id| packet_id.0),
        payload: publish.payload.clone(),
        properties: version.is_v5().then_some(properties),
    });
    let mut out = BytesMut::new();
    if version.is_v5() {
        v5::Codec::default().encode(v5::Packet::Publish(inner), &mut out).unwrap();
    } else {
        v3::Codec::default().encode(v3::Packet::Publish(inner), &mut out).unwrap();
    }
    Some(out)
}

/// What `rmqtt-codec` reads from `bytes`.
fn ack_read_by_rmqtt(bytes: &mut BytesMut) -> (AckKind, u16, u8, Option<String>) {
    let (packet, _) = v5::Codec::default().decode(bytes).unwrap().unwrap();
    let first = |kind, ack: v5::PublishAck| {
        (kind, ack.packet_id.get(), u8::from(ack.reason_code), ack.reason_string.map(|text| text.to_string()))
    };
    let second = |kind, ack: v5::PublishAck2| {
        (kind, ack.packet_id.get(), u8::from(ack.reason_code), ack.reason_string.map(|text| text.to_string()))
    };
    match packet {
        v5::Packet::PublishAck(ack) => first(AckKind::PubAck, ack),
        v5::Packet::PublishReceived(ack) => first(AckKind::PubRec, ack),
        v5::Packet::PublishRelease(ack) => second(AckKind::PubRel, ack),
        v5::Packet::PublishComplete(ack) => second(AckKind::PubComp, ack),
        other => panic!("{other:?} is no acknowledgement"),
    }
}

fn packet_with_version() -> impl Strategy<Value = (Version, Packet)> {
    version().prop_flat_map(|version| (Just(version), client_packet(version)))
}

fn publish_with_version() -> impl Strategy<Value = (Version, PublishPacket)> {
    version().prop_flat_map(|version| (Just(version), publish(version)))
}

proptest! {
    #[test]
    fn every_packet_is_read_as_it_was_written((version, packet) in packet_with_version()) {
        let mut bytes = written(version, &packet);
        let len = Encoder::new(version, None).encoded_len(&packet).unwrap();
        prop_assert_eq!(len, bytes.len());
        prop_assert_eq!(Codec::packet_bytes(&bytes), Some(len));

        let read = connected(version).decode(&mut bytes).unwrap();

        prop_assert_eq!(read, Some(packet));
        prop_assert!(bytes.is_empty());
    }

    #[test]
    fn every_connect_is_read_as_it_was_written(connect in connect()) {
        let version = connect.version;
        let packet = Packet::Connect(Box::new(connect));
        let mut codec = Codec::new(LIMITS);

        let read = codec.decode(&mut written(version, &packet)).unwrap();

        prop_assert_eq!(read, Some(packet));
        prop_assert_eq!(codec.version(), Some(version));
    }

    #[test]
    fn packets_may_be_cut_anywhere(
        packets in version().prop_flat_map(|version| {
            (Just(version), prop::collection::vec(client_packet(version), 1..6))
        }),
        cuts in prop::collection::vec(1_usize..50, 1..40),
    ) {
        let (version, packets) = packets;
        let stream: Vec<u8> = packets.iter().flat_map(|packet| written(version, packet)).collect();
        let mut codec = connected(version);
        let mut input = BytesMut::new();
        let mut read = Vec::new();
        let mut rest = stream.as_slice();
        let mut cuts = cuts.iter().cycle();

        while !rest.is_empty() {
            let (now, later) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
            rest = later;
            input.extend_from_slice(now);
            while let Some(packet) = codec.decode(&mut input).unwrap() {
                read.push(packet);
            }
        }

        prop_assert_eq!(read, packets);
    }

    #[test]
    fn a_publish_is_written_byte_for_byte_as_rmqtt_codec_writes_it(
        (version, mut publish) in publish_with_version(),
        identifiers in prop::collection::vec(1..=268_435_455_u32, 0..4),
    ) {
        if let Some(properties) = &mut publish.properties {
            properties.subscription_identifiers = identifiers;
            // `rmqtt-codec` has no expiry of 0.
            properties.message_expiry_secs = properties.message_expiry_secs.filter(|secs| *secs > 0);
        }
        if let Some(expected) = written_by_rmqtt(version, &publish) {
            prop_assert_eq!(written(version, &Packet::Publish(publish)), expected);
        }
    }

    #[test]
    fn a_publish_is_the_same_in_one_piece_and_as_head_and_payload((version, publish) in publish_with_version()) {
        let encoder = Encoder::new(version, None);
        let parts = PublishParts::from(&publish);
        let (mut whole, mut pieces) = (BytesMut::new(), BytesMut::from(&b"before"[..]));

        encoder.encode_publish(&parts, &mut whole).unwrap();
        encoder.encode_publish_head(&parts, &mut pieces).unwrap();
        pieces.extend_from_slice(&publish.payload);

        prop_assert_eq!(&pieces[6..], &whole[..]);
        prop_assert_eq!(encoder.publish_len(&parts).unwrap(), whole.len());
    }

    #[test]
    fn rmqtt_codec_reads_our_acknowledgements(ack in ack(Version::V5)) {
        let Ack { kind, packet_id, reason, reason_string } = ack.clone();
        let mut bytes = written(Version::V5, &Packet::Ack(ack));

        let read = ack_read_by_rmqtt(&mut bytes);

        prop_assert_eq!(read, (kind, packet_id.get(), reason.0, reason_string.map(|text| text.to_string())));
    }
}

//! 3.1 and 3.1.1 packets through `rmqtt-codec`.

use super::connect::quality;
use super::{check_topic_filter, own, refuse};
use crate::DecodeError;
use crate::wire::{FixedHeader, Reader, kind};
use rmqtt_codec::v3;
use tidemill_core::packet::{
    Disconnect, Packet, PacketId, ReasonCode, RetainHandling, Subscribe, SubscribeEntry, SubscriptionOptions,
    Unsubscribe,
};
use tokio_util::codec::Decoder as _;

/// Decodes DISCONNECT, SUBSCRIBE and UNSUBSCRIBE. Of the acknowledgements only those of a wrong length come here.
pub(super) fn decode(header: FixedHeader, packet: &[u8]) -> Result<Packet, DecodeError> {
    let body = packet.get(header.header_len..).unwrap_or_default();
    match header.kind() {
        kind::DISCONNECT if body.is_empty() => Ok(Packet::Disconnect(Disconnect::new(ReasonCode::SUCCESS))),
        kind::SUBSCRIBE => {
            check_options(body)?;
            translate(packet)
        }
        kind::UNSUBSCRIBE => translate(packet),
        _ => Err(DecodeError::Malformed("length does not fit the packet type")),
    }
}

/// The reserved bits of the requested QoS are 0 (MQTT-3.8.3-4); `rmqtt-codec` does not look at them.
fn check_options(body: &[u8]) -> Result<(), DecodeError> {
    let mut reader = Reader::new(body);
    reader.u16()?;
    while !reader.is_empty() {
        reader.field()?;
        if reader.u8()? > 2 {
            return Err(DecodeError::Malformed("reserved bits of the requested QoS"));
        }
    }
    Ok(())
}

fn translate(packet: &[u8]) -> Result<Packet, DecodeError> {
    match v3::Codec::default().decode(&mut super::frame(packet)).map_err(refuse)? {
        Some((v3::Packet::Subscribe { packet_id, topic_filters }, _)) => {
            let mut entries = Vec::with_capacity(topic_filters.len());
            for (filter, qos) in topic_filters {
                check_topic_filter(&filter)?;
                entries.push(SubscribeEntry { filter: own(&filter), options: options(qos) });
            }
            let packet_id = PacketId(packet_id);
            Ok(Packet::Subscribe(Subscribe {
                packet_id,
                identifier: None,
                entries,
                user_properties: Vec::new(),
            }))
        }
        Some((v3::Packet::Unsubscribe { packet_id, topic_filters }, _)) => {
            for filter in &topic_filters {
                check_topic_filter(filter)?;
            }
            Ok(Packet::Unsubscribe(Unsubscribe {
                packet_id: PacketId(packet_id),
                filters: topic_filters,
                user_properties: Vec::new(),
            }))
        }
        _ => Err(DecodeError::Malformed("length does not fit the packet type")),
    }
}

fn options(qos: v3::QoS) -> SubscriptionOptions {
    SubscriptionOptions {
        qos: quality(qos),
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    }
}

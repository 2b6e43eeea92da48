//! 5.0 packets through `rmqtt-codec`.

use super::connect::quality;
use super::{IsShared, check_texts, check_topic_filter, own, pairs, refuse, skip_properties};
use crate::DecodeError;
use crate::wire::{FixedHeader, Reader, kind, property};
use bytestring::ByteString;
use rmqtt_codec::v5;
use std::num::{NonZeroU16, NonZeroU32};
use tidemill_core::packet::{
    Ack, AckKind, Disconnect, Packet, PacketId, ReasonCode, RetainHandling, Subscribe, SubscribeEntry,
    SubscriptionOptions, Unsubscribe,
};
use tokio_util::codec::Decoder as _;

/// Decodes what is neither CONNECT, PUBLISH, PINGREQ nor a short acknowledgement.
pub(super) fn decode(header: FixedHeader, packet: &[u8]) -> Result<Packet, DecodeError> {
    check_lengths(header.kind(), packet.get(header.header_len..).unwrap_or_default())?;
    let inner = v5::Codec::default().decode(&mut super::frame(packet)).map_err(refuse)?;
    match inner.map(|(inner, _)| inner) {
        Some(v5::Packet::Subscribe(subscribe)) => translate_subscribe(subscribe),
        Some(v5::Packet::Unsubscribe(unsubscribe)) => translate_unsubscribe(unsubscribe),
        Some(v5::Packet::PublishAck(ack)) => translate_ack(AckKind::PubAck, ack),
        Some(v5::Packet::PublishReceived(ack)) => translate_ack(AckKind::PubRec, ack),
        Some(v5::Packet::PublishRelease(ack)) => translate_ack(AckKind::PubRel, ack),
        Some(v5::Packet::PublishComplete(ack)) => translate_ack(AckKind::PubComp, ack),
        Some(v5::Packet::Disconnect(disconnect)) => translate_disconnect(disconnect),
        Some(v5::Packet::Auth(auth)) => translate_auth(auth),
        _ => Err(DecodeError::Malformed("length does not fit the packet type")),
    }
}

/// Lengths and subscription identifiers are in their shortest form (MQTT-1.5.5-1); `rmqtt-codec` takes any.
fn check_lengths(kind: u8, body: &[u8]) -> Result<(), DecodeError> {
    let mut reader = Reader::new(body);
    let before = match kind {
        kind::SUBSCRIBE | kind::UNSUBSCRIBE => 2,
        kind::PUBACK | kind::PUBREC | kind::PUBREL | kind::PUBCOMP => 3,
        _ => 1,
    };
    if reader.take(before).is_err() || reader.is_empty() {
        return Ok(()); // No properties, or too short: `rmqtt-codec` says which.
    }
    if kind != kind::SUBSCRIBE {
        return skip_properties(&mut reader);
    }
    let len = reader.varint()?;
    let mut properties = Reader::new(reader.take(len)?);
    while !properties.is_empty() {
        match properties.u8()? {
            property::SUBSCRIPTION_IDENTIFIER => {
                properties.varint()?;
            }
            property::USER => {
                properties.field()?;
                properties.field()?;
            }
            _ => return Err(DecodeError::Malformed("property not allowed in SUBSCRIBE")),
        }
    }
    Ok(())
}

fn translate_subscribe(subscribe: v5::Subscribe) -> Result<Packet, DecodeError> {
    check_texts(pairs(&subscribe.user_properties))?;
    let mut entries = Vec::with_capacity(subscribe.topic_filters.len());
    for (filter, options) in subscribe.topic_filters {
        if check_topic_filter(&filter)? == IsShared::Yes && options.no_local {
            return Err(DecodeError::Protocol("no local on a shared subscription"));
        }
        entries.push(SubscribeEntry { filter: own(&filter), options: translate_options(options) });
    }
    Ok(Packet::Subscribe(Subscribe {
        packet_id: PacketId(subscribe.packet_id),
        identifier: subscribe.id.map(NonZeroU32::get),
        entries,
        user_properties: subscribe.user_properties,
    }))
}

fn translate_options(options: v5::SubscriptionOptions) -> SubscriptionOptions {
    SubscriptionOptions {
        qos: quality(options.qos),
        no_local: options.no_local,
        retain_as_published: options.retain_as_published,
        retain_handling: match options.retain_handling {
            v5::RetainHandling::AtSubscribe => RetainHandling::Send,
            v5::RetainHandling::AtSubscribeNew => RetainHandling::SendIfNew,
            v5::RetainHandling::NoAtSubscribe => RetainHandling::DoNotSend,
        },
    }
}

fn translate_unsubscribe(unsubscribe: v5::Unsubscribe) -> Result<Packet, DecodeError> {
    check_texts(pairs(&unsubscribe.user_properties))?;
    for filter in &unsubscribe.topic_filters {
        check_topic_filter(filter)?;
    }
    Ok(Packet::Unsubscribe(Unsubscribe {
        packet_id: PacketId(unsubscribe.packet_id),
        filters: unsubscribe.topic_filters,
        user_properties: unsubscribe.user_properties,
    }))
}

/// What the two acknowledgement types of `rmqtt-codec` have in common.
struct AckFields {
    packet_id: NonZeroU16,
    reason: u8,
    properties: Vec<(ByteString, ByteString)>,
    reason_string: Option<ByteString>,
}

impl From<v5::PublishAck> for AckFields {
    fn from(ack: v5::PublishAck) -> Self {
        let v5::PublishAck { packet_id, reason_code, properties, reason_string } = ack;
        Self { packet_id, reason: reason_code.into(), properties, reason_string }
    }
}

impl From<v5::PublishAck2> for AckFields {
    fn from(ack: v5::PublishAck2) -> Self {
        let v5::PublishAck2 { packet_id, reason_code, properties, reason_string } = ack;
        Self { packet_id, reason: reason_code.into(), properties, reason_string }
    }
}

/// User properties of acknowledgements are checked and dropped: the broker passes them to nobody.
fn translate_ack(kind: AckKind, ack: impl Into<AckFields>) -> Result<Packet, DecodeError> {
    let AckFields { packet_id, reason, properties, reason_string } = ack.into();
    check_texts(pairs(&properties))?;
    check_texts(&reason_string)?;
    Ok(Packet::Ack(Ack { kind, packet_id: PacketId(packet_id), reason: ReasonCode(reason), reason_string }))
}

/// The reason codes of a client's DISCONNECT (MQTT 5.0 table 3-10); the others only a broker sends.
fn is_reason_of_client(reason: ReasonCode) -> bool {
    matches!(
        reason,
        ReasonCode::SUCCESS
            | ReasonCode::DISCONNECT_WITH_WILL
            | ReasonCode::UNSPECIFIED_ERROR
            | ReasonCode::MALFORMED_PACKET
            | ReasonCode::PROTOCOL_ERROR
            | ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR
            | ReasonCode::TOPIC_NAME_INVALID
            | ReasonCode::RECEIVE_MAXIMUM_EXCEEDED
            | ReasonCode::TOPIC_ALIAS_INVALID
            | ReasonCode::PACKET_TOO_LARGE
            | ReasonCode::MESSAGE_RATE_TOO_HIGH
            | ReasonCode::QUOTA_EXCEEDED
            | ReasonCode::ADMINISTRATIVE_ACTION
            | ReasonCode::PAYLOAD_FORMAT_INVALID
    )
}

fn translate_disconnect(disconnect: v5::Disconnect) -> Result<Packet, DecodeError> {
    let reason = ReasonCode(disconnect.reason_code.into());
    if !is_reason_of_client(reason) {
        return Err(DecodeError::Protocol("reason code that only a broker sends"));
    }
    check_texts(&disconnect.reason_string)?;
    check_texts(pairs(&disconnect.user_properties))?;
    if disconnect.server_reference.is_some() {
        return Err(DecodeError::Protocol("server reference from a client"));
    }
    Ok(Packet::Disconnect(Disconnect {
        reason,
        session_expiry_secs: disconnect.session_expiry_interval_secs,
        reason_string: disconnect.reason_string,
        server_reference: None,
        user_properties: disconnect.user_properties,
    }))
}

/// Method and data of AUTH are checked and dropped: extended authentication is not served yet.
fn translate_auth(auth: v5::Auth) -> Result<Packet, DecodeError> {
    check_texts(&auth.auth_method)?;
    check_texts(&auth.reason_string)?;
    check_texts(pairs(&auth.user_properties))?;
    if auth.auth_data.is_some() && auth.auth_method.is_none() {
        return Err(DecodeError::Protocol("authentication data without a method"));
    }
    let reason = ReasonCode(auth.reason_code.into());
    if reason == ReasonCode::SUCCESS {
        return Err(DecodeError::Protocol("AUTH that says success, which only a broker says"));
    }
    Ok(Packet::Auth(reason))
}

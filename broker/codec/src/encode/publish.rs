//! PUBLISH to bytes, without anything between.

use super::Encoder;
use crate::EncodeError;
use crate::wire::{VARINT_MAX, property, put_field, put_varint, varint_len};
use bytes::{BufMut, BytesMut};
use std::num::NonZeroU16;
use tidemill_core::packet::{PacketId, PublishPacket, PublishProperties, QoS};

/// What a PUBLISH is made of, borrowed: the message is the same for many receivers, the rest is each one's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishParts<'a> {
    /// Sent before.
    pub dup: bool,
    /// Retain flag.
    pub retain: bool,
    /// Quality of service of this delivery.
    pub qos: QoS,
    /// Present exactly when `qos` > 0.
    pub packet_id: Option<PacketId>,
    /// Topic name; empty only together with an alias that the receiver knows.
    pub topic: &'a str,
    /// 5.0: topic alias.
    pub topic_alias: Option<NonZeroU16>,
    /// The message's body.
    pub payload: &'a [u8],
    /// 5.0: properties of the message. Its expiry and subscription identifiers are ignored: the next two count.
    pub properties: Option<&'a PublishProperties>,
    /// 5.0: seconds the message may still wait.
    pub message_expiry_secs: Option<u32>,
    /// 5.0: identifiers of the receiver's subscriptions that matched, 1 to 268,435,455.
    pub subscription_identifiers: &'a [u32],
}

impl<'a> From<&'a PublishPacket> for PublishParts<'a> {
    fn from(packet: &'a PublishPacket) -> Self {
        let properties = packet.properties.as_deref();
        Self {
            dup: packet.dup,
            retain: packet.retain,
            qos: packet.qos,
            packet_id: packet.packet_id,
            topic: &packet.topic,
            topic_alias: packet.topic_alias,
            payload: &packet.payload,
            properties,
            message_expiry_secs: properties.and_then(|properties| properties.message_expiry_secs),
            subscription_identifiers: properties
                .map_or(&[], |properties| properties.subscription_identifiers.as_slice()),
        }
    }
}

/// Lengths that are written before what they measure.
struct Lengths {
    remaining: usize,
    properties: usize,
}

impl Lengths {
    fn packet(&self) -> usize {
        1 + varint_len(self.remaining) + self.remaining
    }
}

pub(super) fn packet_len(encoder: Encoder, parts: &PublishParts<'_>) -> Result<usize, EncodeError> {
    measure(encoder, parts).map(|lengths| lengths.packet())
}

pub(super) fn encode(
    encoder: Encoder,
    parts: &PublishParts<'_>,
    out: &mut BytesMut,
) -> Result<(), EncodeError> {
    let lengths = measure(encoder, parts)?;
    encoder.check_len(lengths.packet())?;
    out.reserve(lengths.packet());
    put_head(encoder, parts, &lengths, out);
    out.put_slice(parts.payload);
    Ok(())
}

pub(super) fn encode_head(
    encoder: Encoder,
    parts: &PublishParts<'_>,
    out: &mut BytesMut,
) -> Result<(), EncodeError> {
    let lengths = measure(encoder, parts)?;
    encoder.check_len(lengths.packet())?;
    out.reserve(lengths.packet() - parts.payload.len());
    put_head(encoder, parts, &lengths, out);
    Ok(())
}

fn measure(encoder: Encoder, parts: &PublishParts<'_>) -> Result<Lengths, EncodeError> {
    let is_v5 = encoder.version().is_v5();
    if (parts.qos == QoS::AtMostOnce) != parts.packet_id.is_none() {
        return Err(EncodeError::Unrepresentable("packet id with QoS 0, or none with QoS above 0"));
    }
    if parts.topic.is_empty() && !(is_v5 && parts.topic_alias.is_some()) {
        return Err(EncodeError::Unrepresentable("neither topic nor topic alias"));
    }
    let properties = if is_v5 { properties_len(parts)? } else { 0 };
    let id_len = if parts.packet_id.is_some() { 2 } else { 0 };
    let properties_field = if is_v5 { varint_len(properties) + properties } else { 0 };
    let remaining = field_len(parts.topic)? + id_len + properties_field + parts.payload.len();
    if remaining > VARINT_MAX {
        return Err(EncodeError::TooLarge { bytes: remaining, max: VARINT_MAX });
    }
    Ok(Lengths { remaining, properties })
}

fn properties_len(parts: &PublishParts<'_>) -> Result<usize, EncodeError> {
    let mut len = 0;
    len += if parts.topic_alias.is_some() { 3 } else { 0 };
    len += if parts.message_expiry_secs.is_some() { 5 } else { 0 };
    for &identifier in parts.subscription_identifiers {
        let identifier = usize::try_from(identifier).unwrap_or(usize::MAX);
        if !(1..=VARINT_MAX).contains(&identifier) {
            return Err(EncodeError::Unrepresentable("subscription identifier out of range"));
        }
        len += 1 + varint_len(identifier);
    }
    let Some(properties) = parts.properties else { return Ok(len) };
    len += if properties.payload_is_utf8.is_some() { 2 } else { 0 };
    for text in [&properties.content_type, &properties.response_topic].into_iter().flatten() {
        len += 1 + field_len(text)?;
    }
    if let Some(data) = &properties.correlation_data {
        len += 1 + field_len(data)?;
    }
    for (name, value) in &properties.user_properties {
        len += 1 + field_len(name)? + field_len(value)?;
    }
    Ok(len)
}

fn field_len(bytes: impl AsRef<[u8]>) -> Result<usize, EncodeError> {
    let len = bytes.as_ref().len();
    if len > usize::from(u16::MAX) {
        return Err(EncodeError::Unrepresentable("field of more than 65535 bytes"));
    }
    Ok(2 + len)
}

fn put_head(encoder: Encoder, parts: &PublishParts<'_>, lengths: &Lengths, out: &mut BytesMut) {
    let flags = u8::from(parts.dup) << 3 | (parts.qos as u8) << 1 | u8::from(parts.retain);
    out.put_u8(0x30 | flags);
    put_varint(lengths.remaining, out);
    put_field(parts.topic.as_bytes(), out);
    if let Some(packet_id) = parts.packet_id {
        out.put_u16(packet_id.get());
    }
    if encoder.version().is_v5() {
        put_varint(lengths.properties, out);
        put_properties(parts, out);
    }
}

/// The order is that of `rmqtt-codec`, so that both can be compared byte for byte.
fn put_properties(parts: &PublishParts<'_>, out: &mut BytesMut) {
    if let Some(alias) = parts.topic_alias {
        out.put_u8(property::TOPIC_ALIAS);
        out.put_u16(alias.get());
    }
    let message = parts.properties;
    if let Some(data) = message.and_then(|message| message.correlation_data.as_ref()) {
        out.put_u8(property::CORRELATION_DATA);
        put_field(data, out);
    }
    if let Some(secs) = parts.message_expiry_secs {
        out.put_u8(property::MESSAGE_EXPIRY);
        out.put_u32(secs);
    }
    if let Some(text) = message.and_then(|message| message.content_type.as_ref()) {
        out.put_u8(property::CONTENT_TYPE);
        put_field(text.as_bytes(), out);
    }
    if let Some(is_utf8) = message.and_then(|message| message.payload_is_utf8) {
        out.put_slice(&[property::PAYLOAD_FORMAT, u8::from(is_utf8)]);
    }
    if let Some(text) = message.and_then(|message| message.response_topic.as_ref()) {
        out.put_u8(property::RESPONSE_TOPIC);
        put_field(text.as_bytes(), out);
    }
    for &identifier in parts.subscription_identifiers {
        out.put_u8(property::SUBSCRIPTION_IDENTIFIER);
        put_varint(usize::try_from(identifier).unwrap_or(VARINT_MAX), out);
    }
    for (name, value) in message.map_or(&[][..], |message| &message.user_properties) {
        out.put_u8(property::USER);
        put_field(name.as_bytes(), out);
        put_field(value.as_bytes(), out);
    }
}

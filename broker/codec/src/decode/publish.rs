//! PUBLISH from bytes, without anything between.

use crate::DecodeError;
use crate::wire::{Reader, check_text, property};
use bytes::Bytes;
use bytestring::ByteString;
use std::num::NonZeroU16;
use tidemill_core::packet::{PacketId, PublishPacket, PublishProperties, QoS, Version};

/// Checks the flags of the first byte: QoS 3 does not exist, and DUP needs a QoS (MQTT-3.3.1-2, MQTT-3.3.1-4).
pub(super) fn check_flags(flags: u8) -> Result<(), DecodeError> {
    match flags >> 1 {
        0b011 | 0b111 => Err(DecodeError::Malformed("QoS 3")),
        0b100 => Err(DecodeError::Malformed("DUP with QoS 0")),
        _ => Ok(()),
    }
}

/// Decodes a PUBLISH whose first byte was checked. Its payload is given back borrowed, and still empty in the packet.
pub(crate) fn decode(
    version: Version,
    first_byte: u8,
    body: &[u8],
) -> Result<(PublishPacket, &[u8]), DecodeError> {
    let mut reader = Reader::new(body);
    let topic = topic_name(reader.field()?)?;
    let qos = QoS::from_number(first_byte >> 1 & 0b11).ok_or(DecodeError::Malformed("QoS 3"))?;
    let packet_id = match qos {
        QoS::AtMostOnce => None,
        QoS::AtLeastOnce | QoS::ExactlyOnce => {
            Some(PacketId::new(reader.u16()?).ok_or(DecodeError::Malformed("packet id 0"))?)
        }
    };
    let (topic_alias, properties) = if version.is_v5() { properties(&mut reader)? } else { (None, None) };
    if topic.is_empty() && topic_alias.is_none() {
        return Err(if version.is_v5() {
            DecodeError::Protocol("neither topic nor topic alias")
        } else {
            DecodeError::TopicNameInvalid
        });
    }
    let packet = PublishPacket {
        dup: first_byte & 0b1000 != 0,
        retain: first_byte & 0b0001 != 0,
        qos,
        packet_id,
        topic: ByteString::from(topic),
        topic_alias,
        payload: Bytes::new(),
        properties,
    };
    Ok((packet, reader.rest()))
}

/// A topic name, which may still be empty here.
fn topic_name(bytes: &[u8]) -> Result<&str, DecodeError> {
    if has_no_name_byte(bytes) {
        return Err(DecodeError::TopicNameInvalid);
    }
    std::str::from_utf8(bytes).map_err(|_not_utf8| DecodeError::Malformed("string is not UTF-8"))
}

/// Whether it contains what no topic name does. A name may be too deep for this broker: the session answers that.
fn has_no_name_byte(bytes: &[u8]) -> bool {
    bytes.iter().any(|byte| matches!(byte, b'+' | b'#' | 0))
}

type Properties = (Option<NonZeroU16>, Option<Box<PublishProperties>>);

fn properties(reader: &mut Reader<'_>) -> Result<Properties, DecodeError> {
    let len = reader.varint()?;
    let bytes = reader.take(len)?;
    // One copy for all of them: they are kept and dropped together.
    let shared = Bytes::copy_from_slice(bytes);
    let mut reader = Reader::new(&shared);
    let mut alias = None;
    let mut properties = PublishProperties::default();
    while !reader.is_empty() {
        match reader.u8()? {
            property::TOPIC_ALIAS => {
                let number = NonZeroU16::new(reader.u16()?).ok_or(DecodeError::TopicAliasInvalid)?;
                set(&mut alias, number)?;
            }
            property::PAYLOAD_FORMAT => set(&mut properties.payload_is_utf8, boolean(&mut reader)?)?,
            property::MESSAGE_EXPIRY => set(&mut properties.message_expiry_secs, reader.u32()?)?,
            property::CONTENT_TYPE => set(&mut properties.content_type, text(&shared, &mut reader)?)?,
            property::RESPONSE_TOPIC => {
                let topic = text(&shared, &mut reader)?;
                check_response_topic(&topic)?;
                set(&mut properties.response_topic, topic)?;
            }
            property::CORRELATION_DATA => {
                set(&mut properties.correlation_data, shared.slice_ref(reader.field()?))?;
            }
            property::USER => {
                let name = text(&shared, &mut reader)?;
                properties.user_properties.push((name, text(&shared, &mut reader)?));
            }
            property::SUBSCRIPTION_IDENTIFIER => {
                return Err(DecodeError::Protocol("subscription identifier in a client's PUBLISH"));
            }
            _ => return Err(DecodeError::Malformed("property not allowed in PUBLISH")),
        }
    }
    let is_empty = properties == PublishProperties::default();
    Ok((alias, (!is_empty).then(|| Box::new(properties))))
}

/// A response topic is a topic name (MQTT-3.3.2-14).
pub(super) fn check_response_topic(topic: &ByteString) -> Result<(), DecodeError> {
    if topic.is_empty() || has_no_name_byte(topic.as_bytes()) {
        return Err(DecodeError::Protocol("response topic is no topic name"));
    }
    Ok(())
}

fn set<T>(place: &mut Option<T>, value: T) -> Result<(), DecodeError> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(DecodeError::Protocol("property stands twice")),
    }
}

fn boolean(reader: &mut Reader<'_>) -> Result<bool, DecodeError> {
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(DecodeError::Protocol("property is neither 0 nor 1")),
    }
}

fn text(shared: &Bytes, reader: &mut Reader<'_>) -> Result<ByteString, DecodeError> {
    let text = ByteString::try_from(shared.slice_ref(reader.field()?))
        .map_err(|_not_utf8| DecodeError::Malformed("string is not UTF-8"))?;
    check_text(&text)?;
    Ok(text)
}

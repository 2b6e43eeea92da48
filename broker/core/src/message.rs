//! A message on its way from one publisher to its receivers.

use crate::binary::{FormatError, Reader, Writer};
use crate::packet::{PublishProperties, QoS};
use crate::topic::TopicName;
use bytes::Bytes;
use bytestring::ByteString;

/// What a client published, independent of any connection. Share it behind an `Arc`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Where it was published.
    pub topic: TopicName,
    /// Its body.
    pub payload: Bytes,
    /// At which QoS it was published.
    pub qos: QoS,
    /// Whether the publisher asked to retain it.
    pub retain: bool,
    /// Properties passed on unchanged; no subscription identifiers.
    pub properties: Option<Box<PublishProperties>>,
    /// Client id of the publisher.
    pub publisher: ByteString,
    /// When the broker took it, milliseconds since the Unix epoch: for message expiry only, never for order.
    pub publish_time_ms: u64,
}

impl Message {
    /// Bytes of topic, payload and the texts of its properties.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let properties = self.properties.as_ref().map_or(0, |properties| properties.text_bytes());
        self.topic.as_str().len() + self.payload.len() + properties
    }

    /// Bytes it holds in a mailbox or queue: [`Self::bytes`], and the bookkeeping of which a client decides how much there
    /// is. What else a message takes is bounded by the number of messages.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let properties = self.properties.as_ref().map_or(0, |properties| properties.held_bytes());
        self.topic.as_str().len() + self.payload.len() + properties
    }

    /// A copy that shares no memory with the packet it came in, and has none to spare: for a message that is kept.
    #[must_use]
    pub fn to_compact(&self) -> Self {
        let text = |text: &ByteString| ByteString::from(&**text);
        let properties = self.properties.as_deref().map(|properties| {
            let user = properties.user_properties.iter();
            Box::new(PublishProperties {
                payload_is_utf8: properties.payload_is_utf8,
                message_expiry_secs: properties.message_expiry_secs,
                content_type: properties.content_type.as_ref().map(text),
                response_topic: properties.response_topic.as_ref().map(text),
                correlation_data: properties.correlation_data.as_deref().map(Bytes::copy_from_slice),
                subscription_identifiers: properties.subscription_identifiers.clone(),
                user_properties: user.map(|(name, value)| (text(name), text(value))).collect(),
            })
        });
        Self {
            topic: self.topic.to_compact(),
            payload: Bytes::copy_from_slice(&self.payload),
            qos: self.qos,
            retain: self.retain,
            properties,
            // It may be a part of the publisher's CONNECT.
            publisher: text(&self.publisher),
            publish_time_ms: self.publish_time_ms,
        }
    }

    /// Whether its message expiry has passed at `now_ms`. A message without expiry never expires.
    #[must_use]
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.remaining_expiry_secs(now_ms) == Some(0)
    }

    /// When it expires, milliseconds since the Unix epoch; `None` for never.
    #[must_use]
    pub fn expires_ms(&self) -> Option<u64> {
        let expiry_secs = self.properties.as_ref()?.message_expiry_secs?;
        Some(self.publish_time_ms.saturating_add(u64::from(expiry_secs) * 1_000))
    }

    /// What is left of its message expiry at `now_ms`, rounded up; `None` when it has none.
    #[must_use]
    pub fn remaining_expiry_secs(&self, now_ms: u64) -> Option<u32> {
        let expiry_secs = self.properties.as_ref()?.message_expiry_secs?;
        let waited_secs = now_ms.saturating_sub(self.publish_time_ms) / 1_000;
        Some(expiry_secs.saturating_sub(u32::try_from(waited_secs).unwrap_or(u32::MAX)))
    }
}

const PAYLOAD_FORMAT: u8 = 1;
const MESSAGE_EXPIRY: u8 = 2;
const CONTENT_TYPE: u8 = 3;
const RESPONSE_TOPIC: u8 = 4;
const CORRELATION_DATA: u8 = 5;
const USER_PROPERTY: u8 = 6;

/// Writes the properties that travel with a message as tagged fields, in a fixed order, user properties in theirs.
pub(crate) fn write_properties(writer: &mut Writer, properties: &PublishProperties) {
    if let Some(is_utf8) = properties.payload_is_utf8 {
        writer.u8(PAYLOAD_FORMAT);
        writer.u8(u8::from(is_utf8));
    }
    if let Some(secs) = properties.message_expiry_secs {
        writer.u8(MESSAGE_EXPIRY);
        writer.number(secs.into());
    }
    if let Some(text) = &properties.content_type {
        writer.u8(CONTENT_TYPE);
        writer.text(text);
    }
    if let Some(text) = &properties.response_topic {
        writer.u8(RESPONSE_TOPIC);
        writer.text(text);
    }
    if let Some(data) = &properties.correlation_data {
        writer.u8(CORRELATION_DATA);
        writer.bytes(data);
    }
    for (name, value) in &properties.user_properties {
        writer.u8(USER_PROPERTY);
        writer.text(name);
        writer.text(value);
    }
}

/// Reads what [`write_properties`] wrote, to the end of `bytes`.
pub(crate) fn read_properties(bytes: Bytes) -> Result<PublishProperties, FormatError> {
    let mut reader = Reader::new(bytes);
    let mut properties = PublishProperties::default();
    while !reader.is_empty() {
        match reader.u8("property")? {
            PAYLOAD_FORMAT => properties.payload_is_utf8 = Some(reader.u8("payload format")? == 1),
            MESSAGE_EXPIRY => properties.message_expiry_secs = Some(reader.number_u32("message expiry")?),
            CONTENT_TYPE => properties.content_type = Some(reader.text("content type")?),
            RESPONSE_TOPIC => properties.response_topic = Some(reader.text("response topic")?),
            CORRELATION_DATA => properties.correlation_data = Some(reader.bytes("correlation data")?),
            USER_PROPERTY => {
                let name = reader.text("user property")?;
                properties.user_properties.push((name, reader.text("user property")?));
            }
            tag => return Err(FormatError::Unknown { field: "property", value: tag.into() }),
        }
    }
    Ok(properties)
}

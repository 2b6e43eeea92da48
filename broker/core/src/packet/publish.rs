//! PUBLISH.

use super::{PacketId, QoS, UserProperties};
use bytes::Bytes;
use bytestring::ByteString;
use std::num::NonZeroU16;

/// PUBLISH as on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishPacket {
    /// Sent before.
    pub dup: bool,
    /// From a client: retain it. To a client: it was retained.
    pub retain: bool,
    /// Quality of service.
    pub qos: QoS,
    /// Present exactly when `qos` > 0.
    pub packet_id: Option<PacketId>,
    /// Topic name; empty only in 5.0 together with a topic alias. The codec has checked that it is no wildcard.
    pub topic: ByteString,
    /// 5.0: topic alias.
    pub topic_alias: Option<NonZeroU16>,
    /// The message's body.
    pub payload: Bytes,
    /// 5.0 properties that travel with the message, and subscription identifiers.
    pub properties: Option<Box<PublishProperties>>,
}

/// Properties of a message that are passed on unchanged, and those added on delivery.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PublishProperties {
    /// Whether the payload says it is UTF-8.
    pub payload_is_utf8: Option<bool>,
    /// Seconds the message may wait.
    pub message_expiry_secs: Option<u32>,
    /// MIME type or the like.
    pub content_type: Option<ByteString>,
    /// Where an answer goes.
    pub response_topic: Option<ByteString>,
    /// What an answer repeats.
    pub correlation_data: Option<Bytes>,
    /// Broker to client only: the identifiers of the subscriptions that matched, 1 to 268,435,455.
    pub subscription_identifiers: Vec<u32>,
    /// User properties in their order.
    pub user_properties: UserProperties,
}

impl PublishProperties {
    /// Bytes of their texts.
    #[must_use]
    pub fn text_bytes(&self) -> usize {
        let user: usize = self.user_properties.iter().map(|(name, value)| name.len() + value.len()).sum();
        user + self.content_type.as_ref().map_or(0, |text| text.len())
            + self.response_topic.as_ref().map_or(0, |text| text.len())
            + self.correlation_data.as_ref().map_or(0, Bytes::len)
    }

    /// [`Self::text_bytes`], and the bookkeeping of user properties: an empty one takes 5 bytes of a packet and 64 of
    /// memory.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.text_bytes() + size_of_val(&self.user_properties[..])
    }
}

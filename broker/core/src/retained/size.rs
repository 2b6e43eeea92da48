//! What a retained message costs.

use crate::message::Message;
use crate::packet::PublishProperties;
use crate::topic::TopicName;
use bytestring::ByteString;

/// What the allocator adds to a block, on average.
const ALLOCATION_BYTES: usize = 16;

/// The message behind its `Arc`, with the blocks of topic, payload and publisher.
const MESSAGE_BYTES: usize = 2 * size_of::<usize>() + size_of::<Message>() + 3 * ALLOCATION_BYTES;

/// The properties behind their box, with the blocks of its three texts.
const PROPERTIES_BYTES: usize = size_of::<PublishProperties>() + 4 * ALLOCATION_BYTES;

const USER_PROPERTY_BYTES: usize = size_of::<(ByteString, ByteString)>() + 2 * ALLOCATION_BYTES;

/// An entry of the index by expiry; trees of ordered maps are at least half full.
const EXPIRY_BYTES: usize = 2 * size_of::<(u64, TopicName)>();

/// One level below another, without its text.
const LEVEL_BYTES: usize = 2 * (size_of::<Box<str>>() + size_of::<super::node::Node>());

/// What one level of a topic costs that no other retained topic shares.
pub(super) fn level_bytes(level: &str) -> usize {
    LEVEL_BYTES + level.len()
}

/// What the store must know of a message beside its topic.
pub(super) trait MessageSize {
    /// Memory that goes when it goes, without the levels of its topic.
    fn retained_bytes(&self) -> usize;
}

impl MessageSize for Message {
    fn retained_bytes(&self) -> usize {
        let properties = self.properties.as_ref().map_or(0, |properties| {
            PROPERTIES_BYTES + properties.user_properties.len() * USER_PROPERTY_BYTES
        });
        let expiry = if self.expires_ms().is_some() { EXPIRY_BYTES } else { 0 };
        MESSAGE_BYTES + self.bytes() + self.publisher.len() + properties + expiry
    }
}

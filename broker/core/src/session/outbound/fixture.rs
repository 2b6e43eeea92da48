//! Deliveries of the tests, each with a number as its payload.

use super::*;
use crate::topic::TopicName;
use bytes::Bytes;

pub(super) fn window(window: u16) -> NonZeroU16 {
    NonZeroU16::new(window).unwrap()
}

pub(super) fn id(number: u16) -> PacketId {
    PacketId::new(number).unwrap()
}

pub(super) fn outgoing(number: u64, qos: QoS, source: Source) -> OutgoingDelivery {
    let message = Message {
        topic: TopicName::parse("t").unwrap(),
        payload: Bytes::copy_from_slice(&number.to_be_bytes()),
        qos,
        retain: false,
        properties: None,
        publisher: "p".into(),
        publish_time_ms: 0,
    };
    let message = Arc::new(message);
    OutgoingDelivery {
        message,
        qos,
        retain: false,
        identifiers: None,
        source,
        sent_as: None,
        is_repeated: false,
    }
}

pub(super) fn number_of(message: &Message) -> u64 {
    u64::from_be_bytes(message.payload[..].try_into().unwrap())
}

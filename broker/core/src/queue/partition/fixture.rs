//! Subscriptions and records of the tests.

use super::receiver::Receiver;
use super::*;
use crate::attach::SessionNumber;
use crate::member::{Incarnation, Member, MemberId};
use crate::message::Message;
use crate::packet::{QoS, RetainHandling, SubscriptionOptions};
use crate::partition::QueueKind;
use crate::queue::IN_FLIGHT_BYTES;
use crate::queue::subscription::Subscription;
use crate::record::{Origin, RecordBody};
use crate::topic::TopicName;
use bytes::Bytes;
use std::hash::{BuildHasherDefault, DefaultHasher};

pub(super) type Queues = PartitionQueues<BuildHasherDefault<DefaultHasher>>;

pub(super) fn id(name: &str) -> QueueId {
    QueueId { kind: QueueKind::Session, name: name.into(), number: SessionNumber(1) }
}

pub(super) fn filter(text: &str) -> TopicFilter {
    TopicFilter::parse(text).unwrap()
}

pub(super) fn subscription(start: Offset, end: Option<Offset>) -> Subscription {
    let options = SubscriptionOptions {
        qos: QoS::AtLeastOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    };
    Subscription { options, identifier: None, start, end, successor: None }
}

pub(super) fn receiver(window: u16, in_flight: &[Offset]) -> Receiver<'_> {
    Receiver { window, done: &[], in_flight }
}

pub(super) fn record(topic: &str) -> Arc<Record> {
    record_of(topic, 0)
}

pub(super) fn record_of(topic: &str, payload_bytes: usize) -> Arc<Record> {
    const PAYLOAD: &[u8] = &[0; 2 * IN_FLIGHT_BYTES];
    let member = Member { id: MemberId::new("m"), incarnation: Incarnation(1) };
    Arc::new(Record {
        body: RecordBody::Inline,
        retry: false,
        origin: Origin { member, producer: 1, sequence: 0 },
        unique_id: None,
        message: Message {
            topic: TopicName::parse(topic).unwrap(),
            payload: Bytes::from_static(&PAYLOAD[..payload_bytes]),
            qos: QoS::AtLeastOnce,
            retain: false,
            properties: None,
            publisher: "p".into(),
            publish_time_ms: 0,
        },
    })
}

pub(super) fn handed_out(queues: &mut Queues) -> Vec<(QueueSlot, Offset, bool)> {
    std::iter::from_fn(|| queues.poll_hand_out())
        .map(|hand_out| (hand_out.slot, hand_out.offset, hand_out.redelivery))
        .collect()
}

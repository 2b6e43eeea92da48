//! What the queue of a session that is away costs. Alone in its process, because it looks at the process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use tidemill_core::attach::{QueueId, SessionNumber};
use tidemill_core::member::{Incarnation, Member, MemberId};
use tidemill_core::message::Message;
use tidemill_core::packet::{QoS, RetainHandling, SubscriptionOptions};
use tidemill_core::partition::QueueKind;
use tidemill_core::queue::limits::QueueLimits;
use tidemill_core::queue::partition::PartitionQueues;
use tidemill_core::queue::subscription::Subscription;
use tidemill_core::record::{Origin, Record, RecordBody};
use tidemill_core::topic::{TopicFilter, TopicName};

const SESSIONS: usize = 20_000;
/// Enough for as many marks as a queue has.
const MESSAGES: u64 = 60;

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    let kib: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib * 1024
}

fn record(topic: &str) -> Arc<Record> {
    let member = Member { id: MemberId::new("m"), incarnation: Incarnation(1) };
    let message = Message {
        topic: TopicName::parse(topic).unwrap(),
        payload: "x".into(),
        qos: QoS::AtLeastOnce,
        retain: false,
        properties: None,
        publisher: "p".into(),
        publish_time_ms: 1,
    };
    let origin = Origin { member, producer: 1, sequence: 0 };
    Arc::new(Record { body: RecordBody::Inline, retry: false, origin, unique_id: None, message })
}

#[test]
fn a_queue_that_is_full_and_has_two_subscriptions_leaves_room_in_2_kib_for_the_rest_of_its_session() {
    let options = SubscriptionOptions {
        qos: QoS::AtLeastOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    };
    let subscription = Subscription { options, identifier: None, start: 0, end: None, successor: None };
    let limits = QueueLimits { messages: MESSAGES / 2, ..QueueLimits::NONE };
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    let mut queues = PartitionQueues::new(0, hasher).with_limits(limits);
    let before = resident_bytes();

    for number in 0..SESSIONS {
        let name = format!("device-{number:06}");
        let own = TopicFilter::parse(format!("site/{name}/#")).unwrap();
        let id = QueueId { kind: QueueKind::Session, name: name.into(), number: SessionNumber(1) };
        let slot = queues.create(id);
        queues.subscribe(slot, own, subscription);
        queues.subscribe(slot, TopicFilter::parse("all/#").unwrap(), subscription);
    }
    let idle = (resident_bytes() - before) / SESSIONS;
    for offset in 0..MESSAGES {
        queues.handle_record(offset, &record("all/x"), 1);
    }
    while !queues.take_counted(1_000).is_empty() || !queues.take_dirty(1_000).is_empty() {}

    let full = (resident_bytes() - before) / SESSIONS;
    println!("{idle} bytes resident for a queue of which nothing waits, {full} for a full one");
    assert!(queues.largest(1) == [MESSAGES / 2]);
    assert!(full < 1_700, "{full} bytes for each queue");
    assert!(full - idle < 900, "{} bytes for what waits", full - idle);
}

use super::offer::{CatchUp, ReadBehind};
use super::*;
use crate::attach::SessionNumber;
use crate::member::{Incarnation, Member, MemberId};
use crate::message::Message;
use crate::packet::{QoS, RetainHandling, SubscriptionOptions};
use crate::partition::QueueKind;
use crate::queue::IN_FLIGHT_BYTES;
use crate::record::{Origin, RecordBody};
use crate::topic::TopicName;
use bytes::Bytes;
use proptest::prelude::*;
use std::hash::{BuildHasherDefault, DefaultHasher};

type Queues = PartitionQueues<BuildHasherDefault<DefaultHasher>>;

fn id(name: &str) -> QueueId {
    QueueId { kind: QueueKind::Session, name: name.into(), number: SessionNumber(1) }
}

fn filter(text: &str) -> TopicFilter {
    TopicFilter::parse(text).unwrap()
}

fn subscription(start: Offset, end: Option<Offset>) -> Subscription {
    let options = SubscriptionOptions {
        qos: QoS::AtLeastOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    };
    Subscription { options, identifier: None, start, end, successor: None }
}

fn record(topic: &str) -> Arc<Record> {
    record_of(topic, 0)
}

fn record_of(topic: &str, payload_bytes: usize) -> Arc<Record> {
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

fn handed_out(queues: &mut Queues) -> Vec<(QueueSlot, Offset, bool)> {
    std::iter::from_fn(|| queues.poll_hand_out())
        .map(|hand_out| (hand_out.slot, hand_out.offset, hand_out.redelivery))
        .collect()
}

#[test]
fn a_record_goes_once_to_each_queue_that_matches() {
    let mut queues = Queues::new(0, BuildHasherDefault::default());
    let slots = ["one", "two", "three"].map(|name| queues.create(id(name)));
    for (slot, text) in [(0, "a/+"), (0, "a/b"), (1, "#"), (2, "c")] {
        queues.subscribe(slots[slot], filter(text), subscription(0, None));
    }
    for slot in slots {
        queues.attach(slot, 10, &[], &[]);
    }

    queues.handle_record(5, &record("a/b"), 0);
    queues.handle_record(5, &record("a/b"), 0);

    assert_eq!(handed_out(&mut queues), [(slots[0], 5, false), (slots[1], 5, false)]);
    assert_eq!(queues.head(), 6);
}

/// MQTT-3.3.4-4: one copy, with the identifiers of all subscriptions that match.
#[test]
fn a_subscription_of_qos_0_adds_its_identifier_to_what_another_one_brings_at_the_head_and_behind() {
    let with = |qos, identifier| {
        let plain = subscription(0, None);
        let options = SubscriptionOptions { qos, ..plain.options };
        Subscription { options, identifier: Some(identifier), ..plain }
    };
    let identifiers = |queues: &mut Queues| {
        std::iter::from_fn(|| queues.poll_hand_out())
            .map(|hand_out| (hand_out.slot, hand_out.interest.identifiers))
            .collect::<Vec<_>>()
    };
    let mut queues = Queues::new(0, BuildHasherDefault::default());
    let (slot, live) = (queues.create(id("both")), queues.create(id("live")));
    queues.subscribe(slot, filter("k/#"), with(QoS::AtLeastOnce, 1));
    queues.subscribe(slot, filter("k/a"), with(QoS::AtMostOnce, 2));
    queues.subscribe(live, filter("k/a"), with(QoS::AtMostOnce, 3));
    for slot in [slot, live] {
        queues.attach(slot, 1, &[], &[]);
    }

    queues.handle_record(0, &record("k/a"), 0);
    assert_eq!(identifiers(&mut queues), [(slot, vec![1, 2])]);

    queues.handle_record(1, &record("k/a"), 0);
    queues.handle_acked(slot, &[0], true);
    queues.handle_behind(slot, ReadBehind { from: 1, offset: 1, record: &record("k/a") }, 0);
    assert_eq!(identifiers(&mut queues), [(slot, vec![1, 2])], "the window was full");

    queues.unsubscribe(slot, &filter("k/a"));
    queues.handle_acked(slot, &[1], true);
    queues.handle_record(2, &record("k/a"), 0);
    assert_eq!(identifiers(&mut queues), [(slot, vec![1])]);
}

#[test]
fn a_subscription_counts_from_its_start_to_its_end() {
    let mut queues = Queues::new(0, BuildHasherDefault::default());
    let slot = queues.create(id("c"));
    queues.subscribe(slot, filter("a"), subscription(3, None));
    for offset in 0..3 {
        queues.handle_record(offset, &record("a"), 0);
    }
    assert_eq!(queues.floor(), 3, "below its start it is not wanted");

    for offset in 3..6 {
        queues.handle_record(offset, &record("a"), 0);
    }
    queues.subscribe(slot, filter("a"), subscription(3, Some(5)));
    assert!(!queues.has_route(&filter("a")));
    assert!(queues.take_ended().is_empty(), "still needed for what is behind");
    queues.attach(slot, 10, &[], &[]);
    for offset in 3..6 {
        queues.handle_behind(slot, ReadBehind { from: offset, offset, record: &record("a") }, 0);
    }

    assert_eq!(handed_out(&mut queues), [(slot, 3, false), (slot, 4, false)]);
    assert_eq!(queues.take_ended(), [(id("c"), filter("a"), None)]);
}

#[test]
fn a_reader_at_the_wrong_place_is_told_so_and_loses_nothing() {
    let mut queues = Queues::new(0, BuildHasherDefault::default());
    let slot = queues.create(id("c"));
    queues.subscribe(slot, filter("a"), subscription(0, None));
    for offset in 0..4 {
        queues.handle_record(offset, &record("a"), 0);
    }
    queues.attach(slot, 10, &[], &[]);
    assert_eq!(queues.next_lagging(None), Some(slot));
    assert_eq!(queues.wanted_from(slot), Some(0));

    let late = ReadBehind { from: 2, offset: 2, record: &record("a") };
    assert_eq!(queues.handle_behind(slot, late, 0), CatchUp::Misplaced);
    assert_eq!(queues.handle_behind_end(slot, 2, 4), CatchUp::Misplaced);

    assert!(handed_out(&mut queues).is_empty());
    assert_eq!(queues.wanted_from(slot), Some(0));
}

#[test]
fn an_open_offset_that_the_log_has_no_more_is_a_loss_and_does_not_stop_the_queue() {
    let mut queues = Queues::new(0, BuildHasherDefault::default());
    let slot = queues.create(id("c"));
    queues.subscribe(slot, filter("a"), subscription(0, None));
    queues.attach(slot, 10, &[], &[]);
    for offset in 0..3 {
        queues.handle_record(offset, &record("a"), 0);
    }
    queues.attach(slot, 10, &[], &[]);

    let second = ReadBehind { from: 0, offset: 1, record: &record("a") };
    assert_eq!(queues.handle_behind(slot, second, 0), CatchUp::Continue);
    assert_eq!(queues.handle_behind_end(slot, 2, 3), CatchUp::AtHead);

    assert_eq!(handed_out(&mut queues), [(slot, 1, true)]);
    assert_eq!(queues.take_lost(), 2);
}

#[test]
fn a_queue_that_goes_takes_its_routes_along_unless_others_have_them() {
    let mut queues = Queues::new(0, BuildHasherDefault::default());
    let slots = ["one", "two"].map(|name| queues.create(id(name)));
    for (slot, text) in [(0, "a"), (0, "b"), (1, "b")] {
        queues.subscribe(slots[slot], filter(text), subscription(0, None));
    }
    assert_eq!(queues.routes(), [filter("a"), filter("b")]);

    assert_eq!(queues.remove(slots[0]), [filter("a")]);
    assert_eq!(queues.remove(slots[1]), [filter("b")]);

    assert!(queues.is_empty() && queues.routes().is_empty());
    assert_eq!(queues.create(id("three")), slots[1], "places are used again");
}

/// What happens to one queue, with a reader behind the head that is stepped by hand.
#[derive(Debug, Clone)]
enum Step {
    /// A record is appended and offered at the head: distance from the one before, and what it is.
    Append(u64, Appended),
    /// One step of the reader: at most this many records.
    Read(usize),
    Attach(u16),
    /// The receiver is told again: it has every n-th of what was handed to it, the others were lost on the way.
    AttachAgain(u16, usize),
    Detach,
    /// The n-th oldest delivery that is not acknowledged is.
    Ack(usize),
    /// The owner restarts from what was stored last.
    Store,
    Restart,
}

/// A record of the log.
#[derive(Debug, Clone, Copy)]
struct Appended {
    /// Whether the queue wants it.
    wanted: bool,
    payload_bytes: usize,
}

impl Appended {
    fn record(self) -> Arc<Record> {
        record_of(if self.wanted { "a" } else { "other" }, self.payload_bytes)
    }
}

fn appended() -> impl Strategy<Value = Appended> {
    let payload_bytes = prop_oneof![
        3 => Just(0),
        3 => 0..IN_FLIGHT_BYTES / 2,
        1 => IN_FLIGHT_BYTES - 4..IN_FLIGHT_BYTES + 4,
        1 => IN_FLIGHT_BYTES..2 * IN_FLIGHT_BYTES,
    ];
    (any::<bool>(), payload_bytes).prop_map(|(wanted, payload_bytes)| Appended { wanted, payload_bytes })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1_u64..4, appended()).prop_map(|(distance, appended)| Step::Append(distance, appended)),
        5 => (1_usize..6).prop_map(Step::Read),
        2 => (1_u16..6).prop_map(Step::Attach),
        1 => (1_u16..6, 1_usize..4).prop_map(|(window, nth)| Step::AttachAgain(window, nth)),
        1 => Just(Step::Detach),
        5 => (0_usize..4).prop_map(Step::Ack),
        2 => Just(Step::Store),
        1 => Just(Step::Restart),
    ]
}

struct Model {
    queues: Queues,
    slot: QueueSlot,
    log: BTreeMap<Offset, Appended>,
    end: Offset,
    stored: (StoredCursor, Offset),
    /// At the receiver now, in the order they came.
    outstanding: Vec<Offset>,
    acked: BTreeSet<Offset>,
    first: Vec<Offset>,
    position: Option<Offset>,
}

impl Model {
    fn new() -> Self {
        let mut model = Self {
            queues: Queues::new(0, BuildHasherDefault::default()),
            slot: 0,
            log: BTreeMap::new(),
            end: 0,
            stored: (StoredCursor { cursor: crate::cursor::Cursor::at(0), tail: true }, 0),
            outstanding: Vec::new(),
            acked: BTreeSet::new(),
            first: Vec::new(),
            position: None,
        };
        model.restart();
        model
    }

    fn restart(&mut self) {
        let (cursor, processed) = &self.stored;
        self.queues = Queues::new(*processed, BuildHasherDefault::default());
        self.slot = self.queues.restore(id("c"), cursor, 0);
        self.queues.subscribe(self.slot, filter("a"), subscription(0, None));
        self.outstanding.clear();
        self.position = None;
        // What is not processed is offered again.
        let again: Vec<_> = self.log.range(*processed..).map(|(offset, one)| (*offset, *one)).collect();
        for (offset, appended) in again {
            self.queues.handle_record(offset, &appended.record(), 0);
        }
        self.take();
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Append(distance, appended) => {
                let offset = self.end + distance - 1;
                self.end = offset + 1;
                self.log.insert(offset, appended);
                self.queues.handle_record(offset, &appended.record(), 0);
            }
            Step::Read(count) => self.read(count),
            Step::Attach(window) => {
                self.outstanding.clear();
                self.queues.attach(self.slot, window, &[], &[]);
            }
            Step::AttachAgain(window, nth) => {
                if self.queues.progress(self.slot).is_some_and(Progress::is_attached) {
                    self.outstanding = self.outstanding.iter().copied().step_by(nth).collect();
                    self.queues.attach(self.slot, window, &[], &self.outstanding);
                }
            }
            Step::Detach => {
                self.outstanding.clear();
                self.queues.detach(self.slot);
            }
            Step::Ack(nth) => {
                if nth < self.outstanding.len() {
                    let offset = self.outstanding.remove(nth);
                    self.acked.insert(offset);
                    self.queues.handle_acked(self.slot, &[offset], true);
                }
            }
            Step::Store => {
                let progress = self.queues.progress(self.slot).unwrap();
                self.stored = (progress.stored(), self.queues.head());
            }
            Step::Restart => self.restart(),
        }
        self.take();
    }

    /// A reader that goes on where it stood when it may, and from where the queue wants it otherwise.
    fn read(&mut self, count: usize) {
        let Some(wanted) = self.queues.wanted_from(self.slot) else { return };
        let mut from = *self.position.get_or_insert(wanted);
        let records: Vec<_> = self.log.range(from..).take(count).map(|(o, one)| (*o, *one)).collect();
        let is_end = records.len() < count;
        for (offset, appended) in records {
            let record = appended.record();
            match self.queues.handle_behind(self.slot, ReadBehind { from, offset, record: &record }, 0) {
                CatchUp::Continue => from = offset + 1,
                CatchUp::Stopped => {
                    self.position = Some(from);
                    return;
                }
                CatchUp::AtHead | CatchUp::Misplaced => {
                    self.position = None;
                    return;
                }
            }
        }
        self.position = Some(from);
        if is_end {
            self.queues.handle_behind_end(self.slot, from, self.queues.head());
            self.position = None;
        }
    }

    fn outstanding_bytes(&self) -> usize {
        self.outstanding.iter().map(|offset| self.log[offset].record().held_bytes()).sum()
    }

    fn take(&mut self) {
        for (_, offset, _) in handed_out(&mut self.queues) {
            assert!(
                self.outstanding_bytes() < IN_FLIGHT_BYTES,
                "{offset} came although the budget was used up"
            );
            assert!(!self.outstanding.contains(&offset), "{offset} came twice to one receiver");
            if !self.first.contains(&offset) {
                self.first.push(offset);
            }
            self.outstanding.push(offset);
        }
    }

    /// With a receiver that is done with everything at once, everything comes.
    fn finish(mut self) {
        self.apply(Step::Attach(u16::MAX));
        // Bounded: each step of the reader takes a record, restarts it once, or is the last.
        for _ in 0..2 * self.log.len() + 2 {
            self.apply(Step::Read(3));
            while !self.outstanding.is_empty() {
                self.apply(Step::Ack(0));
            }
        }
        let wanted: Vec<_> =
            self.log.iter().filter(|(_, one)| one.wanted).map(|(offset, _)| *offset).collect();
        assert_eq!(self.first, wanted, "all of them, first deliveries in log order");
        assert_eq!(self.queues.take_lost(), 0);
        assert_eq!(self.queues.progress(self.slot).unwrap().mode(), crate::queue::progress::Mode::Tail);
    }
}

proptest! {
    #[test]
    fn whenever_a_queue_changes_between_head_and_reader_nothing_is_lost_overtaken_or_beyond_the_budget(
        steps in proptest::collection::vec(step(), 0..120),
    ) {
        let mut model = Model::new();
        for step in steps {
            model.apply(step);
            let progress = model.queues.progress(model.slot).unwrap();
            prop_assert!(progress.open_count() >= model.outstanding.len());
            prop_assert_eq!(progress.in_flight_bytes(), model.outstanding_bytes());
            let floor = model.queues.floor();
            let unacked = model.log.iter().find(|(offset, one)| one.wanted && !model.acked.contains(offset));
            prop_assert!(unacked.is_none_or(|(offset, _)| floor <= *offset), "nothing needed is below the floor");
        }
        model.finish();
    }
}

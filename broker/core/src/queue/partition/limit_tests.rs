//! One queue with bounds against a log: what waits, what is given up, and where it goes.

use super::fixture::{Queues, filter, handed_out, id, receiver, record_of, subscription};
use super::offer::{CatchUp, ReadBehind};
use super::*;
use crate::queue::limits::QueuePolicy;
use proptest::prelude::*;
use std::hash::BuildHasherDefault;

#[derive(Debug, Clone)]
enum Step {
    /// A record comes at the head: distance from the one before, whether the queue wants it.
    Append(u64, bool),
    /// One step of the reader: at most this many records.
    Read(usize),
    Attach(u16),
    Detach,
    /// The n-th oldest delivery that is not acknowledged is.
    Ack(usize),
    /// The oldest dead letter under way is durable, or was not published.
    Bury(bool),
    /// The log forgets what no queue needs.
    Trim,
    /// The owner restarts from what it has just stored.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1_u64..4, any::<bool>()).prop_map(|(distance, wanted)| Step::Append(distance, wanted)),
        4 => (1_usize..6).prop_map(Step::Read),
        1 => (1_u16..6).prop_map(Step::Attach),
        1 => Just(Step::Detach),
        3 => (0_usize..4).prop_map(Step::Ack),
        3 => any::<bool>().prop_map(Step::Bury),
        2 => Just(Step::Trim),
        1 => Just(Step::Restart),
    ]
}

const BOUND: u64 = 7;

struct Model {
    queues: Queues,
    limits: QueueLimits,
    slot: QueueSlot,
    log: BTreeMap<Offset, bool>,
    end: Offset,
    wanted: u64,
    outstanding: Vec<Offset>,
    /// First deliveries, in their order.
    first: Vec<Offset>,
    under_way: VecDeque<Offset>,
    buried: BTreeSet<Offset>,
    drops: u64,
}

impl Model {
    fn new(policy: QueuePolicy) -> Self {
        let limits = QueueLimits { messages: BOUND, policy, ..QueueLimits::NONE };
        let mut queues = Queues::new(0, BuildHasherDefault::default()).with_limits(limits);
        let slot = queues.create(id("c"));
        queues.subscribe(slot, filter("a"), subscription(0, None));
        Self {
            queues,
            limits,
            slot,
            log: BTreeMap::new(),
            end: 0,
            wanted: 0,
            outstanding: Vec::new(),
            first: Vec::new(),
            under_way: VecDeque::new(),
            buried: BTreeSet::new(),
            drops: 0,
        }
    }

    fn restart(&mut self) {
        let stored = self.queues.progress(self.slot).unwrap().stored();
        let stored = StoredCursor::decode(stored.encode()).unwrap();
        self.queues = Queues::new(self.queues.head(), BuildHasherDefault::default()).with_limits(self.limits);
        self.slot = self.queues.restore(id("c"), &stored, 0);
        self.queues.subscribe(self.slot, filter("a"), subscription(0, None));
        self.outstanding.clear();
        self.under_way.clear();
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Append(distance, wanted) => {
                let offset = self.end + distance - 1;
                self.end = offset + 1;
                self.log.insert(offset, wanted);
                self.wanted += u64::from(wanted);
                let record = record_of(if wanted { "a" } else { "other" }, 0);
                self.queues.handle_record(offset, &record, 0);
            }
            Step::Read(count) => self.read(count),
            Step::Attach(window) => {
                self.outstanding.clear();
                self.queues.attach(self.slot, receiver(window, &[]), 0);
            }
            Step::Detach => {
                self.outstanding.clear();
                self.queues.detach(self.slot);
            }
            Step::Ack(nth) => {
                if nth < self.outstanding.len() {
                    let offset = self.outstanding.remove(nth);
                    self.queues.handle_acked(self.slot, &[offset], true, 0);
                }
            }
            Step::Bury(is_durable) => {
                let Some(offset) = self.under_way.pop_front() else { return };
                if is_durable {
                    self.queues.handle_buried(self.slot, offset);
                    self.buried.insert(offset);
                } else {
                    self.queues.handle_not_buried(self.slot, offset);
                }
            }
            Step::Trim => self.log = self.log.split_off(&self.queues.floor()),
            Step::Restart => self.restart(),
        }
        self.take();
    }

    fn read(&mut self, count: usize) {
        let Some(mut from) = self.queues.wanted_from(self.slot) else { return };
        let records: Vec<_> = self.log.range(from..).take(count).map(|(o, wanted)| (*o, *wanted)).collect();
        let is_end = records.len() < count;
        for (offset, wanted) in records {
            let record = record_of(if wanted { "a" } else { "other" }, 0);
            match self.queues.handle_behind(self.slot, ReadBehind { from, offset, record: &record }, 0) {
                CatchUp::Continue => from = offset + 1,
                CatchUp::Stopped | CatchUp::AtHead | CatchUp::Misplaced => return,
            }
        }
        if is_end {
            self.queues.handle_behind_end(self.slot, from, self.queues.head());
        }
    }

    fn take(&mut self) {
        for (_, offset, redelivery) in handed_out(&mut self.queues) {
            assert!(!self.outstanding.contains(&offset), "{offset} came twice to one receiver");
            assert!(!self.buried.contains(&offset), "{offset} is a dead letter already");
            if !self.first.contains(&offset) {
                assert!(!redelivery, "{offset} was never handed out");
                self.first.push(offset);
            }
            self.outstanding.push(offset);
        }
        while let Some(letter) = self.queues.poll_dead_letter() {
            assert!(!self.first.contains(&letter.offset), "{} went to the receiver", letter.offset);
            self.under_way.push_back(letter.offset);
        }
        self.drops += self.queues.take_drops().iter().map(|(_, count)| count).sum::<u64>();
        let standing = self.queues.standing(self.slot).unwrap();
        assert!(standing.waiting.messages <= BOUND, "{standing:?}");
        assert!(standing.waiting.messages > 0 || standing.oldest_ms.is_none());
        assert!(self.first.is_sorted(), "first deliveries are in log order");
        assert_eq!(self.queues.take_lost(), 0, "nothing that is needed was trimmed");
        assert_eq!(
            self.first.len() as u64 + self.drops + standing.waiting.messages,
            self.wanted,
            "{standing:?}"
        );
    }

    /// With a receiver that is done with everything at once, everything that waits comes, and every dead letter is
    /// published.
    fn finish(mut self) {
        self.apply(&Step::Attach(u16::MAX));
        // Bounded: each turn takes a record, publishes a dead letter, or is one of the last.
        for _ in 0..2 * self.log.len() + 4 {
            self.apply(&Step::Read(3));
            while !self.outstanding.is_empty() {
                self.apply(&Step::Ack(0));
            }
            while !self.under_way.is_empty() {
                self.apply(&Step::Bury(true));
            }
        }
        let progress = self.queues.progress(self.slot).unwrap();
        assert_eq!(progress.mode(), crate::queue::progress::Mode::Tail);
        assert_eq!((progress.open_count(), self.queues.floor()), (0, self.queues.head()));
        if self.limits.policy == QueuePolicy::DeadLetter {
            assert_eq!(self.buried.len() as u64, self.drops, "each that was given up is a dead letter, once");
        }
    }
}

fn runs(policy: QueuePolicy, steps: &[Step]) {
    let mut model = Model::new(policy);
    for step in steps {
        model.apply(step);
    }
    model.finish();
}

proptest! {
    #[test]
    fn of_what_a_queue_wants_each_message_comes_in_order_or_is_dropped_and_counted_or_waits(
        steps in proptest::collection::vec(step(), 0..150),
    ) {
        for policy in [QueuePolicy::DropOldest, QueuePolicy::DropNewest, QueuePolicy::DeadLetter] {
            runs(policy, &steps);
        }
    }
}

/// The queue with what it is full of: `0..count` were published, at the offset that is their time.
fn offline(limits: QueueLimits, count: Offset) -> (Queues, QueueSlot) {
    let mut queues = Queues::new(0, BuildHasherDefault::default()).with_limits(limits);
    let slot = queues.create(id("c"));
    queues.subscribe(slot, filter("a"), subscription(0, None));
    for offset in 0..count {
        let mut record = Record::clone(&record_of("a", 10));
        record.message.publish_time_ms = offset;
        queues.handle_record(offset, &Arc::new(record), offset);
    }
    (queues, slot)
}

#[test]
fn a_session_that_is_offline_lets_go_of_the_log_below_what_it_may_hold_and_takes_little_memory() {
    let limits = QueueLimits { messages: 1_000, ..QueueLimits::NONE };

    let (queues, slot) = offline(limits, 100_000);

    assert!(queues.floor() >= 100_000 - 1_000 - 1_000 / 7, "{}", queues.floor());
    let bytes = size_of::<Queue>() + queues.progress(slot).unwrap().backlog_bytes();
    assert!(bytes <= 1_024, "{bytes}");
    assert_eq!(queues.standing(slot).unwrap().waiting.bytes, 12 * 1_000);
}

#[test]
fn what_is_too_old_is_dropped_without_a_receiver_and_the_rest_when_it_is_read() {
    let limits = QueueLimits { age_ms: Some(100), ..QueueLimits::NONE };
    let (mut queues, slot) = offline(limits, 100);
    queues.give_up_old(150);
    let standing = queues.standing(slot).unwrap();
    assert!((50..63).contains(&standing.waiting.messages), "{standing:?}");
    assert!(standing.oldest_ms.is_some_and(|oldest| oldest <= 50), "{standing:?}");

    queues.give_up_old(201);

    assert_eq!(queues.standing(slot).unwrap().waiting, Default::default());
    queues.handle_record(150, &record_of("other", 0), 201);
    assert_eq!(queues.floor(), 151, "it keeps nothing of the log");
    assert_eq!(queues.take_drops().iter().nth(2), Some((DropReason::Age, 100)));
}

#[test]
fn a_queue_that_passes_four_fifths_of_a_bound_says_so_once_until_it_has_drained() {
    let limits = QueueLimits { messages: 10, ..QueueLimits::NONE };
    let (mut queues, slot) = offline(limits, 8);
    assert!(queues.take_near_limit().is_empty());
    for offset in 8..30 {
        queues.handle_record(offset, &record_of("a", 10), 0);
    }

    let near = queues.take_near_limit();

    assert_eq!(near.len(), 1);
    assert_eq!(queues.take_at_limit(), [(id("c"), DropReason::Messages)], "once, however many it gives up");
    queues.handle_record(30, &record_of("a", 10), 0);
    assert_eq!(queues.take_at_limit(), []);
    assert_eq!((near[0].0.clone(), queues.near_limit_count()), (id("c"), 1));
    assert_eq!(queues.largest(3), [10]);
    queues.remove(slot);
    assert_eq!(queues.near_limit_count(), 0);
}

/// A record is read again for a queue with a window for everything.
fn read_all(queues: &mut Queues, slot: QueueSlot, to: Offset) {
    for offset in 0..to {
        queues.handle_behind(slot, ReadBehind { from: offset, offset, record: &record_of("a", 10) }, 0);
    }
}

#[test]
fn a_message_that_was_handed_out_too_often_is_given_up_and_the_next_one_comes() {
    let limits = QueueLimits { deliveries_max: Some(3), ..QueueLimits::NONE };
    let (mut queues, slot) = offline(limits, 2);
    for round in 0..3 {
        queues.attach(slot, receiver(1, &[]), 0);
        read_all(&mut queues, slot, 2);
        assert_eq!(handed_out(&mut queues), [(slot, 0, round > 0)]);
    }

    queues.attach(slot, receiver(1, &[]), 0);
    read_all(&mut queues, slot, 2);

    assert_eq!(handed_out(&mut queues), [(slot, 1, false)]);
    assert_eq!(queues.take_drops().iter().last(), Some((DropReason::MaxDeliveries, 1)));
    assert_eq!(queues.standing(slot).unwrap().redelivered, 2);
}

#[test]
fn a_parked_message_does_not_pin_the_log_and_comes_first_again_until_it_is_done() {
    let (mut queues, slot) = offline(QueueLimits::NONE, 4);
    queues.attach(slot, receiver(2, &[]), 1_000);
    read_all(&mut queues, slot, 4);
    handed_out(&mut queues);
    queues.handle_acked(slot, &[1], true, 2_000);
    queues.handle_behind(slot, ReadBehind { from: 2, offset: 2, record: &record_of("a", 10) }, 2_000);
    assert_eq!(queues.overdue(1_000, 10), [(slot, 0)]);

    assert_eq!(queues.park(slot, 0, &record_of("a", 10)), Some(id("c")));
    assert_eq!(queues.park(slot, 0, &record_of("a", 10)), None, "once");
    assert_eq!((queues.floor(), queues.overdue(1_000, 10)), (2, vec![]));
    handed_out(&mut queues);

    let stored = queues.progress(slot).unwrap().stored();
    let mut queues = Queues::new(4, BuildHasherDefault::default());
    let slot = queues.restore(id("c"), &stored, 2);
    queues.subscribe(slot, filter("a"), subscription(0, None));
    queues.restore_parked(slot, 0, record_of("a", 10));
    queues.attach(slot, receiver(1, &[]), 0);
    assert_eq!(handed_out(&mut queues), [(slot, 0, true)]);
    assert_eq!((queues.wanted_from(slot), queues.floor()), (None, 2));

    queues.handle_acked(slot, &[0], true, 0);

    assert_eq!(queues.take_unparked(), [(id("c"), 0)]);
    assert_eq!((queues.wanted_from(slot), queues.parked_bytes()), (Some(2), 0));
}

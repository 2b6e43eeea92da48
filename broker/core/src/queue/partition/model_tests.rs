//! One queue against a log, whenever it changes between head and reader.

use super::fixture::{Queues, filter, handed_out, id, receiver, record_of, subscription};
use super::offer::{CatchUp, ReadBehind};
use super::*;
use crate::queue::IN_FLIGHT_BYTES;
use crate::queue::index::Block;
use proptest::prelude::*;
use std::hash::BuildHasherDefault;

/// What happens to one queue, with a reader behind the head that is stepped by hand.
#[derive(Debug, Clone)]
enum Step {
    /// A record is appended and offered at the head: distance from the one before, and what it is.
    Append(u64, Appended),
    /// One step of the reader: at most this many records.
    Read(usize),
    /// One step of a reader that follows the index: at most this many records.
    ReadByIndex(usize),
    /// The block that is being made ends.
    EndBlock,
    /// The stored blocks are lost; what they spoke for is read one by one.
    LoseBlocks,
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
        3 => (1_usize..6).prop_map(Step::Read),
        5 => (1_usize..6).prop_map(Step::ReadByIndex),
        2 => Just(Step::EndBlock),
        1 => Just(Step::LoseBlocks),
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
    /// The stored blocks.
    blocks: Vec<Block>,
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
            stored: (StoredCursor::plain(crate::cursor::Cursor::at(0), true), 0),
            blocks: Vec::new(),
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
        self.queues.keep_index(5);
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
            Step::ReadByIndex(count) => self.read_by_index(count),
            Step::EndBlock => self.queues.end_block(),
            Step::LoseBlocks => self.blocks.clear(),
            Step::Attach(window) => {
                self.outstanding.clear();
                self.queues.attach(self.slot, receiver(window, &[]), 0);
            }
            Step::AttachAgain(window, nth) => {
                if self.queues.progress(self.slot).is_some_and(Progress::is_attached) {
                    self.outstanding = self.outstanding.iter().copied().step_by(nth).collect();
                    self.queues.attach(self.slot, receiver(window, &self.outstanding), 0);
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
                    self.queues.handle_acked(self.slot, &[offset], true, 0);
                }
            }
            Step::Store => {
                let progress = self.queues.progress(self.slot).unwrap();
                self.stored = (progress.stored(), self.queues.head());
                self.blocks.extend(self.queues.take_blocks());
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

    /// A reader that takes from the log only what the index lists, as far as a block speaks for it.
    fn read_by_index(&mut self, count: usize) {
        let Some(wanted) = self.queues.wanted_from(self.slot) else { return };
        self.position = None;
        if wanted < self.queues.progress(self.slot).unwrap().new_from() {
            return self.read(count);
        }
        let speaks = |block: &&Block| block.first <= wanted && wanted < block.end;
        let Some(block) = self.blocks.iter().find(speaks) else { return self.read(count) };
        let mut listed = Vec::new();
        block.offsets_of(&id("c"), wanted, &mut listed).unwrap();
        let until = listed.get(count).copied().unwrap_or(block.end);
        for offset in listed.into_iter().take(count) {
            let record = self.log[&offset].record();
            self.queues.pass_to(self.slot, offset);
            let read = ReadBehind { from: offset, offset, record: &record };
            if self.queues.handle_behind(self.slot, read, 0) != CatchUp::Continue {
                return;
            }
        }
        self.queues.pass_to(self.slot, until);
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
        // Bounded: each step of the reader takes a record, restarts it once, passes a block, or is the last.
        for _ in 0..2 * self.log.len() + self.blocks.len() + 2 {
            self.apply(Step::ReadByIndex(3));
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

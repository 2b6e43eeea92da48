//! Queues behind their partition's head: served from the newest records in memory, else by a reader of their own,
//! which ends when the queue has reached the head.

use super::job::Jobs;
use super::partition_run::PartitionRun;
use super::queue_reader::{QueueRead, QueueReader, Source};
use super::readings::Reading;
use super::{Group, Queues};
use crate::log::{ReadError, StoredRecord};
use crate::owner::parts::OwnerParts;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tidemill_core::partition::{Offset, Partition};
use tidemill_core::queue::partition::QueueSlot;
use tidemill_core::queue::partition::offer::{CatchUp, ReadBehind};
use tidemill_core::queue::progress::Progress;
use tidemill_core::record::Record;
use tracing::{error, warn};

/// Readers behind the head of one partition at the same time. Each holds at most one chunk of records, of about
/// [`READ_BYTES_MAX`](crate::log::READ_BYTES_MAX) or one larger record.
const READERS_MAX: usize = 16;
/// Records given to queues behind the head without a reader in one turn of the group.
const TURN_RECORDS_MAX: usize = 2_048;
/// Records given to one queue in one turn.
const QUEUE_RECORDS_MAX: usize = 256;
/// Records after which a reader makes room for a queue that has none.
const READER_SHARE: usize = 4_096;
/// Queues looked at in one turn.
const TURN_QUEUES_MAX: usize = 256;
/// Distance from which a new reader is cheaper than reading on.
const JUMP_MIN: Offset = 4_096;
/// Pause before a read that failed is repeated.
const READ_RETRY: Duration = Duration::from_millis(200);

impl Group {
    /// Gives queues behind the head their next records, within the bounds of one turn.
    pub(super) fn catch_up(&mut self) {
        let now_ms = self.parts.surroundings.now_ms();
        let Queues::Loaded(partitions) = &mut self.queues else { return };
        for run in partitions.values_mut().filter(|run| !run.is_refused()) {
            let mut turn = Turn { parts: &self.parts, jobs: &mut self.jobs, now_ms, left: TURN_RECORDS_MAX };
            turn.continue_readings(run);
            let has_continued = turn.left < TURN_RECORDS_MAX;
            // Whatever the readers took, the queues without one have a turn of their own.
            turn.left = TURN_RECORDS_MAX;
            turn.visit_lagging(run);
            // What was given may not be all: look again.
            self.has_more |= has_continued || turn.left < TURN_RECORDS_MAX;
            run.tell(&self.parts.metrics);
        }
    }

    /// A read behind the head ended.
    pub(super) fn handle_caught_up(
        &mut self,
        partition: Partition,
        ticket: u64,
        reader: Box<QueueReader>,
        event: Result<QueueRead, ReadError>,
    ) {
        let now_ms = self.parts.surroundings.now_ms();
        let parts = Arc::clone(&self.parts);
        let Queues::Loaded(partitions) = &mut self.queues else { return };
        let Some(run) = partitions.get_mut(&partition).filter(|run| !run.is_refused()) else { return };
        let Some(slot) = run.catch_ups.slot_of(ticket) else { return };
        let mut turn = Turn { parts: &parts, jobs: &mut self.jobs, now_ms, left: TURN_RECORDS_MAX };
        turn.handle_event(run, slot, reader, event);
    }
}

/// One turn of catching up.
struct Turn<'a> {
    parts: &'a OwnerParts,
    jobs: &'a mut Jobs,
    now_ms: u64,
    left: usize,
}

impl Turn<'_> {
    /// Goes on with the readers whose queues have room again.
    fn continue_readings(&mut self, run: &mut PartitionRun) {
        let ready: Vec<QueueSlot> = run
            .catch_ups
            .by_slot
            .iter()
            .filter(|(slot, reading)| reading.reader.is_some() && run.queues.wanted_from(**slot).is_some())
            .map(|(slot, _)| *slot)
            .collect();
        for slot in ready {
            self.offer(run, slot);
        }
    }

    /// Looks at queues that need records, round robin: once around at most. The next turn begins with the first that
    /// found no reader free.
    fn visit_lagging(&mut self, run: &mut PartitionRun) {
        let mut first = None;
        let mut denied = None;
        for _ in 0..TURN_QUEUES_MAX {
            let before = run.catch_ups.last;
            let next = run.queues.next_lagging(before).or_else(|| run.queues.next_lagging(None));
            let Some(slot) = next.filter(|slot| self.left > 0 && first != Some(*slot)) else { break };
            first.get_or_insert(slot);
            run.catch_ups.last = Some(slot);
            if !self.visit(run, slot) {
                denied.get_or_insert(before);
            }
        }
        if let Some(before) = denied {
            run.catch_ups.last = before;
        }
    }

    /// Serves one queue from memory, or starts a reader. False if it needs one and none is free.
    fn visit(&mut self, run: &mut PartitionRun, slot: QueueSlot) -> bool {
        let Some(wanted) = run.queues.wanted_from(slot) else { return true };
        if run.catch_ups.by_slot.contains_key(&slot)
            || run.catch_ups.stopped.contains(&slot)
            || run.catch_ups.pace.allowed(&self.parts.queues, slot, self.now_ms) == 0
        {
            return true;
        }
        if wanted < run.recent.from() {
            return self.start_reading(run, slot, wanted);
        }
        self.offer_recent(run, slot, wanted);
        true
    }

    fn offer_recent(&mut self, run: &mut PartitionRun, slot: QueueSlot, wanted: Offset) {
        let limit = self.left.min(QUEUE_RECORDS_MAX);
        let records = run.recent.read(wanted, limit);
        let is_all = records.len() < limit;
        self.left -= records.len();
        let mut from = wanted;
        for (offset, record) in records {
            let read = ReadBehind { from, offset, record: &record };
            match self.offer_one(run, slot, read) {
                CatchUp::Continue => from = offset + 1,
                CatchUp::Stopped | CatchUp::AtHead | CatchUp::Misplaced => return,
            }
        }
        if is_all {
            // Everything up to the head is in memory: what this answers is seen at the next visit.
            run.queues.handle_behind_end(slot, from, run.queues.head());
        }
    }

    fn start_reading(&mut self, run: &mut PartitionRun, slot: QueueSlot, wanted: Offset) -> bool {
        if run.catch_ups.by_slot.len() >= READERS_MAX {
            let Some(least) = self.least_needed(run) else { return false };
            run.catch_ups.forget(least);
        }
        let Some(queue) = run.queues.id(slot).cloned() else { return true };
        let new_from = run.queues.progress(slot).map_or(wanted, Progress::new_from);
        let source = Source {
            partition: run.partition,
            log: Arc::clone(&self.parts.log),
            index: self.parts.state.index(),
        };
        let reader = Box::new(QueueReader::new(source, queue, wanted, new_from));
        let ticket = self.jobs.next_ticket();
        let abort = self.jobs.read_behind(run.partition, ticket, reader, Duration::ZERO);
        let reading = Reading {
            ticket,
            position: wanted,
            records: VecDeque::new(),
            until: wanted,
            is_by_index: false,
            reader: None,
            abort: Some(abort),
            served: 0,
        };
        run.catch_ups.by_slot.insert(slot, reading);
        true
    }

    /// The queue whose reader makes room for another one: one that takes nothing now, else the one that was served most,
    /// if it has had its share. It comes again when it is its turn.
    fn least_needed(&self, run: &mut PartitionRun) -> Option<QueueSlot> {
        let idle = |(_, reading): &(&QueueSlot, &Reading)| reading.reader.is_some();
        let (queues, pace) = (&run.queues, &mut run.catch_ups.pace);
        let mut most: Option<(usize, QueueSlot)> = None;
        for (slot, reading) in run.catch_ups.by_slot.iter().filter(idle) {
            let takes_nothing = queues.wanted_from(*slot).is_none()
                || pace.allowed(&self.parts.queues, *slot, self.now_ms) == 0;
            if takes_nothing {
                return Some(*slot);
            }
            if reading.served >= READER_SHARE {
                most = most.max(Some((reading.served, *slot)));
            }
        }
        most.map(|(_, slot)| slot)
    }

    /// Offers a record behind the head, if the queue may be served now.
    fn offer_one(&mut self, run: &mut PartitionRun, slot: QueueSlot, read: ReadBehind<'_>) -> CatchUp {
        let rules = &self.parts.queues;
        if run.catch_ups.pace.allowed(rules, slot, self.now_ms) == 0 {
            return CatchUp::Stopped;
        }
        let before = run.queues.hand_out_count();
        let answer = run.queues.handle_behind(slot, read, self.now_ms);
        run.catch_ups.pace.take(rules, slot, run.queues.hand_out_count().saturating_sub(before));
        answer
    }

    fn handle_event(
        &mut self,
        run: &mut PartitionRun,
        slot: QueueSlot,
        reader: Box<QueueReader>,
        event: Result<QueueRead, ReadError>,
    ) {
        let Some(reading) = run.catch_ups.by_slot.get_mut(&slot) else { return };
        reading.abort = None;
        match event {
            Ok(QueueRead::All(records)) => {
                let until = records.last().map_or(reading.position, |last| last.offset + 1);
                reading.reader = Some(reader);
                self.handle_records(run, slot, records, (until, false));
            }
            Ok(QueueRead::Wanted { records, until }) => {
                reading.reader = Some(reader);
                self.handle_records(run, slot, records, (until, true));
            }
            Ok(QueueRead::End(end)) => {
                let from = reading.position;
                reading.position = from.max(end);
                reading.until = reading.position;
                reading.reader = Some(reader);
                match run.queues.handle_behind_end(slot, from, end) {
                    CatchUp::Continue | CatchUp::Stopped => self.read_on(run, slot),
                    CatchUp::AtHead | CatchUp::Misplaced => run.catch_ups.forget(slot),
                }
            }
            // Acknowledgements moved the queue on, and the log was trimmed, while this reader was under way. What the queue
            // wants now is read from there.
            Err(ReadError::OutOfRange { start, .. })
                if run.queues.wanted_from(slot).is_none_or(|wanted| wanted >= start) =>
            {
                run.catch_ups.forget(slot);
            }
            Err(error @ ReadError::OutOfRange { .. }) => {
                run.catch_ups.forget(slot);
                run.refuse(&error.to_string(), self.parts);
            }
            Err(error @ ReadError::Damaged { .. }) => stop(run, slot, &error.to_string()),
            Err(error @ ReadError::Unavailable { .. }) => {
                warn!(partition = run.partition.0, %error, "log cannot be read behind the head");
                let abort = self.jobs.read_behind(run.partition, reading.ticket, reader, READ_RETRY);
                reading.abort = Some(abort);
            }
            Err(ReadError::Closed) => run.catch_ups.forget(slot),
        }
    }

    fn handle_records(
        &mut self,
        run: &mut PartitionRun,
        slot: QueueSlot,
        records: Vec<StoredRecord>,
        (until, is_by_index): (Offset, bool),
    ) {
        self.parts.metrics.records_read_behind.inc_by(records.len() as u64);
        let Some(reading) = run.catch_ups.by_slot.get_mut(&slot) else { return };
        (reading.until, reading.is_by_index) = (until, is_by_index);
        for stored in records {
            match Record::decode(stored.bytes) {
                Ok(record) => reading.records.push_back((stored.offset, Arc::new(record))),
                Err(error) => {
                    let reason = format!("the record at offset {} is damaged: {error}", stored.offset);
                    return stop(run, slot, &reason);
                }
            }
        }
        self.offer(run, slot);
    }

    /// Offers what was read; reads on when all of it was taken.
    fn offer(&mut self, run: &mut PartitionRun, slot: QueueSlot) {
        let mut share = QUEUE_RECORDS_MAX;
        while let Some(reading) = run.catch_ups.by_slot.get_mut(&slot)
            && let Some((offset, record)) = reading.records.front()
        {
            if share == 0 {
                // The rest at the next turn, after the others.
                return;
            }
            share -= 1;
            let (offset, record) = (*offset, Arc::clone(record));
            let mut from = reading.position;
            if reading.is_by_index {
                run.queues.pass_to(slot, offset);
                from = offset;
            }
            let read = ReadBehind { from, offset, record: &record };
            match self.offer_one(run, slot, read) {
                CatchUp::Continue => {
                    let Some(reading) = run.catch_ups.by_slot.get_mut(&slot) else { return };
                    reading.position = offset + 1;
                    reading.records.pop_front();
                    reading.served += 1;
                    self.left = self.left.saturating_sub(1);
                }
                CatchUp::Stopped => return,
                CatchUp::AtHead | CatchUp::Misplaced => return run.catch_ups.forget(slot),
            }
        }
        if let Some(reading) = run.catch_ups.by_slot.get_mut(&slot)
            && reading.position < reading.until
        {
            reading.position = reading.until;
            run.queues.pass_to(slot, reading.until);
        }
        self.read_on(run, slot);
    }

    fn read_on(&mut self, run: &mut PartitionRun, slot: QueueSlot) {
        // No room: the reader waits where it stands.
        let Some(wanted) = run.queues.wanted_from(slot) else { return };
        let Some(reading) = run.catch_ups.by_slot.get_mut(&slot) else { return };
        let is_far = wanted < reading.position || wanted - reading.position > JUMP_MIN;
        if is_far || wanted >= run.recent.from() {
            // The next visit starts at the right place.
            return run.catch_ups.forget(slot);
        }
        if let Some(reader) = reading.reader.take() {
            let abort = self.jobs.read_behind(run.partition, reading.ticket, reader, Duration::ZERO);
            reading.abort = Some(abort);
        }
    }
}

/// The record that a queue needs next is damaged: that queue waits, the others of the partition go on.
fn stop(run: &mut PartitionRun, slot: QueueSlot, reason: &str) {
    run.catch_ups.forget(slot);
    run.catch_ups.stopped.insert(slot);
    let client_id = run.queues.id(slot).map(|queue| queue.name.clone()).unwrap_or_default();
    error!(partition = run.partition.0, %client_id, reason, "queue stopped: a record that it needs is damaged");
}

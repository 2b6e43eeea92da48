//! The readers behind the head of one partition, and where each stands.

use super::pace::Pace;
use super::queue_reader::QueueReader;
use futures::future::AbortHandle;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use tidemill_core::partition::Offset;
use tidemill_core::queue::partition::QueueSlot;
use tidemill_core::record::Record;

/// The readers behind the head of one partition.
#[derive(Default)]
pub(super) struct CatchUps {
    pub(super) by_slot: BTreeMap<QueueSlot, Reading>,
    pub(super) last: Option<QueueSlot>,
    pub(super) pace: Pace,
    /// Queues whose next record is damaged: they wait for a new receiver, which may be there because a human has acted.
    pub(super) stopped: BTreeSet<QueueSlot>,
}

/// One queue's reader.
pub(super) struct Reading {
    pub(super) ticket: u64,
    /// Everything below was offered to the queue, from where the reader began.
    pub(super) position: Offset,
    /// Read and not offered yet.
    pub(super) records: VecDeque<(Offset, Arc<Record>)>,
    /// What is below and not among `records` is not in the log; or, if the index says so, not for this queue.
    pub(super) until: Offset,
    pub(super) is_by_index: bool,
    /// `None` while a read is under way.
    pub(super) reader: Option<Box<QueueReader>>,
    /// Ends the read that is under way.
    pub(super) abort: Option<AbortHandle>,
    /// Records offered since it began.
    pub(super) served: usize,
}

impl Drop for Reading {
    fn drop(&mut self) {
        if let Some(abort) = &self.abort {
            abort.abort();
        }
    }
}

impl CatchUps {
    /// The queue has a new receiver, or none, or is gone: its reader stands at the wrong place.
    pub(super) fn forget_queue(&mut self, slot: QueueSlot) {
        self.forget(slot);
        self.pace.forget(slot);
        self.stopped.remove(&slot);
    }

    /// How many queues cannot go on.
    pub(super) fn stopped_count(&self) -> usize {
        self.stopped.len()
    }

    pub(super) fn forget(&mut self, slot: QueueSlot) {
        self.by_slot.remove(&slot);
    }

    pub(super) fn slot_of(&self, ticket: u64) -> Option<QueueSlot> {
        self.by_slot.iter().find(|(_, reading)| reading.ticket == ticket).map(|(slot, _)| *slot)
    }
}

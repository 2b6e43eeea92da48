//! The receivers of the queues of a partition: there, gone, and what they are done with.

use super::{PartitionQueues, QueueSlot};
use crate::partition::Offset;
use std::hash::BuildHasher;

/// A receiver of a queue.
#[derive(Debug, Clone, Copy)]
pub struct Receiver<'a> {
    /// Messages it takes at a time.
    pub window: u16,
    /// What it is done with.
    pub done: &'a [Offset],
    /// What it has.
    pub in_flight: &'a [Offset],
}

impl<S: BuildHasher + Clone> PartitionQueues<S> {
    /// A receiver is there; see [`Progress::attach`](crate::queue::progress::Progress::attach).
    pub fn attach(&mut self, slot: QueueSlot, receiver: Receiver<'_>, now_ms: u64) {
        let Receiver { window, done, in_flight } = receiver;
        self.hand_outs.retain(|hand_out| hand_out.slot != slot);
        for offset in done {
            self.unpark(slot, *offset);
        }
        let Some(queue) = self.queue_mut(slot) else { return };
        queue.progress.attach(window, done, in_flight, now_ms);
        if !done.is_empty() {
            self.dirty.insert(slot);
        }
        self.hand_out_parked(slot, now_ms);
        self.note_lag(slot);
    }

    /// The receiver is gone; what was not handed over yet is handed out again to the next one.
    pub fn detach(&mut self, slot: QueueSlot) {
        self.hand_outs.retain(|hand_out| hand_out.slot != slot);
        if let Some(queue) = self.queue_mut(slot) {
            queue.progress.detach();
        }
        self.note_lag(slot);
    }

    /// The receiver `is_current`, or a former one, is done with `offsets`; unknown and repeated ones change nothing.
    pub fn handle_acked(&mut self, slot: QueueSlot, offsets: &[Offset], is_current: bool, now_ms: u64) {
        let Some(queue) = self.queue_mut(slot) else { return };
        let mut changed: Vec<Offset> = Vec::new();
        for offset in offsets {
            if queue.progress.finish(*offset, is_current) {
                changed.push(*offset);
            }
        }
        if changed.is_empty() {
            return;
        }
        queue.acked_ms = now_ms;
        self.dirty.insert(slot);
        if !self.parked.is_empty() {
            for offset in changed {
                self.unpark(slot, offset);
            }
            self.hand_out_parked(slot, now_ms);
        }
        self.note_lag(slot);
    }

    pub(super) fn note_lag(&mut self, slot: QueueSlot) {
        if self.wanted_from(slot).is_some() {
            self.lagging.insert(slot);
        } else {
            self.lagging.remove(&slot);
        }
    }
}

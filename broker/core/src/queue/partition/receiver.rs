//! The receivers of the queues of a partition: there, gone, and what they are done with.

use super::{PartitionQueues, QueueSlot};
use crate::partition::Offset;
use std::hash::BuildHasher;

impl<S: BuildHasher + Clone> PartitionQueues<S> {
    /// A receiver is there; see [`Progress::attach`].
    pub fn attach(&mut self, slot: QueueSlot, window: u16, done: &[Offset], in_flight: &[Offset]) {
        self.hand_outs.retain(|hand_out| hand_out.slot != slot);
        let Some(queue) = self.queue_mut(slot) else { return };
        queue.progress.attach(window, done, in_flight);
        if !done.is_empty() {
            self.dirty.insert(slot);
        }
        self.note_lag(slot);
    }

    /// The receiver is gone; what was not handed over yet is handed out again to the next one.
    pub fn detach(&mut self, slot: QueueSlot) {
        self.hand_outs.retain(|hand_out| hand_out.slot != slot);
        self.lagging.remove(&slot);
        if let Some(queue) = self.queue_mut(slot) {
            queue.progress.detach();
        }
    }

    /// The receiver `is_current`, or a former one, is done with `offsets`; unknown and repeated ones change nothing.
    pub fn handle_acked(&mut self, slot: QueueSlot, offsets: &[Offset], is_current: bool) {
        let Some(queue) = self.queue_mut(slot) else { return };
        let mut changed = false;
        for offset in offsets {
            changed |= queue.progress.finish(*offset, is_current);
        }
        if changed {
            self.dirty.insert(slot);
            self.note_lag(slot);
        }
    }

    pub(super) fn note_lag(&mut self, slot: QueueSlot) {
        if self.queue(slot).is_some_and(|queue| queue.progress.wanted_from().is_some()) {
            self.lagging.insert(slot);
        } else {
            self.lagging.remove(&slot);
        }
    }
}

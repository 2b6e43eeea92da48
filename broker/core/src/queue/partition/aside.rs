//! Messages of the queues of a partition that have left the way from the log to a receiver.

use super::offer::ReadBehind;
use super::{DeadLetter, PartitionQueues, QueueSlot, index};
use crate::attach::QueueId;
use crate::message::Message;
use crate::partition::Offset;
use crate::queue::limits::{DropReason, QueuePolicy};
use crate::queue::subscription::Interest;
use crate::record::Record;
use std::hash::BuildHasher;
use std::sync::Arc;

/// Bytes of parked messages of one partition; what is beyond it stays in the log.
pub const PARKED_BYTES_MAX: usize = 16 << 20;
/// Name of the user property by which a dead letter is known: it never becomes another one.
pub const DEAD_LETTER_REASON: &str = "dead-letter-reason";

impl<S: BuildHasher + Clone> PartitionQueues<S> {
    /// Whether a message that is given up goes to the dead-letter topic.
    pub(super) fn is_dead_letter(&self, message: &Message) -> bool {
        let is_one = || {
            let properties = message.properties.as_deref();
            properties
                .is_some_and(|one| one.user_properties.iter().any(|(name, _)| name == DEAD_LETTER_REASON))
        };
        self.limits.policy == QueuePolicy::DeadLetter && !is_one()
    }

    /// The next dead letter to publish.
    pub fn poll_dead_letter(&mut self) -> Option<DeadLetter> {
        self.dead_letters.pop_front()
    }

    /// The dead letter at `offset` is durable, or can never be: the queue is done with it.
    pub fn handle_buried(&mut self, slot: QueueSlot, offset: Offset) {
        if self.queue_mut(slot).is_some_and(|queue| queue.progress.buried(offset)) {
            self.unpark(slot, offset);
            self.dirty.insert(slot);
            self.note_lag(slot);
        }
    }

    /// The dead letter at `offset` was not published: it is read and offered again.
    pub fn handle_not_buried(&mut self, slot: QueueSlot, offset: Offset) {
        if self.queue_mut(slot).is_some_and(|queue| queue.progress.exhume(offset)) {
            self.note_lag(slot);
        }
    }

    pub(super) fn bury_open(&mut self, slot: QueueSlot, read: ReadBehind<'_>, reason: DropReason) -> bool {
        let ReadBehind { offset, record, .. } = read;
        let Some(queue) = self.queue_mut(slot).filter(|queue| queue.progress.can_bury()) else {
            return false;
        };
        queue.progress.bury(offset, record.held_bytes(), reason);
        self.dirty.insert(slot);
        let record = Arc::clone(record);
        self.dead_letters.push_back(DeadLetter { slot, offset, reason, record });
        true
    }

    /// A message that was handed out too often.
    pub(super) fn give_up_open(&mut self, slot: QueueSlot, read: ReadBehind<'_>) -> bool {
        let reason = DropReason::MaxDeliveries;
        if self.is_dead_letter(&read.record.message) {
            if !self.bury_open(slot, read, reason) {
                return false;
            }
        } else {
            if let Some(queue) = self.queue_mut(slot) {
                queue.progress.give_up(read.offset);
            }
            self.unpark(slot, read.offset);
            self.dirty.insert(slot);
        }
        self.given_up.push((slot, read.offset));
        self.drop_message(slot, reason, 1);
        true
    }

    /// Messages that were handed out and given up since last asked: no receiver gets them again.
    pub fn take_given_up(&mut self) -> Vec<(QueueSlot, Offset)> {
        std::mem::take(&mut self.given_up)
    }

    /// What receivers have had since `before_ms` or longer, in the order of the queues, at most `limit`. Looks at all
    /// queues.
    #[must_use]
    pub fn overdue(&self, before_ms: u64, limit: usize) -> Vec<(QueueSlot, Offset)> {
        let mut overdue = Vec::new();
        for (place, queue) in self.queues.iter().enumerate() {
            let (Ok(slot), Some(queue)) = (QueueSlot::try_from(place), queue) else { continue };
            let room = limit.saturating_sub(overdue.len());
            overdue.extend(queue.progress.overdue(before_ms).take(room).map(|offset| (slot, offset)));
        }
        overdue
    }

    /// Keeps a message that is at the receiver outside the log, so that it does not pin it. Returns its queue, for the
    /// key under which it is to be stored, in the commit that stores the cursor; `None` when it is done meanwhile, or
    /// when there is no room.
    pub fn park(&mut self, slot: QueueSlot, offset: Offset, record: &Arc<Record>) -> Option<QueueId> {
        let bytes = record.held_bytes();
        if self.parked_bytes + bytes > PARKED_BYTES_MAX {
            return None;
        }
        let queue = self.queue_mut(slot).filter(|queue| queue.progress.is_open(offset))?;
        let id = queue.id.clone();
        queue.progress.park(offset).then(|| {
            self.parked.insert((slot, offset), Arc::clone(record));
            self.parked_bytes += bytes;
            self.dirty.insert(slot);
            id
        })
    }

    /// A parked message that is stored.
    pub fn restore_parked(&mut self, slot: QueueSlot, offset: Offset, record: Arc<Record>) {
        let Some(queue) = self.queue_mut(slot) else { return };
        queue.progress.restore_parked(offset);
        self.parked_bytes += record.held_bytes();
        self.parked.insert((slot, offset), record);
    }

    /// The offsets of the parked messages of a queue, in order.
    #[must_use]
    pub fn parked(&self, slot: QueueSlot) -> Vec<Offset> {
        self.parked.range((slot, 0)..=(slot, Offset::MAX)).map(|((_, offset), _)| *offset).collect()
    }

    /// Bytes of all parked messages.
    #[must_use]
    pub fn parked_bytes(&self) -> usize {
        self.parked_bytes
    }

    /// Parked messages that are done since last asked: their keys are to be deleted.
    pub fn take_unparked(&mut self) -> Vec<(QueueId, Offset)> {
        std::mem::take(&mut self.unparked)
    }

    pub(super) fn unpark(&mut self, slot: QueueSlot, offset: Offset) {
        let Some(record) = self.parked.remove(&(slot, offset)) else { return };
        self.parked_bytes -= record.held_bytes();
        if let Some(id) = self.id(slot).cloned() {
            self.unparked.push((id, offset));
        }
    }

    /// Hands out the parked messages that are next, as far as there is room: they come from memory, not from the log.
    pub(super) fn hand_out_parked(&mut self, slot: QueueSlot, now_ms: u64) {
        // Bounded: each turn hands one out or gives one up.
        while let Some(queue) = self.queues.get_mut(index(slot)).and_then(Option::as_mut)
            && let Some(offset) = queue.progress.next_parked()
            && let Some(record) = self.parked.get(&(slot, offset)).cloned()
        {
            let read = ReadBehind { from: offset, offset, record: &record };
            if let Some(max) = self.limits.deliveries_max
                && queue.progress.count_delivery(offset) >= max
            {
                if self.give_up_open(slot, read) {
                    continue;
                }
                return;
            }
            let interest = queue.subscriptions.interest(&queue.id.name, offset, &record);
            let interest = interest.unwrap_or_else(Interest::of_ended_subscription);
            if !self.hand_out_behind(slot, read, interest, now_ms) {
                return;
            }
        }
    }

    /// The queue in `slot` goes, with what it has here.
    pub(super) fn forget_aside(&mut self, slot: QueueSlot) {
        self.dead_letters.retain(|letter| letter.slot != slot);
        self.given_up.retain(|(of, _)| *of != slot);
        for offset in self.parked(slot) {
            if let Some(record) = self.parked.remove(&(slot, offset)) {
                self.parked_bytes -= record.held_bytes();
            }
        }
    }
}

//! Offering records to the queues of a partition: at its head to all that match, behind it to one.

use super::{HandOut, PartitionQueues, QueueSlot, index};
use crate::partition::Offset;
use crate::queue::progress::{Mode, Turn};
use crate::queue::subscription::Interest;
use crate::record::Record;
use crate::topic::TopicFilter;
use std::hash::BuildHasher;
use std::sync::Arc;

/// What reading behind the head came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CatchUp {
    /// The record was taken or passed; the queue needs the next one.
    Continue,
    /// The queue takes nothing now: its window or byte budget is used up, or its receiver is gone. The record must be offered again.
    Stopped,
    /// The queue has reached the head; a record at or beyond it was not taken.
    AtHead,
    /// The queue needs records before these: read from [`PartitionQueues::wanted_from`] again.
    Misplaced,
}

/// A record read behind the head.
#[derive(Debug, Clone, Copy)]
pub struct ReadBehind<'a> {
    /// The log holds nothing between this offset and the record's.
    pub from: Offset,
    /// Where the record is.
    pub offset: Offset,
    /// The record.
    pub record: &'a Arc<Record>,
}

impl<S: BuildHasher + Clone> PartitionQueues<S> {
    /// The record at the head of the partition: offered to all queues, once, in offset order. One below the head was
    /// offered before and is ignored.
    pub fn handle_record(&mut self, offset: Offset, record: &Arc<Record>, now_ms: u64) {
        if offset < self.head {
            return;
        }
        self.head = offset + 1;
        let mut matching: Vec<(QueueSlot, TopicFilter)> = Vec::new();
        let topic = &record.message.topic;
        self.durable.for_each_match(topic, |key| matching.push(key.clone()));
        if !matching.is_empty() {
            self.beside.for_each_match(topic, |key| matching.push(key.clone()));
        }
        matching.sort_unstable();
        for same in matching.chunk_by(|one, other| one.0 == other.0) {
            if let Some((slot, _)) = same.first() {
                let filters: Vec<&TopicFilter> = same.iter().map(|(_, filter)| filter).collect();
                self.offer_at_head(*slot, &filters, (offset, record), now_ms);
            }
        }
    }

    fn offer_at_head(
        &mut self,
        slot: QueueSlot,
        filters: &[&TopicFilter],
        (offset, record): (Offset, &Arc<Record>),
        now_ms: u64,
    ) {
        let Some(queue) = self.queues.get_mut(index(slot)).and_then(Option::as_mut) else { return };
        if queue.progress.mode() == Mode::Behind {
            return;
        }
        let interest = queue.subscriptions.interest_of(filters, &queue.id.name, offset, record);
        let Some(interest) = interest else { return };
        if record.message.is_expired(now_ms) {
            self.expired += 1;
            return;
        }
        match queue.progress.take_at_head(offset, record.held_bytes()) {
            Turn::HandOut { redelivery } => {
                self.dirty.insert(slot);
                let record = Arc::clone(record);
                self.hand_outs.push_back(HandOut { slot, offset, interest, redelivery, record });
            }
            Turn::Wait => {
                self.dirty.insert(slot);
                self.note_lag(slot);
            }
            Turn::Pass => {}
        }
    }

    /// Nothing is between the last record offered and `end`.
    pub fn handle_end(&mut self, end: Offset) {
        self.head = self.head.max(end);
    }

    /// A record behind the head for one queue.
    pub fn handle_behind(&mut self, slot: QueueSlot, read: ReadBehind<'_>, now_ms: u64) -> CatchUp {
        let ReadBehind { from, offset, record } = read;
        if offset >= self.head {
            return self.handle_behind_end(slot, from, offset);
        }
        let Some(queue) = self.queues.get_mut(index(slot)).and_then(Option::as_mut) else {
            return CatchUp::Stopped;
        };
        let Some(missing) = queue.progress.missing_from() else { return CatchUp::AtHead };
        if missing < from {
            return CatchUp::Misplaced;
        }
        let lost = queue.progress.lose_below(offset);
        let interest = queue.subscriptions.interest(&queue.id.name, offset, record);
        let is_expired = interest.is_some() && record.message.is_expired(now_ms);
        let turn =
            queue.progress.take_behind(offset, record.held_bytes(), || interest.is_some() && !is_expired);
        let has_passed = missing <= offset && turn == Turn::Pass;
        if lost > 0 || matches!(turn, Turn::HandOut { .. }) {
            self.dirty.insert(slot);
        }
        self.lost += lost as u64;
        self.expired += u64::from(is_expired && has_passed);
        match turn {
            Turn::HandOut { redelivery } => {
                // A delivery that was begun is completed, whatever became of the subscription.
                let interest = interest.unwrap_or_else(Interest::of_ended_subscription);
                let record = Arc::clone(record);
                self.hand_outs.push_back(HandOut { slot, offset, interest, redelivery, record });
            }
            Turn::Wait => {
                self.note_lag(slot);
                return CatchUp::Stopped;
            }
            Turn::Pass => {}
        }
        if offset + 1 == self.head {
            self.handle_behind_end(slot, self.head, self.head)
        } else {
            CatchUp::Continue
        }
    }

    /// The log holds nothing between `from` and `end`, for a queue behind the head. Answers as for a record there.
    pub fn handle_behind_end(&mut self, slot: QueueSlot, from: Offset, end: Offset) -> CatchUp {
        let head = self.head;
        let Some(queue) = self.queue_mut(slot) else { return CatchUp::Stopped };
        match queue.progress.missing_from() {
            None => return CatchUp::AtHead,
            Some(missing) if missing < from => return CatchUp::Misplaced,
            Some(_) => {}
        }
        let lost = queue.progress.lose_below(end.min(head));
        let has_reached = end >= head && queue.progress.reach_head(head);
        self.lost += lost as u64;
        if lost > 0 || has_reached {
            self.dirty.insert(slot);
        }
        self.note_lag(slot);
        if end >= head { CatchUp::AtHead } else { CatchUp::Continue }
    }
}

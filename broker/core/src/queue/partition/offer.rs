//! Offering records to the queues of a partition: at its head to all that match, behind it to one.

use super::{DeadLetter, HandOut, PartitionQueues, QueueSlot, index};
use crate::partition::Offset;
use crate::queue::backlog::Passing;
use crate::queue::limits::DropReason;
use crate::queue::progress::{Fate, Mode, Sent, Turn};
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
    /// offered before and is ignored. Returns how many subscriptions it matched: so much work it was.
    pub fn handle_record(&mut self, offset: Offset, record: &Arc<Record>, now_ms: u64) -> usize {
        if offset < self.head {
            return 0;
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
        self.end_full_block();
        matching.len()
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
            let is_wanted = queue.progress.is_new(offset)
                && queue.subscriptions.wants(filters, &queue.id.name, offset, record)
                && !record.message.is_expired(now_ms);
            return if is_wanted {
                self.count(slot, offset, record)
            };
        }
        let interest = queue.subscriptions.interest_of(filters, &queue.id.name, offset, record);
        let Some(interest) = interest else { return };
        if record.message.is_expired(now_ms) {
            return self.drop_message(slot, DropReason::Expired, 1);
        }
        let sent = Sent { bytes: record.held_bytes(), at_ms: now_ms };
        match queue.progress.take_at_head(offset, sent) {
            Turn::HandOut { redelivery } => {
                self.dirty.insert(slot);
                let record = Arc::clone(record);
                self.hand_outs.push_back(HandOut { slot, offset, interest, redelivery, record });
            }
            Turn::Wait => {
                self.dirty.insert(slot);
                self.count(slot, offset, record);
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
        let ReadBehind { from, offset, .. } = read;
        if offset >= self.head {
            return self.handle_behind_end(slot, from, offset);
        }
        let wanted = self.wanted_from(slot);
        let Some(queue) = self.queues.get_mut(index(slot)).and_then(Option::as_mut) else {
            return CatchUp::Stopped;
        };
        let Some(missing) = queue.progress.missing_from() else { return CatchUp::AtHead };
        if wanted.unwrap_or(missing) < from {
            return CatchUp::Misplaced;
        }
        let lost = queue.progress.lose_between(from, offset);
        if lost > 0 {
            self.lost += lost as u64;
            self.dirty.insert(slot);
        }
        let is_taken = if queue.progress.is_new(offset) {
            self.take_new(slot, read, now_ms)
        } else {
            self.take_again(slot, read, now_ms)
        };
        if !is_taken {
            self.note_lag(slot);
            return CatchUp::Stopped;
        }
        if offset + 1 == self.head {
            self.handle_behind_end(slot, self.head, self.head)
        } else {
            CatchUp::Continue
        }
    }

    /// A record that the queue was not offered before. Returns whether it is past it.
    fn take_new(&mut self, slot: QueueSlot, read: ReadBehind<'_>, now_ms: u64) -> bool {
        let ReadBehind { offset, record, .. } = read;
        let (limits, is_letter) = (self.limits, self.is_dead_letter(&record.message));
        let Some(queue) = self.queues.get_mut(index(slot)).and_then(Option::as_mut) else { return false };
        let interest = queue.subscriptions.interest(&queue.id.name, offset, record);
        let bytes = record.held_bytes();
        match (queue.progress.fate(offset, (&record.message, interest.is_some()), &limits, now_ms), interest)
        {
            (Fate::Due, Some(interest)) => {
                let is_past = self.hand_out_behind(slot, read, interest, now_ms);
                self.note_near_limit(slot);
                is_past
            }
            (Fate::Due | Fate::Unwanted, _) => {
                queue.progress.pass_over(offset, None);
                true
            }
            (Fate::Dropped(reason), _) => {
                let is_counted = queue.progress.is_next_given_up();
                if reason != DropReason::Expired && is_letter {
                    if !queue.progress.can_bury() {
                        return false;
                    }
                    queue.progress.bury(offset, bytes, reason);
                    let record = Arc::clone(record);
                    self.dead_letters.push_back(DeadLetter { slot, offset, reason, record });
                } else {
                    queue.progress.pass_over(offset, Some(bytes));
                }
                self.dirty.insert(slot);
                if !is_counted {
                    self.drop_message(slot, reason, 1);
                }
                self.note_near_limit(slot);
                true
            }
        }
    }

    /// A record that the queue was offered before. Returns whether it is past it.
    fn take_again(&mut self, slot: QueueSlot, read: ReadBehind<'_>, now_ms: u64) -> bool {
        let ReadBehind { offset, record, .. } = read;
        let deliveries_max = self.limits.deliveries_max;
        let Some(queue) = self.queues.get_mut(index(slot)).and_then(Option::as_mut) else { return false };
        if let Some(reason) = queue.progress.dead_reason(offset) {
            return self.bury_open(slot, read, reason);
        }
        if !queue.progress.is_redelivery(offset) {
            return true;
        }
        if let Some(max) = deliveries_max {
            if !queue.progress.has_room() {
                return false;
            }
            if queue.progress.count_delivery(offset) >= max {
                return self.give_up_open(slot, read);
            }
        }
        // A delivery that was begun is completed, whatever became of the subscription.
        let interest = queue.subscriptions.interest(&queue.id.name, offset, record);
        let interest = interest.unwrap_or_else(Interest::of_ended_subscription);
        let is_past = self.hand_out_behind(slot, read, interest, now_ms);
        self.hand_out_parked(slot, now_ms);
        is_past
    }

    /// Hands out a record that is due, if there is room. Returns whether the queue is past it.
    pub(super) fn hand_out_behind(
        &mut self,
        slot: QueueSlot,
        read: ReadBehind<'_>,
        interest: Interest,
        now_ms: u64,
    ) -> bool {
        let ReadBehind { offset, record, .. } = read;
        let Some(queue) = self.queues.get_mut(index(slot)).and_then(Option::as_mut) else { return false };
        let sent = Sent { bytes: record.held_bytes(), at_ms: now_ms };
        match queue.progress.take_behind(offset, sent) {
            Turn::HandOut { redelivery } => {
                queue.redelivered += u64::from(redelivery);
                self.dirty.insert(slot);
                let record = Arc::clone(record);
                self.hand_outs.push_back(HandOut { slot, offset, interest, redelivery, record });
                true
            }
            Turn::Wait => {
                let (bytes, publish_ms) = (record.held_bytes() as u64, record.message.publish_time_ms);
                queue.progress.find(Passing { offset, bytes, publish_ms });
                false
            }
            Turn::Pass => true,
        }
    }

    /// The log holds nothing between `from` and `end`, for a queue behind the head. Answers as for a record there.
    pub fn handle_behind_end(&mut self, slot: QueueSlot, from: Offset, end: Offset) -> CatchUp {
        let (head, wanted) = (self.head, self.wanted_from(slot));
        let Some(queue) = self.queue_mut(slot) else { return CatchUp::Stopped };
        let Some(missing) = queue.progress.missing_from() else { return CatchUp::AtHead };
        if wanted.unwrap_or(missing) < from {
            return CatchUp::Misplaced;
        }
        let lost = queue.progress.lose_between(from, end.min(head));
        let has_reached = end >= head && queue.progress.reach_head(head);
        self.lost += lost as u64;
        if lost > 0 || has_reached {
            self.dirty.insert(slot);
        }
        self.note_near_limit(slot);
        self.note_lag(slot);
        if end >= head { CatchUp::AtHead } else { CatchUp::Continue }
    }
}

//! What waits in the queues of a partition: counting it, bounding it, telling of it.

use super::{PartitionQueues, QueueSlot, index};
use crate::attach::QueueId;
use crate::partition::Offset;
use crate::queue::backlog::{Passing, Tally};
use crate::queue::limits::{DropReason, Drops, QueuePolicy};
use crate::record::Record;
use std::hash::BuildHasher;

/// How one queue stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueStanding {
    /// What waits: not handed out, and not given up.
    pub waiting: Tally,
    /// When the oldest message that waits was published, milliseconds since the Unix epoch, at the earliest.
    pub oldest_ms: Option<u64>,
    /// Messages at the receiver.
    pub in_flight: usize,
    /// Messages that were handed out and are not done, those in flight and the parked ones too.
    pub open: usize,
    /// Of these, those kept outside the log.
    pub parked: usize,
    /// Messages that were handed out again, since the queue was loaded.
    pub redelivered: u64,
    /// Last acknowledgement since the queue was loaded, milliseconds since the Unix epoch.
    pub acked_ms: Option<u64>,
    /// Messages that were given up, since the queue was loaded.
    pub drops: Drops,
}

impl<S: BuildHasher + Clone> PartitionQueues<S> {
    /// How a queue stands.
    #[must_use]
    pub fn standing(&self, slot: QueueSlot) -> Option<QueueStanding> {
        let queue = self.queue(slot)?;
        let progress = &queue.progress;
        Some(QueueStanding {
            waiting: progress.waiting(),
            oldest_ms: progress.oldest_waiting_ms(),
            in_flight: progress.in_flight_count(),
            open: progress.open_count() - progress.dead_count(),
            parked: progress.parked_count(),
            redelivered: queue.redelivered,
            acked_ms: (queue.acked_ms > 0).then_some(queue.acked_ms),
            drops: queue.drops.as_deref().copied().unwrap_or_default(),
        })
    }

    /// A record that a queue behind the head wants came at the head.
    pub(super) fn count(&mut self, slot: QueueSlot, offset: Offset, record: &Record) {
        let Some(queue) = self.queues.get_mut(index(slot)).and_then(Option::as_mut) else { return };
        let message = &record.message;
        let bytes = record.held_bytes() as u64;
        let passing = Passing { offset, bytes, publish_ms: message.publish_time_ms };
        let given_up = queue.progress.count(passing, &self.limits);
        let is_refused = given_up.is_some() && self.limits.policy == QueuePolicy::DropNewest;
        if !is_refused {
            self.note_in_index(offset, slot);
        }
        self.counted.insert(slot);
        if let Some((reason, messages)) = given_up {
            self.drop_message(slot, reason, messages);
            self.note_lag(slot);
        }
        self.note_near_limit(slot);
    }

    pub(super) fn drop_message(&mut self, slot: QueueSlot, reason: DropReason, messages: u64) {
        self.drops.add(reason, messages);
        let Some(queue) = self.queue_mut(slot) else { return };
        queue.dropped(reason, messages);
        let is_bound = matches!(reason, DropReason::Messages | DropReason::Bytes);
        if is_bound && !std::mem::replace(&mut queue.is_at_limit, true) {
            self.at_limit.push((slot, reason));
        }
    }

    /// Queues that have given up their first message at a bound since last asked, and at which. A queue does so again once
    /// it has drained to 3/5.
    pub fn take_at_limit(&mut self) -> Vec<(QueueId, DropReason)> {
        let at_limit = std::mem::take(&mut self.at_limit);
        at_limit.into_iter().filter_map(|(slot, reason)| Some((self.id(slot)?.clone(), reason))).collect()
    }

    /// Gives up what has waited too long, as far as that is known without reading; the rest is found when it is read.
    /// Looks at all queues. A queue of which nothing is left is at the head again.
    pub fn give_up_old(&mut self, now_ms: u64) {
        if self.limits.age_ms.is_none() {
            return;
        }
        for place in 0..self.queues.len() {
            let Ok(slot) = QueueSlot::try_from(place) else { return };
            let (limits, head) = (self.limits, self.head);
            let Some(queue) = self.queue_mut(slot) else { continue };
            let messages = queue.progress.give_up_old(&limits, now_ms);
            if messages > 0 {
                let is_at_head = queue.progress.waiting().messages == 0
                    && !queue.progress.is_next_given_up()
                    && queue.progress.reach_head(head);
                if is_at_head {
                    self.dirty.insert(slot);
                }
                self.counted.insert(slot);
                self.drop_message(slot, DropReason::Age, messages);
                self.note_near_limit(slot);
                self.note_lag(slot);
            }
        }
    }

    /// Notes when a queue passes 4/5 of a bound, and when it has drained to 3/5.
    pub(super) fn note_near_limit(&mut self, slot: QueueSlot) {
        let limits = self.limits;
        let Some(queue) = self.queues.get_mut(index(slot)).and_then(Option::as_mut) else { return };
        let waiting = queue.progress.waiting();
        let fifths = if queue.is_near_limit { 3 } else { 4 };
        let is_beyond = |held: u64, bound: u64| held > bound / 5 * fifths + bound % 5 * fifths / 5;
        let is_near = is_beyond(waiting.messages, limits.messages) || is_beyond(waiting.bytes, limits.bytes);
        if is_near == queue.is_near_limit {
            return;
        }
        queue.is_near_limit = is_near;
        queue.is_at_limit &= is_near;
        if is_near {
            self.near_limit_count += 1;
            self.near_limit.push(slot);
        } else {
            self.near_limit_count -= 1;
        }
    }

    /// Queues that have passed 4/5 of a bound since last asked, with what waits in them.
    pub fn take_near_limit(&mut self) -> Vec<(QueueId, Tally)> {
        let near = std::mem::take(&mut self.near_limit);
        let standing = |slot: QueueSlot| {
            let queue = self.queue(slot)?;
            Some((queue.id.clone(), queue.progress.waiting()))
        };
        near.into_iter().filter_map(standing).collect()
    }

    /// How many queues are beyond 4/5 of a bound and have not drained since.
    #[must_use]
    pub fn near_limit_count(&self) -> usize {
        self.near_limit_count
    }

    /// The `count` largest numbers of messages that wait in one queue, the largest first. Looks at all of them.
    #[must_use]
    pub fn largest(&self, count: usize) -> Vec<u64> {
        let mut largest: Vec<u64> = Vec::new();
        for queue in self.queues.iter().flatten() {
            let messages = queue.progress.waiting().messages;
            if messages == 0
                || (largest.len() >= count && largest.last().is_some_and(|last| *last >= messages))
            {
                continue;
            }
            largest.insert(largest.partition_point(|larger| *larger >= messages), messages);
            largest.truncate(count);
        }
        largest
    }
}

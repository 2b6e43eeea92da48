//! How much waits for a queue that is behind the head of its partition: counted as it comes, without reading the log.
//!
//! Each message that comes for the queue is counted at the head, each that the queue passes is counted again. A few
//! marks say what had been counted where, so that the oldest messages can be given up without reading them, and that a
//! queue knows how long its oldest message waits. What a subscription change makes of messages that wait is not known
//! before they are read: the counts are right again at the next mark, and when the queue reaches the head.

use super::limits::{DropReason, QueueLimits, QueuePolicy};
use crate::partition::Offset;

/// Marks of one queue; at the bound every other one goes.
pub const MARKS_MAX: usize = 16;
/// Ranges that a queue did not take; at the bound it takes nothing until it has passed the first.
pub const SKIPPED_MAX: usize = 8;

/// Messages and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// How many.
    pub messages: u64,
    /// Their bytes, as [`Message::held_bytes`](crate::message::Message::held_bytes) counts.
    pub bytes: u64,
}

impl Tally {
    fn add(&mut self, bytes: u64) {
        self.messages += 1;
        self.bytes += bytes;
    }
}

/// What had been counted where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// A message that was counted.
    pub offset: Offset,
    /// What was counted before it.
    pub before: Tally,
    /// When it was published, milliseconds since the Unix epoch.
    pub publish_ms: u64,
}

/// Offsets that a queue did not take because it was full: `start..end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skipped {
    /// The first one.
    pub start: Offset,
    /// One past the last; `Offset::MAX` while the queue takes nothing.
    pub end: Offset,
}

/// One message that comes or is passed.
#[derive(Debug, Clone, Copy)]
pub struct Passing {
    /// Where it is.
    pub offset: Offset,
    /// Its bytes.
    pub bytes: u64,
    /// When it was published, milliseconds since the Unix epoch.
    pub publish_ms: u64,
}

/// What waits for one queue.
///
/// Invariants: `passed` is within `counted`; marks and skipped ranges are in order and bounded; the first mark is at or
/// before the first message that waits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Backlog {
    /// Everything below was counted.
    pub(crate) counted_to: Offset,
    pub(crate) counted: Tally,
    pub(crate) passed: Tally,
    /// So many of the oldest that were counted are given up, passed or not.
    pub(crate) dropped: u64,
    /// Why the last of these were.
    pub(crate) reason: Option<DropReason>,
    /// Messages from one mark to the next.
    pub(crate) every: u64,
    /// The latest publish of all that was counted, milliseconds since the Unix epoch.
    pub(crate) newest_ms: u64,
    pub(crate) marks: Vec<Mark>,
    pub(crate) skipped: Vec<Skipped>,
}

impl Backlog {
    /// Nothing waits yet; what is below `from` is not counted.
    #[must_use]
    pub fn new(from: Offset) -> Self {
        Self { counted_to: from, every: 1, ..Self::default() }
    }

    /// Nothing waits any more; keeps its memory.
    pub fn clear(&mut self) {
        let (mut marks, mut skipped) = (std::mem::take(&mut self.marks), std::mem::take(&mut self.skipped));
        marks.clear();
        skipped.clear();
        *self = Self { marks, skipped, ..Self::new(self.counted_to) };
    }

    /// What waits and is not given up.
    #[must_use]
    pub fn waiting(&self) -> Tally {
        if self.dropped <= self.passed.messages {
            return Tally {
                messages: self.counted.messages - self.passed.messages,
                bytes: self.counted.bytes - self.passed.bytes,
            };
        }
        Tally {
            messages: self.counted.messages - self.dropped,
            bytes: self.counted.bytes - self.bytes_before(self.dropped).max(self.passed.bytes),
        }
    }

    /// Messages that are given up and not passed yet.
    #[must_use]
    pub fn given_up(&self) -> u64 {
        self.dropped.saturating_sub(self.passed.messages)
    }

    /// When the oldest message that waits was published, at the earliest; `None` when nothing waits.
    #[must_use]
    pub fn oldest_ms(&self) -> Option<u64> {
        let gone = self.passed.messages.max(self.dropped);
        if gone >= self.counted.messages {
            return None;
        }
        self.marks.iter().rev().find(|mark| mark.before.messages <= gone).map(|mark| mark.publish_ms)
    }

    /// A message for the queue came at the head. Returns why it is dropped, or `None` when it waits now. One that was
    /// counted before, by a former owner, changes nothing.
    pub fn count(&mut self, message: Passing, limits: &QueueLimits) -> Option<DropReason> {
        if message.offset < self.counted_to {
            return None;
        }
        self.counted_to = message.offset + 1;
        if limits.policy == QueuePolicy::DropNewest
            && let Some(reason) = self.refuse(message, limits)
        {
            return Some(reason);
        }
        self.mark(message);
        self.counted.add(message.bytes);
        self.newest_ms = self.newest_ms.max(message.publish_ms);
        None
    }

    /// A message is found that waits although nothing that was counted does: it is counted now.
    pub fn find(&mut self, message: Passing) {
        if self.marks.last().is_none_or(|last| last.offset < message.offset) {
            self.mark(message);
        }
        self.counted.add(message.bytes);
        self.counted_to = self.counted_to.max(message.offset + 1);
        self.newest_ms = self.newest_ms.max(message.publish_ms);
    }

    /// Whether the queue, which is full, does not take a message that comes.
    fn refuse(&mut self, message: Passing, limits: &QueueLimits) -> Option<DropReason> {
        let waiting = self.waiting();
        let is_closed = self.skipped.last().is_some_and(|last| last.end == Offset::MAX);
        // Drained to 7/8 it takes again: not one message at a time, which would make a range of each.
        let room = |limit: u64| if is_closed { limit - limit / 8 } else { limit };
        let reason = if waiting.messages >= room(limits.messages) {
            DropReason::Messages
        } else if waiting.messages > 0 && waiting.bytes.saturating_add(message.bytes) > room(limits.bytes) {
            DropReason::Bytes
        } else if is_closed && self.skipped.len() >= SKIPPED_MAX {
            DropReason::Messages
        } else {
            if let Some(last) = self.skipped.last_mut().filter(|_| is_closed) {
                last.end = message.offset;
            }
            return None;
        };
        if !is_closed {
            self.skipped.push(Skipped { start: message.offset, end: Offset::MAX });
        }
        Some(reason)
    }

    fn mark(&mut self, message: Passing) {
        let before = self.counted;
        if self.marks.last().is_some_and(|last| before.messages - last.before.messages < self.every) {
            return;
        }
        if self.marks.len() >= MARKS_MAX {
            self.forget_passed();
        }
        if self.marks.len() >= MARKS_MAX {
            self.every *= 2;
            let mut index = 0;
            self.marks.retain(|_| {
                index += 1;
                index % 2 == 1
            });
        }
        if self.marks.len() == self.marks.capacity() {
            // Sessions that are away are many: no more than they need.
            let capacity = if self.marks.is_empty() { 1 } else { (4 * self.marks.len()).min(MARKS_MAX) };
            self.marks.reserve_exact(capacity - self.marks.len());
        }
        self.marks.push(Mark { offset: message.offset, before, publish_ms: message.publish_ms });
    }

    /// Drops the marks before the one that the queue has passed last.
    fn forget_passed(&mut self) {
        let passed = self.passed.messages;
        let at_or_before = self.marks.partition_point(|mark| mark.before.messages <= passed);
        self.marks.drain(..at_or_before.saturating_sub(1));
    }

    /// Bytes of the oldest `messages` that were counted; between two marks as if all were of one size.
    fn bytes_before(&self, messages: u64) -> u64 {
        let after = self.marks.partition_point(|mark| mark.before.messages <= messages);
        let end = self.marks.get(after).map_or(self.counted, |mark| mark.before);
        let start = self.marks[..after].last().map_or(Tally::default(), |mark| mark.before);
        start.bytes + share(end.bytes - start.bytes, messages - start.messages, end.messages - start.messages)
    }

    /// The lowest number of oldest messages without which at most `bytes` wait; never the newest.
    fn excess_of(&self, bytes: u64) -> u64 {
        let Some(surplus) = self.counted.bytes.checked_sub(bytes).filter(|surplus| *surplus > 0) else {
            return 0;
        };
        let after = self.marks.partition_point(|mark| mark.before.bytes < surplus);
        let end = self.marks.get(after).map_or(self.counted, |mark| mark.before);
        let start = self.marks[..after].last().map_or(Tally::default(), |mark| mark.before);
        let (stretch, length) = (end.messages - start.messages, end.bytes - start.bytes);
        let within = share(stretch, surplus - start.bytes, length.max(1));
        // Rounded up: what remains is within the bound.
        let is_short = share(length, within, stretch) < surplus - start.bytes;
        (start.messages + within + u64::from(is_short)).min(self.counted.messages.saturating_sub(1))
    }

    /// Gives up the oldest messages beyond `limits`: as many as are too many, exactly; for bytes as many as hold the
    /// surplus, by the average between two marks, which lie at most 1/8 of the queue apart. Returns how many, and why.
    pub fn give_up_excess(&mut self, limits: &QueueLimits) -> Option<(DropReason, u64)> {
        let gone = self.passed.messages.max(self.dropped);
        let by_messages = self.counted.messages.saturating_sub(limits.messages);
        let by_bytes = if self.waiting().bytes > limits.bytes { self.excess_of(limits.bytes) } else { 0 };
        let (reason, dropped) = if by_bytes > by_messages {
            (DropReason::Bytes, by_bytes)
        } else {
            (DropReason::Messages, by_messages)
        };
        self.give_up(reason, dropped, gone)
    }

    /// Gives up the messages that are known to have been published before `before_ms`: those below the last mark that
    /// was. The rest is found when it is read.
    pub fn give_up_older(&mut self, before_ms: u64) -> Option<(DropReason, u64)> {
        let gone = self.passed.messages.max(self.dropped);
        let dropped = if self.newest_ms < before_ms {
            self.counted.messages
        } else {
            self.marks.iter().rev().find(|mark| mark.publish_ms < before_ms)?.before.messages
        };
        self.give_up(DropReason::Age, dropped, gone)
    }

    fn give_up(&mut self, reason: DropReason, dropped: u64, gone: u64) -> Option<(DropReason, u64)> {
        let more = dropped.checked_sub(gone).filter(|more| *more > 0)?;
        self.dropped = dropped;
        self.reason = Some(reason);
        Some((reason, more))
    }

    /// Where the queue may go on now that the oldest are given up: at the last mark among them, or where counting ended
    /// if nothing else waits. What is below counts as passed.
    pub fn jump(&mut self) -> Option<Offset> {
        if self.given_up() == 0 {
            return None;
        }
        if self.dropped == self.counted.messages {
            self.passed = self.counted;
            self.marks.clear();
            return Some(self.counted_to);
        }
        let given_up = |mark: &&Mark| mark.before.messages <= self.dropped;
        let mark = *self.marks.iter().rev().find(given_up)?;
        if mark.before.messages <= self.passed.messages {
            return None;
        }
        self.passed = mark.before;
        self.forget_passed();
        Some(mark.offset)
    }

    /// One past the range that was not taken and that `offset` is in.
    #[must_use]
    pub fn skips(&self, offset: Offset) -> Option<Offset> {
        let range = self.skipped.iter().find(|range| range.start <= offset && offset < range.end)?;
        Some(range.end)
    }

    /// The queue, at `head`, is about to pass everything up to `offset`: takes the counts from the marks on the way.
    pub fn approach(&mut self, head: Offset, offset: Offset) {
        let on_the_way = |mark: &&Mark| head <= mark.offset && mark.offset <= offset;
        if let Some(mark) = self.marks.iter().rev().find(on_the_way) {
            self.passed = mark.before;
        }
        self.skipped.retain(|range| range.end > offset);
    }

    /// The queue passes a message that it wants.
    pub fn pass(&mut self, offset: Offset, bytes: u64) {
        // What a former owner had not counted is not taken off.
        if self.marks.first().is_none_or(|first| offset < first.offset) {
            return;
        }
        self.passed.messages = (self.passed.messages + 1).min(self.counted.messages);
        self.passed.bytes = (self.passed.bytes + bytes).min(self.counted.bytes);
    }

    /// Nothing that is given up is left: the subscriptions have changed since it was counted.
    pub fn forget_given_up(&mut self) {
        self.dropped = self.dropped.min(self.passed.messages);
    }

    /// Bytes of memory it takes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.marks.capacity() * size_of::<Mark>()
            + self.skipped.capacity() * size_of::<Skipped>()
    }
}

/// `part / whole` of `of`, rounded down; 0 of nothing.
fn share(of: u64, part: u64, whole: u64) -> u64 {
    let share = u128::from(of) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;

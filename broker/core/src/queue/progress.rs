//! How far one queue has come: its cursor, whether it keeps up with its partition, and what is at its receiver.

pub mod aside;
#[cfg(test)]
mod tests;
mod waiting;

use super::IN_FLIGHT_BYTES;
use super::backlog::Backlog;
use super::limits::DropReason;
use crate::cursor::Cursor;
use crate::partition::Offset;
use crate::state::cursor::StoredCursor;
use aside::Aside;
use std::collections::{BTreeMap, BTreeSet};

/// Where a queue stands relative to the head of its partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// At the head: it needs nothing between its cursor and the partition's head, so that idle queues cost nothing.
    Tail,
    /// Its next record is behind the head and must be read again.
    Behind,
}

/// What becomes of a record that a queue wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Hand it out now.
    HandOut {
        /// The receiver may have seen it before.
        redelivery: bool,
    },
    /// Not now: nobody is attached, or the window or the byte budget is used up. It is read again later.
    Wait,
    /// It was handed out before, or is not wanted.
    Pass,
}

/// What is at a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// Bytes of the message, 0 where they are not known: see [`Progress::attach`].
    pub bytes: usize,
    /// When it was handed out, milliseconds since the Unix epoch.
    pub at_ms: u64,
}

/// What becomes of a new message that is read behind the head, whether or not there is room for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is handed out when there is room.
    Due,
    /// It is not for this queue.
    Unwanted,
    /// It is for this queue, and nobody gets it.
    Dropped(DropReason),
}

/// Progress of one queue.
///
/// Invariants: `in_flight` and `redeliver` are disjoint and both within the open offsets, which are those of the cursor
/// and the parked ones; neither holds a dead letter; `in_flight` never exceeds the window, but for what a former window
/// allowed; without a receiver both are empty. `in_flight_bytes` is the sum of `in_flight`, and without its last message
/// it is below [`IN_FLIGHT_BYTES`]. A queue has a `backlog` if it is behind; at the head it may keep an empty one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    cursor: Cursor,
    mode: Mode,
    window: Option<u16>,
    in_flight: BTreeMap<Offset, Sent>,
    in_flight_bytes: usize,
    redeliver: BTreeSet<Offset>,
    // Boxed: most queues have neither.
    backlog: Option<Box<Backlog>>,
    aside: Option<Box<Aside>>,
}

impl Progress {
    /// A new queue: it wants what comes at `head` or later.
    #[must_use]
    pub fn new(head: Offset) -> Self {
        Self::start(Cursor::at(head), Mode::Tail)
    }

    /// A stored queue, in a partition of which nothing below `trim_floor` is needed by anyone.
    #[must_use]
    pub fn restore(stored: &StoredCursor, trim_floor: Offset) -> Self {
        let open = stored.cursor.open().filter(|offset| *offset >= trim_floor);
        let cursor = Cursor::restore(stored.cursor.head().max(trim_floor), open);
        let mut progress = Self::start(cursor, if stored.tail { Mode::Tail } else { Mode::Behind });
        if progress.mode == Mode::Behind {
            progress.backlog = stored.backlog.clone().map(Box::new);
        }
        for (offset, reason) in &stored.dead {
            if progress.cursor.is_open(*offset) {
                progress.aside().dead.insert(*offset, *reason);
            }
        }
        progress
    }

    fn start(cursor: Cursor, mode: Mode) -> Self {
        Self {
            cursor,
            mode,
            window: None,
            in_flight: BTreeMap::new(),
            in_flight_bytes: 0,
            redeliver: BTreeSet::new(),
            backlog: None,
            aside: None,
        }
    }

    /// What to store.
    #[must_use]
    pub fn stored(&self) -> StoredCursor {
        let backlog = self.backlog.as_deref().filter(|_| self.mode == Mode::Behind).cloned();
        let dead = self.aside.as_ref().map(|aside| aside.all_dead()).unwrap_or_default();
        StoredCursor { cursor: self.cursor.clone(), tail: self.mode == Mode::Tail, backlog, dead }
    }

    /// Lowest offset it still needs; `head` is the partition's.
    #[must_use]
    pub fn floor(&self, head: Offset) -> Offset {
        match self.mode {
            Mode::Tail => self.cursor.open().next().unwrap_or(head),
            Mode::Behind => self.cursor.floor(),
        }
    }

    /// Where it stands.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether `offset` was handed out and is not done.
    #[must_use]
    pub fn is_open(&self, offset: Offset) -> bool {
        (self.cursor.is_open(offset) || self.is_parked(offset)) && !self.is_dead(offset)
    }

    /// Number of offsets handed out and not done, parked ones too.
    #[must_use]
    pub fn open_count(&self) -> usize {
        self.cursor.open_count() + self.aside.as_ref().map_or(0, |aside| aside.parked.len())
    }

    /// Number of messages at the receiver.
    #[must_use]
    pub fn in_flight_count(&self) -> usize {
        self.in_flight.len()
    }

    /// A receiver that takes `window` messages at a time is there. It is done with the offsets `done`, and has those
    /// `in_flight`; all other open ones are handed out again, in order, before anything new. Bytes of what it has are
    /// known if they were in flight here until now. After a restart, or when the receiver was given up meanwhile, they
    /// are not, and count 0: each such change lets a receiver have another [`IN_FLIGHT_BYTES`], within its window.
    pub fn attach(&mut self, window: u16, done: &[Offset], in_flight: &[Offset], now_ms: u64) {
        self.window = Some(window);
        for offset in done {
            self.forget(*offset);
        }
        let parked = self.aside.iter().flat_map(|aside| &aside.parked).copied();
        let open: BTreeSet<Offset> =
            self.cursor.open().chain(parked).filter(|offset| !self.is_dead(*offset)).collect();
        let former = std::mem::take(&mut self.in_flight);
        let known = in_flight.iter().filter(|offset| open.contains(offset));
        let unknown = Sent { bytes: 0, at_ms: now_ms };
        self.in_flight = known.map(|offset| (*offset, *former.get(offset).unwrap_or(&unknown))).collect();
        self.in_flight_bytes = self.in_flight.values().map(|sent| sent.bytes).sum();
        self.redeliver = open.into_iter().filter(|offset| !self.in_flight.contains_key(offset)).collect();
    }

    /// `offset` is done, or never was.
    fn forget(&mut self, offset: Offset) -> bool {
        let was_parked = self.aside.as_mut().is_some_and(|aside| aside.forget(offset));
        self.drop_empty_aside();
        self.cursor.finish(offset) || was_parked
    }

    /// The receiver is gone; what it was not done with stays open.
    pub fn detach(&mut self) {
        self.window = None;
        self.in_flight.clear();
        self.in_flight_bytes = 0;
        self.redeliver.clear();
        if self.mode == Mode::Tail {
            self.backlog = None;
        }
    }

    /// Whether a receiver is there.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.window.is_some()
    }

    /// Whether the receiver is there and has room, in messages and in bytes.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.in_flight_bytes < IN_FLIGHT_BYTES
            && self.window.is_some_and(|window| self.in_flight.len() < usize::from(window))
    }

    /// Bytes of what the receiver has and is not done with, as far as they are known.
    #[must_use]
    pub fn in_flight_bytes(&self) -> usize {
        self.in_flight_bytes
    }

    fn put_in_flight(&mut self, offset: Offset, sent: Sent) {
        debug_assert!(self.has_room(), "the caller has asked");
        self.in_flight_bytes += sent.bytes;
        let former = self.in_flight.insert(offset, sent);
        debug_assert_eq!(former, None, "an offset is handed out once to one receiver");
    }

    /// The offset from which it needs records that are not at the partition's head: what is to be handed out again
    /// first, then what it has not had yet. `None` when it keeps up, or while nobody takes them.
    #[must_use]
    pub fn wanted_from(&self) -> Option<Offset> {
        if !self.has_room() {
            return None;
        }
        let next = || (self.mode == Mode::Behind).then(|| self.cursor.head());
        self.redeliver.first().copied().or_else(next)
    }

    /// As [`Self::wanted_from`], whether or not there is room; also what is to become a dead letter.
    #[must_use]
    pub fn missing_from(&self) -> Option<Offset> {
        let next = || (self.mode == Mode::Behind).then(|| self.cursor.head());
        let missing = self.redeliver.first().copied().or_else(next);
        let dead = self.aside.as_ref().and_then(|aside| aside.first_dead());
        missing.into_iter().chain(dead).min()
    }

    /// A record at the head of the partition that this queue wants. [`Turn::Wait`]: the queue has fallen behind, and
    /// everything from this record on is to be counted.
    pub fn take_at_head(&mut self, offset: Offset, sent: Sent) -> Turn {
        if self.mode == Mode::Behind || offset < self.cursor.head() {
            return Turn::Pass;
        }
        if self.has_room() && self.redeliver.is_empty() {
            self.cursor.hand_out(offset);
            self.put_in_flight(offset, sent);
            return Turn::HandOut { redelivery: false };
        }
        self.cursor.advance(offset);
        self.mode = Mode::Behind;
        // At the head it was empty: nothing below was counted for it.
        if let Some(backlog) = &mut self.backlog {
            backlog.clear();
        }
        Turn::Wait
    }

    /// Whether the record at `offset`, read behind the head, is one that is handed out again.
    #[must_use]
    pub fn is_redelivery(&self, offset: Offset) -> bool {
        self.redeliver.contains(&offset)
    }

    /// A record behind the head, in offset order from [`Self::wanted_from`] on: one to be handed out again, or a new one
    /// that is [`Fate::Due`].
    pub fn take_behind(&mut self, offset: Offset, sent: Sent) -> Turn {
        if offset < self.cursor.head() {
            if !self.redeliver.contains(&offset) {
                return Turn::Pass;
            }
            if !self.has_room() {
                return Turn::Wait;
            }
            self.redeliver.remove(&offset);
            self.put_in_flight(offset, sent);
            return Turn::HandOut { redelivery: true };
        }
        if self.mode == Mode::Tail {
            return Turn::Pass;
        }
        if !self.has_room() || !self.redeliver.is_empty() {
            return Turn::Wait;
        }
        self.cursor.hand_out(offset);
        self.pass(offset, sent.bytes);
        self.put_in_flight(offset, sent);
        Turn::HandOut { redelivery: false }
    }

    /// Whether a record at `offset`, read behind the head, was not offered before.
    #[must_use]
    pub fn is_new(&self, offset: Offset) -> bool {
        self.mode == Mode::Behind && offset >= self.cursor.head()
    }

    /// Passes over a new record behind the head that nobody gets.
    pub fn pass_over(&mut self, offset: Offset, wanted_bytes: Option<usize>) {
        if let Some(bytes) = wanted_bytes {
            self.pass(offset, bytes);
        }
        self.cursor.advance(offset + 1);
    }

    /// What is at this offset or later it was not offered yet, if it is behind.
    #[must_use]
    pub fn new_from(&self) -> Offset {
        self.cursor.head()
    }

    /// Nothing new is for it below `to`.
    pub fn pass_to(&mut self, to: Offset) {
        if self.mode == Mode::Behind && to > self.cursor.head() {
            if let Some(backlog) = &mut self.backlog {
                backlog.approach(self.cursor.head(), to - 1);
            }
            self.cursor.advance(to);
        }
    }

    fn pass(&mut self, offset: Offset, bytes: usize) {
        if let Some(backlog) = &mut self.backlog {
            backlog.pass(offset, bytes as u64);
        }
    }

    /// The log holds nothing in `from..to`: open offsets in it that were to be handed out again, or to become dead
    /// letters, are gone. Returns how many: a loss that the caller counts.
    pub fn lose_between(&mut self, from: Offset, to: Offset) -> usize {
        if from >= to {
            return 0;
        }
        let is_parked = |offset: &Offset| self.is_parked(*offset);
        let mut lost: Vec<Offset> =
            self.redeliver.range(from..to).copied().filter(|o| !is_parked(o)).collect();
        lost.extend(
            self.aside.iter().flat_map(|aside| aside.dead.range(from..to).map(|(offset, _)| *offset)),
        );
        for offset in &lost {
            self.redeliver.remove(offset);
            self.forget(*offset);
        }
        lost.len()
    }

    /// Everything below `head`, the partition's, was offered to it: it keeps up from here. Changes nothing while
    /// something is to be handed out again. Returns whether it changed.
    pub fn reach_head(&mut self, head: Offset) -> bool {
        if let Some(backlog) = self.backlog.as_mut().filter(|_| self.mode == Mode::Behind) {
            backlog.forget_given_up();
        }
        if self.mode == Mode::Tail || !self.redeliver.is_empty() {
            return false;
        }
        self.cursor.advance(head);
        self.mode = Mode::Tail;
        if self.window.is_none() {
            self.backlog = None;
        } else if let Some(backlog) = &mut self.backlog {
            // A receiver that is slow for a moment comes here often: the memory is kept.
            backlog.clear();
        }
        true
    }

    /// The receiver `is_current`, or a former one, is done with `offset`. Returns whether the cursor changed. What was
    /// handed out again to a newer receiver stays in flight until that one is done with it.
    pub fn finish(&mut self, offset: Offset, is_current: bool) -> bool {
        if !is_current && self.in_flight.contains_key(&offset) {
            return false;
        }
        self.in_flight_bytes -= self.in_flight.remove(&offset).map_or(0, |sent| sent.bytes);
        self.redeliver.remove(&offset);
        self.forget(offset)
    }
}

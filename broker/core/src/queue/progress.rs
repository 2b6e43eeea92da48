//! How far one queue has come: its cursor, whether it keeps up with its partition, and what is at its receiver.

use super::IN_FLIGHT_BYTES;
use crate::cursor::Cursor;
use crate::partition::Offset;
use crate::state::cursor::StoredCursor;
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

/// Progress of one queue.
///
/// Invariants: `in_flight` and `redeliver` are disjoint and both within the cursor's open offsets; `in_flight` never
/// exceeds the window, but for what a former window allowed; without a receiver both are empty. `in_flight_bytes` is the
/// sum of `in_flight`, and without its last message it is below [`IN_FLIGHT_BYTES`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    cursor: Cursor,
    mode: Mode,
    window: Option<u16>,
    /// With the bytes of each, 0 where they are not known: see [`Self::attach`].
    in_flight: BTreeMap<Offset, usize>,
    in_flight_bytes: usize,
    redeliver: BTreeSet<Offset>,
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
        Self::start(cursor, if stored.tail { Mode::Tail } else { Mode::Behind })
    }

    fn start(cursor: Cursor, mode: Mode) -> Self {
        Self {
            cursor,
            mode,
            window: None,
            in_flight: BTreeMap::new(),
            in_flight_bytes: 0,
            redeliver: BTreeSet::new(),
        }
    }

    /// What to store.
    #[must_use]
    pub fn stored(&self) -> StoredCursor {
        StoredCursor { cursor: self.cursor.clone(), tail: self.mode == Mode::Tail }
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
        self.cursor.is_open(offset)
    }

    /// Number of offsets handed out and not done.
    #[must_use]
    pub fn open_count(&self) -> usize {
        self.cursor.open_count()
    }

    /// A receiver that takes `window` messages at a time is there. It is done with the offsets `done`, and has those
    /// `in_flight`; all other open ones are handed out again, in order, before anything new. Bytes of what it has are
    /// known if they were in flight here until now. After a restart, or when the receiver was given up meanwhile, they
    /// are not, and count 0: each such change lets a receiver have another [`IN_FLIGHT_BYTES`], within its window.
    pub fn attach(&mut self, window: u16, done: &[Offset], in_flight: &[Offset]) {
        self.window = Some(window);
        for offset in done {
            self.cursor.finish(*offset);
        }
        let open: BTreeSet<Offset> = self.cursor.open().collect();
        let former = std::mem::take(&mut self.in_flight);
        let bytes = |offset: &Offset| former.get(offset).copied().unwrap_or(0);
        let known = in_flight.iter().filter(|offset| open.contains(offset));
        self.in_flight = known.map(|offset| (*offset, bytes(offset))).collect();
        self.in_flight_bytes = self.in_flight.values().sum();
        self.redeliver = open.into_iter().filter(|offset| !self.in_flight.contains_key(offset)).collect();
    }

    /// The receiver is gone; what it was not done with stays open.
    pub fn detach(&mut self) {
        self.window = None;
        self.in_flight.clear();
        self.in_flight_bytes = 0;
        self.redeliver.clear();
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

    fn put_in_flight(&mut self, offset: Offset, bytes: usize) {
        debug_assert!(self.has_room(), "the caller has asked");
        self.in_flight_bytes += bytes;
        let former = self.in_flight.insert(offset, bytes);
        debug_assert_eq!(former, None, "an offset is handed out once to one receiver");
    }

    /// The offset from which it needs records that are not at the partition's head: what is to be handed out again
    /// first, then what it has not had yet. `None` when it keeps up, or while nobody takes them.
    #[must_use]
    pub fn wanted_from(&self) -> Option<Offset> {
        if !self.has_room() {
            return None;
        }
        self.missing_from()
    }

    /// As [`Self::wanted_from`], whether or not there is room.
    #[must_use]
    pub fn missing_from(&self) -> Option<Offset> {
        let next = || (self.mode == Mode::Behind).then(|| self.cursor.head());
        self.redeliver.first().copied().or_else(next)
    }

    /// A record of `bytes` at the head of the partition that this queue wants. [`Turn::Wait`]: the queue has fallen
    /// behind.
    pub fn take_at_head(&mut self, offset: Offset, bytes: usize) -> Turn {
        if self.mode == Mode::Behind || offset < self.cursor.head() {
            return Turn::Pass;
        }
        if self.has_room() && self.redeliver.is_empty() {
            self.cursor.hand_out(offset);
            self.put_in_flight(offset, bytes);
            return Turn::HandOut { redelivery: false };
        }
        self.cursor.advance(offset);
        self.mode = Mode::Behind;
        Turn::Wait
    }

    /// Whether the record at `offset`, read behind the head, is one that is handed out again.
    #[must_use]
    pub fn is_redelivery(&self, offset: Offset) -> bool {
        self.redeliver.contains(&offset)
    }

    /// A record of `bytes` behind the head, in offset order from [`Self::wanted_from`] on; `wanted` tells whether it
    /// interests this queue (asked for new ones only).
    pub fn take_behind(&mut self, offset: Offset, bytes: usize, wanted: impl FnOnce() -> bool) -> Turn {
        if offset < self.cursor.head() {
            if !self.redeliver.contains(&offset) {
                return Turn::Pass;
            }
            if !self.has_room() {
                return Turn::Wait;
            }
            self.redeliver.remove(&offset);
            self.put_in_flight(offset, bytes);
            return Turn::HandOut { redelivery: true };
        }
        if self.mode == Mode::Tail {
            return Turn::Pass;
        }
        if !self.has_room() || !self.redeliver.is_empty() {
            return Turn::Wait;
        }
        if wanted() {
            self.cursor.hand_out(offset);
            self.put_in_flight(offset, bytes);
            return Turn::HandOut { redelivery: false };
        }
        self.cursor.advance(offset + 1);
        Turn::Pass
    }

    /// The log holds nothing between what was offered and `offset`: open offsets below it that were to be handed out
    /// again are gone. Returns how many: a loss that the caller counts.
    pub fn lose_below(&mut self, offset: Offset) -> usize {
        let kept = self.redeliver.split_off(&offset);
        let lost = std::mem::replace(&mut self.redeliver, kept);
        for offset in &lost {
            self.cursor.finish(*offset);
        }
        lost.len()
    }

    /// Everything below `head`, the partition's, was offered to it: it keeps up from here. Changes nothing while
    /// something is to be handed out again. Returns whether it changed.
    pub fn reach_head(&mut self, head: Offset) -> bool {
        if self.mode == Mode::Tail || !self.redeliver.is_empty() {
            return false;
        }
        self.cursor.advance(head);
        self.mode = Mode::Tail;
        true
    }

    /// The receiver `is_current`, or a former one, is done with `offset`. Returns whether the cursor changed. What was
    /// handed out again to a newer receiver stays in flight until that one is done with it.
    pub fn finish(&mut self, offset: Offset, is_current: bool) -> bool {
        if !is_current && self.in_flight.contains_key(&offset) {
            return false;
        }
        self.in_flight_bytes -= self.in_flight.remove(&offset).unwrap_or(0);
        self.redeliver.remove(&offset);
        self.cursor.finish(offset)
    }
}

#[cfg(test)]
mod tests;

//! Which records of a partition wait for which queue: in blocks, so that a queue behind the head reads its own records
//! only, however many lie between them.
//!
//! A block speaks for all offsets from its first to its end: a queue that was behind the head there wants what the block
//! lists for it and nothing else. It is made at the head, where each record is matched anyway, and never changes; what
//! was unsubscribed since is found when the record is read. Offsets that no block speaks for are read one by one.
//!
//! Stored value: version, number of queues, then each queue in order with its runs. A queue is its fingerprint (8
//! bytes): two queues that share one are listed together, and each reads a few records more. The runs are their length
//! in bytes, and for each run its distance from the end of the one before and its number of offsets.

use crate::attach::QueueId;
use crate::binary::{FormatError, Reader, Writer};
use crate::partition::Offset;
use crate::queue::partition::QueueSlot;
use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3;

/// Offsets of one block, at most.
pub const BLOCK_OFFSETS: Offset = 4_096;
/// Bytes that a block may take for each of its offsets ...
const BYTES_PER_OFFSET: u64 = 64;
/// ... if it is larger than this. A dearer one is not kept: its queues want so much of what is there that reading
/// everything costs them little more.
const BYTES_FREE: u64 = 4_096;
/// Bytes of notes that a block which is being made may take.
const NOTES_BYTES_MAX: usize = 256 << 10;
const VERSION: u8 = 1;

/// One block, immutable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The first offset it speaks for.
    pub first: Offset,
    /// One past the last.
    pub end: Offset,
    /// The stored value.
    pub bytes: Bytes,
}

impl Block {
    /// Adds the offsets at `from` or later that it lists for `queue`, in order.
    ///
    /// # Errors
    ///
    /// [`FormatError`]: it is damaged, or from a newer version, and nothing was added. What it speaks for is to be read
    /// one by one.
    pub fn offsets_of(
        &self,
        queue: &QueueId,
        from: Offset,
        offsets: &mut Vec<Offset>,
    ) -> Result<(), FormatError> {
        let mut reader = Reader::new(self.bytes.clone());
        let version = reader.u8("block version")?;
        if version != VERSION {
            return Err(FormatError::Unknown { field: "block version", value: version.into() });
        }
        let wanted = fingerprint(queue);
        for _ in 0..reader.number("queues of a block")? {
            let listed = reader.u64("queue of a block")?;
            let runs = reader.bytes("runs")?;
            if listed == wanted {
                let found = self.read_runs(runs)?;
                offsets.extend(found.into_iter().filter(|offset| *offset >= from));
            }
            if listed >= wanted {
                break;
            }
        }
        Ok(())
    }

    fn read_runs(&self, runs: Bytes) -> Result<Vec<Offset>, FormatError> {
        let mut reader = Reader::new(runs);
        let (mut at, mut offsets) = (self.first, Vec::new());
        while !reader.is_empty() {
            let start = at.saturating_add(reader.number("distance of a run")?);
            let length = reader.number("length of a run")?;
            at = start.saturating_add(length);
            if at > self.end || length > BLOCK_OFFSETS {
                return Err(FormatError::Unknown { field: "length of a run", value: length });
            }
            offsets.extend(start..at);
        }
        Ok(offsets)
    }
}

/// XXH3-64 with seed 0 over the kind's number, the name and the session number.
fn fingerprint(queue: &QueueId) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&[queue.kind as u8]);
    hash.update(queue.name.as_bytes());
    hash.update(&queue.number.0.to_le_bytes());
    hash.digest()
}

/// Offsets without a gap, from the first of the block on.
#[derive(Debug, Clone, Copy, Default)]
struct Run {
    start: u32,
    length: u32,
}

impl Run {
    fn end(self) -> u32 {
        self.start + self.length
    }
}

/// The block that is being made, at the head.
#[derive(Debug)]
pub struct OpenBlock {
    first: Offset,
    /// How many offsets it speaks for.
    offsets: Offset,
    /// The last run of each slot; empty ones are none.
    runs: Vec<Run>,
    /// The runs before: slot, start, length.
    notes: Writer,
    is_too_dear: bool,
}

impl OpenBlock {
    /// Speaks for `offsets` of them from `first` on, at most for [`BLOCK_OFFSETS`].
    #[must_use]
    pub fn new(first: Offset, offsets: Offset) -> Self {
        let offsets = offsets.min(BLOCK_OFFSETS);
        Self { first, offsets, runs: Vec::new(), notes: Writer::default(), is_too_dear: false }
    }

    /// Whether it lists nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The record at `offset` waits for the queue in `slot`. Offsets come in order, each slot once.
    pub fn note(&mut self, offset: Offset, slot: QueueSlot) {
        let Some(place) = offset.checked_sub(self.first).filter(|_| !self.is_too_dear) else { return };
        let (Ok(start), Ok(index)) = (u32::try_from(place), usize::try_from(slot)) else {
            return self.give_up();
        };
        if self.runs.len() <= index {
            self.runs.resize(index + 1, Run::default());
        }
        let run = &mut self.runs[index];
        if run.length > 0 && run.end() == start {
            run.length += 1;
            return;
        }
        let former = std::mem::replace(run, Run { start, length: 1 });
        if former.length > 0 {
            for number in [slot, former.start, former.length] {
                self.notes.number(number.into());
            }
            if self.notes.len() > NOTES_BYTES_MAX {
                self.give_up();
            }
        }
    }

    /// It takes too much: nothing speaks for its offsets.
    fn give_up(&mut self) {
        self.is_too_dear = true;
        (self.runs, self.notes) = (Vec::new(), Writer::default());
    }

    /// Whether it ends at `head`.
    #[must_use]
    pub fn is_full(&self, head: Offset) -> bool {
        head.saturating_sub(self.first) >= self.offsets
    }

    /// Ends it at `end` and begins the next one there. `name` answers the queue in a slot; what a queue that is gone
    /// would have got is left out. `None` if it speaks for nothing, or takes too much.
    pub fn end<'a>(&mut self, end: Offset, name: impl Fn(QueueSlot) -> Option<&'a QueueId>) -> Option<Block> {
        let ended = std::mem::replace(self, Self::new(end.max(self.first), self.offsets));
        if end <= ended.first || ended.is_too_dear {
            return None;
        }
        let first = ended.first;
        let mut listed: Vec<(u64, Run)> = Vec::new();
        for (slot, run) in ended.into_runs() {
            listed.extend(name(slot).map(|queue| (fingerprint(queue), run)));
        }
        listed.sort_unstable_by_key(|(queue, run)| (*queue, run.start));
        let by_queue = listed.chunk_by(|one, next| one.0 == next.0);
        let mut writer = Writer::versioned(VERSION, 64);
        writer.number(by_queue.clone().count() as u64);
        for runs in by_queue {
            let Some((queue, _)) = runs.first() else { continue };
            writer.u64(*queue);
            writer.bytes(&write_runs(runs.iter().map(|(_, run)| *run)));
        }
        let is_cheap = writer.len() as u64 <= BYTES_FREE.max(BYTES_PER_OFFSET * (end - first));
        is_cheap.then(|| Block { first, end, bytes: writer.finish() })
    }

    fn into_runs(self) -> Vec<(QueueSlot, Run)> {
        let mut reader = Reader::new(self.notes.finish());
        let mut runs = Vec::new();
        let mut number = || reader.number_u32("note");
        while let (Ok(slot), Ok(start), Ok(length)) = (number(), number(), number()) {
            runs.push((slot, Run { start, length }));
        }
        let last = (0..).zip(self.runs).filter(|(_, run)| run.length > 0);
        runs.extend(last);
        runs
    }
}

/// Runs in the order of their starts; those of two queues with one fingerprint may overlap.
fn write_runs(runs: impl Iterator<Item = Run>) -> Bytes {
    let mut writer = Writer::default();
    let mut at = 0;
    for run in runs.filter(|run| run.length > 0) {
        let start = run.start.max(at);
        if start < run.end() {
            writer.number((start - at).into());
            writer.number((run.end() - start).into());
            at = run.end();
        }
    }
    writer.finish()
}

#[cfg(test)]
mod tests;

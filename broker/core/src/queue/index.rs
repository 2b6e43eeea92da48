//! Which records of a partition wait for which queue: in blocks, so that a queue behind the head reads its own records
//! only, however many lie between them.
//!
//! A block speaks for all offsets from its first to its end: a queue that was behind the head there wants what the block
//! lists for it and nothing else. It is made at the head, where each record is matched anyway, and never changes; what
//! was unsubscribed since is found when the record is read. Offsets that no block speaks for are read one by one.
//!
//! Stored value: version, number of queues, then each queue in order with its runs: their length in bytes, and for each
//! run its distance from the end of the one before and its number of offsets.

use crate::attach::QueueId;
use crate::binary::{FormatError, Reader, Writer};
use crate::partition::Offset;
use crate::queue::partition::QueueSlot;
use crate::state::key::{read_queue, write_queue};
use bytes::Bytes;
use std::collections::BTreeMap;

/// Offsets of one block, at most.
pub const BLOCK_OFFSETS: Offset = 4_096;
/// Bytes that a block which is being made may take before it ends early ...
const NOTES_BYTES: usize = 256 << 10;
/// ... and beyond these for each queue of the partition: the names of many queues shall not make most of a block.
const NOTES_BYTES_PER_QUEUE: usize = 16;
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
        for _ in 0..reader.number("queues of a block")? {
            let listed = read_queue(&mut reader)?;
            let runs = reader.bytes("runs")?;
            if listed == *queue {
                let found = self.read_runs(runs)?;
                offsets.extend(found.into_iter().filter(|offset| *offset >= from));
            }
            if listed >= *queue {
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

fn write_runs(first: Offset, offsets: &[Offset]) -> Bytes {
    let mut writer = Writer::default();
    let mut at = first;
    for run in offsets.chunk_by(|one, next| one + 1 == *next) {
        let Some(start) = run.first() else { continue };
        let length = run.len() as u64;
        writer.number(start - at);
        writer.number(length);
        at = start + length;
    }
    writer.finish()
}

/// The block that is being made, at the head.
///
/// Notes are kept as few bytes: the distance from the offset before, then the slot, of the same offset as distance.
#[derive(Debug)]
pub struct OpenBlock {
    first: Offset,
    /// How many offsets it speaks for.
    offsets: Offset,
    last: (Offset, QueueSlot),
    notes: Writer,
}

impl OpenBlock {
    /// Speaks for `offsets` of them from `first` on, at most for [`BLOCK_OFFSETS`].
    #[must_use]
    pub fn new(first: Offset, offsets: Offset) -> Self {
        Self { first, offsets: offsets.min(BLOCK_OFFSETS), last: (first, 0), notes: Writer::default() }
    }

    /// Whether it lists nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.notes.is_empty()
    }

    /// The record at `offset` waits for the queue in `slot`. Offsets come in order, the slots of one offset as well.
    pub fn note(&mut self, offset: Offset, slot: QueueSlot) {
        let (last_offset, last_slot) = self.last;
        let is_first = self.notes.is_empty();
        debug_assert!(is_first || (offset, slot) > self.last, "each once and in order");
        self.notes.number(offset - last_offset);
        let is_same = offset == last_offset && !is_first;
        self.notes.number(if is_same { slot.wrapping_sub(last_slot) } else { slot }.into());
        self.last = (offset, slot);
    }

    /// Whether it ends at `head`, in a partition of `queues`.
    #[must_use]
    pub fn is_full(&self, head: Offset, queues: usize) -> bool {
        head.saturating_sub(self.first) >= self.offsets
            || self.notes.len() > NOTES_BYTES + queues.saturating_mul(NOTES_BYTES_PER_QUEUE)
    }

    /// Ends it at `end` and begins the next one there. `name` answers the queue in a slot; what a queue that is gone
    /// would have got is left out. `None` if it speaks for nothing.
    pub fn end<'a>(&mut self, end: Offset, name: impl Fn(QueueSlot) -> Option<&'a QueueId>) -> Option<Block> {
        let ended = std::mem::replace(self, Self::new(end, self.offsets));
        if end <= ended.first {
            return None;
        }
        let first = ended.first;
        let by_slot = ended.into_slots();
        let by_queue: BTreeMap<&QueueId, &Vec<Offset>> =
            by_slot.iter().filter_map(|(slot, offsets)| Some((name(*slot)?, offsets))).collect();
        let mut writer = Writer::versioned(VERSION, 64);
        writer.number(by_queue.len() as u64);
        for (queue, offsets) in by_queue {
            write_queue(&mut writer, queue);
            writer.bytes(&write_runs(first, offsets));
        }
        Some(Block { first, end, bytes: writer.finish() })
    }

    fn into_slots(self) -> BTreeMap<QueueSlot, Vec<Offset>> {
        let mut reader = Reader::new(self.notes.finish());
        let mut by_slot: BTreeMap<QueueSlot, Vec<Offset>> = BTreeMap::new();
        let (mut offset, mut slot): (Offset, QueueSlot) = (self.first, 0);
        let mut is_first = true;
        while let (Ok(distance), Ok(number)) = (reader.number("offset"), reader.number_u32("slot")) {
            offset += distance;
            slot = if distance == 0 && !is_first { slot.wrapping_add(number) } else { number };
            is_first = false;
            by_slot.entry(slot).or_default().push(offset);
        }
        by_slot
    }
}

#[cfg(test)]
mod tests;

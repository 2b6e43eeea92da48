//! Making the index of a partition as its records are offered, and passing over what it does not list.

use super::{PartitionQueues, QueueSlot};
use crate::partition::Offset;
use crate::queue::index::{Block, OpenBlock};
use crate::queue::progress::Mode;
use std::hash::BuildHasher;

/// Bytes of the blocks that wait to be stored; beyond it the oldest is forgotten, and its offsets are read one by one.
const ENDED_BYTES_MAX: usize = 1 << 20;

/// The index as it is being made.
#[derive(Debug)]
pub(super) struct Index {
    open: OpenBlock,
    ended: Vec<Block>,
}

impl<S: BuildHasher + Clone> PartitionQueues<S> {
    /// Makes an index from the head on, in blocks of at most `block_offsets`.
    ///
    /// A subscription that has ended beyond the head, before a restart, still counts for what is offered once more below
    /// its end, but is matched no more: the index begins behind it.
    pub fn keep_index(&mut self, block_offsets: Offset) {
        let subscriptions = self.queues.iter().flatten().flat_map(|queue| queue.subscriptions.iter());
        let first =
            subscriptions.filter_map(|(_, subscription)| subscription.end).fold(self.head, Offset::max);
        self.index = Some(Index { open: OpenBlock::new(first, block_offsets), ended: Vec::new() });
    }

    /// The record at the head waits for a queue behind it.
    pub(super) fn note_in_index(&mut self, offset: Offset, slot: QueueSlot) {
        if let Some(index) = &mut self.index {
            index.open.note(offset, slot);
        }
    }

    /// Ends the block that is being made if it is full.
    pub(super) fn end_full_block(&mut self) {
        if self.index.as_ref().is_some_and(|index| index.open.is_full(self.head)) {
            self.end_block();
        }
    }

    /// Ends the block that is being made at the head. One that no queue behind the head could ask is left out.
    pub fn end_block(&mut self) {
        let Some(mut index) = self.index.take() else { return };
        let is_of_use = !index.open.is_empty()
            || self.queues.iter().flatten().any(|queue| queue.progress.mode() == Mode::Behind);
        let block = index.open.end(self.head, |slot| self.id(slot));
        index.ended.extend(block.filter(|_| is_of_use));
        while index.ended.iter().map(|block| block.bytes.len()).sum::<usize>() > ENDED_BYTES_MAX {
            index.ended.remove(0);
        }
        self.index = Some(index);
    }

    /// The blocks that ended since last asked. They are to be stored with the head, or an offset above it, as what the
    /// next owner goes on from: one that goes on below would hand records to a queue that the block does not list for it.
    pub fn take_blocks(&mut self) -> Vec<Block> {
        self.index.as_mut().map(|index| std::mem::take(&mut index.ended)).unwrap_or_default()
    }

    /// The index lists nothing for this queue from where it stands behind the head to `to`.
    pub fn pass_to(&mut self, slot: QueueSlot, to: Offset) {
        let to = to.min(self.head);
        if let Some(queue) = self.queue_mut(slot) {
            queue.progress.pass_to(to);
        }
    }
}

//! The state of the memory log.

use super::Inner;
use super::faults::UnknownCommit;
use crate::log::ReadError;
use crate::log::index::{BLOCKS_BYTES_MAX, Index, IndexWrite};
use crate::log::state::{Commit, CommitOutcome, OpenError, OpenedGroup, StateEntry, StateWrite, StateWriter};
use futures::future::BoxFuture;
use std::sync::Arc;
use tidemill_core::partition::{Offset, Partition, PartitionGroup};
use tidemill_core::queue::index::Block;

impl Inner {
    /// Fences and loads in one step under the storage's lock.
    pub(super) fn open_state(
        self: Arc<Self>,
        group: PartitionGroup,
        partitions: &[Partition],
    ) -> Result<OpenedGroup, OpenError> {
        let unavailable = |reason: &str| OpenError::Unavailable { group: group.0, reason: reason.to_owned() };
        if *self.closed.borrow() {
            return Err(unavailable("the log is closed"));
        }
        if self.faults.is_unreadable() {
            return Err(unavailable("injected"));
        }
        let mut groups = self.store.groups.lock();
        let state = groups.entry(group).or_default();
        state.generation += 1;
        let generation = state.generation;
        let entries = state
            .entries
            .iter()
            .filter(|((partition, _), _)| partitions.contains(partition))
            .map(|((partition, key), value)| StateEntry {
                partition: *partition,
                key: key.clone(),
                value: value.clone(),
            })
            .collect();
        drop(groups);
        Ok(OpenedGroup { entries, writer: Box::new(MemoryWriter { inner: self, group, generation }) })
    }
}

struct MemoryWriter {
    inner: Arc<Inner>,
    group: PartitionGroup,
    generation: u64,
}

impl MemoryWriter {
    fn commit_now(&self, commit: Commit) -> CommitOutcome {
        let unknown = self.inner.faults.take_next_commit();
        if *self.inner.closed.borrow() || unknown == Some(UnknownCommit::Lost) {
            return CommitOutcome::Unknown;
        }
        let mut groups = self.inner.store.groups.lock();
        let state = groups.entry(self.group).or_default();
        if state.generation != self.generation {
            return CommitOutcome::Fenced;
        }
        for StateWrite { partition, key, value } in commit.writes {
            match value {
                Some(value) => state.entries.insert((partition, key), value),
                None => state.entries.remove(&(partition, key)),
            };
        }
        for write in commit.index {
            match write {
                IndexWrite::Block { partition, block } => {
                    state.index.insert((partition, block.first), block);
                }
                IndexWrite::Trim { partition, floor } => {
                    state.index.retain(|(of, _), block| *of != partition || block.end > floor);
                }
            }
        }
        if unknown.is_some() { CommitOutcome::Unknown } else { CommitOutcome::Committed }
    }
}

impl StateWriter for MemoryWriter {
    fn commit(&mut self, commit: Commit) -> BoxFuture<'_, CommitOutcome> {
        Box::pin(async move { self.commit_now(commit) })
    }
}

impl Index for Inner {
    fn blocks(
        self: Arc<Self>,
        partition: Partition,
        from: Offset,
    ) -> BoxFuture<'static, Result<Vec<Block>, ReadError>> {
        let groups = self.store.groups.lock();
        let group = groups.get(&self.store.partitioning().group_of(partition));
        let blocks = group.into_iter().flat_map(|group| &group.index);
        let mut bytes = 0;
        let blocks = blocks
            .filter(|((of, _), block)| *of == partition && block.end > from)
            .map(|(_, block)| block.clone())
            .take_while(|block| {
                let is_enough = bytes >= BLOCKS_BYTES_MAX;
                bytes += block.bytes.len();
                !is_enough
            })
            .collect();
        Box::pin(std::future::ready(self.check_readable(partition).map(|()| blocks)))
    }
}

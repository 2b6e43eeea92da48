//! The mutable state beside the log: keys and values of one partition group, written by its owner alone. The store
//! itself refuses a former owner.

use super::index::{Index, IndexWrite};
use bytes::Bytes;
use futures::future::BoxFuture;
use std::sync::Arc;
use tidemill_core::partition::{Partition, PartitionGroup};

/// Longest key in bytes. Callers refuse what would make a longer one (a client id or a filter of that length).
pub const KEY_BYTES_MAX: usize = 60_000;

/// One key of the state with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateEntry {
    /// The partition whose state it is.
    pub partition: Partition,
    /// The key, see `tidemill_core::state`.
    pub key: Bytes,
    /// The value.
    pub value: Bytes,
}

/// One change of the state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateWrite {
    /// The partition whose state it is.
    pub partition: Partition,
    /// The key, at most [`KEY_BYTES_MAX`].
    pub key: Bytes,
    /// The new value; `None` deletes the key.
    pub value: Option<Bytes>,
}

/// What is stored in one step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Commit {
    /// Changes of the state; of one key the last one counts.
    pub writes: Vec<StateWrite>,
    /// Changes of the index, in order. None if the state has no index.
    pub index: Vec<IndexWrite>,
}

impl From<Vec<StateWrite>> for Commit {
    fn from(writes: Vec<StateWrite>) -> Self {
        Self { writes, index: Vec::new() }
    }
}

/// Opening a group's state failed; its queues must not be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Another owner opened it after this call began.
    #[error("state of partition group {group} was opened by another owner")]
    Fenced {
        /// The group.
        group: u16,
    },
    /// The store cannot be read or written now; opening again can succeed.
    #[error("state of partition group {group} is unavailable: {reason}")]
    Unavailable {
        /// The group.
        group: u16,
        /// Why, in the store's words.
        reason: String,
    },
    /// The stored bytes are damaged, or belong to another cluster.
    #[error("state of partition group {group} is damaged: {reason}")]
    Damaged {
        /// The group.
        group: u16,
        /// What does not fit.
        reason: String,
    },
}

/// What became of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "nothing may be acknowledged unless this is Committed"]
pub enum CommitOutcome {
    /// All changes are durable.
    Committed,
    /// Another owner has opened the group, or the store has finished with this one: nothing was written (unless this
    /// repeats a commit that was unknown), and nothing ever will be. Stop serving it.
    Fenced,
    /// It is not known whether the changes are durable. Repeat the same commit until it is; acknowledge nothing.
    Unknown,
}

/// The state of one opened group.
pub struct OpenedGroup {
    /// Every key that has a value, each once, in no particular order.
    pub entries: Vec<StateEntry>,
    /// Writes further changes, as the only owner until it is fenced.
    pub writer: Box<dyn StateWriter>,
}

/// Writes the state of one group.
pub trait StateWriter: Send {
    /// Commits all of it or nothing, in one step. One commit at a time. Not cancel-safe: a dropped call counts as
    /// [`CommitOutcome::Unknown`].
    fn commit(&mut self, commit: Commit) -> BoxFuture<'_, CommitOutcome>;
}

/// The state of all groups.
pub trait State: Send + Sync + 'static {
    /// Fences every former owner of `group`, then loads its state: in this order, so that nothing a former owner could
    /// still commit is missed.
    fn open(
        &self,
        group: PartitionGroup,
        partitions: Vec<Partition>,
    ) -> BoxFuture<'static, Result<OpenedGroup, OpenError>>;

    /// The index beside it, if it keeps one: then commits may change it. Without it, queues behind the head read the log
    /// record by record.
    fn index(&self) -> Option<Arc<dyn Index>> {
        None
    }
}

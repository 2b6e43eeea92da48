//! Retained messages beside the log: the last one of each topic, with a version that grows with every change. A log
//! that is compacted by topic.

use super::AppendError;
use bytes::Bytes;
use bytestring::ByteString;
use futures::future::BoxFuture;

/// Grows with every change of any topic in one store, also over restarts; gaps are legal.
pub type RetainedVersion = u64;

/// Called exactly once, from a thread of the store or from within [`RetainedLog::store`], when the change is durable or
/// will never be. It must not block and must not call the store.
pub type StoreDone = Box<dyn FnOnce(Result<RetainedVersion, AppendError>) + Send>;

/// What is stored of one topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetainedEntry {
    /// Bytes of the topic; a topic, unless the store is damaged.
    pub topic: Bytes,
    /// Version of the change that stored it.
    pub version: RetainedVersion,
    /// The message, see `tidemill_core::retained::stored`.
    pub message: Bytes,
}

/// Stored messages cannot be read. Nobody may be served without them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("retained messages cannot be loaded: {reason}")]
pub struct LoadError {
    /// Why, in the store's words.
    pub reason: String,
}

/// Keeps the last retained message of each topic.
///
/// Order: of two changes of one topic the one whose call ended before the other began is never there in place of the
/// other, also after a crash. Durability: a change is done when it would survive what the log beside it promises for an
/// append. Changes of one topic that follow each other quickly may share a commit; then only the last is written.
pub trait RetainedLog: Send + Sync + 'static {
    /// Stores `message` as the one of `topic`, or nothing with `None`. With `done` it is committed at once; without it
    /// nobody waits, and it is committed with what comes next, soon. Never waits: what cannot be stored yet is kept in
    /// order, bounded by the callers, who stop when [`RetainedLog::is_congested`].
    fn store(&self, topic: &ByteString, message: Option<Bytes>, done: Option<StoreDone>);

    /// Whether more is waiting than the store likes, or it takes nothing for now (disk full). Connections read no
    /// retained publishes from their sockets while it is true and look again after [`RetainedLog::relieved`].
    fn is_congested(&self) -> bool;

    /// Completes when the store is no longer congested (at once if it is not).
    fn relieved(&self) -> BoxFuture<'static, ()>;

    /// What is stored behind the topic `after`, or from the first on: each topic once, in the order of their bytes, at
    /// most [`LOAD_ENTRIES_MAX`] and about [`LOAD_BYTES_MAX`]. None means that there is nothing more. Everything whose
    /// `done` was called before is there; call it before the first change of a process to see all.
    ///
    /// # Errors
    ///
    /// [`LoadError`]: the broker must not serve; starting again can succeed.
    fn load(&self, after: Option<Bytes>) -> BoxFuture<'static, Result<Vec<RetainedEntry>, LoadError>>;
}

/// Most entries of one [`RetainedLog::load`].
pub const LOAD_ENTRIES_MAX: usize = 4_096;
/// Bytes of messages after which [`RetainedLog::load`] takes no further entry (one message may be larger).
pub const LOAD_BYTES_MAX: usize = 4 << 20;

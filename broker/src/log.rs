//! The log: ordered, durable, partitioned records, and beside it the mutable state and the retained messages. One
//! contract, three implementations (memory, embedded, Kafka), one conformance suite. Implementations do not know each
//! other and treat records, state entries and messages as opaque bytes. Kafka keeps no retained messages yet.

pub mod index;
pub mod retained;
pub mod seek;
pub mod state;

pub mod embedded;
pub mod kafka;
pub mod memory;

pub mod conformance;

mod congestion;
mod intake;

use bytes::Bytes;
use futures::future::BoxFuture;
use tidemill_core::partition::{Offset, Partition};

/// Append ended without a commit. There is no "unknown": the implementation repeats until it knows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// This record can never be stored: it is too large for the log, or its partition is refused. The publisher is closed
    /// with 0x97; others go on.
    #[error("record of {bytes} bytes refused by partition {partition}: {reason}")]
    Refused {
        /// The partition it was for.
        partition: u16,
        /// Size of the record.
        bytes: usize,
        /// Why, in the log's words.
        reason: String,
    },
    /// The producer is finished. Every connection with unacknowledged durable publishes is closed; the log starts a
    /// new producer number by itself.
    #[error("producer failed: {reason}")]
    ProducerFailed {
        /// Why, in the log's words.
        reason: String,
    },
    /// The log is closed for good: the broker is stopping, or its storage failed (see [`Log::failed`]).
    #[error("log is closed")]
    Closed,
}

/// Called exactly once, from a thread of the log, when the append is committed or will never be. It must not block, and
/// must not own the log: the log could then be dropped by its own thread.
pub type AppendDone = Box<dyn FnOnce(Result<Offset, AppendError>) + Send>;

/// Builds the bytes of a record once its place in the sequence of this producer and partition is known. It runs inside
/// `append`, under the partition's order: keep it short.
pub type BuildRecord<'a> = &'a mut dyn FnMut(Sequence) -> Bytes;

/// Place of a record among the appends of one producer to one partition; goes into the record's origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sequence {
    /// Producer number of this incarnation: 1 at start, +1 after each fatal producer error.
    pub producer: u32,
    /// 0, 1, 2, … without gaps within this producer and partition.
    pub sequence: u64,
}

/// One record as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRecord {
    /// Where it is. Increasing within a partition; gaps are legal.
    pub offset: Offset,
    /// What was appended.
    pub bytes: Bytes,
    /// When the log took it, milliseconds since the Unix epoch, as the log says (Kafka: `LogAppendTime`).
    pub append_time_ms: u64,
}

/// What a reader yields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadEvent {
    /// Records in offset order, at least one, at most [`READ_RECORDS_MAX`] and about [`READ_BYTES_MAX`].
    Records(Vec<StoredRecord>),
    /// Everything below this offset was yielded, and it was the end when asked. Yielded once each time the reader
    /// reaches the end; the next call waits for a record.
    End(Offset),
}

/// Most records in one [`ReadEvent::Records`].
pub const READ_RECORDS_MAX: usize = 1_024;
/// Bytes after which [`ReadEvent::Records`] takes no further record (one record may be larger).
pub const READ_BYTES_MAX: usize = 1 << 20;

/// Reading failed. Nothing is skipped: the reader stands where it stood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The position is below the start or above the end of the log: records were lost, or this is another log. The
    /// reader must not be repositioned silently: count the loss and decide.
    #[error("offset {offset} of partition {partition} is outside {start}..{end}")]
    OutOfRange {
        /// The partition.
        partition: u16,
        /// Where the reader stood.
        offset: Offset,
        /// First offset that is there.
        start: Offset,
        /// One past the last offset that is there.
        end: Offset,
    },
    /// The log cannot be read now; calling again can succeed.
    #[error("partition {partition} cannot be read: {reason}")]
    Unavailable {
        /// The partition.
        partition: u16,
        /// Why, in the log's words.
        reason: String,
    },
    /// The stored bytes are damaged at this place.
    #[error("partition {partition} is damaged at offset {offset}: {reason}")]
    Damaged {
        /// The partition.
        partition: u16,
        /// Where.
        offset: Offset,
        /// What does not fit.
        reason: String,
    },
    /// The log is closed for good.
    #[error("log is closed")]
    Closed,
}

/// Reads one partition forward from a position.
pub trait LogReader: Send {
    /// The next records, or the end. Waits at the end until a record is committed. Cancel-safe: a dropped call loses
    /// nothing, the next call continues where the last completed one ended. After an error the position is unchanged.
    fn next(&mut self) -> BoxFuture<'_, Result<ReadEvent, ReadError>>;

    /// As [`Self::next`], for a caller that needs the records at `wanted` only: increasing, at least one, the first at or
    /// beyond where the reader stands. What it yields has each of them up to the last record yielded, where the reader goes
    /// on; it may have others, and passes over the rest.
    fn next_of<'a>(&'a mut self, wanted: &'a [Offset]) -> BoxFuture<'a, Result<ReadEvent, ReadError>> {
        debug_assert!(!wanted.is_empty(), "the caller wants something");
        self.next()
    }
}

/// First and one-past-last offset of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Nothing below is there.
    pub start: Offset,
    /// The next append gets this offset or a higher one.
    pub end: Offset,
}

/// Ordered, durable, partitioned records.
///
/// Order: two appends to one partition from one thread get offsets in the order of the calls. Durability: an append is
/// done when it would survive what the implementation promises (Kafka: acks=all; embedded: fdatasync; memory: nothing).
pub trait Log: Send + Sync + 'static {
    /// Appends one record to `partition`; answers through `done`, first offset or fatal, after the commit. Never waits:
    /// what it cannot send yet it keeps in order, bounded by the callers' windows; see [`Log::is_congested`].
    fn append(&self, partition: Partition, build: BuildRecord<'_>, done: AppendDone);

    /// Whether other brokers read the records, too: then they are written so that every broker understands them and
    /// knows who wrote them.
    fn is_shared(&self) -> bool {
        true
    }

    /// Whether more is waiting than the log likes. Connections stop reading publishes from their sockets while it is
    /// true and look again after [`Log::relieved`].
    fn is_congested(&self) -> bool;

    /// Completes when the log is no longer congested (at once if it is not).
    fn relieved(&self) -> BoxFuture<'static, ()>;

    /// A reader of `partition` that starts at the first record at or after `from`.
    fn reader(&self, partition: Partition, from: Offset) -> Box<dyn LogReader>;

    /// Start and end of `partition`, asked from the log, not from a cache: the end is at or beyond every append that
    /// was done before the call, by any broker.
    fn bounds(&self, partition: Partition) -> BoxFuture<'static, Result<Bounds, ReadError>>;

    /// Allows the log to forget everything below `floor`. Monotone: a lower floor than before changes nothing. The
    /// caller passes only a floor that is committed in the state.
    fn trim(&self, partition: Partition, floor: Offset) -> BoxFuture<'static, Result<(), ReadError>>;

    /// Gives up what the log has lost of `partition`: its end moves to `until`, an offset that the state knows of, if it
    /// is below. No offset is ever used again, and readers pass over those that are given up.
    ///
    /// # Errors
    ///
    /// `OutOfRange` if this log never loses what was acknowledged, as most do: then it is another log or was tampered
    /// with, and the partition must not be served.
    fn give_up(&self, partition: Partition, until: Offset) -> BoxFuture<'static, Result<(), ReadError>> {
        let bounds = self.bounds(partition);
        Box::pin(async move {
            let Bounds { start, end } = bounds.await?;
            if until <= end {
                return Ok(());
            }
            Err(ReadError::OutOfRange { partition: partition.0, offset: until, start, end })
        })
    }

    /// Lets appends to `partition` be committed, which a log of one broker alone may hold from its start on: its owner has
    /// found that log and state fit.
    fn admit(&self, _partition: Partition) {}

    /// Takes no further append to `partition`, until the process ends: log and state do not fit, or are damaged, and what
    /// came behind would hide that. Each append is answered [`AppendError::Refused`] with `reason`. A log that other
    /// brokers append to as well cannot, and goes on.
    fn refuse(&self, _partition: Partition, _reason: &str) {}

    /// Completes with the reason when the storage failed in a way that must end the process (failed fsync).
    fn failed(&self) -> BoxFuture<'static, String>;

    /// Stops taking appends, commits what was taken within a bound, and closes.
    fn close(&self) -> BoxFuture<'static, ()>;
}

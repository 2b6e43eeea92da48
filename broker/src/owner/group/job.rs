//! What the task of a group waits for: nothing of it blocks the task.

use super::dead_letter::Burial;
use super::load::LoadOutcome;
use super::park::ReadToPark;
use super::queue_reader::{QueueRead, QueueReader};
use crate::log::state::{Commit, CommitOutcome, StateWriter};
use crate::log::{LogReader, ReadError, ReadEvent};
use bytestring::ByteString;
use futures::future::{AbortHandle, Abortable, BoxFuture};
use futures::stream::FuturesUnordered;
use std::future::Future;
use std::time::Duration;
use tidemill_core::attach::QueueId;
use tidemill_core::partition::{Offset, Partition};
use tokio::time::sleep;

/// Something that has completed.
pub(super) enum Job {
    /// The group was opened, or not.
    Loaded(LoadOutcome),
    /// The old connection of a client is closed, or counts as closed.
    TakenOver {
        client_id: ByteString,
        /// Which of the attaches waits for it.
        turn: u64,
        /// Its host said so; else the bound has passed.
        is_closed: bool,
    },
    /// The armed read at the head of a partition.
    Read { partition: Partition, reader: Box<dyn LogReader>, event: Result<ReadEvent, ReadError> },
    /// A read behind the head for one queue.
    CaughtUp {
        partition: Partition,
        ticket: u64,
        reader: Box<QueueReader>,
        event: Result<QueueRead, ReadError>,
    },
    /// The end of the log for new subscriptions; `None` when it cannot be asked.
    Bounds { operation: u64, end: Option<Offset> },
    /// All members have the routes of an operation, or not.
    Gate { operation: u64, is_passed: bool },
    /// A commit ended.
    Committed { writer: Box<dyn StateWriter>, commit: Commit, outcome: CommitOutcome },
    /// The log was trimmed, or not.
    Trimmed { partition: Partition, result: Result<(), ReadError> },
    /// A dead letter is durable, or was not published.
    Buried { partition: Partition, queue: QueueId, offset: Offset, outcome: Burial },
    /// What silent receivers have was read, as far as it could be.
    ToPark { partition: Partition, read: Vec<ReadToPark> },
    /// Nobody is interested any more.
    Nothing,
}

/// What is running. Bounded by what asks: one load, one commit, one read for each partition, the readers behind the
/// head, one for each client that attaches or subscribes, [`DEAD_LETTERS_MAX`](
/// tidemill_core::queue::progress::aside::DEAD_LETTERS_MAX) for each queue, one for what is parked of a partition.
#[derive(Default)]
pub(super) struct Jobs {
    pub(super) running: FuturesUnordered<BoxFuture<'static, Job>>,
    tickets: u64,
}

impl Jobs {
    /// A number that no job of this group has had.
    pub(super) fn next_ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    pub(super) fn push(&mut self, job: impl Future<Output = Job> + Send + 'static) {
        self.running.push(Box::pin(job));
    }

    /// Reads on at the head of a partition, after `pause`.
    pub(super) fn read(&mut self, partition: Partition, mut reader: Box<dyn LogReader>, pause: Duration) {
        self.push(async move {
            wait(pause).await;
            let event = reader.next().await;
            Job::Read { partition, reader, event }
        });
    }

    /// Reads on behind the head until the returned handle aborts it.
    pub(super) fn read_behind(
        &mut self,
        partition: Partition,
        ticket: u64,
        mut reader: Box<QueueReader>,
        pause: Duration,
    ) -> AbortHandle {
        let (handle, registration) = AbortHandle::new_pair();
        let read = async move {
            wait(pause).await;
            let event = reader.next().await;
            Job::CaughtUp { partition, ticket, reader, event }
        };
        self.push(async move { Abortable::new(read, registration).await.unwrap_or(Job::Nothing) });
        handle
    }
}

async fn wait(pause: Duration) {
    if !pause.is_zero() {
        sleep(pause).await;
    }
}

//! The log in memory, for tests. It keeps every promise but durability, can leave gaps between offsets as
//! transactions and compaction do in Kafka, and fails on request.
//!
//! One [`MemoryLog`] is what one broker has. [`MemoryLog::another_broker`] is a second broker on the same storage.

mod faults;
mod reader;
mod retained;
mod state;
mod store;

pub use faults::UnknownCommit;
pub use retained::MemoryRetained;
pub use store::Offsets;

use super::index::Index;
use super::intake::{BatchLimit, Intake, PendingAppend, Phase};
use super::state::{OpenError, OpenedGroup, State};
use super::{AppendDone, AppendError, Bounds, BuildRecord, Log, LogReader, ReadError};
use faults::{Faults, Gate};
use futures::future::BoxFuture;
use reader::MemoryReader;
use std::sync::Arc;
use std::thread::JoinHandle;
use store::Store;
use tidemill_core::partition::{Offset, Partition, PartitionGroup, Partitioning};
use tokio::sync::watch;

const RECORD_BYTES_MAX: usize = 1 << 28;
const BATCH: BatchLimit = BatchLimit { records: 1_024, bytes: 4 << 20 };

/// One broker's view of a log in memory. [`Log`] and [`State`] in one.
pub struct MemoryLog {
    inner: Arc<Inner>,
    committer: Option<JoinHandle<()>>,
}

/// What handle, readers and committer share.
struct Inner {
    store: Arc<Store>,
    intake: Intake,
    faults: Faults,
    closed: watch::Sender<bool>,
    failed: watch::Sender<Option<String>>,
}

impl MemoryLog {
    /// An empty log.
    #[must_use]
    pub fn new(partitioning: Partitioning, offsets: Offsets) -> Self {
        Self::on(Arc::new(Store::new(partitioning, offsets)))
    }

    /// Another broker on the same storage, with producer number 1 and sequences from 0.
    #[must_use]
    pub fn another_broker(&self) -> Self {
        Self::on(Arc::clone(&self.inner.store))
    }

    fn on(store: Arc<Store>) -> Self {
        let inner = Arc::new(Inner {
            intake: Intake::new(store.partitioning(), RECORD_BYTES_MAX),
            store,
            faults: Faults::default(),
            closed: watch::Sender::new(false),
            failed: watch::Sender::new(None),
        });
        let for_committer = Arc::clone(&inner);
        let committer = std::thread::spawn(move || for_committer.run_committer());
        Self { inner, committer: Some(committer) }
    }
}

impl Drop for MemoryLog {
    fn drop(&mut self) {
        // Whatever was not committed yet is lost with this broker.
        self.inner.faults.abandon_appends();
        self.inner.intake.end();
        self.inner.closed.send_replace(true);
        if let Some(committer) = self.committer.take()
            && committer.thread().id() != std::thread::current().id()
        {
            committer.join().expect("the committer does not panic");
        }
    }
}

impl Inner {
    fn run_committer(&self) {
        loop {
            let batch = self.intake.next_batch(BATCH);
            for (done, error) in batch.answers {
                done(Err(error));
            }
            self.commit(batch.appends);
            match batch.phase {
                Phase::Open => {}
                Phase::Closing => {
                    self.closed.send_replace(true);
                }
                Phase::Ended => return,
            }
        }
    }

    fn commit(&self, appends: Vec<PendingAppend>) {
        match self.faults.wait_at_gate() {
            Gate::Open => {}
            Gate::ProducerFailed => {
                let waiting = self.intake.restart_producer();
                return self.refuse(appends.into_iter().chain(waiting), || AppendError::ProducerFailed {
                    reason: "injected".to_owned(),
                });
            }
            Gate::Failed => {
                self.intake.close();
                let waiting = self.intake.take_all();
                return self.refuse(appends.into_iter().chain(waiting), || AppendError::Closed);
            }
        }
        let records = appends.len();
        let bytes = appends.iter().map(|append| append.bytes.len()).sum();
        for PendingAppend { partition, bytes, done } in appends {
            let offset = self.store.append(partition, bytes);
            if !self.faults.is_dead() {
                done(Ok(offset));
            }
        }
        self.intake.congestion.remove(records, bytes);
    }

    fn refuse(&self, appends: impl Iterator<Item = PendingAppend>, error: impl Fn() -> AppendError) {
        for append in appends {
            self.intake.congestion.remove(1, append.bytes.len());
            (append.done)(Err(error()));
        }
    }
}

impl Log for MemoryLog {
    fn append(&self, partition: Partition, build: BuildRecord<'_>, done: AppendDone) {
        self.inner.intake.append(partition, build, done);
    }

    fn is_congested(&self) -> bool {
        self.inner.intake.congestion.is_congested()
    }

    fn relieved(&self) -> BoxFuture<'static, ()> {
        self.inner.intake.congestion.relieved()
    }

    fn reader(&self, partition: Partition, from: Offset) -> Box<dyn LogReader> {
        Box::new(MemoryReader::new(Arc::clone(&self.inner), partition, from))
    }

    fn bounds(&self, partition: Partition) -> BoxFuture<'static, Result<Bounds, ReadError>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            inner.check_readable(partition)?;
            Ok(inner.store.bounds(partition))
        })
    }

    fn trim(&self, partition: Partition, floor: Offset) -> BoxFuture<'static, Result<(), ReadError>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            inner.check_readable(partition)?;
            inner.store.trim(partition, floor)
        })
    }

    fn give_up(&self, partition: Partition, until: Offset) -> BoxFuture<'static, Result<(), ReadError>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            inner.check_readable(partition)?;
            inner.store.give_up(partition, until)
        })
    }

    fn admit(&self, partition: Partition) {
        self.inner.intake.admit(partition);
    }

    fn refuse(&self, partition: Partition, reason: &str) {
        self.inner.intake.refuse(partition, reason);
    }

    fn failed(&self) -> BoxFuture<'static, String> {
        let mut failed = self.inner.failed.subscribe();
        Box::pin(async move {
            let reason = failed.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
            match reason {
                Some(reason) => reason,
                None => std::future::pending().await,
            }
        })
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        self.inner.intake.close();
        let mut closed = self.inner.closed.subscribe();
        Box::pin(async move {
            // An error means that the committer is gone, which is closed too.
            let _ = closed.wait_for(|closed| *closed).await;
        })
    }
}

impl State for MemoryLog {
    fn open(
        &self,
        group: PartitionGroup,
        partitions: Vec<Partition>,
    ) -> BoxFuture<'static, Result<OpenedGroup, OpenError>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.open_state(group, &partitions) })
    }

    fn index(&self) -> Option<Arc<dyn Index>> {
        Some(Arc::clone(&self.inner) as Arc<dyn Index>)
    }
}

#[cfg(test)]
mod tests;

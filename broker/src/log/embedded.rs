//! The embedded log: records in a segment log of its own, state and retained messages in fjall, all in one data directory of one broker.
//! `docs/reference/embedded-log.md` describes the files.
//!
//! All partitions share one file that is written, so that one write and one sync carry the appends of everyone.

mod committer;
mod copies;
mod copy_forward;
mod directory;
mod disk;
mod durability;
mod format;
mod health;
pub mod inspect;
mod metrics;
mod open;
mod reader;
mod recovery;
mod retained;
mod segment;
mod segments;
mod shared;
mod state;
mod tail;

pub use directory::{DataDirectory, LockError, ReadLockError};
pub use durability::Durability;
pub use metrics::EmbeddedMetrics;
pub use open::OpenLogError;

use super::index::Index;
use super::intake::Intake;
use super::retained::RetainedLog;
use super::state::{OpenError, OpenedGroup, State};
use super::{AppendDone, Bounds, BuildRecord, Log, LogReader, ReadError};
use committer::Committer;
use disk::{Disk, Shares, SystemDisk};
use futures::future::BoxFuture;
use health::Health;
use open::{Opened, check_completeness, check_partitioning, open_segments};
use parking_lot::{Mutex, RwLock};
use reader::EmbeddedReader;
use shared::{LossRequest, Shared, TrimRequest};
use state::{StateParts, StateStore};
use std::sync::Arc;
use std::thread::JoinHandle;
use tail::Tail;
use tidemill_core::partition::{Offset, Partition, PartitionGroup, Partitioning};
use tokio::sync::oneshot;

/// Largest record. Larger ones are refused.
const RECORD_BYTES_MAX: usize = (256 << 20) + (64 << 10);

/// The embedded log and state of one data directory.
///
/// Offsets are contiguous, but for those that were lost with the power ([`Log::give_up`]). An append is done when its
/// [`Durability`] says so; a failed sync fails the log for good ([`Log::failed`]). While the disk is full appends wait
/// and the log is congested.
pub struct EmbeddedLog {
    shared: Arc<Shared>,
    state: StateStore,
    durability: Durability,
    committer: Option<JoinHandle<()>>,
    /// Keeps the directory locked.
    _directory: DataDirectory,
}

impl EmbeddedLog {
    /// Opens the log in `directory`, creating it at the first time. Blocks for the time of reading the last segment.
    /// The durability may be another one than before.
    ///
    /// # Errors
    ///
    /// [`OpenLogError`] if the directory was created with another partitioning, is damaged, or cannot be used: the
    /// broker must not start.
    pub fn open(
        directory: &DataDirectory,
        partitioning: Partitioning,
        durability: Durability,
    ) -> Result<Arc<Self>, OpenLogError> {
        let disk = SystemDisk;
        let path = directory.path();
        let size = disk.size(path).map_err(|source| OpenLogError::Io { path: path.to_owned(), source })?;
        Self::open_with(directory, partitioning, durability, Arc::new(disk), Shares::of(size))
    }

    /// The retained messages in the same directory. They close with the log.
    #[must_use]
    pub fn retained(&self) -> Arc<dyn RetainedLog> {
        Arc::new(self.state.retained())
    }

    fn open_with(
        directory: &DataDirectory,
        partitioning: Partitioning,
        durability: Durability,
        disk: Arc<dyn Disk>,
        shares: Shares,
    ) -> Result<Arc<Self>, OpenLogError> {
        check_partitioning(directory.path(), partitioning)?;
        check_completeness(directory.path())?;
        let health = Arc::new(Health::new());
        let metrics = EmbeddedMetrics::new();
        let parts = StateParts {
            disk: Arc::clone(&disk),
            health: Arc::clone(&health),
            waits_for_space: metrics.state_waits_for_space.clone(),
            retained_waits_for_space: metrics.retained_waits_for_space.clone(),
            durability,
        };
        let state = StateStore::open(directory.path().join("state"), parts)?;
        let path = directory.path().join("log");
        let Opened { segments, bounds, resume } = open_segments(&path, partitioning, &disk, &metrics)?;
        let partitions = bounds.len();
        let shared = Arc::new(Shared {
            directory: path.clone(),
            disk,
            health,
            intake: Intake::new(partitioning, RECORD_BYTES_MAX),
            trims: Mutex::default(),
            losses: Mutex::default(),
            tails: bounds.into_iter().map(|bounds| Tail::new(bounds, partitions)).collect(),
            segments: RwLock::new(segments),
            metrics,
        });
        let committer = Committer::new(Arc::clone(&shared), resume, shares, durability);
        let committer = std::thread::Builder::new()
            .name("tidemill-log".to_owned())
            .spawn(move || committer.run())
            .map_err(|source| OpenLogError::Io { path, source })?;
        let directory = directory.clone();
        Ok(Arc::new(Self { shared, state, durability, committer: Some(committer), _directory: directory }))
    }

    /// Appends wait from now on until [`Log::admit`] or [`Log::refuse`] of their partition: what was lost of the log can
    /// be told only as long as nothing takes its place.
    pub fn hold_appends(&self) {
        self.shared.intake.hold();
    }

    /// What it counts.
    #[must_use]
    pub fn metrics(&self) -> &EmbeddedMetrics {
        &self.shared.metrics
    }
}

/// Waits for the committer's answer, or its end.
async fn answered(
    shared: &Shared,
    replied: oneshot::Receiver<Result<(), ReadError>>,
) -> Result<(), ReadError> {
    let mut closings = shared.health.closings();
    tokio::select! {
        biased;
        answer = replied => answer.unwrap_or(Err(ReadError::Closed)),
        _ = closings.wait_for(|closed| *closed) => Err(ReadError::Closed),
    }
}

impl Drop for EmbeddedLog {
    fn drop(&mut self) {
        self.shared.intake.end();
        if let Some(committer) = self.committer.take()
            && committer.thread().id() != std::thread::current().id()
        {
            // A panic was reported through `failed`.
            let _ = committer.join();
        }
        self.shared.health.close();
    }
}

impl Log for EmbeddedLog {
    fn append(&self, partition: Partition, build: BuildRecord<'_>, done: AppendDone) {
        self.shared.intake.append(partition, build, done);
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn is_congested(&self) -> bool {
        self.shared.intake.congestion.is_congested()
    }

    fn relieved(&self) -> BoxFuture<'static, ()> {
        self.shared.intake.congestion.relieved()
    }

    fn reader(&self, partition: Partition, from: Offset) -> Box<dyn LogReader> {
        Box::new(EmbeddedReader::new(Arc::clone(&self.shared), partition, from))
    }

    fn bounds(&self, partition: Partition) -> BoxFuture<'static, Result<Bounds, ReadError>> {
        let bounds = if self.shared.health.is_closed() {
            Err(ReadError::Closed)
        } else {
            self.shared.tail(partition).map(Tail::bounds)
        };
        Box::pin(std::future::ready(bounds))
    }

    fn trim(&self, partition: Partition, floor: Offset) -> BoxFuture<'static, Result<(), ReadError>> {
        let shared = Arc::clone(&self.shared);
        // What the log forgets, a state that lost its newest commits with the power would ask for again.
        let synced = (self.durability != Durability::Fsync).then(|| self.state.sync());
        Box::pin(async move {
            shared.tail(partition)?;
            if let Some(synced) = synced {
                synced.await.map_err(|_| ReadError::Closed)?;
            }
            let (reply, replied) = oneshot::channel();
            shared.trims.lock().push(TrimRequest { partition, floor, reply });
            shared.intake.poke();
            answered(&shared, replied).await
        })
    }

    fn give_up(&self, partition: Partition, until: Offset) -> BoxFuture<'static, Result<(), ReadError>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            shared.tail(partition)?;
            let (reply, replied) = oneshot::channel();
            shared.losses.lock().push(LossRequest { partition, until, reply });
            shared.intake.poke();
            answered(&shared, replied).await
        })
    }

    fn admit(&self, partition: Partition) {
        self.shared.intake.admit(partition);
    }

    fn refuse(&self, partition: Partition, reason: &str) {
        self.shared.intake.refuse(partition, reason);
    }

    fn failed(&self) -> BoxFuture<'static, String> {
        self.shared.health.failed()
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        self.shared.intake.close();
        let mut closings = self.shared.health.closings();
        let state = self.state.close();
        Box::pin(async move {
            // An error means that the committer is gone, which is closed too.
            let _ = closings.wait_for(|closed| *closed).await;
            state.await;
        })
    }
}

impl State for EmbeddedLog {
    fn open(
        &self,
        group: PartitionGroup,
        partitions: Vec<Partition>,
    ) -> BoxFuture<'static, Result<OpenedGroup, OpenError>> {
        self.state.open_group(group, partitions)
    }

    fn index(&self) -> Option<Arc<dyn Index>> {
        Some(self.state.index())
    }
}

#[cfg(test)]
mod copy_forward_tests;
#[cfg(test)]
mod cost_tests;
#[cfg(test)]
mod durability_tests;
#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod reader_tests;
#[cfg(test)]
mod tests;

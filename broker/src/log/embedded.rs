//! The embedded log: records in a segment log of its own, state in fjall, both in one data directory of one broker.
//! `docs/reference/embedded-log.md` describes the files.
//!
//! All partitions share one file that is written, so that one write and one sync carry the appends of everyone.

mod committer;
mod directory;
mod disk;
mod format;
mod health;
mod open;
mod reader;
mod recovery;
mod segment;
mod shared;
mod state;
mod tail;

pub use directory::{DataDirectory, LockError};
pub use open::OpenLogError;

use super::intake::Intake;
use super::state::{OpenError, OpenedGroup, State};
use super::{AppendDone, Bounds, BuildRecord, Log, LogReader, ReadError};
use committer::Committer;
use disk::{Disk, Shares, SystemDisk};
use futures::future::BoxFuture;
use health::Health;
use open::{Opened, check_completeness, check_partitioning, open_segments};
use parking_lot::{Mutex, RwLock};
use reader::EmbeddedReader;
use shared::{Shared, TrimRequest};
use state::StateStore;
use std::sync::Arc;
use std::thread::JoinHandle;
use tail::Tail;
use tidemill_core::partition::{Offset, Partition, PartitionGroup, Partitioning};
use tokio::sync::oneshot;

/// Largest record. Larger ones are refused.
const RECORD_BYTES_MAX: usize = (256 << 20) + (64 << 10);

/// The embedded log and state of one data directory.
///
/// Offsets are contiguous. An append is done after an fdatasync that covers it; a failed fdatasync fails the log for
/// good ([`Log::failed`]). While the disk is full appends wait and the log is congested.
pub struct EmbeddedLog {
    shared: Arc<Shared>,
    state: StateStore,
    committer: Option<JoinHandle<()>>,
    /// Keeps the directory locked.
    _directory: DataDirectory,
}

impl EmbeddedLog {
    /// Opens the log in `directory`, creating it at the first time. Blocks for the time of reading the last segment.
    ///
    /// # Errors
    ///
    /// [`OpenLogError`] if the directory was created with another partitioning, is damaged, or cannot be used: the
    /// broker must not start.
    pub fn open(directory: &DataDirectory, partitioning: Partitioning) -> Result<Arc<Self>, OpenLogError> {
        let disk = SystemDisk;
        let path = directory.path();
        let size = disk.size(path).map_err(|source| OpenLogError::Io { path: path.to_owned(), source })?;
        Self::open_with(directory, partitioning, Arc::new(disk), Shares::of(size))
    }

    fn open_with(
        directory: &DataDirectory,
        partitioning: Partitioning,
        disk: Arc<dyn Disk>,
        shares: Shares,
    ) -> Result<Arc<Self>, OpenLogError> {
        check_partitioning(directory.path(), partitioning)?;
        check_completeness(directory.path())?;
        let health = Arc::new(Health::new());
        let state = StateStore::open(directory.path().join("state"), Arc::clone(&disk), Arc::clone(&health))?;
        let path = directory.path().join("log");
        let Opened { segments, bounds, resume } = open_segments(&path, partitioning, &*disk)?;
        let partitions = bounds.len();
        let shared = Arc::new(Shared {
            directory: path.clone(),
            disk,
            health,
            intake: Intake::new(partitioning, RECORD_BYTES_MAX),
            trims: Mutex::default(),
            tails: bounds.into_iter().map(|bounds| Tail::new(bounds, partitions)).collect(),
            segments: RwLock::new(segments),
        });
        let committer = Committer::new(Arc::clone(&shared), resume, shares);
        let committer = std::thread::Builder::new()
            .name("tidemill-log".to_owned())
            .spawn(move || committer.run())
            .map_err(|source| OpenLogError::Io { path, source })?;
        let directory = directory.clone();
        Ok(Arc::new(Self { shared, state, committer: Some(committer), _directory: directory }))
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
        Box::pin(async move {
            shared.tail(partition)?;
            let mut closings = shared.health.closings();
            let (reply, replied) = oneshot::channel();
            shared.trims.lock().push(TrimRequest { partition, floor, reply });
            shared.intake.poke();
            tokio::select! {
                biased;
                answer = replied => answer.unwrap_or(Err(ReadError::Closed)),
                _ = closings.wait_for(|closed| *closed) => Err(ReadError::Closed),
            }
        })
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
}

#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;

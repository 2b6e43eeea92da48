//! What the handle, the readers and the committer of the embedded log share.

use super::disk::Disk;
use super::health::Health;
use super::metrics::EmbeddedMetrics;
use super::segments::Segments;
use super::tail::Tail;
use crate::log::ReadError;
use crate::log::intake::Intake;
use parking_lot::{Mutex, RwLock};
use std::path::PathBuf;
use std::sync::Arc;
use tidemill_core::partition::{Offset, Partition};
use tokio::sync::oneshot;

pub(super) struct Shared {
    /// Where the segments are.
    pub(super) directory: PathBuf,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) health: Arc<Health>,
    pub(super) intake: Intake,
    /// Floors that wait for the committer; bounded by their callers, who wait too.
    pub(super) trims: Mutex<Vec<TrimRequest>>,
    /// Lost offsets to give up that wait for the committer; bounded in the same way.
    pub(super) losses: Mutex<Vec<LossRequest>>,
    /// One of each partition.
    pub(super) tails: Vec<Tail>,
    pub(super) segments: RwLock<Segments>,
    pub(super) metrics: EmbeddedMetrics,
}

/// Asks to give up everything of `partition` below `until`.
pub(super) struct LossRequest {
    pub(super) partition: Partition,
    pub(super) until: Offset,
    pub(super) reply: oneshot::Sender<Result<(), ReadError>>,
}

pub(super) struct TrimRequest {
    pub(super) partition: Partition,
    pub(super) floor: Offset,
    pub(super) reply: oneshot::Sender<Result<(), ReadError>>,
}

impl Shared {
    /// The end of `partition`.
    ///
    /// # Errors
    ///
    /// `Unavailable` if there is no such partition.
    pub(super) fn tail(&self, partition: Partition) -> Result<&Tail, ReadError> {
        self.tails.get(usize::from(partition.0)).ok_or_else(|| ReadError::Unavailable {
            partition: partition.0,
            reason: "there is no such partition".to_owned(),
        })
    }
}

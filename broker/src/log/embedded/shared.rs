//! What the handle, the readers and the committer of the embedded log share.

use super::disk::Disk;
use super::health::Health;
use super::segment::Segment;
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
    /// One of each partition.
    pub(super) tails: Vec<Tail>,
    /// In order; the last one is written.
    pub(super) segments: RwLock<Vec<Arc<Segment>>>,
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

    /// The segment that has the record of `partition` at `offset`, if it was not trimmed.
    pub(super) fn segment_of(&self, partition: Partition, offset: Offset) -> Option<Arc<Segment>> {
        let segments = self.segments.read();
        let behind = segments.partition_point(|segment| segment.base(partition).offset <= offset);
        segments.get(behind.checked_sub(1)?).cloned()
    }
}

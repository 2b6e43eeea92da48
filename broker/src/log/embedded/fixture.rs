//! A log of the tests on a disk that fails as told.

use super::disk::{Disk, Shares};
use super::segment::segment_path;
use super::*;
use crate::log::{AppendError, ReadEvent, StoredRecord};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

pub(super) const PARTITION: Partition = Partition(1);

pub(super) fn partitioning() -> Partitioning {
    Partitioning::new(3, 2).unwrap()
}

/// A disk that fails as told.
#[derive(Default)]
pub(super) struct FaultyDisk {
    pub(super) plan: Mutex<Plan>,
}

#[derive(Default)]
pub(super) struct Plan {
    pub(super) full: bool,
    /// A full disk still takes this much of a write.
    pub(super) partial: usize,
    pub(super) sync_fails: bool,
    pub(super) syncs: usize,
    /// What is free.
    pub(super) available: Option<u64>,
    /// Writes and syncs that still go well; then all fail, as if the broker had been killed.
    pub(super) left: Option<usize>,
    /// Length of each file, by inode, when it was synced last.
    pub(super) synced: BTreeMap<u64, u64>,
    /// Bytes read of each file, by inode.
    pub(super) reads: BTreeMap<u64, u64>,
}

impl Plan {
    fn spend(&mut self) -> io::Result<()> {
        match &mut self.left {
            Some(0) => Err(io::Error::other("killed")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Disk for FaultyDisk {
    fn read_at(&self, file: &File, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let read = SystemDisk.read_at(file, buffer, position)?;
        *self.plan.lock().reads.entry(file.metadata()?.ino()).or_default() += read as u64;
        Ok(read)
    }

    fn write_at(&self, file: &File, bytes: &[u8], position: u64) -> io::Result<()> {
        let mut plan = self.plan.lock();
        plan.spend()?;
        if plan.full {
            SystemDisk.write_at(file, &bytes[..plan.partial.min(bytes.len())], position)?;
            return Err(io::ErrorKind::StorageFull.into());
        }
        SystemDisk.write_at(file, bytes, position)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        let mut plan = self.plan.lock();
        plan.syncs += 1;
        plan.spend()?;
        if plan.sync_fails {
            return Err(io::Error::other("injected"));
        }
        let metadata = file.metadata()?;
        plan.synced.insert(metadata.ino(), metadata.len());
        Ok(())
    }

    fn available(&self, _: &Path) -> io::Result<u64> {
        Ok(self.plan.lock().available.unwrap_or(u64::MAX))
    }

    fn size(&self, _: &Path) -> io::Result<u64> {
        Ok(u64::MAX)
    }
}

pub(super) struct Scene {
    temporary: tempfile::TempDir,
    pub(super) disk: Arc<FaultyDisk>,
    shares: Shares,
    pub(super) durability: Durability,
}

impl Scene {
    pub(super) fn new() -> Self {
        Self::with_segments_of(Shares::of(u64::MAX).segment_bytes)
    }

    pub(super) fn with_segments_of(segment_bytes: u64) -> Self {
        let shares = Shares { segment_bytes, ..Shares::of(u64::MAX) };
        let durability = Durability::Fsync;
        Self { temporary: tempfile::tempdir().unwrap(), disk: Arc::default(), shares, durability }
    }

    pub(super) fn data(&self) -> PathBuf {
        self.temporary.path().join("data")
    }

    pub(super) fn try_open(&self) -> Result<Arc<EmbeddedLog>, OpenLogError> {
        let directory = DataDirectory::lock(&self.data()).unwrap();
        let disk = Arc::clone(&self.disk);
        EmbeddedLog::open_with(&directory, partitioning(), self.durability, disk, self.shares)
    }

    pub(super) fn open(&self) -> Arc<EmbeddedLog> {
        self.try_open().unwrap()
    }

    pub(super) fn segments(&self) -> Vec<PathBuf> {
        let mut paths: Vec<_> = std::fs::read_dir(self.data().join("log"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().unwrap() == "segment")
            .collect();
        paths.sort();
        paths
    }

    pub(super) fn segment(&self, number: u64) -> PathBuf {
        segment_path(&self.data().join("log"), number)
    }
}

pub(super) fn start(
    log: &dyn Log,
    partition: Partition,
    bytes: &[u8],
) -> mpsc::Receiver<Result<Offset, AppendError>> {
    let (answer, answered) = mpsc::sync_channel(1);
    let build = &mut |_| Bytes::copy_from_slice(bytes);
    log.append(partition, build, Box::new(move |result| drop(answer.send(result))));
    answered
}

pub(super) fn append(log: &dyn Log, partition: Partition, bytes: &[u8]) -> Offset {
    start(log, partition, bytes).recv().unwrap().unwrap()
}

pub(super) async fn read_all(log: &dyn Log, partition: Partition, from: Offset) -> Vec<StoredRecord> {
    let mut records = Vec::new();
    let mut reader = log.reader(partition, from);
    while let ReadEvent::Records(more) = reader.next().await.unwrap() {
        records.extend(more);
    }
    records
}

pub(super) async fn texts(log: &dyn Log, partition: Partition) -> Vec<Bytes> {
    read_all(log, partition, 0).await.into_iter().map(|record| record.bytes).collect()
}

/// So many cases of a property test, and so many with `TIDEMILL_SOAK=1`.
pub(super) fn cases(usual: u32, soak: u32) -> proptest::test_runner::Config {
    let is_soak = std::env::var_os("TIDEMILL_SOAK").is_some_and(|value| value == "1");
    let cases = if is_soak { soak } else { usual };
    proptest::test_runner::Config { cases, failure_persistence: None, ..Default::default() }
}

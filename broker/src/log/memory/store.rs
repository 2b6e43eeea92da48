//! The storage that all brokers of a test share.

use super::retained::RetainedMessages;
use crate::log::{Bounds, READ_BYTES_MAX, READ_RECORDS_MAX, ReadError, StoredRecord};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use tidemill_core::partition::{Offset, Partition, PartitionGroup, Partitioning};
use tidemill_core::queue::index::Block;
use tokio::sync::watch;

/// How offsets follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offsets {
    /// 0, 1, 2, …
    Contiguous,
    /// Increasing, with gaps before records and behind the last one, as transactions and compaction leave them.
    WithGaps,
}

pub(super) struct Store {
    partitioning: Partitioning,
    offsets: Offsets,
    partitions: Vec<Mutex<PartitionLog>>,
    /// Whether records may be lost, as with a power cut.
    loses: AtomicBool,
    pub(super) groups: Mutex<BTreeMap<PartitionGroup, GroupState>>,
    pub(super) retained: Mutex<RetainedMessages>,
}

/// The state of one group: who may write it, and what is in it.
#[derive(Default)]
pub(super) struct GroupState {
    pub(super) generation: u64,
    pub(super) entries: BTreeMap<(Partition, Bytes), Bytes>,
    pub(super) index: BTreeMap<(Partition, Offset), Block>,
}

struct PartitionLog {
    records: BTreeMap<Offset, StoredRecord>,
    start: Offset,
    end: watch::Sender<Offset>,
    appended: u64,
}

impl Store {
    pub(super) fn new(partitioning: Partitioning, offsets: Offsets) -> Self {
        let empty = |_| {
            Mutex::new(PartitionLog {
                records: BTreeMap::new(),
                start: 0,
                end: watch::Sender::new(0),
                appended: 0,
            })
        };
        Self {
            partitioning,
            offsets,
            partitions: partitioning.partitions().map(empty).collect(),
            loses: AtomicBool::new(false),
            groups: Mutex::default(),
            retained: Mutex::default(),
        }
    }

    pub(super) fn partitioning(&self) -> Partitioning {
        self.partitioning
    }

    /// Whether `partition` exists.
    pub(super) fn has(&self, partition: Partition) -> bool {
        partition.0 < self.partitioning.partition_count()
    }

    fn partition(&self, partition: Partition) -> &Mutex<PartitionLog> {
        self.partitions.get(usize::from(partition.0)).expect("the caller has checked the partition")
    }

    pub(super) fn append(&self, partition: Partition, bytes: Bytes) -> Offset {
        let mut log = self.partition(partition).lock();
        let (before, behind) = match self.offsets {
            Offsets::Contiguous => (0, 0),
            Offsets::WithGaps => (log.appended % 3, u64::from(log.appended % 4 == 1)),
        };
        let offset = *log.end.borrow() + before;
        let append_time_ms = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        log.records.insert(offset, StoredRecord { offset, bytes, append_time_ms });
        log.appended += 1;
        log.end.send_replace(offset + 1 + behind);
        offset
    }

    pub(super) fn bounds(&self, partition: Partition) -> Bounds {
        let log = self.partition(partition).lock();
        let end = *log.end.borrow();
        Bounds { start: log.start, end }
    }

    /// Tells when the end of `partition` moves.
    pub(super) fn ends(&self, partition: Partition) -> watch::Receiver<Offset> {
        self.partition(partition).lock().end.subscribe()
    }

    /// Records from `position` on, none at the end, and the end.
    pub(super) fn read(
        &self,
        partition: Partition,
        position: Offset,
    ) -> Result<(Vec<StoredRecord>, Offset), ReadError> {
        let log = self.partition(partition).lock();
        let (start, end) = (log.start, *log.end.borrow());
        if !(start..=end).contains(&position) {
            return Err(ReadError::OutOfRange { partition: partition.0, offset: position, start, end });
        }
        let mut bytes = 0;
        let mut records = Vec::new();
        for record in log.records.range(position..).map(|(_, record)| record).take(READ_RECORDS_MAX) {
            if bytes >= READ_BYTES_MAX {
                break;
            }
            bytes += record.bytes.len();
            records.push(record.clone());
        }
        Ok((records, end))
    }

    /// Loses everything of `partition` from `from` on.
    pub(super) fn lose(&self, partition: Partition, from: Offset) {
        self.loses.store(true, Ordering::Relaxed);
        let mut log = self.partition(partition).lock();
        log.records.split_off(&from);
        log.end.send_replace(from);
    }

    /// See [`super::MemoryLog::damage`].
    pub(super) fn damage(&self, partition: Partition, offset: Offset) {
        if let Some(record) = self.partition(partition).lock().records.get_mut(&offset) {
            record.bytes = Bytes::from_static(b"damaged");
        }
    }

    /// See [`crate::log::Log::give_up`].
    pub(super) fn give_up(&self, partition: Partition, until: Offset) -> Result<(), ReadError> {
        let log = self.partition(partition).lock();
        let (start, end) = (log.start, *log.end.borrow());
        if until > end && !self.loses.load(Ordering::Relaxed) {
            return Err(ReadError::OutOfRange { partition: partition.0, offset: until, start, end });
        }
        log.end.send_replace(until.max(end));
        Ok(())
    }

    pub(super) fn trim(&self, partition: Partition, floor: Offset) -> Result<(), ReadError> {
        let mut log = self.partition(partition).lock();
        let (start, end) = (log.start, *log.end.borrow());
        if floor > end {
            return Err(ReadError::OutOfRange { partition: partition.0, offset: floor, start, end });
        }
        if floor > start {
            log.start = floor;
            log.records = log.records.split_off(&floor);
        }
        Ok(())
    }
}

//! The newest records of a partition, kept so that a queue that fell behind a little needs no reader.

use std::collections::VecDeque;
use std::sync::Arc;
use tidemill_core::partition::Offset;
use tidemill_core::record::Record;

const RECORDS_MAX: usize = 1_024;
const BYTES_MAX: usize = 4 << 20;

/// Every record of the partition from `from` on, up to the partition's head.
pub(super) struct Recent {
    from: Offset,
    records: VecDeque<(Offset, Arc<Record>)>,
    bytes: usize,
}

impl Recent {
    /// Nothing yet; what comes is at `from` or later.
    pub(super) fn new(from: Offset) -> Self {
        Self { from, records: VecDeque::new(), bytes: 0 }
    }

    /// Everything from here on is in it.
    pub(super) fn from(&self) -> Offset {
        self.from
    }

    /// Adds the record at the head; drops the oldest beyond the bounds.
    pub(super) fn push(&mut self, offset: Offset, record: Arc<Record>) {
        self.bytes += record.message.bytes();
        self.records.push_back((offset, record));
        while self.records.len() > RECORDS_MAX || self.bytes > BYTES_MAX {
            let Some((offset, record)) = self.records.pop_front() else { return };
            self.bytes -= record.message.bytes();
            self.from = offset + 1;
        }
    }

    /// Up to `limit` records at `from` or later, in order.
    pub(super) fn read(&self, from: Offset, limit: usize) -> Vec<(Offset, Arc<Record>)> {
        let start = self.records.partition_point(|(offset, _)| *offset < from);
        self.records.range(start..).take(limit).cloned().collect()
    }
}

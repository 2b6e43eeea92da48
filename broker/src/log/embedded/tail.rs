//! The end of one partition: its bounds, its latest records in memory, and who waits for the next.

use crate::log::{Bounds, READ_BYTES_MAX, READ_RECORDS_MAX, StoredRecord};
use parking_lot::Mutex;
use std::collections::VecDeque;
use tidemill_core::partition::Offset;
use tokio::sync::watch;

/// Records of one partition that are kept in memory.
const RECENT_RECORDS_MAX: usize = 1_024;
/// Their bytes.
const RECENT_BYTES_MAX: usize = 1 << 20;
/// Bytes of all partitions together.
const RECENT_BYTES_ALL: usize = 32 << 20;

pub(super) struct Tail {
    recent: Mutex<Recent>,
    end: watch::Sender<Offset>,
}

struct Recent {
    bounds: Bounds,
    /// The last records, without a gap up to the end.
    records: VecDeque<StoredRecord>,
    bytes: usize,
    bytes_max: usize,
}

/// What the tail has for a reader.
pub(super) enum TailRead {
    Records(Vec<StoredRecord>),
    /// There is nothing yet at the position.
    End,
    /// It is in the segments.
    Cold,
    OutOfRange(Bounds),
}

impl Tail {
    pub(super) fn new(bounds: Bounds, partitions: usize) -> Self {
        let bytes_max = RECENT_BYTES_MAX.min(RECENT_BYTES_ALL / partitions);
        let recent = Recent { bounds, records: VecDeque::new(), bytes: 0, bytes_max };
        Self { recent: Mutex::new(recent), end: watch::Sender::new(bounds.end) }
    }

    pub(super) fn bounds(&self) -> Bounds {
        self.recent.lock().bounds
    }

    /// Tells when the end moves.
    pub(super) fn ends(&self) -> watch::Receiver<Offset> {
        self.end.subscribe()
    }

    /// Takes committed records, the next ones of this partition.
    pub(super) fn push(&self, records: impl Iterator<Item = StoredRecord>) {
        let mut recent = self.recent.lock();
        for record in records {
            debug_assert_eq!(record.offset, recent.bounds.end, "offsets are contiguous");
            recent.bounds.end = record.offset + 1;
            recent.bytes += record.bytes.len();
            recent.records.push_back(record);
        }
        while recent.records.len() > RECENT_RECORDS_MAX || recent.bytes > recent.bytes_max {
            let Some(oldest) = recent.records.pop_front() else { break };
            recent.bytes -= oldest.bytes.len();
        }
        let end = recent.bounds.end;
        drop(recent);
        self.end.send_replace(end);
    }

    /// Forgets what is below `floor`, which is not above the end.
    pub(super) fn trim(&self, floor: Offset) {
        let mut recent = self.recent.lock();
        recent.bounds.start = recent.bounds.start.max(floor);
        while recent.records.front().is_some_and(|record| record.offset < floor) {
            let Some(oldest) = recent.records.pop_front() else { break };
            recent.bytes -= oldest.bytes.len();
        }
    }

    /// Gives up the offsets below `until`, which is above the end.
    pub(super) fn skip(&self, until: Offset) {
        let mut recent = self.recent.lock();
        // What is in memory has no gap.
        recent.records.clear();
        recent.bytes = 0;
        recent.bounds.end = until;
        drop(recent);
        self.end.send_replace(until);
    }

    pub(super) fn read(&self, position: Offset) -> TailRead {
        let recent = self.recent.lock();
        let Bounds { start, end } = recent.bounds;
        if !(start..=end).contains(&position) {
            return TailRead::OutOfRange(recent.bounds);
        }
        if position == end {
            return TailRead::End;
        }
        let first = match recent.records.front() {
            Some(record) if record.offset <= position => record.offset,
            Some(_) | None => return TailRead::Cold,
        };
        let skipped = usize::try_from(position - first).expect("the record is in memory");
        let mut bytes = 0;
        let mut records = Vec::new();
        for record in recent.records.range(skipped..).take(READ_RECORDS_MAX) {
            if bytes >= READ_BYTES_MAX {
                break;
            }
            bytes += record.bytes.len();
            records.push(record.clone());
        }
        TailRead::Records(records)
    }
}

//! What of a segment can be read, before and behind damage.

use super::super::format::{Before, FormatFault, Frame, FrameBody, RunKind, SegmentHeader};
use super::walk::{Step, Walk};
use std::ops::Range;
use tidemill_core::partition::{Offset, Partition};

/// What is in a segment.
pub(super) struct Contents {
    /// The records, in the order of the file.
    pub(super) entries: Vec<Entry>,
    /// Floor of each partition.
    pub(super) floors: Vec<Offset>,
    /// Of each partition, the offset behind its last own record that can be read.
    pub(super) ends: Vec<Offset>,
    /// What cannot be read, in the order of the file.
    pub(super) damages: Vec<(Range<u64>, FormatFault)>,
    /// Something was written before what was in front of it was synced: a power cut could take it.
    pub(super) has_unsynced: bool,
    /// Number of the last batch that was met.
    batch: u32,
}

/// A record that can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) position: u64,
    pub(super) partition: Partition,
    pub(super) kind: RunKind,
    pub(super) offset: Offset,
}

impl Contents {
    /// Reads the segment `bytes`.
    pub(super) fn of(bytes: &[u8], header: &SegmentHeader) -> Self {
        let mut contents = Self {
            entries: Vec::new(),
            floors: header.bases.iter().map(|base| base.floor).collect(),
            ends: header.bases.iter().map(|base| base.offset).collect(),
            damages: Vec::new(),
            has_unsynced: false,
            batch: 0,
        };
        for step in Walk::new(bytes, header) {
            match step {
                Step::Frame(range, frame, before) => {
                    contents.has_unsynced |= before == Before::Unsynced;
                    if let Err(fault) = contents.take(header, &frame, range.start) {
                        contents.damages.push((range, fault));
                    }
                }
                Step::Damage(range, fault) => contents.damages.push((range, fault)),
            }
        }
        contents
    }

    pub(super) fn count(&self, kind: RunKind) -> u64 {
        self.entries.iter().filter(|entry| entry.kind == kind).count() as u64
    }

    /// Whether `position` is in a place that cannot be read.
    pub(super) fn is_damaged_at(&self, position: u64) -> bool {
        self.damages.iter().any(|(range, _)| range.contains(&position))
    }

    /// Behind damage batches and offsets may go on higher: what is between them was there.
    fn take(&mut self, header: &SegmentHeader, frame: &Frame, position: u64) -> Result<(), FormatFault> {
        let Frame { partition, offset, batch, .. } = *frame;
        let may_skip = !self.damages.is_empty();
        let base = header.base(partition).ok_or(FormatFault::Value { field: "partition" })?;
        let index = usize::from(partition.0);
        let is_next = batch == self.batch || batch == self.batch.wrapping_add(1);
        let follows = is_next || (may_skip && batch > self.batch);
        if !follows {
            return Err(FormatFault::Value { field: "batch" });
        }
        let kind = match frame.body {
            FrameBody::Record { .. } => {
                let end = self.ends[index];
                let follows = offset == end || (may_skip && offset > end);
                if !follows {
                    return Err(FormatFault::Value { field: "offset" });
                }
                self.ends[index] = offset.saturating_add(1);
                RunKind::Own
            }
            FrameBody::Copy { .. } if offset < base.offset => RunKind::Copied,
            FrameBody::Copy { .. } => return Err(FormatFault::Value { field: "offset" }),
            FrameBody::Floor => {
                self.floors[index] = offset.max(self.floors[index]);
                self.batch = batch;
                return Ok(());
            }
        };
        self.batch = batch;
        self.entries.push(Entry { position, partition, kind, offset });
        Ok(())
    }
}

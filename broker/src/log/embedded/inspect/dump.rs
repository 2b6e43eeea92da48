//! Tells every record of a log.

use super::super::copies::{CopiedRun, Copies};
use super::super::format::{FormatFault, Frame, FrameBody, SegmentHeader, decode_partitioning};
use super::super::recovery::{Rest, scan};
use super::walk::{Step, Walk};
use super::{InspectError, Inspection, SegmentFile, disk, reader};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::PathBuf;
use tidemill_core::partition::{Offset, Partition};

/// Which records are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Selection {
    /// Only of this partition.
    pub partition: Option<Partition>,
    /// Only from this offset on.
    pub from: Offset,
}

impl Selection {
    fn takes(&self, partition: Partition, offset: Offset) -> bool {
        self.partition.is_none_or(|only| only == partition) && offset >= self.from
    }
}

/// What is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dumped {
    /// A record that fits.
    Record(DumpedRecord),
    /// A place that does not; what was there is passed over.
    Damage(Damage),
}

/// One record of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DumpedRecord {
    /// Its partition.
    pub partition: Partition,
    /// Its offset.
    pub offset: Offset,
    /// When the log took it, milliseconds since the Unix epoch.
    pub append_time_ms: u64,
    /// As it was appended.
    pub bytes: Bytes,
}

/// A place of a segment that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The segment.
    pub path: PathBuf,
    /// First byte.
    pub begin: u64,
    /// One past the last byte.
    pub end: u64,
    /// What does not fit.
    pub reason: String,
}

/// What must be known before records are told.
#[derive(Default)]
struct Overview {
    copies: BTreeMap<Partition, Copies>,
    floors: BTreeMap<Partition, Offset>,
    /// First own offset of each partition in the oldest segment.
    oldest: BTreeMap<Partition, Offset>,
}

/// A segment in memory.
struct Loaded {
    number: u64,
    path: PathBuf,
    /// As far as the broker would take it.
    bytes: Vec<u8>,
    header: Result<SegmentHeader, FormatFault>,
}

impl Inspection {
    /// Tells the records of `selection` that were not trimmed, segment by segment, each once, until `tell` breaks. The
    /// records of one partition come in the order of their offsets, but for those that were copied.
    ///
    /// # Errors
    ///
    /// [`InspectError`] if a file cannot be read at all, a broker was started meanwhile, or the log does not have the
    /// partition.
    pub fn dump(
        &self,
        selection: Selection,
        tell: &mut dyn FnMut(Dumped) -> ControlFlow<()>,
    ) -> Result<(), InspectError> {
        let numbers = self.list()?.segments;
        self.check_selection(selection, &numbers)?;
        let mut overview = Overview::default();
        for number in &numbers {
            overview.take(&self.load(*number, numbers.last() == Some(number))?);
        }
        for number in &numbers {
            let segment = self.load(*number, numbers.last() == Some(number))?;
            if dump_segment(&segment, &overview, selection, tell).is_break() {
                break;
            }
        }
        self.end()
    }

    /// Refuses a partition that the log does not have, as far as the partitioning or a header tells.
    fn check_selection(&self, selection: Selection, numbers: &[u64]) -> Result<(), InspectError> {
        let Some(Partition(partition)) = selection.partition else { return Ok(()) };
        let stored = std::fs::read(self.directory.join("partitioning"));
        let stored = stored.ok().and_then(|bytes| decode_partitioning(&bytes).ok());
        let mut partitions = stored.map(|partitioning| usize::from(partitioning.partition_count()));
        for number in numbers {
            if partitions.is_none() {
                partitions = self.open_segment(*number)?.header.ok().map(|header| header.bases.len());
            }
        }
        match partitions {
            Some(partitions) if usize::from(partition) >= partitions => {
                Err(InspectError::NoPartition { partition, last: partitions.saturating_sub(1) })
            }
            Some(_) | None => Ok(()),
        }
    }

    fn load(&self, number: u64, is_last: bool) -> Result<Loaded, InspectError> {
        let SegmentFile { path, file, header, .. } = self.open_segment(number)?;
        let io = |source| InspectError::Io { path: path.clone(), source };
        let mut bytes = Vec::new();
        reader(&file, 0).read_to_end(&mut bytes).map_err(io)?;
        if let (true, Ok(header)) = (is_last, &header) {
            let found = scan(disk(), &file, header).map_err(io)?;
            if matches!(found.rest, Rest::Torn | Rest::Unsynced { .. }) {
                // Cut off at the next start: it was never told to anybody, or lost with the power.
                bytes.truncate(usize::try_from(found.bytes).unwrap_or(usize::MAX));
            }
        }
        Ok(Loaded { number, path, bytes, header })
    }
}

impl Overview {
    fn take(&mut self, segment: &Loaded) {
        let Ok(header) = &segment.header else { return };
        for (partition, base) in (0..).map(Partition).zip(&header.bases) {
            self.oldest.entry(partition).or_insert(base.offset);
            self.raise_floor(partition, base.floor);
        }
        for step in Walk::new(&segment.bytes, header) {
            let Step::Frame(_, Frame { partition, offset, body, .. }, _) = step else { continue };
            match body {
                FrameBody::Record { .. } => {}
                FrameBody::Floor => self.raise_floor(partition, offset),
                FrameBody::Copy { .. } => {
                    let run = CopiedRun { count: 1, bytes: 0, segment: segment.number };
                    self.copies.entry(partition).or_default().insert(offset, run);
                }
            }
        }
    }

    fn raise_floor(&mut self, partition: Partition, to: Offset) {
        let floor = self.floors.entry(partition).or_default();
        *floor = to.max(*floor);
    }

    /// Whether a copy in the segment `number` is the one that a reader would get.
    fn counts(&self, number: u64, partition: Partition, offset: Offset) -> bool {
        let is_gone = self.oldest.get(&partition).is_some_and(|oldest| offset < *oldest);
        let newest = self.copies.get(&partition).and_then(|copies| copies.segment_of(offset));
        is_gone && newest == Some(number)
    }
}

fn dump_segment(
    segment: &Loaded,
    overview: &Overview,
    selection: Selection,
    tell: &mut dyn FnMut(Dumped) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let damage = |begin, end, fault: &FormatFault| {
        let (path, reason) = (segment.path.clone(), fault.to_string());
        Dumped::Damage(Damage { path, begin, end, reason })
    };
    let header = match &segment.header {
        Ok(header) => header,
        Err(fault) => return tell(damage(0, segment.bytes.len() as u64, fault)),
    };
    for step in Walk::new(&segment.bytes, header) {
        let Frame { partition, offset, body, .. } = match step {
            Step::Frame(_, frame, _) => frame,
            Step::Damage(range, fault) => {
                tell(damage(range.start, range.end, &fault))?;
                continue;
            }
        };
        let (append_time_ms, bytes) = match body {
            FrameBody::Record { append_time_ms, bytes } => (append_time_ms, bytes),
            FrameBody::Copy { append_time_ms, bytes }
                if overview.counts(segment.number, partition, offset) =>
            {
                (append_time_ms, bytes)
            }
            FrameBody::Copy { .. } | FrameBody::Floor => continue,
        };
        let floor = overview.floors.get(&partition).copied().unwrap_or_default();
        if selection.takes(partition, offset) && offset >= floor {
            tell(Dumped::Record(DumpedRecord { partition, offset, append_time_ms, bytes }))?;
        }
    }
    ControlFlow::Continue(())
}

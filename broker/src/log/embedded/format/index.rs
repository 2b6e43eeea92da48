//! Where the records of one sealed segment are.

use super::{Fields, FormatFault, INDEX_MAGIC, SegmentHeader, VERSION_1, VERSION_2, put_number};
use bytes::BufMut;
use tidemill_core::partition::{Offset, Partition};

/// Magic, version, partitions, number, length of the segment, number of runs.
const FRONT: usize = 4 + 2 + 2 + 8 + 8 + 4;
/// Partition, kind, first, records, bytes, begin, length, checksum.
const RUN: usize = 2 + 1 + 8 + 4 + 8 + 4 + 4 + 4;
/// Of version 1: records, begin, length, checksum of each partition.
const RUN_1: usize = 4 + 4 + 4 + 4;

/// How the records of a run came to their segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum RunKind {
    /// Appended there.
    Own,
    /// Copied there from a segment that is gone, or will be.
    Copied,
}

/// Records of one partition in one segment whose offsets follow each other. Their positions increase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Run {
    pub(in super::super) partition: Partition,
    pub(in super::super) kind: RunKind,
    /// Offset of the first.
    pub(in super::super) first: Offset,
    /// Bytes of their frames.
    pub(in super::super) bytes: u64,
    pub(in super::super) positions: Vec<u32>,
}

/// A [`Run`] without its positions: where those are in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct IndexRun {
    pub(in super::super) partition: Partition,
    pub(in super::super) kind: RunKind,
    pub(in super::super) first: Offset,
    pub(in super::super) count: u32,
    /// Bytes of the frames; an estimate if the index has version 1.
    pub(in super::super) bytes: u64,
    /// Where the list of positions begins in the file.
    pub(in super::super) begin: u64,
    pub(in super::super) length: u32,
    checksum: u32,
}

/// The front of an index: which part of the file belongs to which run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct IndexHeader {
    pub(in super::super) number: u64,
    pub(in super::super) segment_bytes: u64,
    pub(in super::super) runs: Vec<IndexRun>,
}

/// Writes the index of the segment `number` with so many partitions. Runs without a record are left out.
pub(in super::super) fn encode_index(
    number: u64,
    segment_bytes: u64,
    partitions: usize,
    runs: &[&Run],
) -> Vec<u8> {
    let small = |length: usize| u32::try_from(length).expect("an index is smaller than its segment");
    let runs: Vec<_> = runs.iter().filter(|run| !run.positions.is_empty()).collect();
    let mut lists = Vec::new();
    let mut bytes = Vec::new();
    bytes.put_slice(&INDEX_MAGIC);
    bytes.put_u16_le(VERSION_2);
    bytes.put_u16_le(u16::try_from(partitions).expect("there are at most 64 partitions"));
    bytes.put_u64_le(number);
    bytes.put_u64_le(segment_bytes);
    bytes.put_u32_le(small(runs.len()));
    for run in runs {
        let begin = lists.len();
        let mut last = 0;
        for position in &run.positions {
            put_number(&mut lists, (position - last).into());
            last = *position;
        }
        bytes.put_u16_le(run.partition.0);
        bytes.put_u8(match run.kind {
            RunKind::Own => 1,
            RunKind::Copied => 2,
        });
        bytes.put_u64_le(run.first);
        bytes.put_u32_le(small(run.positions.len()));
        bytes.put_u64_le(run.bytes);
        bytes.put_u32_le(small(begin));
        bytes.put_u32_le(small(lists.len() - begin));
        bytes.put_u32_le(crc32c::crc32c(&lists[begin..]));
    }
    bytes.put_u32_le(crc32c::crc32c(&bytes));
    bytes.extend(lists);
    bytes
}

impl IndexHeader {
    /// What of the file must be read to call [`IndexHeader::length`].
    pub(in super::super) const FRONT: usize = FRONT;

    /// Length of the header that begins with `front`.
    pub(in super::super) fn length(front: &[u8]) -> Result<u64, FormatFault> {
        let mut fields = Fields(front);
        let version = fields.begin(INDEX_MAGIC, "an index", VERSION_2)?;
        let partitions = u64::from(fields.u16()?);
        if version == VERSION_1 {
            return Ok((FRONT - 4 + 4) as u64 + partitions * RUN_1 as u64);
        }
        fields.take(8 + 8)?;
        Ok((FRONT + 4) as u64 + u64::from(fields.u32()?) * RUN as u64)
    }

    /// Reads the header of the index of the segment that begins with `segment`.
    pub(in super::super) fn decode(bytes: &[u8], segment: &SegmentHeader) -> Result<Self, FormatFault> {
        let mut fields = Fields(bytes);
        let version = fields.begin(INDEX_MAGIC, "an index", VERSION_2)?;
        let partitions = fields.u16()?;
        let (number, segment_bytes) = (fields.u64()?, fields.u64()?);
        if (number, usize::from(partitions)) != (segment.number, segment.bases.len()) {
            return Err(FormatFault::Value { field: "segment" });
        }
        let lists = Self::length(bytes)?;
        let runs = if version == VERSION_1 {
            Self::runs_of_version_1(&mut fields, segment, segment_bytes, lists)?
        } else {
            let count = fields.u32()?;
            (0..count).map(|_| IndexRun::read(&mut fields, segment, lists)).collect::<Result<_, _>>()?
        };
        fields.check_sum(bytes)?;
        Ok(Self { number, segment_bytes, runs })
    }

    fn runs_of_version_1(
        fields: &mut Fields<'_>,
        segment: &SegmentHeader,
        segment_bytes: u64,
        lists: u64,
    ) -> Result<Vec<IndexRun>, FormatFault> {
        let mut runs = Vec::new();
        for (partition, base) in (0..).zip(&segment.bases) {
            let (count, begin) = (fields.u32()?, lists + u64::from(fields.u32()?));
            let (length, checksum) = (fields.u32()?, fields.u32()?);
            let (partition, kind) = (Partition(partition), RunKind::Own);
            let first = base.offset;
            runs.push(IndexRun { partition, kind, first, count, bytes: 0, begin, length, checksum });
        }
        let records = runs.iter().map(|run| u64::from(run.count)).sum::<u64>().max(1);
        for run in &mut runs {
            run.bytes = segment_bytes / records * u64::from(run.count);
        }
        runs.retain(|run| run.count > 0);
        Ok(runs)
    }
}

impl IndexRun {
    fn read(fields: &mut Fields<'_>, segment: &SegmentHeader, lists: u64) -> Result<Self, FormatFault> {
        let partition = Partition(fields.u16()?);
        let kind = match fields.array()? {
            [1] => RunKind::Own,
            [2] => RunKind::Copied,
            _ => return Err(FormatFault::Value { field: "kind" }),
        };
        let (first, count, bytes) = (fields.u64()?, fields.u32()?, fields.u64()?);
        let begin = lists + u64::from(fields.u32()?);
        let (length, checksum) = (fields.u32()?, fields.u32()?);
        let base = segment.base(partition).ok_or(FormatFault::Value { field: "partition" })?;
        let end = first.checked_add(count.into()).ok_or(FormatFault::Value { field: "offset" })?;
        let fits = match kind {
            RunKind::Own => first == base.offset,
            RunKind::Copied => end <= base.offset,
        };
        if !fits {
            return Err(FormatFault::Value { field: "offset" });
        }
        Ok(Self { partition, kind, first, count, bytes, begin, length, checksum })
    }

    /// Reads the positions from this run's bytes.
    pub(in super::super) fn positions(&self, bytes: &[u8]) -> Result<Vec<u32>, FormatFault> {
        if crc32c::crc32c(bytes) != self.checksum {
            return Err(FormatFault::Checksum);
        }
        let mut fields = Fields(bytes);
        // Bounded by the input: every turn reads at least one byte.
        let mut positions = Vec::with_capacity(bytes.len().min(self.count as usize));
        let mut last = 0_u64;
        for _ in 0..self.count {
            last = last.saturating_add(fields.number()?);
            positions.push(u32::try_from(last).map_err(|_| FormatFault::Value { field: "position" })?);
        }
        Ok(positions)
    }
}

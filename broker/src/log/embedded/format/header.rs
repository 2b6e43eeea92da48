//! The first bytes of a segment.

use super::{Fields, FormatFault, SEGMENT_MAGIC, VERSION_1, VERSION_2};
use bytes::BufMut;
use tidemill_core::partition::{Offset, Partition};

/// Where a partition stood when a segment was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in super::super) struct Base {
    /// Offset of the partition's first own record in this segment, if it gets one.
    pub(in super::super) offset: Offset,
    /// Everything below was trimmed.
    pub(in super::super) floor: Offset,
    /// So many offsets right below `offset` were given up: no record ever had them, or it is lost. Not in version 1.
    pub(in super::super) skipped: u64,
}

/// How the frames of a segment are laid out. A segment keeps the layout that it was begun with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Layout {
    /// Version 1: fields of fixed size. Only read.
    Fixed,
    /// Version 2: numbers of variable size, counted from the segment's header.
    Compact {
        /// When the segment was begun, milliseconds since the Unix epoch: append times are told from here.
        created_ms: u64,
    },
}

/// The first bytes of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct SegmentHeader {
    pub(in super::super) number: u64,
    /// Random; begins every checksum of the segment, so that no record can hold something that passes for a frame.
    pub(in super::super) salt: u32,
    pub(in super::super) layout: Layout,
    /// Of every partition, in order.
    pub(in super::super) bases: Vec<Base>,
}

impl SegmentHeader {
    /// Length of the header of this version with so many partitions.
    pub(in super::super) fn length(&self) -> usize {
        match self.layout {
            Layout::Fixed => 4 + 2 + 2 + 8 + 4 + self.bases.len() * 16 + 4,
            Layout::Compact { .. } => Self::length_max(self.bases.len()),
        }
    }

    /// Length of the longest header of any version with `partitions` partitions.
    pub(in super::super) fn length_max(partitions: usize) -> usize {
        4 + 2 + 2 + 8 + 4 + 8 + partitions * 24 + 4
    }

    /// Where `partition` stood, if there is such a partition.
    pub(in super::super) fn base(&self, partition: Partition) -> Option<Base> {
        self.bases.get(usize::from(partition.0)).copied()
    }

    /// Writes the header; a layout that is only read is for tests of what was stored.
    pub(in super::super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.length());
        bytes.put_slice(&SEGMENT_MAGIC);
        bytes.put_u16_le(match self.layout {
            Layout::Fixed => VERSION_1,
            Layout::Compact { .. } => VERSION_2,
        });
        bytes.put_u16_le(u16::try_from(self.bases.len()).expect("there are at most 64 partitions"));
        bytes.put_u64_le(self.number);
        bytes.put_u32_le(self.salt);
        if let Layout::Compact { created_ms } = self.layout {
            bytes.put_u64_le(created_ms);
        }
        for base in &self.bases {
            bytes.put_u64_le(base.offset);
            bytes.put_u64_le(base.floor);
            if self.layout != Layout::Fixed {
                bytes.put_u64_le(base.skipped);
            }
        }
        bytes.put_u32_le(crc32c::crc32c(&bytes));
        bytes
    }

    /// Reads the header of any version that `bytes` begins with.
    pub(in super::super) fn decode(bytes: &[u8]) -> Result<Self, FormatFault> {
        let mut fields = Fields(bytes);
        let version = fields.begin(SEGMENT_MAGIC, "a segment", VERSION_2)?;
        let partitions = usize::from(fields.u16()?);
        let number = fields.u64()?;
        let salt = fields.u32()?;
        let is_fixed = version == VERSION_1;
        let layout = if is_fixed { Layout::Fixed } else { Layout::Compact { created_ms: fields.u64()? } };
        let mut bases = Vec::new();
        for _ in 0..partitions {
            let (offset, floor) = (fields.u64()?, fields.u64()?);
            let skipped = if is_fixed { 0 } else { fields.u64()? };
            bases.push(Base { offset, floor, skipped });
        }
        fields.check_sum(bytes)?;
        if bases.iter().any(|base| base.skipped > base.offset) {
            return Err(FormatFault::Value { field: "skipped" });
        }
        Ok(Self { number, salt, layout, bases })
    }
}

//! The bytes of the embedded log. `docs/reference/embedded-log.md` describes them; every version ever released stays
//! readable. All numbers are little endian.

use bytes::{BufMut, Bytes};
use tidemill_core::partition::{Offset, Partition, Partitioning};

/// First bytes of a segment.
const SEGMENT_MAGIC: [u8; 4] = *b"TMSG";
/// First bytes of an index.
const INDEX_MAGIC: [u8; 4] = *b"TMIX";
/// First bytes of the file that keeps the partitioning.
const PARTITIONING_MAGIC: [u8; 4] = *b"TMPG";
/// The newest version of each of them.
pub(super) const VERSION: u16 = 1;

/// Bytes of a frame in front of its body: length and checksum.
pub(super) const FRAME_PREFIX: usize = 8;
const RECORD: u8 = 1;
const FLOOR: u8 = 2;
const LAST_OF_BATCH: u8 = 0x80;
/// Kind, partition, batch, offset.
const BODY_MIN: usize = 1 + 2 + 4 + 8;
/// Longest body that is believed; a longer one is damage.
pub(super) const BODY_MAX: usize = super::RECORD_BYTES_MAX + BODY_MIN + 8;

/// Stored bytes that do not follow the format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum FormatFault {
    #[error("it does not begin as {expected}")]
    Magic { expected: &'static str },
    #[error("it has version {version}, this program reads up to {VERSION}")]
    Version { version: u16 },
    #[error("it ends too early")]
    Short,
    #[error("its checksum does not fit")]
    Checksum,
    #[error("it holds a value that makes no sense ({field})")]
    Value { field: &'static str },
}

/// Reads fixed-size fields from the front.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], FormatFault> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(FormatFault::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatFault> {
        Ok(self.take(N)?.try_into().expect("take gives what was asked for"))
    }

    fn u16(&mut self) -> Result<u16, FormatFault> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, FormatFault> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, FormatFault> {
        self.array().map(u64::from_le_bytes)
    }

    fn begin(&mut self, magic: [u8; 4], expected: &'static str) -> Result<(), FormatFault> {
        if self.array()? != magic {
            return Err(FormatFault::Magic { expected });
        }
        match self.u16()? {
            VERSION => Ok(()),
            version => Err(FormatFault::Version { version }),
        }
    }
}

/// Where a partition stood when a segment was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Base {
    /// Offset of the partition's first record in this segment, if it gets one.
    pub(super) offset: Offset,
    /// Everything below was trimmed.
    pub(super) floor: Offset,
}

/// The first bytes of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    pub(super) number: u64,
    /// Random; begins every checksum of the segment, so that no record can hold something that passes for a frame.
    pub(super) salt: u32,
    /// Of every partition, in order.
    pub(super) bases: Vec<Base>,
}

impl SegmentHeader {
    /// Length of the header with `partitions` partitions.
    pub(super) fn length(partitions: usize) -> usize {
        4 + 2 + 2 + 8 + 4 + partitions * 16 + 4
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::length(self.bases.len()));
        bytes.put_slice(&SEGMENT_MAGIC);
        bytes.put_u16_le(VERSION);
        bytes.put_u16_le(u16::try_from(self.bases.len()).expect("there are at most 64 partitions"));
        bytes.put_u64_le(self.number);
        bytes.put_u32_le(self.salt);
        for base in &self.bases {
            bytes.put_u64_le(base.offset);
            bytes.put_u64_le(base.floor);
        }
        bytes.put_u32_le(crc32c::crc32c(&bytes));
        bytes
    }

    /// Reads the header that `bytes` begins with.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, FormatFault> {
        let mut fields = Fields(bytes);
        fields.begin(SEGMENT_MAGIC, "a segment")?;
        let partitions = usize::from(fields.u16()?);
        let number = fields.u64()?;
        let salt = fields.u32()?;
        let mut bases = Vec::with_capacity(partitions);
        for _ in 0..partitions {
            bases.push(Base { offset: fields.u64()?, floor: fields.u64()? });
        }
        let checked = bytes.len() - fields.0.len();
        if fields.u32()? != crc32c::crc32c(&bytes[..checked]) {
            return Err(FormatFault::Checksum);
        }
        Ok(Self { number, salt, bases })
    }
}

/// What one frame says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FrameBody {
    /// A record.
    Record { append_time_ms: u64, bytes: Bytes },
    /// Everything below the offset may be forgotten.
    Floor,
}

/// One entry of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) partition: Partition,
    pub(super) offset: Offset,
    /// Counts the batches of the segment from 1.
    pub(super) batch: u32,
    pub(super) body: FrameBody,
}

/// Whether a frame ends its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Within,
    LastOfBatch,
}

/// Appends `frame` to `bytes`.
pub(super) fn encode_frame(bytes: &mut Vec<u8>, salt: u32, frame: &Frame, place: Place) {
    let begin = bytes.len();
    bytes.put_u64_le(0);
    let last = if place == Place::LastOfBatch { LAST_OF_BATCH } else { 0 };
    bytes.put_u8(
        last | match frame.body {
            FrameBody::Record { .. } => RECORD,
            FrameBody::Floor => FLOOR,
        },
    );
    bytes.put_u16_le(frame.partition.0);
    bytes.put_u32_le(frame.batch);
    bytes.put_u64_le(frame.offset);
    if let FrameBody::Record { append_time_ms, bytes: record } = &frame.body {
        bytes.put_u64_le(*append_time_ms);
        bytes.put_slice(record);
    }
    let length = u32::try_from(bytes.len() - begin - FRAME_PREFIX).expect("a record has a bounded size");
    let checksum = frame_checksum(salt, length, &bytes[begin + FRAME_PREFIX..]);
    bytes[begin..begin + 4].copy_from_slice(&length.to_le_bytes());
    bytes[begin + 4..begin + 8].copy_from_slice(&checksum.to_le_bytes());
}

fn frame_checksum(salt: u32, length: u32, body: &[u8]) -> u32 {
    let prefix = crc32c::crc32c_append(crc32c::crc32c(&salt.to_le_bytes()), &length.to_le_bytes());
    crc32c::crc32c_append(prefix, body)
}

/// Length of the body of the frame that `prefix` begins.
pub(super) fn body_length(prefix: &[u8]) -> Result<usize, FormatFault> {
    let length = Fields(prefix).u32()? as usize;
    if (BODY_MIN..=BODY_MAX).contains(&length) {
        Ok(length)
    } else {
        Err(FormatFault::Value { field: "length" })
    }
}

/// Reads the frame that `bytes` begins with; answers its whole length, too.
pub(super) fn decode_frame(bytes: &[u8], salt: u32) -> Result<(Frame, Place, usize), FormatFault> {
    let length = body_length(bytes)?;
    let mut fields = Fields(bytes);
    let written_length = fields.u32()?;
    let checksum = fields.u32()?;
    let mut body = Fields(fields.take(length)?);
    if frame_checksum(salt, written_length, body.0) != checksum {
        return Err(FormatFault::Checksum);
    }
    let [kind] = body.array()?;
    let place = if kind & LAST_OF_BATCH == 0 { Place::Within } else { Place::LastOfBatch };
    let partition = Partition(body.u16()?);
    let batch = body.u32()?;
    let offset = body.u64()?;
    let body = match kind & !LAST_OF_BATCH {
        RECORD => FrameBody::Record { append_time_ms: body.u64()?, bytes: Bytes::copy_from_slice(body.0) },
        FLOOR => FrameBody::Floor,
        _ => return Err(FormatFault::Value { field: "kind" }),
    };
    Ok((Frame { partition, offset, batch, body }, place, FRAME_PREFIX + length))
}

/// Where the records of one sealed segment are: of every partition, the positions in order.
pub(super) fn encode_index(number: u64, segment_bytes: u64, positions: &[Vec<u32>]) -> Vec<u8> {
    let mut lists = Vec::new();
    let mut bytes = Vec::new();
    bytes.put_slice(&INDEX_MAGIC);
    bytes.put_u16_le(VERSION);
    bytes.put_u16_le(u16::try_from(positions.len()).expect("there are at most 64 partitions"));
    bytes.put_u64_le(number);
    bytes.put_u64_le(segment_bytes);
    for positions in positions {
        let begin = lists.len();
        let mut last = 0;
        for position in positions {
            put_number(&mut lists, position - last);
            last = *position;
        }
        bytes.put_u32_le(u32::try_from(positions.len()).expect("a position needs more than one byte"));
        bytes.put_u32_le(u32::try_from(begin).expect("an index is smaller than its segment"));
        bytes.put_u32_le(u32::try_from(lists.len() - begin).expect("an index is smaller than its segment"));
        bytes.put_u32_le(crc32c::crc32c(&lists[begin..]));
    }
    bytes.put_u32_le(crc32c::crc32c(&bytes));
    bytes.extend(lists);
    bytes
}

/// The front of an index: which part of the file belongs to which partition.
pub(super) struct IndexHeader {
    pub(super) number: u64,
    pub(super) segment_bytes: u64,
    lists: Vec<IndexList>,
}

/// Place of one partition's positions in an index.
#[derive(Debug, Clone, Copy)]
pub(super) struct IndexList {
    count: u32,
    pub(super) begin: u32,
    pub(super) length: u32,
    checksum: u32,
}

impl IndexHeader {
    pub(super) fn length(partitions: usize) -> usize {
        4 + 2 + 2 + 8 + 8 + partitions * 16 + 4
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, FormatFault> {
        let mut fields = Fields(bytes);
        fields.begin(INDEX_MAGIC, "an index")?;
        let partitions = fields.u16()?;
        let number = fields.u64()?;
        let segment_bytes = fields.u64()?;
        let mut lists = Vec::new();
        for _ in 0..partitions {
            lists.push(IndexList {
                count: fields.u32()?,
                begin: fields.u32()?,
                length: fields.u32()?,
                checksum: fields.u32()?,
            });
        }
        let checked = bytes.len() - fields.0.len();
        if fields.u32()? != crc32c::crc32c(&bytes[..checked]) {
            return Err(FormatFault::Checksum);
        }
        Ok(Self { number, segment_bytes, lists })
    }

    pub(super) fn list(&self, partition: Partition) -> Result<IndexList, FormatFault> {
        self.lists.get(usize::from(partition.0)).copied().ok_or(FormatFault::Value { field: "partition" })
    }
}

impl IndexList {
    /// Reads the positions from this list's bytes.
    pub(super) fn decode(&self, mut bytes: &[u8]) -> Result<Vec<u32>, FormatFault> {
        if crc32c::crc32c(bytes) != self.checksum {
            return Err(FormatFault::Checksum);
        }
        let mut positions = Vec::with_capacity(self.count as usize);
        let mut last = 0_u32;
        for _ in 0..self.count {
            let step = take_number(&mut bytes)?;
            last = last.checked_add(step).ok_or(FormatFault::Value { field: "position" })?;
            positions.push(last);
        }
        Ok(positions)
    }
}

/// Unsigned LEB128.
fn put_number(bytes: &mut Vec<u8>, mut number: u32) {
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

fn take_number(bytes: &mut &[u8]) -> Result<u32, FormatFault> {
    let mut number = 0_u64;
    for shift in (0..35).step_by(7) {
        let (byte, rest) = bytes.split_first().ok_or(FormatFault::Short)?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return u32::try_from(number).map_err(|_| FormatFault::Value { field: "position" });
        }
    }
    Err(FormatFault::Value { field: "position" })
}

/// The file that keeps how many partitions and groups the data directory was made with.
pub(super) fn encode_partitioning(partitioning: Partitioning) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.put_slice(&PARTITIONING_MAGIC);
    bytes.put_u16_le(VERSION);
    bytes.put_u16_le(partitioning.partition_count());
    bytes.put_u16_le(partitioning.group_count());
    bytes.put_u32_le(crc32c::crc32c(&bytes));
    bytes
}

pub(super) fn decode_partitioning(bytes: &[u8]) -> Result<Partitioning, FormatFault> {
    let mut fields = Fields(bytes);
    fields.begin(PARTITIONING_MAGIC, "a partitioning")?;
    let (partitions, groups) = (fields.u16()?, fields.u16()?);
    let checked = bytes.len() - fields.0.len();
    if fields.u32()? != crc32c::crc32c(&bytes[..checked]) {
        return Err(FormatFault::Checksum);
    }
    Partitioning::new(partitions, groups).map_err(|_| FormatFault::Value { field: "partitions" })
}

#[cfg(test)]
mod tests;

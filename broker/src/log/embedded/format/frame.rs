//! One entry of a segment.

use super::super::RECORD_BYTES_MAX;
use super::{Fields, FormatFault, Layout, SegmentHeader, put_number};
use bytes::{BufMut, Bytes};
use tidemill_core::partition::{Offset, Partition};

/// Bytes of a frame in front of its body: length and checksum.
pub(in super::super) const FRAME_PREFIX: usize = 8;
const RECORD: u8 = 1;
const FLOOR: u8 = 2;
const COPY: u8 = 3;
const UNSYNCED: u8 = 0x40;
const LAST_OF_BATCH: u8 = 0x80;
/// Kind, partition, batch, offset, one byte each.
const BODY_MIN: usize = 4;
/// The same with the largest numbers, and the append time.
const FIELDS_MAX: usize = 1 + 3 + 5 + 10 + 10;
/// Longest body that is believed; a longer one is damage.
const BODY_MAX: usize = RECORD_BYTES_MAX + FIELDS_MAX;

/// What one frame says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum FrameBody {
    /// A record that was appended here: the next one of its partition.
    Record { append_time_ms: u64, bytes: Bytes },
    /// A record that was appended to an earlier segment, which is to be removed.
    Copy { append_time_ms: u64, bytes: Bytes },
    /// Everything below the offset may be forgotten.
    Floor,
}

/// One entry of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Frame {
    pub(in super::super) partition: Partition,
    pub(in super::super) offset: Offset,
    /// Counts the batches of the segment from 1.
    pub(in super::super) batch: u32,
    pub(in super::super) body: FrameBody,
}

/// Whether a frame ends its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Place {
    Within,
    LastOfBatch,
}

/// Whether everything before a batch was synced when the batch was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Before {
    Synced,
    /// Not known: a power cut may have taken an earlier batch and left this one.
    Unsynced,
}

/// A frame as it stands in a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Placed {
    pub(in super::super) frame: Frame,
    pub(in super::super) place: Place,
    pub(in super::super) before: Before,
    /// Bytes of the whole frame.
    pub(in super::super) length: usize,
}

/// Appends `frame` to `bytes`. The segment of `header` has the compact layout.
pub(in super::super) fn encode_frame(
    bytes: &mut Vec<u8>,
    header: &SegmentHeader,
    frame: &Frame,
    place: Place,
    before: Before,
) {
    let Layout::Compact { created_ms } = header.layout else {
        unreachable!("a segment of an earlier layout is not written to")
    };
    let begin = bytes.len();
    bytes.put_u64_le(0);
    let last = if place == Place::LastOfBatch { LAST_OF_BATCH } else { 0 };
    let unsynced = if before == Before::Unsynced { UNSYNCED } else { 0 };
    let kind = match frame.body {
        FrameBody::Record { .. } => RECORD,
        FrameBody::Copy { .. } => COPY,
        FrameBody::Floor => FLOOR,
    };
    bytes.put_u8(kind | last | unsynced);
    put_number(bytes, frame.partition.0.into());
    put_number(bytes, frame.batch.into());
    let base = header.base(frame.partition).unwrap_or_default();
    match &frame.body {
        FrameBody::Record { append_time_ms, bytes: record } => {
            put_number(bytes, frame.offset.wrapping_sub(base.offset));
            put_number(bytes, zigzag(append_time_ms.wrapping_sub(created_ms)));
            bytes.put_slice(record);
        }
        FrameBody::Copy { append_time_ms, bytes: record } => {
            put_number(bytes, frame.offset);
            put_number(bytes, *append_time_ms);
            bytes.put_slice(record);
        }
        FrameBody::Floor => put_number(bytes, frame.offset),
    }
    let length = u32::try_from(bytes.len() - begin - FRAME_PREFIX).expect("a record has a bounded size");
    let checksum = frame_checksum(header.salt, length, &bytes[begin + FRAME_PREFIX..]);
    bytes[begin..begin + 4].copy_from_slice(&length.to_le_bytes());
    bytes[begin + 4..begin + 8].copy_from_slice(&checksum.to_le_bytes());
}

/// Small numbers for small differences in either direction: the clock may go back.
fn zigzag(difference: u64) -> u64 {
    (difference << 1) ^ (difference.cast_signed() >> 63).cast_unsigned()
}

fn unzigzag(number: u64) -> u64 {
    (number >> 1) ^ 0_u64.wrapping_sub(number & 1)
}

fn frame_checksum(salt: u32, length: u32, body: &[u8]) -> u32 {
    let prefix = crc32c::crc32c_append(crc32c::crc32c(&salt.to_le_bytes()), &length.to_le_bytes());
    crc32c::crc32c_append(prefix, body)
}

/// Length of the body of the frame that `prefix` begins.
pub(in super::super) fn body_length(prefix: &[u8]) -> Result<usize, FormatFault> {
    let length = Fields(prefix).u32()? as usize;
    if (BODY_MIN..=BODY_MAX).contains(&length) {
        Ok(length)
    } else {
        Err(FormatFault::Value { field: "length" })
    }
}

/// Reads the frame that `bytes` begins with.
pub(in super::super) fn decode_frame(bytes: &[u8], header: &SegmentHeader) -> Result<Placed, FormatFault> {
    decode(bytes, header, Bytes::copy_from_slice)
}

/// As [`decode_frame`], for who needs to know where a record is, but not the record: its bytes are left out.
pub(in super::super) fn locate_frame(bytes: &[u8], header: &SegmentHeader) -> Result<Placed, FormatFault> {
    decode(bytes, header, |_| Bytes::new())
}

fn decode(
    bytes: &[u8],
    header: &SegmentHeader,
    record: impl Fn(&[u8]) -> Bytes,
) -> Result<Placed, FormatFault> {
    let length = body_length(bytes)?;
    let mut fields = Fields(bytes);
    let written_length = fields.u32()?;
    let checksum = fields.u32()?;
    let body = fields.take(length)?;
    if frame_checksum(header.salt, written_length, body) != checksum {
        return Err(FormatFault::Checksum);
    }
    decode_body(body, header, record).map(|(frame, place, before)| Placed {
        frame,
        place,
        before,
        length: FRAME_PREFIX + length,
    })
}

/// Whether a frame that can be of use may begin here: what can be told without its checksum, which is dear.
pub(in super::super) fn is_plausible(
    bytes: &[u8],
    header: &SegmentHeader,
    batches: std::ops::Range<u32>,
) -> bool {
    let Ok(length) = body_length(bytes) else { return false };
    let Some(body) = bytes.get(FRAME_PREFIX..).and_then(|rest| rest.get(..length)) else { return false };
    let read = FrontFields::read(&mut Fields(body), header.layout);
    read.is_ok_and(|front| {
        header.base(front.partition).is_some()
            && matches!(front.kind & !(LAST_OF_BATCH | UNSYNCED), RECORD | FLOOR | COPY)
            && batches.contains(&front.batch)
    })
}

struct FrontFields {
    kind: u8,
    partition: Partition,
    batch: u32,
}

impl FrontFields {
    fn read(fields: &mut Fields<'_>, layout: Layout) -> Result<Self, FormatFault> {
        let [kind] = fields.array()?;
        let number = |number: u64| u32::try_from(number).map_err(|_| FormatFault::Value { field: "batch" });
        let (partition, batch) = match layout {
            Layout::Fixed => (u64::from(fields.u16()?), fields.u32()?),
            Layout::Compact { .. } => (fields.number()?, number(fields.number()?)?),
        };
        let partition = u16::try_from(partition).map_err(|_| FormatFault::Value { field: "partition" })?;
        Ok(Self { kind, partition: Partition(partition), batch })
    }
}

fn decode_body(
    body: &[u8],
    header: &SegmentHeader,
    record: impl Fn(&[u8]) -> Bytes,
) -> Result<(Frame, Place, Before), FormatFault> {
    let mut fields = Fields(body);
    let FrontFields { kind, partition, batch } = FrontFields::read(&mut fields, header.layout)?;
    let base = header.base(partition).ok_or(FormatFault::Value { field: "partition" })?;
    let place = if kind & LAST_OF_BATCH == 0 { Place::Within } else { Place::LastOfBatch };
    let before = if kind & UNSYNCED == 0 { Before::Synced } else { Before::Unsynced };
    let (offset, body) = match (kind & !(LAST_OF_BATCH | UNSYNCED), header.layout) {
        (RECORD, Layout::Fixed) => {
            let (offset, append_time_ms) = (fields.u64()?, fields.u64()?);
            (offset, FrameBody::Record { append_time_ms, bytes: record(fields.0) })
        }
        (FLOOR, Layout::Fixed) => (fields.u64()?, FrameBody::Floor),
        (RECORD, Layout::Compact { created_ms }) => {
            let offset = base.offset.wrapping_add(fields.number()?);
            let append_time_ms = created_ms.wrapping_add(unzigzag(fields.number()?));
            (offset, FrameBody::Record { append_time_ms, bytes: record(fields.0) })
        }
        (COPY, Layout::Compact { .. }) => {
            let (offset, append_time_ms) = (fields.number()?, fields.number()?);
            (offset, FrameBody::Copy { append_time_ms, bytes: record(fields.0) })
        }
        (FLOOR, Layout::Compact { .. }) => (fields.number()?, FrameBody::Floor),
        _ => return Err(FormatFault::Value { field: "kind" }),
    };
    Ok((Frame { partition, offset, batch, body }, place, before))
}

//! The bytes of the embedded log. `docs/reference/embedded-log.md` describes them; every version ever released stays
//! readable. All numbers of fixed size are little endian, those of variable size unsigned LEB128.

mod frame;
mod header;
mod index;

pub(super) use frame::{
    Before, FRAME_PREFIX, Frame, FrameBody, Place, body_length, decode_frame, encode_frame, is_plausible,
    locate_frame,
};
pub(super) use header::{Base, Layout, SegmentHeader};
pub(super) use index::{IndexHeader, IndexRun, Run, RunKind, encode_index};

use bytes::BufMut;
use tidemill_core::partition::Partitioning;

/// First bytes of a segment.
const SEGMENT_MAGIC: [u8; 4] = *b"TMSG";
/// First bytes of an index.
const INDEX_MAGIC: [u8; 4] = *b"TMIX";
/// First bytes of the file that keeps the partitioning.
const PARTITIONING_MAGIC: [u8; 4] = *b"TMPG";
/// The first version of each of them, and the newest of the partitioning.
const VERSION_1: u16 = 1;
/// The newest version of segments and indexes.
const VERSION_2: u16 = 2;

/// Stored bytes that do not follow the format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum FormatFault {
    #[error("it does not begin as {expected}")]
    Magic { expected: &'static str },
    #[error("it has version {version}, this program reads up to {newest}")]
    Version { version: u16, newest: u16 },
    #[error("it ends too early")]
    Short,
    #[error("its checksum does not fit")]
    Checksum,
    #[error("it holds a value that makes no sense ({field})")]
    Value { field: &'static str },
}

/// Reads fields from the front.
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

    /// Unsigned LEB128.
    fn number(&mut self) -> Result<u64, FormatFault> {
        let mut number = 0_u64;
        for shift in (0..70).step_by(7) {
            let [byte] = self.array()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(FormatFault::Value { field: "number" })
    }

    /// Reads what every file begins with; answers its version.
    fn begin(&mut self, magic: [u8; 4], expected: &'static str, newest: u16) -> Result<u16, FormatFault> {
        if self.array()? != magic {
            return Err(FormatFault::Magic { expected });
        }
        let version = self.u16()?;
        if (VERSION_1..=newest).contains(&version) {
            Ok(version)
        } else {
            Err(FormatFault::Version { version, newest })
        }
    }

    /// Reads the checksum of everything of `bytes` that was read before.
    fn check_sum(&mut self, bytes: &[u8]) -> Result<(), FormatFault> {
        let checked = bytes.len() - self.0.len();
        if self.u32()? == crc32c::crc32c(&bytes[..checked]) { Ok(()) } else { Err(FormatFault::Checksum) }
    }
}

/// Unsigned LEB128.
fn put_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

/// The file that keeps how many partitions and groups the data directory was made with.
pub(super) fn encode_partitioning(partitioning: Partitioning) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.put_slice(&PARTITIONING_MAGIC);
    bytes.put_u16_le(VERSION_1);
    bytes.put_u16_le(partitioning.partition_count());
    bytes.put_u16_le(partitioning.group_count());
    bytes.put_u32_le(crc32c::crc32c(&bytes));
    bytes
}

pub(super) fn decode_partitioning(bytes: &[u8]) -> Result<Partitioning, FormatFault> {
    let mut fields = Fields(bytes);
    fields.begin(PARTITIONING_MAGIC, "a partitioning", VERSION_1)?;
    let (partitions, groups) = (fields.u16()?, fields.u16()?);
    fields.check_sum(bytes)?;
    Partitioning::new(partitions, groups).map_err(|_| FormatFault::Value { field: "partitions" })
}

#[cfg(test)]
mod tests;

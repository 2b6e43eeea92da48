//! Keys and values of the state: what an owner keeps beside the log. Each key and each value starts with its version.
//!
//! Key: version, kind, then the parts of the kind. A queue is its kind (one byte), its name (length, text) and its
//! session number (8 bytes).
//!
//! | kind | parts | value |
//! |---|---|---|
//! | 1 | queue, filter | [`Subscription`](crate::queue::subscription::Subscription) |
//! | 2 | queue | [`StoredCursor`](cursor::StoredCursor) |
//! | 3 | queue | [`SessionMeta`](meta::SessionMeta) |
//! | 4 | queue, offset | [`Parked`](value::Parked) |
//! | 5 | session, packet id | [`SessionOut`](value::SessionOut) |
//! | 6 | session, packet id | [`PublisherIn`](value::PublisherIn) |
//! | 7 | partition | [`PartitionOwner`](value::PartitionOwner) |
//! | 8 | session, connection (owner epoch, counter) | [`StoredWill`](will::StoredWill) |
//! | 9 | session, connection (owner epoch, counter) | [`WillDue`](will::WillDue) |
//!
//! Numbers and lengths are unsigned LEB128, fixed-size integers little endian.

pub mod cursor;
pub mod key;
pub mod meta;
pub mod value;
pub mod will;

use crate::binary::{FormatError, Reader};
use bytes::Bytes;

/// The newest format of all keys and values.
pub const STATE_VERSION: u8 = 1;

/// Starts to read a key or value of the only version there is.
pub(crate) fn read_version_1(bytes: Bytes, field: &'static str) -> Result<Reader, FormatError> {
    let mut reader = Reader::new(bytes);
    match reader.u8(field)? {
        STATE_VERSION => Ok(reader),
        version => Err(FormatError::Unknown { field, value: version.into() }),
    }
}

/// Reads flags of which only `known` may be set.
pub(crate) fn read_flags(reader: &mut Reader, field: &'static str, known: u8) -> Result<u8, FormatError> {
    let flags = reader.u8(field)?;
    if flags & !known == 0 { Ok(flags) } else { Err(FormatError::Unknown { field, value: flags.into() }) }
}

/// `bit` when `set`.
pub(crate) fn flag(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}

#[cfg(test)]
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

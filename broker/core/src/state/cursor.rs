//! The stored progress of a queue.
//!
//! Value: version, flags (bit 0: tail), head, number of open offsets, the lowest open offset, then for each further
//! one its distance from the one before.

use super::{STATE_VERSION, flag, read_flags, read_version_1};
use crate::binary::{FormatError, Writer};
use crate::cursor::Cursor;
use crate::partition::Offset;
use bytes::Bytes;

const FLAG_TAIL: u8 = 1;

/// A cursor as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredCursor {
    /// The cursor.
    pub cursor: Cursor,
    /// The queue was at the head of its partition: it needs nothing between its head and the `processed` offset that
    /// the partition's owner stored last. A queue that leaves the tail is stored before that offset moves.
    pub tail: bool,
}

impl StoredCursor {
    /// Writes the value in the newest format.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::versioned(STATE_VERSION, 16 + 2 * self.cursor.open_count());
        writer.u8(flag(self.tail, FLAG_TAIL));
        writer.number(self.cursor.head());
        writer.number(self.cursor.open_count() as u64);
        let mut last = 0;
        for offset in self.cursor.open() {
            writer.number(offset - last);
            last = offset;
        }
        writer.finish()
    }

    /// Reads a value of any format ever released.
    ///
    /// # Errors
    ///
    /// [`FormatError`]: the state is damaged or from a newer version; its partition must not be served.
    pub fn decode(bytes: Bytes) -> Result<Self, FormatError> {
        let mut reader = read_version_1(bytes, "cursor version")?;
        let flags = read_flags(&mut reader, "cursor flags", FLAG_TAIL)?;
        let head = reader.number("cursor head")?;
        let count = reader.number("open offsets")?;
        let mut open: Vec<Offset> = Vec::new();
        let mut last: Offset = 0;
        // Bounded by the input: every turn reads at least one byte.
        for _ in 0..count {
            let distance = reader.number("open offset")?;
            let offset = last.checked_add(distance).filter(|offset| *offset < head);
            let Some(offset) = offset.filter(|offset| open.is_empty() || *offset > last) else {
                return Err(FormatError::Unknown { field: "open offset", value: distance });
            };
            open.push(offset);
            last = offset;
        }
        reader.finish()?;
        Ok(Self { cursor: Cursor::restore(head, open), tail: flags & FLAG_TAIL != 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::super::hex;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn version_1_keeps_its_bytes() {
        let stored = [
            (StoredCursor { cursor: Cursor::at(300), tail: true }, "01 01 ac02 00"),
            (
                StoredCursor { cursor: Cursor::restore(300, [0, 5, 299]), tail: false },
                "01 00 ac02 03 00 05 a602",
            ),
        ];

        for (cursor, bytes) in stored {
            assert_eq!(hex(&cursor.encode()), bytes.replace(' ', ""));
            assert_eq!(StoredCursor::decode(cursor.encode()), Ok(cursor));
        }
    }

    #[test]
    fn unknown_versions_and_open_offsets_at_the_head_are_refused() {
        assert!(StoredCursor::decode(Bytes::from_static(&[2, 0, 0, 0])).is_err());
        assert!(StoredCursor::decode(Bytes::from_static(&[1, 2, 0, 0])).is_err());
        assert!(StoredCursor::decode(Bytes::from_static(&[1, 0, 5, 1, 5])).is_err());
        assert!(StoredCursor::decode(Bytes::from_static(&[1, 0, 5, 2, 1, 0])).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mut versioned = vec![STATE_VERSION];
            versioned.extend(&bytes);
            if let Ok(cursor) = StoredCursor::decode(versioned.into()) {
                prop_assert_eq!(StoredCursor::decode(cursor.encode()), Ok(cursor));
            }
            let _ = StoredCursor::decode(bytes.into());
        }
    }
}

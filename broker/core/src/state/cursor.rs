//! The stored progress of a queue.
//!
//! Value: version, flags (bit 0: tail), head, number of open offsets, the lowest open offset, then for each further
//! one its distance from the one before.
//!
//! Version 2 adds what the flags say: bit 1 what waits ([`backlog`]), bit 2 dead letters: how many, then for each its
//! distance as above and its reason. A value that has neither is written as version 1.

mod backlog;

use super::{STATE_VERSION, flag, read_flags};
use crate::binary::{FormatError, Reader, Writer};
use crate::cursor::Cursor;
use crate::partition::Offset;
use crate::queue::backlog::Backlog;
use crate::queue::limits::DropReason;
use bytes::Bytes;
use std::collections::BTreeMap;

/// The newest format of a cursor.
const CURSOR_VERSION: u8 = 2;

const FLAG_TAIL: u8 = 1;
const FLAG_BACKLOG: u8 = 1 << 1;
const FLAG_DEAD: u8 = 1 << 2;

/// A cursor as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredCursor {
    /// The cursor.
    pub cursor: Cursor,
    /// The queue was at the head of its partition: it needs nothing between its head and the `processed` offset that
    /// the partition's owner stored last. A queue that leaves the tail is stored before that offset moves.
    pub tail: bool,
    /// What was counted of the messages that wait for it; `None` at the tail, and where nothing was counted.
    pub backlog: Option<Backlog>,
    /// Open offsets that are to become dead letters.
    pub dead: BTreeMap<Offset, DropReason>,
}

impl StoredCursor {
    /// A cursor of which nothing waits.
    #[must_use]
    pub fn plain(cursor: Cursor, tail: bool) -> Self {
        Self { cursor, tail, backlog: None, dead: BTreeMap::new() }
    }

    /// One past the highest offset that it names: the log has ended there or above it.
    #[must_use]
    pub fn known_end(&self) -> Offset {
        self.backlog.as_ref().map_or(0, |backlog| backlog.counted_to).max(self.cursor.head())
    }

    /// Writes the value in the oldest format that can say it.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let flags = flag(self.tail, FLAG_TAIL)
            | flag(self.backlog.is_some(), FLAG_BACKLOG)
            | flag(!self.dead.is_empty(), FLAG_DEAD);
        let version = if flags & !FLAG_TAIL == 0 { STATE_VERSION } else { CURSOR_VERSION };
        let mut writer = Writer::versioned(version, 16 + 2 * self.cursor.open_count());
        writer.u8(flags);
        writer.number(self.cursor.head());
        writer.number(self.cursor.open_count() as u64);
        let mut last = 0;
        for offset in self.cursor.open() {
            writer.number(offset - last);
            last = offset;
        }
        if let Some(backlog) = &self.backlog {
            backlog::write(&mut writer, backlog);
        }
        if !self.dead.is_empty() {
            writer.number(self.dead.len() as u64);
            let mut last = 0;
            for (offset, reason) in &self.dead {
                writer.number(offset - last);
                writer.u8(*reason as u8);
                last = *offset;
            }
        }
        writer.finish()
    }

    /// Reads a value of any format ever released.
    ///
    /// # Errors
    ///
    /// [`FormatError`]: the state is damaged or from a newer version; its partition must not be served.
    pub fn decode(bytes: Bytes) -> Result<Self, FormatError> {
        let mut reader = Reader::new(bytes);
        let known = match reader.u8("cursor version")? {
            STATE_VERSION => FLAG_TAIL,
            CURSOR_VERSION => FLAG_TAIL | FLAG_BACKLOG | FLAG_DEAD,
            version => return Err(FormatError::Unknown { field: "cursor version", value: version.into() }),
        };
        let flags = read_flags(&mut reader, "cursor flags", known)?;
        let head = reader.number("cursor head")?;
        let count = reader.number("open offsets")?;
        let mut open: Vec<Offset> = Vec::new();
        // Bounded by the input: every turn reads at least one byte.
        for _ in 0..count {
            open.push(read_next(&mut reader, open.last().copied(), head)?);
        }
        let backlog = if flags & FLAG_BACKLOG != 0 { Some(backlog::read(&mut reader)?) } else { None };
        let mut dead = BTreeMap::new();
        if flags & FLAG_DEAD != 0 {
            for _ in 0..reader.number("dead letters")? {
                let last = dead.last_key_value().map(|(offset, _)| *offset);
                let offset = read_next(&mut reader, last, head)?;
                dead.insert(offset, read_reason(&mut reader)?);
            }
        }
        reader.finish()?;
        Ok(Self { cursor: Cursor::restore(head, open), tail: flags & FLAG_TAIL != 0, backlog, dead })
    }
}

/// The offset after `last`, below `head`.
fn read_next(reader: &mut Reader, last: Option<Offset>, head: Offset) -> Result<Offset, FormatError> {
    let distance = reader.number("open offset")?;
    let offset = last.unwrap_or(0).checked_add(distance).filter(|offset| *offset < head);
    offset
        .filter(|offset| last.is_none_or(|last| *offset > last))
        .ok_or(FormatError::Unknown { field: "open offset", value: distance })
}

fn read_reason(reader: &mut Reader) -> Result<DropReason, FormatError> {
    let number = reader.u8("drop reason")?;
    DropReason::from_number(number).ok_or(FormatError::Unknown { field: "drop reason", value: number.into() })
}

#[cfg(test)]
mod tests {
    use super::super::hex;
    use super::*;
    use crate::queue::backlog::{Mark, Skipped, Tally};
    use proptest::prelude::*;

    #[test]
    fn version_1_keeps_its_bytes() {
        let stored = [
            (StoredCursor::plain(Cursor::at(300), true), "01 01 ac02 00"),
            (StoredCursor::plain(Cursor::restore(300, [0, 5, 299]), false), "01 00 ac02 03 00 05 a602"),
        ];

        for (cursor, bytes) in stored {
            assert_eq!(hex(&cursor.encode()), bytes.replace(' ', ""));
            assert_eq!(StoredCursor::decode(cursor.encode()), Ok(cursor));
        }
    }

    #[test]
    fn version_2_keeps_its_bytes() {
        let tally = |messages, bytes| Tally { messages, bytes };
        let backlog = Backlog {
            counted_to: 301,
            counted: tally(5, 500),
            passed: tally(1, 90),
            dropped: 2,
            reason: Some(DropReason::Bytes),
            every: 2,
            newest_ms: 1_400,
            marks: vec![
                Mark { offset: 290, before: tally(0, 0), publish_ms: 1_000 },
                Mark { offset: 295, before: tally(2, 200), publish_ms: 1_300 },
            ],
            skipped: vec![Skipped { start: 296, end: 297 }, Skipped { start: 299, end: Offset::MAX }],
        };
        let cursor = Cursor::restore(291, [5, 9]);
        let stored = StoredCursor {
            cursor,
            tail: false,
            backlog: Some(backlog),
            dead: BTreeMap::from([(5, DropReason::Age), (9, DropReason::MaxDeliveries)]),
        };
        let bytes = "02 06 a302 02 05 04 \
            ad02 05 f403 01 5a 02 02 02 f80a 02 a202 00 00 d00f 05 02 c801 d804 02 a802 01 02 00 \
            02 05 03 04 05";

        assert_eq!(stored.known_end(), 301);
        assert_eq!(hex(&stored.encode()), bytes.replace([' ', '\n'], ""));
        assert_eq!(StoredCursor::decode(stored.encode()), Ok(stored));
    }

    #[test]
    fn unknown_versions_and_open_offsets_at_the_head_are_refused() {
        assert!(StoredCursor::decode(Bytes::from_static(&[3, 0, 0, 0])).is_err());
        assert!(StoredCursor::decode(Bytes::from_static(&[2, 8, 0, 0])).is_err());
        assert!(StoredCursor::decode(Bytes::from_static(&[1, 2, 0, 0])).is_err());
        assert!(StoredCursor::decode(Bytes::from_static(&[1, 0, 5, 1, 5])).is_err());
        assert!(StoredCursor::decode(Bytes::from_static(&[1, 0, 5, 2, 1, 0])).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(version in 1_u8..3, bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let mut versioned = vec![version];
            versioned.extend(&bytes);
            if let Ok(cursor) = StoredCursor::decode(versioned.into()) {
                if let Some(backlog) = &cursor.backlog {
                    let _ = (backlog.waiting(), backlog.oldest_ms());
                }
                prop_assert_eq!(StoredCursor::decode(cursor.encode()), Ok(cursor));
            }
            let _ = StoredCursor::decode(bytes.into());
        }
    }
}

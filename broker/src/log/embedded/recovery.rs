//! Reads a segment from its beginning to find what is committed in it.

use super::disk::{Disk, FileAt};
use super::format::{
    Before, FRAME_PREFIX, FormatFault, Frame, FrameBody, Place, RunKind, SegmentHeader, body_length,
    is_plausible, locate_frame,
};
use super::segment::{PlacedRecord, Runs};
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use tidemill_core::partition::Offset;

/// Bytes of the shortest batch: one frame with the shortest body.
const BATCH_BYTES_MIN: usize = FRAME_PREFIX + 4;

/// What is in a segment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Scan {
    /// Where the records are.
    pub(super) runs: Runs,
    /// Floor of each partition.
    pub(super) floors: Vec<Offset>,
    /// Number of the last whole batch.
    pub(super) batch: u32,
    /// End of the last whole batch.
    pub(super) bytes: u64,
    pub(super) rest: Rest,
}

/// What follows the last whole batch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// Nothing.
    Nothing,
    /// A batch that was being written when the broker ended. Nobody was told that it is there, if every batch was
    /// synced.
    Torn,
    /// A batch that cannot be read although later ones are there, none of which was written after a sync: the power
    /// failed before they were synced.
    Unsynced { position: u64, fault: FormatFault },
    /// A batch that cannot be read although later ones were written after it was synced.
    Damaged { position: u64, fault: FormatFault },
}

/// Scans `file` behind its `header`.
pub(super) fn scan(disk: &dyn Disk, file: &File, header: &SegmentHeader) -> io::Result<Scan> {
    let begin = header.length() as u64;
    let mut scanner = Scanner {
        header,
        found: Scan {
            runs: Runs::new(header),
            floors: header.bases.iter().map(|base| base.floor).collect(),
            batch: 0,
            bytes: begin,
            rest: Rest::Nothing,
        },
        pending: Vec::new(),
    };
    let length = file.metadata()?.len();
    let mut reader = BufReader::with_capacity(1 << 20, FileAt { disk, file, position: begin });
    let mut position = begin;
    let mut bytes = Vec::new();
    while position < length {
        let fault = match read_frame(&mut reader, &mut bytes)? {
            Ok(()) => locate_frame(&bytes, header)
                .and_then(|placed| scanner.take(placed.frame, placed.place, position, bytes.len())),
            Err(fault) => Err(fault),
        };
        if let Err(fault) = fault {
            scanner.found.rest = match what_follows(disk, file, &scanner, position)? {
                None => Rest::Torn,
                Some(Before::Unsynced) => Rest::Unsynced { position, fault },
                Some(Before::Synced) => Rest::Damaged { position, fault },
            };
            return Ok(scanner.found);
        }
        position += bytes.len() as u64;
    }
    if scanner.found.bytes < length {
        scanner.found.rest = Rest::Torn;
    }
    Ok(scanner.found)
}

/// Reads one frame into `bytes`; the inner error if it is cut or its length makes no sense.
fn read_frame(reader: &mut impl Read, bytes: &mut Vec<u8>) -> io::Result<Result<(), FormatFault>> {
    bytes.resize(FRAME_PREFIX, 0);
    let read = |reader: &mut dyn Read, bytes: &mut [u8]| match reader.read_exact(bytes) {
        Ok(()) => Ok(Ok(())),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(Err(FormatFault::Short)),
        Err(error) => Err(error),
    };
    if let Err(fault) = read(reader, bytes)? {
        return Ok(Err(fault));
    }
    match body_length(bytes) {
        Ok(length) => {
            bytes.resize(FRAME_PREFIX + length, 0);
            read(reader, &mut bytes[FRAME_PREFIX..])
        }
        Err(fault) => Ok(Err(fault)),
    }
}

struct Scanner<'a> {
    header: &'a SegmentHeader,
    found: Scan,
    /// Frames of a batch whose end was not met yet, with position and length.
    pending: Vec<(Frame, u32, u64)>,
}

impl Scanner<'_> {
    fn take(&mut self, frame: Frame, place: Place, position: u64, length: usize) -> Result<(), FormatFault> {
        if frame.batch != self.found.batch.wrapping_add(1) {
            return Err(FormatFault::Value { field: "batch" });
        }
        let at = u32::try_from(position).map_err(|_| FormatFault::Value { field: "position" })?;
        self.pending.push((frame, at, length as u64));
        if place == Place::LastOfBatch {
            self.take_batch()?;
            self.found.bytes = position + length as u64;
        }
        Ok(())
    }

    fn take_batch(&mut self) -> Result<(), FormatFault> {
        for (frame, position, bytes) in self.pending.drain(..) {
            let Frame { partition, offset, .. } = frame;
            let base = self.header.base(partition).ok_or(FormatFault::Value { field: "partition" })?;
            let kind = match frame.body {
                FrameBody::Record { .. } if self.found.runs.next(partition) == Some(offset) => RunKind::Own,
                FrameBody::Copy { .. } if offset < base.offset => RunKind::Copied,
                FrameBody::Record { .. } | FrameBody::Copy { .. } => {
                    return Err(FormatFault::Value { field: "offset" });
                }
                FrameBody::Floor => {
                    let floor = &mut self.found.floors[usize::from(partition.0)];
                    *floor = offset.max(*floor);
                    continue;
                }
            };
            self.found.runs.push(PlacedRecord { partition, kind, offset, position, bytes });
        }
        self.found.batch = self.found.batch.wrapping_add(1);
        Ok(())
    }
}

/// Looks for a frame of a later batch than the unfinished one anywhere behind `position`; answers whether one of them
/// was written after a sync.
fn what_follows(
    disk: &dyn Disk,
    file: &File,
    scanner: &Scanner<'_>,
    position: u64,
) -> io::Result<Option<Before>> {
    let mut rest = Vec::new();
    FileAt { disk, file, position }.read_to_end(&mut rest)?;
    let unfinished = scanner.found.batch.saturating_add(1);
    let batches = u32::try_from(rest.len() / BATCH_BYTES_MIN).unwrap_or(u32::MAX);
    let later = unfinished.saturating_add(1)..unfinished.saturating_add(batches).saturating_add(1);
    let mut follows = None;
    for begin in 1..rest.len() {
        let bytes = &rest[begin..];
        if is_plausible(bytes, scanner.header, later.clone())
            && let Ok(placed) = locate_frame(bytes, scanner.header)
        {
            if placed.before == Before::Synced {
                return Ok(Some(Before::Synced));
            }
            follows = Some(Before::Unsynced);
        }
    }
    Ok(follows)
}

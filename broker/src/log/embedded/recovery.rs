//! Reads a segment from its beginning to find what is committed in it.

use super::format::{
    FRAME_PREFIX, FormatFault, Frame, FrameBody, Place, SegmentHeader, body_length, decode_frame,
};
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use tidemill_core::partition::Offset;

/// What is in a segment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Scan {
    /// Positions of the records of each partition.
    pub(super) positions: Vec<Vec<u32>>,
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
    /// A batch that was being written when the broker ended. Nobody was told that it is there.
    Torn,
    /// A batch that cannot be read although later ones were written, which is done only after it was synced.
    Damaged { position: u64, fault: FormatFault },
}

/// Scans `file` behind its `header`.
pub(super) fn scan(file: &File, header: &SegmentHeader) -> io::Result<Scan> {
    let begin = SegmentHeader::length(header.bases.len()) as u64;
    let mut scanner = Scanner {
        header,
        found: Scan {
            positions: vec![Vec::new(); header.bases.len()],
            floors: header.bases.iter().map(|base| base.floor).collect(),
            batch: 0,
            bytes: begin,
            rest: Rest::Nothing,
        },
        pending: Vec::new(),
    };
    let length = file.metadata()?.len();
    let mut reader = BufReader::with_capacity(1 << 20, FileAt { file, position: begin });
    let mut position = begin;
    let mut bytes = Vec::new();
    while position < length {
        let fault = match read_frame(&mut reader, &mut bytes)? {
            Ok(()) => decode_frame(&bytes, header.salt)
                .and_then(|(frame, place, _)| scanner.take(frame, place, position, bytes.len())),
            Err(fault) => Err(fault),
        };
        if let Err(fault) = fault {
            scanner.found.rest = if is_followed(file, &scanner, position)? {
                Rest::Damaged { position, fault }
            } else {
                Rest::Torn
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
    /// Frames of a batch whose end was not met yet.
    pending: Vec<(Frame, u32)>,
}

impl Scanner<'_> {
    fn take(&mut self, frame: Frame, place: Place, position: u64, length: usize) -> Result<(), FormatFault> {
        if frame.batch != self.found.batch.wrapping_add(1) {
            return Err(FormatFault::Value { field: "batch" });
        }
        if usize::from(frame.partition.0) >= self.found.positions.len() {
            return Err(FormatFault::Value { field: "partition" });
        }
        let at = u32::try_from(position).map_err(|_| FormatFault::Value { field: "position" })?;
        // Where the records are is all that is needed; their bytes would only take memory.
        let body = match frame.body {
            FrameBody::Record { append_time_ms, .. } => {
                FrameBody::Record { append_time_ms, bytes: bytes::Bytes::new() }
            }
            FrameBody::Floor => FrameBody::Floor,
        };
        self.pending.push((Frame { body, ..frame }, at));
        if place == Place::LastOfBatch {
            self.take_batch()?;
            self.found.bytes = position + length as u64;
        }
        Ok(())
    }

    fn take_batch(&mut self) -> Result<(), FormatFault> {
        for (frame, position) in self.pending.drain(..) {
            let partition = usize::from(frame.partition.0);
            match frame.body {
                FrameBody::Record { .. } => {
                    let positions = &mut self.found.positions[partition];
                    if frame.offset != self.header.bases[partition].offset + positions.len() as u64 {
                        return Err(FormatFault::Value { field: "offset" });
                    }
                    positions.push(position);
                }
                FrameBody::Floor => {
                    let floor = &mut self.found.floors[partition];
                    *floor = frame.offset.max(*floor);
                }
            }
        }
        self.found.batch = self.found.batch.wrapping_add(1);
        Ok(())
    }
}

/// Whether a frame of a later batch than the unfinished one begins anywhere behind `position`.
fn is_followed(file: &File, scanner: &Scanner<'_>, position: u64) -> io::Result<bool> {
    let mut rest = Vec::new();
    FileAt { file, position }.read_to_end(&mut rest)?;
    let unfinished = scanner.found.batch.wrapping_add(1);
    for begin in 1..rest.len() {
        let bytes = &rest[begin..];
        // The kind is looked at first because checksums of arbitrary lengths are dear.
        let plausible = bytes.get(FRAME_PREFIX).is_some_and(|kind| matches!(kind & 0x7f, 1 | 2));
        if plausible
            && let Ok((frame, _, _)) = decode_frame(bytes, scanner.header.salt)
            && frame.batch > unfinished
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads a file from a position without moving its cursor, which others share.
struct FileAt<'a> {
    file: &'a File,
    position: u64,
}

impl Read for FileAt<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.position)?;
        self.position += read as u64;
        Ok(read)
    }
}

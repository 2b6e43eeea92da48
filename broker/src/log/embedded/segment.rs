//! One file of the log, shared by all partitions. Only the last one is written; the others are sealed and have an
//! index file that tells where each partition's records are.

use super::OpenLogError;
use super::directory::{sync_directory, write_whole};
use super::disk::Disk;
use super::format::{
    Base, FRAME_PREFIX, FormatFault, FrameBody, IndexHeader, SegmentHeader, body_length, decode_frame,
    encode_index,
};
use crate::log::{READ_BYTES_MAX, READ_RECORDS_MAX, StoredRecord};
use parking_lot::RwLock;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidemill_core::partition::{Offset, Partition};

/// Most bytes of one cold read from the file. A larger record is read whole.
const WINDOW_BYTES: u32 = 256 << 10;
/// What is read behind the beginning of the last record of a window, in the hope that it is not longer.
const WINDOW_SLACK: u32 = 4 << 10;
/// Windows that one read goes through at most, so that it does not take the disk for long.
const WINDOWS_MAX: usize = 8;

/// One segment.
pub(super) struct Segment {
    pub(super) header: SegmentHeader,
    pub(super) path: PathBuf,
    file: File,
    written: RwLock<Written>,
}

/// What of the segment is committed.
struct Written {
    bytes: u64,
    /// Positions of the records of each partition, until they are in the index file.
    positions: Option<Vec<Vec<u32>>>,
}

/// A segment could not give what it must have.
#[derive(Debug, thiserror::Error)]
pub(super) enum SegmentFault {
    #[error("segment {}: {fault}", path.display())]
    Damaged { path: PathBuf, fault: FormatFault },
    #[error("segment {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Where records of one partition are, from a given one on.
#[derive(Clone)]
pub(super) struct Positions {
    /// Offset of the first.
    pub(super) first: Offset,
    pub(super) list: Arc<[u32]>,
    pub(super) extent: Extent,
}

/// Which records [`Positions`] are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// All of the partition in a segment that gets no more.
    Whole,
    /// Some of a segment that is still written.
    Part,
}

pub(super) fn segment_path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number:020}.segment"))
}

pub(super) fn index_path(segment: &Path) -> PathBuf {
    segment.with_extension("index")
}

impl Segment {
    /// Creates an empty segment: durable with its header before it gets its name, and the name durable before it is
    /// used.
    pub(super) fn create(directory: &Path, header: SegmentHeader, disk: &dyn Disk) -> io::Result<Self> {
        let path = segment_path(directory, header.number);
        let unfinished = path.with_extension("new");
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&unfinished)?;
        let bytes = header.encode();
        disk.write_at(&file, &bytes, 0)?;
        disk.sync(&file)?;
        std::fs::rename(&unfinished, &path)?;
        sync_directory(directory)?;
        let positions = Some(vec![Vec::new(); header.bases.len()]);
        let written = RwLock::new(Written { bytes: bytes.len() as u64, positions });
        Ok(Self { header, path, file, written })
    }

    /// Opens a segment that is there. Its records are not looked at; see [`Segment::restore`].
    pub(super) fn open(directory: &Path, number: u64, partitions: usize) -> Result<Self, OpenLogError> {
        let path = segment_path(directory, number);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|source| OpenLogError::Io { path: path.clone(), source })?;
        let mut bytes = vec![0; SegmentHeader::length(partitions)];
        let length = file.metadata().map(|metadata| metadata.len());
        let length = length
            .and_then(|length| file.read_exact_at(&mut bytes, 0).map(|()| length))
            .map_err(|source| OpenLogError::Io { path: path.clone(), source })?;
        let header = SegmentHeader::decode(&bytes)
            .map_err(|fault| OpenLogError::Damaged { path: path.clone(), reason: fault.to_string() })?;
        if header.number != number || header.bases.len() != partitions {
            let reason = "it is another segment than its name says".to_owned();
            return Err(OpenLogError::Damaged { path, reason });
        }
        let written = RwLock::new(Written { bytes: length, positions: None });
        Ok(Self { header, path, file, written })
    }

    /// Length of the committed part.
    pub(super) fn bytes(&self) -> u64 {
        self.written.read().bytes
    }

    pub(super) fn base(&self, partition: Partition) -> Base {
        *self.header.bases.get(usize::from(partition.0)).expect("every segment knows every partition")
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Takes what a scan found in the file.
    pub(super) fn restore(&self, bytes: u64, positions: Vec<Vec<u32>>) {
        *self.written.write() = Written { bytes, positions: Some(positions) };
    }

    /// Makes records readable that were committed up to `bytes`.
    pub(super) fn publish(&self, bytes: u64, records: impl Iterator<Item = (Partition, u32)>) {
        let mut written = self.written.write();
        written.bytes = bytes;
        let positions = written.positions.as_mut().expect("only the last segment is written");
        for (partition, position) in records {
            positions[usize::from(partition.0)].push(position);
        }
    }

    /// Writes the index file. The segment is not written again.
    pub(super) fn seal(&self) -> io::Result<()> {
        let bytes = {
            let written = self.written.read();
            let Some(positions) = &written.positions else { return Ok(()) };
            encode_index(self.header.number, written.bytes, positions)
        };
        write_whole(&index_path(&self.path), &bytes)?;
        self.written.write().positions = None;
        Ok(())
    }

    /// Whether the index file is there and belongs to this segment.
    pub(super) fn has_index(&self) -> bool {
        let header = File::open(index_path(&self.path)).ok().and_then(|file| self.index_header(&file).ok());
        header.is_some()
    }

    fn index_header(&self, index: &File) -> Result<IndexHeader, SegmentFault> {
        let path = index_path(&self.path);
        let mut bytes = vec![0; IndexHeader::length(self.header.bases.len())];
        index
            .read_exact_at(&mut bytes, 0)
            .map_err(|source| SegmentFault::Io { path: path.clone(), source })?;
        let damaged = |fault| SegmentFault::Damaged { path: path.clone(), fault };
        let header = IndexHeader::decode(&bytes).map_err(damaged)?;
        if (header.number, header.segment_bytes) != (self.header.number, self.bytes()) {
            return Err(damaged(FormatFault::Value { field: "segment" }));
        }
        Ok(header)
    }

    /// Where the records of `partition` are, from offset `from` or an earlier one on.
    pub(super) fn positions(&self, partition: Partition, from: Offset) -> Result<Positions, SegmentFault> {
        let first = self.base(partition).offset;
        if let Some(positions) = &self.written.read().positions {
            let positions = &positions[usize::from(partition.0)];
            let skipped = usize::try_from(from.saturating_sub(first)).unwrap_or(usize::MAX);
            let rest = positions.get(skipped..).unwrap_or_default();
            let list = &rest[..rest.len().min(READ_RECORDS_MAX)];
            return Ok(Positions { first: from, list: list.into(), extent: Extent::Part });
        }
        let path = index_path(&self.path);
        let io = |source| SegmentFault::Io { path: path.clone(), source };
        let damaged = |fault| SegmentFault::Damaged { path: path.clone(), fault };
        let index = File::open(&path).map_err(io)?;
        let header = self.index_header(&index)?;
        let list = header.list(partition).map_err(damaged)?;
        let begin = IndexHeader::length(self.header.bases.len()) as u64 + u64::from(list.begin);
        let mut bytes = vec![0; list.length as usize];
        index.read_exact_at(&mut bytes, begin).map_err(io)?;
        let list = list.decode(&bytes).map_err(damaged)?.into();
        Ok(Positions { first, list, extent: Extent::Whole })
    }

    /// Reads records of `partition` at `positions`, the first of which has offset `from`. Stops at the bounds of one
    /// event and in front of damage; answers at least one record if there is a position.
    pub(super) fn read(
        &self,
        partition: Partition,
        from: Offset,
        positions: &[u32],
    ) -> Result<Vec<StoredRecord>, SegmentFault> {
        let mut records = Vec::new();
        let mut bytes = 0;
        for _ in 0..WINDOWS_MAX {
            let done = records.len();
            let rest = &positions[done..positions.len().min(READ_RECORDS_MAX)];
            if rest.is_empty() || bytes >= READ_BYTES_MAX {
                break;
            }
            let begin = rest[0];
            let window = match self.read_window(rest) {
                Ok(window) => window,
                Err(fault) if records.is_empty() => return Err(fault),
                Err(_) => break,
            };
            for (offset, position) in (from + done as u64..).zip(rest) {
                let Some(frame) = window.get((position - begin) as usize..) else { break };
                let cut = body_length(frame).is_ok_and(|length| length + FRAME_PREFIX > frame.len());
                if cut || frame.len() < FRAME_PREFIX || bytes >= READ_BYTES_MAX {
                    break;
                }
                let record = match self.decode_record(frame, partition, offset) {
                    Ok(record) => record,
                    Err(fault) if records.is_empty() => return Err(fault),
                    Err(_) => return Ok(records),
                };
                bytes += record.bytes.len();
                records.push(record);
            }
            debug_assert!(records.len() > done, "a window holds its first record whole");
        }
        Ok(records)
    }

    /// The bytes from the first position on: all records that begin within a window, the first one whole.
    fn read_window(&self, positions: &[u32]) -> Result<Vec<u8>, SegmentFault> {
        let begin = positions[0];
        let within = positions.partition_point(|position| position - begin < WINDOW_BYTES);
        let wanted = u64::from(positions[within - 1] - begin) + u64::from(WINDOW_SLACK);
        let left = self.bytes().saturating_sub(begin.into());
        let window = self.read_at(begin, wanted.min(left))?;
        let first = body_length(&window).map_err(|fault| self.damaged(fault))? + FRAME_PREFIX;
        if first <= window.len() {
            return Ok(window);
        }
        if first as u64 > left {
            return Err(self.damaged(FormatFault::Short));
        }
        self.read_at(begin, first as u64)
    }

    fn read_at(&self, begin: u32, length: u64) -> Result<Vec<u8>, SegmentFault> {
        let length = usize::try_from(length).map_err(|_| self.damaged(FormatFault::Short))?;
        let mut bytes = vec![0; length];
        self.file
            .read_exact_at(&mut bytes, begin.into())
            .map_err(|source| SegmentFault::Io { path: self.path.clone(), source })?;
        Ok(bytes)
    }

    fn decode_record(
        &self,
        bytes: &[u8],
        partition: Partition,
        offset: Offset,
    ) -> Result<StoredRecord, SegmentFault> {
        let (frame, _, _) = decode_frame(bytes, self.header.salt).map_err(|fault| self.damaged(fault))?;
        match frame.body {
            FrameBody::Record { append_time_ms, bytes }
                if (frame.partition, frame.offset) == (partition, offset) =>
            {
                Ok(StoredRecord { offset, bytes, append_time_ms })
            }
            FrameBody::Record { .. } | FrameBody::Floor => {
                Err(self.damaged(FormatFault::Value { field: "offset" }))
            }
        }
    }

    fn damaged(&self, fault: FormatFault) -> SegmentFault {
        SegmentFault::Damaged { path: self.path.clone(), fault }
    }

    /// Removes the files. Whoever reads the segment now reads on.
    pub(super) fn remove(&self) -> io::Result<()> {
        match std::fs::remove_file(index_path(&self.path)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        std::fs::remove_file(&self.path)
    }
}

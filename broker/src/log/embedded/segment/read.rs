//! Reading records of one partition from a segment.

use super::super::disk::FileAt;
use super::super::format::{
    FRAME_PREFIX, FormatFault, FrameBody, IndexRun, RunKind, body_length, decode_frame,
};
use super::{CopiedHere, Segment, SegmentFault, index_path};
use crate::log::{READ_BYTES_MAX, READ_RECORDS_MAX, StoredRecord};
use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use tidemill_core::partition::{Offset, Partition};

/// Most bytes of one cold read from the file. A larger record is read whole.
const WINDOW_BYTES: u32 = 256 << 10;
/// What is read behind the beginning of the last record of a window, in the hope that it is not longer.
const WINDOW_SLACK: u32 = 4 << 10;
/// Bytes that one read takes from the file, so that it does not take the disk for long.
const READ_FILE_BYTES_MAX: usize = 8 * WINDOW_BYTES as usize;
/// Distance between two records that are wanted from which what lies between them is not read.
const WINDOW_GAP_MAX: u32 = 16 << 10;

/// Where records of one partition are, from a given one on.
#[derive(Clone)]
pub(in super::super) struct Positions {
    /// Offset of the first.
    pub(in super::super) first: Offset,
    pub(in super::super) list: Arc<[u32]>,
}

impl Positions {
    /// Whether `offset` is among them.
    pub(in super::super) fn has(&self, offset: Offset) -> bool {
        self.position(offset).is_some()
    }

    /// How many there are from `offset` on.
    pub(in super::super) fn count_from(&self, offset: Offset) -> u64 {
        let end = self.first + self.list.len() as u64;
        if self.has(offset) { end - offset } else { 0 }
    }

    fn position(&self, offset: Offset) -> Option<u32> {
        self.list.get(usize::try_from(offset.checked_sub(self.first)?).ok()?).copied()
    }

    /// Where to read: everything from `offset` on, or of that only what is `wanted`.
    pub(in super::super) fn pick(&self, offset: Offset, wanted: Option<&[Offset]>) -> Vec<Pick> {
        let pick = |offset: Offset| Some(Pick { offset, position: self.position(offset)? });
        match wanted {
            None => (offset..).map_while(pick).take(READ_RECORDS_MAX).collect(),
            Some(wanted) => {
                let from = wanted.partition_point(|one| *one < offset);
                wanted[from..].iter().map_while(|one| pick(*one)).take(READ_RECORDS_MAX).collect()
            }
        }
    }
}

/// A record to read.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Pick {
    offset: Offset,
    position: u32,
}

impl Segment {
    /// What was copied here.
    pub(in super::super) fn copied_runs(&self) -> Vec<CopiedHere> {
        let written = self.written.read();
        let Some(runs) = &written.runs else { return written.copied.clone() };
        let copied = runs.copied.iter();
        copied
            .map(|run| CopiedHere {
                partition: run.partition,
                first: run.first,
                count: run.positions.len() as u64,
                bytes: run.bytes,
            })
            .collect()
    }

    /// Where the records of `partition` are from offset `from` or an earlier one on; none if it is not here as `kind`.
    /// Without the index the segment itself is read.
    pub(in super::super) fn positions(
        &self,
        partition: Partition,
        kind: RunKind,
        from: Offset,
    ) -> Result<Positions, SegmentFault> {
        if let Some(positions) = self.positions_in_memory(partition, kind, from) {
            return Ok(positions);
        }
        match self.positions_in_index(partition, kind, from) {
            Err(fault @ SegmentFault::Index { .. }) => {
                self.do_without_index(&fault)?;
                self.positions_in_memory(partition, kind, from).ok_or(fault)
            }
            found => found,
        }
    }

    /// `None` if they are in the index only.
    fn positions_in_memory(&self, partition: Partition, kind: RunKind, from: Offset) -> Option<Positions> {
        let written = self.written.read();
        let runs = written.runs.as_ref()?;
        let holds = |first: Offset, count: usize| (first..first + count as u64).contains(&from);
        let run = runs.iter().find(|run| {
            (run.partition, run.kind) == (partition, kind) && holds(run.first, run.positions.len())
        });
        let rest = run.and_then(|run| run.positions.get(usize::try_from(from - run.first).ok()?..));
        let rest = rest.unwrap_or_default();
        Some(Positions { first: from, list: rest[..rest.len().min(READ_RECORDS_MAX)].into() })
    }

    fn positions_in_index(
        &self,
        partition: Partition,
        kind: RunKind,
        from: Offset,
    ) -> Result<Positions, SegmentFault> {
        let path = index_path(&self.path);
        let io = |source| SegmentFault::Io { path: path.clone(), source };
        let index = File::open(&path).map_err(io)?;
        let header = self.index_header(&index)?;
        let holds = |run: &IndexRun| (run.first..run.first + u64::from(run.count)).contains(&from);
        let run =
            header.runs.into_iter().find(|run| (run.partition, run.kind) == (partition, kind) && holds(run));
        let Some(run) = run else { return Ok(Positions { first: from, list: Arc::default() }) };
        let mut bytes = Vec::new();
        let list = FileAt { disk: &*self.disk, file: &index, position: run.begin };
        list.take(run.length.into()).read_to_end(&mut bytes).map_err(io)?;
        let list =
            run.positions(&bytes).map_err(|fault| SegmentFault::Index { path: path.clone(), fault })?;
        Ok(Positions { first: run.first, list: list.into() })
    }

    /// Reads records of `partition`. Stops at the bounds of one event and in front of damage; answers at least one record
    /// if there is one to read.
    pub(in super::super) fn read(
        &self,
        partition: Partition,
        picks: &[Pick],
    ) -> Result<Vec<StoredRecord>, SegmentFault> {
        let file = self.file().map_err(|source| SegmentFault::Io { path: self.path.clone(), source })?;
        let mut records = Vec::new();
        let (mut bytes, mut file_bytes) = (0, 0);
        while let Some(first) = picks.get(records.len()).copied() {
            if bytes >= READ_BYTES_MAX || file_bytes >= READ_FILE_BYTES_MAX {
                break;
            }
            let done = records.len();
            let window = match self.read_window(&file, &picks[done..]) {
                Ok(window) => window,
                Err(fault) if records.is_empty() => return Err(fault),
                Err(_) => break,
            };
            file_bytes += window.len();
            for pick in &picks[done..] {
                let Some(frame) = window.get((pick.position - first.position) as usize..) else { break };
                let cut = body_length(frame).is_ok_and(|length| length + FRAME_PREFIX > frame.len());
                if cut || frame.len() < FRAME_PREFIX || bytes >= READ_BYTES_MAX {
                    break;
                }
                let record = match self.decode_record(frame, *pick, partition) {
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

    /// The bytes from the first position on: records that begin within a window and near each other, the first one whole.
    fn read_window(&self, file: &File, picks: &[Pick]) -> Result<Vec<u8>, SegmentFault> {
        let begin = picks[0].position;
        let mut last = begin;
        for Pick { position, .. } in picks {
            if position - begin >= WINDOW_BYTES || position - last > WINDOW_GAP_MAX {
                break;
            }
            last = *position;
        }
        let wanted = u64::from(last - begin) + u64::from(WINDOW_SLACK);
        let left = self.bytes().saturating_sub(begin.into());
        let window = self.read_at(file, begin, wanted.min(left))?;
        let first = body_length(&window).map_err(|fault| self.damaged(begin.into(), fault))? + FRAME_PREFIX;
        if first <= window.len() {
            return Ok(window);
        }
        if first as u64 > left {
            return Err(self.damaged(begin.into(), FormatFault::Short));
        }
        self.read_at(file, begin, first as u64)
    }

    fn read_at(&self, file: &File, begin: u32, length: u64) -> Result<Vec<u8>, SegmentFault> {
        let mut bytes = Vec::new();
        let from = FileAt { disk: &*self.disk, file, position: begin.into() };
        let read = from.take(length).read_to_end(&mut bytes);
        match read {
            Ok(read) if read as u64 == length => Ok(bytes),
            // The file was cut behind the broker's back.
            Ok(_) => Err(self.damaged(begin.into(), FormatFault::Short)),
            Err(source) => Err(SegmentFault::Io { path: self.path.clone(), source }),
        }
    }

    fn decode_record(
        &self,
        bytes: &[u8],
        Pick { offset, position }: Pick,
        partition: Partition,
    ) -> Result<StoredRecord, SegmentFault> {
        let placed =
            decode_frame(bytes, &self.header).map_err(|fault| self.damaged(position.into(), fault))?;
        let frame = placed.frame;
        match frame.body {
            FrameBody::Record { append_time_ms, bytes } | FrameBody::Copy { append_time_ms, bytes }
                if (frame.partition, frame.offset) == (partition, offset) =>
            {
                Ok(StoredRecord { offset, bytes, append_time_ms })
            }
            FrameBody::Record { .. } | FrameBody::Copy { .. } | FrameBody::Floor => {
                Err(self.damaged(position.into(), FormatFault::Value { field: "offset" }))
            }
        }
    }
}

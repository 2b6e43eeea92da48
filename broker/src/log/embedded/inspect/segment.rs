//! Checks one segment and its index, and how it goes on from the one before.

use super::super::copies::{CopiedRun, Copies};
use super::super::format::{IndexHeader, RunKind, SegmentHeader};
use super::super::recovery::{Rest, Scan, scan};
use super::super::segment::{index_path, read_index_header};
use super::check::{Condition, FileReport, PartitionReport, Report};
use super::contents::Contents;
use super::index::compare;
use super::{InspectError, SegmentFile, disk, reader};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use tidemill_core::partition::{Offset, Partition};

/// Damaged places of one segment that are named; more are only counted.
const PLACES_MAX: usize = 20;

/// What the segments have that were checked so far.
#[derive(Default)]
pub(super) struct Survey {
    /// Number of the last one.
    pub(super) number: Option<u64>,
    /// Where the log stands behind it.
    pub(super) partitions: Vec<PartitionReport>,
    /// The last one cannot be read to its end, so that records of it may be behind where the log seems to end.
    is_damaged: bool,
    /// Where the own records of each partition begin; none if the header that says so cannot be read.
    own_firsts: Option<Vec<Offset>>,
    copies: BTreeMap<Partition, Copies>,
    /// A power cut can have taken records that were acknowledged.
    has_unsynced: bool,
}

/// Where a segment is in the log.
#[derive(Clone, Copy)]
pub(super) struct Standing {
    pub(super) is_last: bool,
    pub(super) has_index: bool,
}

impl Survey {
    /// Checks the next segment.
    pub(super) fn check(
        &mut self,
        segment: &SegmentFile,
        standing: Standing,
        report: &mut Report,
    ) -> Result<(), InspectError> {
        let is_oldest = self.number.replace(segment.number).is_none();
        let header = match &segment.header {
            Ok(header) => header,
            Err(fault) => {
                report.add(&segment.path, Condition::Damaged, format!("at byte 0, its header: {fault}"));
                self.is_damaged = true;
                return Ok(());
            }
        };
        if is_oldest {
            let firsts = header.bases.iter().map(|base| base.offset - base.skipped);
            self.own_firsts = Some(firsts.collect());
        }
        let io = |source| InspectError::Io { path: segment.path.clone(), source };
        let length = segment.file.metadata().map_err(io)?.len();
        let found = scan(disk(), &segment.file, header).map_err(io)?;
        let mut bytes = Vec::new();
        reader(&segment.file, 0).read_to_end(&mut bytes).map_err(io)?;
        let is_cut = standing.is_last && matches!(found.rest, Rest::Torn | Rest::Unsynced { .. });
        if is_cut {
            bytes.truncate(usize::try_from(found.bytes).unwrap_or(usize::MAX));
        }
        let contents = Contents::of(&bytes, header);
        let (own, copied) = (contents.count(RunKind::Own), contents.count(RunKind::Copied));
        report.segment_bytes += length;
        report.records += own;
        report.copies += copied;
        let mut notes = vec![format!("{length} bytes, {own} records, {copied} copies")];
        let mut condition = if is_cut {
            notes.push(describe_tail(&found, length));
            Condition::Unfinished
        } else {
            judge(&found, &contents, length, &mut notes)
        };
        for note in self.breaks(header) {
            condition = Condition::Damaged;
            notes.push(note);
        }
        report.files.push(FileReport { path: segment.path.clone(), condition, notes });
        self.note_copies(
            segment.number,
            contents
                .entries
                .iter()
                .filter(|entry| entry.kind == RunKind::Copied)
                .map(|entry| (entry.partition, entry.offset, 1)),
        );
        if !standing.is_last {
            self.check_index(segment, header, &contents, (length, standing), report)?;
        }
        self.is_damaged = condition == Condition::Damaged;
        self.has_unsynced |= contents.has_unsynced;
        self.partitions = stand(&contents);
        Ok(())
    }

    /// Where `header` does not go on where the segment before has ended.
    fn breaks(&self, header: &SegmentHeader) -> Vec<String> {
        let mut notes = Vec::new();
        for earlier in &self.partitions {
            let Some(base) = header.base(earlier.partition) else { continue };
            let begin = base.offset - base.skipped;
            if begin < earlier.end || (begin > earlier.end && !self.is_damaged) {
                let (partition, end) = (earlier.partition.0, earlier.end);
                notes.push(format!("partition {partition} goes on at offset {begin}, but ended at {end}"));
            }
        }
        notes
    }

    fn note_copies(&mut self, segment: u64, runs: impl Iterator<Item = (Partition, Offset, u64)>) {
        for (partition, first, count) in runs {
            self.copies.entry(partition).or_default().insert(first, CopiedRun { count, bytes: 0, segment });
        }
    }

    fn check_index(
        &mut self,
        segment: &SegmentFile,
        header: &SegmentHeader,
        contents: &Contents,
        (length, standing): (u64, Standing),
        report: &mut Report,
    ) -> Result<(), InspectError> {
        let path = index_path(&segment.path);
        if !standing.has_index {
            let note = "missing; made from the segment at the next start";
            report.add(&path, Condition::Unfinished, note);
            return Ok(());
        }
        let io = |source| InspectError::Io { path: path.clone(), source };
        let index = File::open(&path).map_err(io)?;
        match read_index_header(disk(), &index, header).map_err(io)? {
            Err(fault) => report.add(&path, Condition::Damaged, format!("its front: {fault}")),
            Ok(front) if front.segment_bytes != length => {
                let note = format!("made for {} bytes, but its segment has {length}", front.segment_bytes);
                report.add(&path, Condition::Damaged, note);
            }
            Ok(front) => match compare(&index, &front, contents).map_err(io)? {
                Some(wrong) => report.add(&path, Condition::Damaged, wrong),
                None => {
                    report.add(&path, Condition::Whole, format!("{} runs", front.runs.len()));
                    self.note_copies_of_index(segment.number, &front);
                }
            },
        }
        Ok(())
    }

    /// Copies that are there although the place is damaged that has them.
    fn note_copies_of_index(&mut self, segment: u64, front: &IndexHeader) {
        let runs = front.runs.iter().filter(|run| run.kind == RunKind::Copied);
        self.note_copies(segment, runs.map(|run| (run.partition, run.first, u64::from(run.count))));
    }

    /// Tells offsets at or above the floor of their partition that no segment has, below the first one that one has. The
    /// end of the log must be readable: it tells the floors.
    pub(super) fn report_missing(&self, log: &Path, report: &mut Report) {
        let Some(own_firsts) = self.own_firsts.as_ref().filter(|_| !self.is_damaged) else { return };
        for (PartitionReport { partition, floor, .. }, own_first) in self.partitions.iter().zip(own_firsts) {
            let copied = self.copies.get(partition);
            let copied = copied.and_then(|copies| copies.within(*floor, *own_first).next());
            let first = copied.map_or(*own_first, |(first, _)| first);
            if *floor >= first {
                continue;
            }
            let offsets = format!("partition {}: offsets {floor} to {}", partition.0, first - 1);
            if self.has_unsynced {
                // Which offsets were given up is only known as long as the segment is there that was begun then.
                let note =
                    format!("{offsets} are not there: given up after a power cut, if no segment was removed");
                report.add(log, Condition::Whole, note);
            } else {
                report.add(log, Condition::Damaged, format!("{offsets} are missing"));
            }
        }
    }
}

/// What becomes of the end of the last segment.
fn describe_tail(found: &Scan, length: u64) -> String {
    let (end, behind) = (found.bytes, length.saturating_sub(found.bytes));
    match &found.rest {
        Rest::Unsynced { position, fault } => format!(
            "at byte {position}: {fault}; nothing behind it was synced before a power cut: {behind} bytes from byte \
             {end} on are cut off at the next start"
        ),
        Rest::Torn | Rest::Nothing | Rest::Damaged { .. } => format!(
            "torn tail: the batch at byte {end} is not whole; {behind} bytes are cut off at the next start"
        ),
    }
}

/// Names what cannot be read.
fn judge(found: &Scan, contents: &Contents, length: u64, notes: &mut Vec<String>) -> Condition {
    for (range, fault) in contents.damages.iter().take(PLACES_MAX) {
        let behind = match range.end {
            end if end < length => format!("readable again from byte {end} on"),
            _ => "and all that follows".to_owned(),
        };
        notes.push(format!("damaged at byte {}: {fault}, {behind}", range.start));
    }
    match contents.damages.len() {
        0 => {}
        1..=PLACES_MAX => return Condition::Damaged,
        places => {
            notes.push(format!("{places} damaged places in all"));
            return Condition::Damaged;
        }
    }
    // Each frame fits, but not all of them together.
    let (position, fault) = match &found.rest {
        Rest::Nothing => return Condition::Whole,
        Rest::Torn => (found.bytes, "a batch is not whole".to_owned()),
        Rest::Unsynced { position, fault } | Rest::Damaged { position, fault } => {
            (*position, fault.to_string())
        }
    };
    notes.push(format!("damaged at byte {position}: {fault}"));
    Condition::Damaged
}

fn stand(contents: &Contents) -> Vec<PartitionReport> {
    let partitions = (0..).map(Partition).zip(&contents.floors).zip(&contents.ends);
    partitions
        .map(|((partition, floor), end)| PartitionReport { partition, floor: *floor, end: *end })
        .collect()
}

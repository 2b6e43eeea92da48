//! Reads everything in a data directory and says what does not fit.

use super::super::format::{IndexHeader, IndexRun, RunKind, SegmentHeader, decode_partitioning};
use super::super::recovery::{Rest, Scan, scan};
use super::super::segment::{index_path, read_index_header};
use super::walk::{Step, Walk};
use super::{InspectError, Inspection, Listing, SegmentFile, disk, reader};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use tidemill_core::partition::{Offset, Partition};

/// Damaged places of one segment that are named; more are only counted.
const PLACES_MAX: usize = 20;

/// What a check has found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Every file, in the order of the directory.
    pub files: Vec<FileReport>,
    /// Of each partition, as far as it could be read.
    pub partitions: Vec<PartitionReport>,
    /// Bytes of all segments.
    pub segment_bytes: u64,
    /// Records in all segments, copies left out.
    pub records: u64,
    /// Copies of records in all segments.
    pub copies: u64,
}

/// One file, or a place where one is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileReport {
    /// Where it is.
    pub path: PathBuf,
    /// How it is.
    pub condition: Condition,
    /// More about it, for people.
    pub notes: Vec<String>,
}

/// How a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// As it must be.
    Whole,
    /// Not finished, as a crash leaves it; the broker puts it right at its next start.
    Unfinished,
    /// The broker cannot put it right, or should not have to.
    Damaged,
}

/// What the log has of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionReport {
    /// Which one.
    pub partition: Partition,
    /// Everything below was trimmed.
    pub floor: Offset,
    /// The next record gets this offset or a higher one.
    pub end: Offset,
}

impl Report {
    /// Whether a broker can start with the directory and read everything in it.
    #[must_use]
    pub fn is_fine(&self) -> bool {
        self.files.iter().all(|file| file.condition < Condition::Damaged)
    }

    fn add(&mut self, path: &Path, condition: Condition, note: impl Into<String>) {
        self.files.push(FileReport { path: path.to_owned(), condition, notes: vec![note.into()] });
    }
}

impl Inspection {
    /// Reads every file of the log. What is damaged is in the report.
    ///
    /// # Errors
    ///
    /// [`InspectError`] if a file cannot be read at all, or a broker was started meanwhile.
    pub fn check(&self) -> Result<Report, InspectError> {
        let mut report = Report::default();
        self.check_surroundings(&mut report);
        let listing = self.list()?;
        let mut before: Option<Tally> = None;
        for (index, number) in listing.segments.iter().enumerate() {
            if let Some(missing) =
                before.as_ref().map(|before| before.number + 1).filter(|next| next < number)
            {
                report.add(
                    &self.log(),
                    Condition::Damaged,
                    format!("segments from {missing} on are missing"),
                );
            }
            let segment = self.open_segment(*number)?;
            let is_last = index + 1 == listing.segments.len();
            let has_index = listing.indexes.contains(number);
            let tally = check_segment(&segment, is_last, has_index, before.as_ref(), &mut report)?;
            before = Some(tally);
        }
        if let Some(last) = before {
            report.partitions = last.partitions;
        }
        report_others(&listing, &self.log(), &mut report);
        self.end()?;
        Ok(report)
    }

    fn check_surroundings(&self, report: &mut Report) {
        let path = self.directory.join("partitioning");
        match std::fs::read(&path).map(|bytes| decode_partitioning(&bytes)) {
            Ok(Ok(partitioning)) => {
                let (partitions, groups) = (partitioning.partition_count(), partitioning.group_count());
                report.add(&path, Condition::Whole, format!("{partitions} partitions in {groups} groups"));
            }
            Ok(Err(fault)) => report.add(&path, Condition::Damaged, fault.to_string()),
            Err(error) => report.add(&path, Condition::Damaged, error.to_string()),
        }
        let path = self.directory.join("state");
        match path.try_exists() {
            Ok(true) => report.add(&path, Condition::Whole, "there; not looked into"),
            Ok(false) => {
                report.add(&path, Condition::Damaged, "missing: nobody could say who needs the records");
            }
            Err(error) => report.add(&path, Condition::Damaged, error.to_string()),
        }
    }
}

fn report_others(listing: &Listing, log: &Path, report: &mut Report) {
    for number in listing.indexes.iter().filter(|number| !listing.segments.contains(number)) {
        let path = index_path(&super::super::segment::segment_path(log, *number));
        report.add(&path, Condition::Unfinished, "its segment is gone; removed at the next start");
    }
    for path in &listing.unfinished {
        report.add(path, Condition::Unfinished, "left by a crash; removed at the next start");
    }
    for path in &listing.foreign {
        report.add(
            path,
            Condition::Damaged,
            "it does not belong to the log; the broker does not start with it",
        );
    }
}

/// Where the log stands behind a segment.
struct Tally {
    number: u64,
    partitions: Vec<PartitionReport>,
}

fn check_segment(
    segment: &SegmentFile,
    is_last: bool,
    has_index: bool,
    before: Option<&Tally>,
    report: &mut Report,
) -> Result<Tally, InspectError> {
    let number = segment.number;
    let header = match &segment.header {
        Ok(header) => header,
        Err(fault) => {
            report.add(&segment.path, Condition::Damaged, format!("at byte 0, its header: {fault}"));
            let partitions = before.map(|before| before.partitions.clone()).unwrap_or_default();
            return Ok(Tally { number, partitions });
        }
    };
    let io = |source| InspectError::Io { path: segment.path.clone(), source };
    let length = segment.file.metadata().map_err(io)?.len();
    let found = scan(disk(), &segment.file, header).map_err(io)?;
    let counts = Counts::of(&found);
    report.segment_bytes += length;
    report.records += counts.records;
    report.copies += counts.copies;
    let mut notes = vec![format!("{length} bytes, {} records, {} copies", counts.records, counts.copies)];
    let mut condition = judge(segment, header, &found, length, is_last, &mut notes).map_err(io)?;
    for note in before.into_iter().flat_map(|before| breaks(before, header)) {
        condition = Condition::Damaged;
        notes.push(note);
    }
    report.files.push(FileReport { path: segment.path.clone(), condition, notes });
    if !is_last {
        check_index(segment, header, &found, length, has_index, report)?;
    }
    Ok(Tally { number, partitions: stand(header, &found) })
}

struct Counts {
    records: u64,
    copies: u64,
}

impl Counts {
    fn of(found: &Scan) -> Self {
        let count = |kind| {
            found.runs.iter().filter(|run| run.kind == kind).map(|run| run.positions.len() as u64).sum()
        };
        Self { records: count(RunKind::Own), copies: count(RunKind::Copied) }
    }
}

/// What the end of the readable part says about the segment.
fn judge(
    segment: &SegmentFile,
    header: &SegmentHeader,
    found: &Scan,
    length: u64,
    is_last: bool,
    notes: &mut Vec<String>,
) -> io::Result<Condition> {
    let behind = length.saturating_sub(found.bytes);
    let (position, fault) = match &found.rest {
        Rest::Nothing => return Ok(Condition::Whole),
        Rest::Torn if is_last => {
            notes.push(format!(
                "torn tail: the batch at byte {} is not whole; {behind} bytes are cut off at the next start",
                found.bytes
            ));
            return Ok(Condition::Unfinished);
        }
        Rest::Unsynced { position, fault } if is_last => {
            notes.push(format!(
                "at byte {position}: {fault}; nothing behind it was synced before a power cut: {behind} bytes from byte \
                 {} on are cut off at the next start",
                found.bytes
            ));
            return Ok(Condition::Unfinished);
        }
        Rest::Torn => (found.bytes, "a batch is not whole".to_owned()),
        Rest::Unsynced { position, fault } | Rest::Damaged { position, fault } => {
            (*position, fault.to_string())
        }
    };
    notes.push(format!("damaged at byte {position}: {fault}"));
    let mut bytes = Vec::new();
    reader(&segment.file, 0).read_to_end(&mut bytes)?;
    let mut places = 0_usize;
    for step in Walk::new(&bytes, header) {
        let Step::Damage(range, fault) = step else { continue };
        places += 1;
        if places <= PLACES_MAX {
            notes.push(format!("bytes {} to {}: {fault}", range.start, range.end));
        }
    }
    if places > PLACES_MAX {
        notes.push(format!("{places} damaged places in all"));
    }
    Ok(Condition::Damaged)
}

/// Where `header` does not go on where the segment before has ended.
fn breaks(before: &Tally, header: &SegmentHeader) -> Vec<String> {
    let partitions = before.partitions.iter();
    partitions
        .filter_map(|earlier| {
            let base = header.base(earlier.partition)?;
            let partition = earlier.partition.0;
            (base.offset - base.skipped != earlier.end).then(|| {
                format!(
                    "partition {partition} goes on at offset {}, but ended at {}",
                    base.offset - base.skipped,
                    earlier.end
                )
            })
        })
        .collect()
}

fn stand(header: &SegmentHeader, found: &Scan) -> Vec<PartitionReport> {
    let partitions = (0..).map(Partition).zip(&header.bases).zip(&found.floors);
    partitions
        .map(|((partition, base), floor)| {
            let end = found.runs.next(partition).unwrap_or(base.offset);
            PartitionReport { partition, floor: *floor, end }
        })
        .collect()
}

fn check_index(
    segment: &SegmentFile,
    header: &SegmentHeader,
    found: &Scan,
    length: u64,
    has_index: bool,
    report: &mut Report,
) -> Result<(), InspectError> {
    let path = index_path(&segment.path);
    if !has_index {
        report.add(&path, Condition::Unfinished, "missing; made from the segment at the next start");
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
        Ok(front) => match compare(&index, &front, found).map_err(io)? {
            Some(wrong) => report.add(&path, Condition::Damaged, wrong),
            None => report.add(&path, Condition::Whole, format!("{} runs", front.runs.len())),
        },
    }
    Ok(())
}

/// What the index says otherwise than its segment.
fn compare(index: &File, front: &IndexHeader, found: &Scan) -> io::Result<Option<String>> {
    let runs = found.runs.iter().filter(|run| !run.positions.is_empty());
    let mut named = front.runs.iter();
    for run in runs {
        let Some(entry) = named.next() else { return Ok(Some("it names too few runs".to_owned())) };
        let IndexRun { partition, kind, first, begin, length, .. } = *entry;
        let place = format!("the run of partition {} from offset {first}", partition.0);
        let mut bytes = Vec::new();
        reader(index, begin).take(length.into()).read_to_end(&mut bytes)?;
        match entry.positions(&bytes) {
            Err(fault) => return Ok(Some(format!("at byte {begin}, {place}: {fault}"))),
            Ok(positions) if (partition, kind, first) == (run.partition, run.kind, run.first) => {
                if positions != run.positions {
                    return Ok(Some(format!("{place}: it has other positions than the segment")));
                }
            }
            Ok(_) => return Ok(Some(format!("{place} is not the one in the segment"))),
        }
    }
    Ok(named.next().map(|_| "it names too many runs".to_owned()))
}

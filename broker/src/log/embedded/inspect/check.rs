//! Reads everything in a data directory and says what does not fit.

use super::super::format::decode_partitioning;
use super::super::segment::{index_path, segment_path};
use super::segment::{Standing, Survey};
use super::{InspectError, Inspection, Listing};
use std::path::{Path, PathBuf};
use tidemill_core::partition::{Offset, Partition};

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

    pub(super) fn add(&mut self, path: &Path, condition: Condition, note: impl Into<String>) {
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
        let mut survey = Survey::default();
        for (index, number) in listing.segments.iter().enumerate() {
            if let Some(before) = survey.number.filter(|before| before + 1 < *number) {
                let missing = match (before + 1, number - 1) {
                    (first, last) if first == last => format!("segment {first} is missing"),
                    (first, last) => format!("segments {first} to {last} are missing"),
                };
                report.add(&self.log(), Condition::Damaged, missing);
            }
            let segment = self.open_segment(*number)?;
            let is_last = index + 1 == listing.segments.len();
            let standing = Standing { is_last, has_index: listing.indexes.contains(number) };
            survey.check(&segment, standing, &mut report)?;
        }
        survey.report_missing(&self.log(), &mut report);
        report.partitions = survey.partitions;
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
        let path = index_path(&segment_path(log, *number));
        if listing.segments.last().is_some_and(|last| last > number) {
            report.add(&path, Condition::Unfinished, "its segment is gone; removed at the next start");
        } else {
            // The last segment, which is written, has no index.
            report.add(&path, Condition::Damaged, "its segment is missing, and the one behind it");
        }
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

//! Looks at a data directory without changing it, also at one that the broker refuses to start with.

mod check;
mod contents;
mod dump;
mod index;
mod segment;
mod walk;

pub use check::{Condition, FileReport, PartitionReport, Report};
pub use dump::{Damage, Dumped, DumpedRecord, Selection};

use super::directory::{ReadLock, ReadLockError};
use super::disk::{Disk, FileAt, SystemDisk};
use super::format::{FormatFault, SegmentHeader};
use super::segment::segment_path;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Most partitions that a log can have.
const PARTITIONS_MAX: usize = 64;

/// The log in a data directory, which no broker uses meanwhile.
#[derive(Debug)]
pub struct Inspection {
    directory: PathBuf,
    lock: ReadLock,
}

/// The data directory cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// A broker uses it, or it cannot be read.
    #[error(transparent)]
    Lock(#[from] ReadLockError),
    /// The system refuses a file.
    #[error("{} cannot be read", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// It has no log: it is not a data directory, or one of a broker with Kafka.
    #[error("{} is not there: this is not the data directory of a broker with an embedded log", path.display())]
    NoLog {
        /// Where the log would be.
        path: PathBuf,
    },
    /// The log has fewer partitions.
    #[error("there is no partition {partition}: partitions are 0 to {last}")]
    NoPartition {
        /// What was asked for.
        partition: u16,
        /// The last one.
        last: usize,
    },
}

/// One segment as it is in the directory.
struct SegmentFile {
    number: u64,
    path: PathBuf,
    file: File,
    /// The error if it is not one.
    header: Result<SegmentHeader, FormatFault>,
}

/// What else is beside the segments.
#[derive(Default)]
struct Listing {
    /// In order.
    segments: Vec<u64>,
    indexes: Vec<u64>,
    /// Files that a crash left unfinished.
    unfinished: Vec<PathBuf>,
    foreign: Vec<PathBuf>,
}

impl Inspection {
    /// Opens the data directory `directory` for reading. No broker can start with it until this is dropped.
    ///
    /// # Errors
    ///
    /// [`InspectError`] if a broker uses it, if there is no log, or if it cannot be read.
    pub fn open(directory: &Path) -> Result<Self, InspectError> {
        let lock = ReadLock::take(directory)?;
        let log = directory.join("log");
        match std::fs::metadata(&log) {
            Ok(metadata) if metadata.is_dir() => Ok(Self { directory: directory.to_owned(), lock }),
            Ok(_) => Err(InspectError::NoLog { path: log }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(InspectError::NoLog { path: log }),
            Err(source) => Err(InspectError::Io { path: log, source }),
        }
    }

    fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    fn list(&self) -> Result<Listing, InspectError> {
        let log = self.log();
        let io = |source| InspectError::Io { path: log.clone(), source };
        let mut listing = Listing::default();
        for entry in std::fs::read_dir(&log).map_err(io)? {
            let path = entry.map_err(io)?.path();
            let number = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse().ok());
            match (number, path.extension().and_then(|extension| extension.to_str())) {
                (Some(number), Some("segment")) => listing.segments.push(number),
                (Some(number), Some("index")) => listing.indexes.push(number),
                (Some(_), Some("new")) => listing.unfinished.push(path),
                _ => listing.foreign.push(path),
            }
        }
        listing.segments.sort_unstable();
        listing.indexes.sort_unstable();
        listing.unfinished.sort_unstable();
        listing.foreign.sort_unstable();
        Ok(listing)
    }

    fn open_segment(&self, number: u64) -> Result<SegmentFile, InspectError> {
        let path = segment_path(&self.log(), number);
        let io = |source| InspectError::Io { path: path.clone(), source };
        let file = File::open(&path).map_err(io)?;
        let mut bytes = Vec::new();
        let length = SegmentHeader::length_max(PARTITIONS_MAX) as u64;
        reader(&file, 0).take(length).read_to_end(&mut bytes).map_err(io)?;
        let header = SegmentHeader::decode(&bytes);
        let header = match header {
            Ok(header) if header.number != number => Err(FormatFault::Value { field: "number" }),
            Ok(header) if header.bases.len() > PARTITIONS_MAX => {
                Err(FormatFault::Value { field: "partitions" })
            }
            header => header,
        };
        Ok(SegmentFile { number, path, file, header })
    }

    /// Whether no broker can have started meanwhile.
    fn end(&self) -> Result<(), InspectError> {
        Ok(self.lock.is_still_alone(&self.directory)?)
    }
}

fn reader(file: &File, position: u64) -> FileAt<'_> {
    FileAt { disk: &SystemDisk, file, position }
}

fn disk() -> &'static dyn Disk {
    &SystemDisk
}

#[cfg(test)]
mod damage_tests;
#[cfg(test)]
mod tests;

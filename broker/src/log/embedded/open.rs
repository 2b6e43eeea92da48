//! Opens a data directory: checks that it fits, cuts what was torn, and finds where to go on.

use super::committer::{Resume, new_salt};
use super::directory::{sync_directory, write_whole};
use super::disk::Disk;
use super::format::{Base, SegmentHeader, decode_partitioning, encode_partitioning};
use super::recovery::{Rest, scan};
use super::segment::Segment;
use crate::log::Bounds;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidemill_core::partition::{Partition, Partitioning};

const PARTITIONING_FILE: &str = "partitioning";

/// The embedded log cannot be opened. The broker must not start with it.
#[derive(Debug, thiserror::Error)]
pub enum OpenLogError {
    /// It was created with another partitioning.
    #[error(
        "data directory {} was created with {stored_partitions} partitions in {stored_groups} groups, which \
         cannot change; the configuration asks for {partitions} in {groups}", directory.display()
    )]
    Partitioning {
        /// The data directory.
        directory: PathBuf,
        /// Partitions it has.
        stored_partitions: u16,
        /// Groups it has.
        stored_groups: u16,
        /// Partitions asked for.
        partitions: u16,
        /// Groups asked for.
        groups: u16,
    },
    /// A file does not have the bytes it must have, or is of a newer version.
    #[error("{} is damaged: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        reason: String,
    },
    /// The system refuses a file.
    #[error("{} cannot be used", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The store of the state cannot be opened.
    #[error("state in {} cannot be opened: {reason}", path.display())]
    State {
        /// Its directory.
        path: PathBuf,
        /// Why, in the store's words.
        reason: String,
    },
}

/// What opening found.
pub(super) struct Opened {
    pub(super) segments: Vec<Arc<Segment>>,
    pub(super) bounds: Vec<Bounds>,
    pub(super) resume: Resume,
}

/// Records without the state that says who needs them would be lost without a word.
pub(super) fn check_completeness(directory: &Path) -> Result<(), OpenLogError> {
    let (log, state) = (directory.join("log"), directory.join("state"));
    let exists =
        |path: &Path| path.try_exists().map_err(|source| OpenLogError::Io { path: path.to_owned(), source });
    if exists(&log)? && !list_segments(&log)?.is_empty() && !exists(&state)? {
        let reason = "it is missing, but the log beside it has segments".to_owned();
        return Err(OpenLogError::Damaged { path: state, reason });
    }
    Ok(())
}

/// Compares the partitioning with the one the directory was created with; a new directory takes it.
pub(super) fn check_partitioning(directory: &Path, partitioning: Partitioning) -> Result<(), OpenLogError> {
    let path = directory.join(PARTITIONING_FILE);
    let stored = match std::fs::read(&path) {
        Ok(bytes) => decode_partitioning(&bytes)
            .map_err(|fault| OpenLogError::Damaged { path, reason: fault.to_string() })?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return write_whole(&path, &encode_partitioning(partitioning))
                .map_err(|source| OpenLogError::Io { path, source });
        }
        Err(source) => return Err(OpenLogError::Io { path, source }),
    };
    if stored == partitioning {
        return Ok(());
    }
    Err(OpenLogError::Partitioning {
        directory: directory.to_owned(),
        stored_partitions: stored.partition_count(),
        stored_groups: stored.group_count(),
        partitions: partitioning.partition_count(),
        groups: partitioning.group_count(),
    })
}

/// Opens all segments in `directory`, or begins the first.
pub(super) fn open_segments(
    directory: &Path,
    partitioning: Partitioning,
    disk: &dyn Disk,
) -> Result<Opened, OpenLogError> {
    let partitions = usize::from(partitioning.partition_count());
    let io = |source| OpenLogError::Io { path: directory.to_owned(), source };
    std::fs::create_dir_all(directory).map_err(io)?;
    if let Some(parent) = directory.parent() {
        sync_directory(parent).map_err(io)?;
    }
    let mut segments = Vec::new();
    for number in list_segments(directory)? {
        segments.push(Arc::new(Segment::open(directory, number, partitions)?));
    }
    if segments.is_empty() {
        let bases = vec![Base { offset: 0, floor: 0 }; partitions];
        let header = SegmentHeader { number: 1, salt: new_salt(), bases };
        segments.push(Arc::new(Segment::create(directory, header, disk).map_err(io)?));
    }
    let (active, sealed) = segments.split_last().expect("there is at least one segment");
    for segment in sealed {
        restore_index(segment)?;
    }
    let resume = resume(active)?;
    let bounds = partitioning
        .partitions()
        .map(|partition| bounds_of(partition, segments.first().unwrap_or(active), &resume))
        .collect();
    Ok(Opened { bounds, resume, segments })
}

fn bounds_of(partition: Partition, oldest: &Segment, resume: &Resume) -> Bounds {
    let index = usize::from(partition.0);
    let start = resume.floors[index].max(oldest.base(partition).offset);
    Bounds { start, end: resume.next[index] }
}

/// Numbers of the segments, without a gap; removes what a crash left unfinished.
fn list_segments(directory: &Path) -> Result<Vec<u64>, OpenLogError> {
    let io = |source| OpenLogError::Io { path: directory.to_owned(), source };
    let mut numbers = Vec::new();
    let mut indexes = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let number =
            path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse::<u64>().ok());
        match (number, path.extension().and_then(|extension| extension.to_str())) {
            (Some(number), Some("segment")) => numbers.push(number),
            (Some(number), Some("index")) => indexes.push((number, path)),
            (Some(_), Some("new")) => std::fs::remove_file(&path).map_err(io)?,
            _ => {
                let reason = "it does not belong to the log".to_owned();
                return Err(OpenLogError::Damaged { path, reason });
            }
        }
    }
    numbers.sort_unstable();
    for (_, orphan) in indexes.iter().filter(|(number, _)| !numbers.contains(number)) {
        std::fs::remove_file(orphan).map_err(io)?;
    }
    if let Some(gap) = numbers.windows(2).find(|pair| pair[0] + 1 != pair[1]) {
        let reason = format!("segment {} is missing", gap[0] + 1);
        return Err(OpenLogError::Damaged { path: directory.to_owned(), reason });
    }
    Ok(numbers)
}

/// Makes the index of a sealed segment if a crash prevented it.
fn restore_index(segment: &Segment) -> Result<(), OpenLogError> {
    if segment.has_index() {
        return Ok(());
    }
    tracing::warn!(segment = %segment.path.display(), "index is missing or damaged; making it from the segment");
    let io = |source| OpenLogError::Io { path: segment.path.clone(), source };
    let found = scan(segment.file(), &segment.header).map_err(io)?;
    if found.rest != Rest::Nothing {
        let reason = format!("it cannot be read behind position {}", found.bytes);
        return Err(OpenLogError::Damaged { path: segment.path.clone(), reason });
    }
    segment.restore(found.bytes, found.positions);
    segment.seal().map_err(io)
}

/// Finds the end of the active segment and cuts a torn batch off.
fn resume(active: &Arc<Segment>) -> Result<Resume, OpenLogError> {
    let io = |source| OpenLogError::Io { path: active.path.clone(), source };
    let found = scan(active.file(), &active.header).map_err(io)?;
    match found.rest {
        Rest::Nothing => {}
        Rest::Torn => {
            tracing::warn!(segment = %active.path.display(), end = found.bytes, "cutting a batch that was not finished");
            active.file().set_len(found.bytes).and_then(|()| active.file().sync_all()).map_err(io)?;
        }
        Rest::Damaged { position, fault } => {
            let reason = format!("at position {position}: {fault}, and later records follow");
            return Err(OpenLogError::Damaged { path: active.path.clone(), reason });
        }
    }
    let bases = active.header.bases.iter();
    let next = bases.zip(&found.positions).map(|(base, positions)| base.offset + positions.len() as u64);
    let next = next.collect();
    active.restore(found.bytes, found.positions);
    Ok(Resume { active: Arc::clone(active), batch: found.batch, next, floors: found.floors })
}

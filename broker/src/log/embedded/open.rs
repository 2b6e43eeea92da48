//! Opens a data directory: checks that it fits, cuts what was torn, and finds where to go on.

use super::committer::{Resume, new_salt, now_ms};
use super::directory::{sync_directory, write_whole};
use super::disk::Disk;
use super::format::{Base, Layout, SegmentHeader, decode_partitioning, encode_partitioning};
use super::metrics::EmbeddedMetrics;
use super::recovery::{Rest, Scan, scan};
use super::segment::Segment;
use super::segments::Segments;
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
    pub(super) segments: Segments,
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

/// Opens all segments in `directory`, or begins the first. Of the sealed ones only headers are read, so that it takes
/// as long as reading the last segment, however many there are.
pub(super) fn open_segments(
    directory: &Path,
    partitioning: Partitioning,
    disk: &Arc<dyn Disk>,
    metrics: &EmbeddedMetrics,
) -> Result<Opened, OpenLogError> {
    let partitions = usize::from(partitioning.partition_count());
    let io = |source| OpenLogError::Io { path: directory.to_owned(), source };
    std::fs::create_dir_all(directory).map_err(io)?;
    if let Some(parent) = directory.parent() {
        sync_directory(parent).map_err(io)?;
    }
    let mut list = Vec::new();
    let numbers = list_segments(directory)?;
    for number in &numbers {
        let segment = Segment::open(directory, *number, partitions, disk)?;
        if Some(number) != numbers.last() {
            restore_index(&segment, &**disk, metrics)?;
            segment.release();
        }
        list.push(Arc::new(segment));
    }
    let create = |number, bases| {
        let layout = Layout::Compact { created_ms: now_ms() };
        let header = SegmentHeader { number, salt: new_salt(), layout, bases };
        Segment::create(directory, header, disk, metrics).map(Arc::new).map_err(io)
    };
    if list.is_empty() {
        list.push(create(1, vec![Base::default(); partitions])?);
    }
    let active = list.last().expect("there is at least one segment");
    let mut resume = resume(active, &**disk)?;
    if active.header.layout == Layout::Fixed {
        active.seal(metrics).map_err(io)?;
        let bases = resume.next.iter().zip(&resume.floors);
        let bases = bases.map(|(offset, floor)| Base { offset: *offset, floor: *floor, skipped: 0 });
        let next = create(active.header.number + 1, bases.collect())?;
        list.push(Arc::clone(&next));
        resume = Resume { active: next, batch: 0, ..resume };
    }
    let segments = Segments::new(list, partitions);
    let bounds = partitioning.partitions().zip(resume.next.iter().zip(&resume.floors));
    let bounds = bounds
        .map(|(partition, (end, floor))| Bounds { start: segments.start(partition, *floor), end: *end })
        .collect();
    Ok(Opened { bounds, resume, segments })
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
fn restore_index(segment: &Segment, disk: &dyn Disk, metrics: &EmbeddedMetrics) -> Result<(), OpenLogError> {
    if segment.adopt_index() {
        return Ok(());
    }
    tracing::warn!(segment = %segment.path.display(), "index is missing or damaged; making it from the segment");
    let io = |source| OpenLogError::Io { path: segment.path.clone(), source };
    let file = segment.file().map_err(io)?;
    let found = scan(disk, &file, &segment.header).map_err(io)?;
    let reason = match found.rest {
        Rest::Nothing => {
            segment.restore(found.bytes, found.runs);
            return segment.seal(metrics).map_err(io);
        }
        Rest::Torn => format!("at position {}: a batch is not whole, and later segments follow", found.bytes),
        Rest::Unsynced { position, fault } | Rest::Damaged { position, fault } => {
            format!("at position {position}: {fault}, and later records follow")
        }
    };
    Err(OpenLogError::Damaged { path: segment.path.clone(), reason })
}

/// Finds the end of the active segment and cuts off what was torn.
fn resume(active: &Arc<Segment>, disk: &dyn Disk) -> Result<Resume, OpenLogError> {
    let io = |source| OpenLogError::Io { path: active.path.clone(), source };
    let file = active.file().map_err(io)?;
    let Scan { runs, floors, batch, bytes: end, rest } = scan(disk, &file, &active.header).map_err(io)?;
    match rest {
        Rest::Nothing => {}
        Rest::Torn => {
            tracing::warn!(segment = %active.path.display(), end, "cutting a batch that was not finished");
            file.set_len(end).map_err(io)?;
        }
        Rest::Unsynced { position, fault } => {
            let cut = active.bytes() - end;
            tracing::error!(
                segment = %active.path.display(), end, position, %fault, cut,
                "the power failed before all records were synced; cutting off what was not"
            );
            file.set_len(end).map_err(io)?;
        }
        Rest::Damaged { position, fault } => {
            let reason = format!("at position {position}: {fault}, and later records follow");
            return Err(OpenLogError::Damaged { path: active.path.clone(), reason });
        }
    }
    // What a killed broker had written and not synced is there, but only the system has it. What comes next must be
    // able to say that everything before it is on the disk.
    file.sync_all().map_err(io)?;
    let next = (0..).map(Partition).zip(&active.header.bases);
    let next = next.map(|(partition, base)| runs.next(partition).unwrap_or(base.offset)).collect();
    active.restore(end, runs);
    Ok(Resume { active: Arc::clone(active), batch, next, floors })
}

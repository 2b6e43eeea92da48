//! One file of the log, shared by all partitions. Only the last one is written; the others are sealed and have an
//! index file that tells where each partition's records are.

mod read;

pub(super) use read::Positions;

use super::OpenLogError;
use super::directory::{sync_directory, write_whole};
use super::disk::{Disk, FileAt};
use super::format::{Base, FormatFault, IndexHeader, IndexRun, Run, RunKind, SegmentHeader, encode_index};
use super::metrics::EmbeddedMetrics;
use super::recovery::{Rest, Scan, scan};
use super::segments::live_part;
use parking_lot::RwLock;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidemill_core::partition::{Offset, Partition};

/// One segment.
pub(super) struct Segment {
    pub(super) header: SegmentHeader,
    pub(super) path: PathBuf,
    /// Open while the segment is written; a sealed one is opened when it is read, so that a long log does not take the
    /// descriptors of connections.
    file: RwLock<Option<Arc<File>>>,
    disk: Arc<dyn Disk>,
    written: RwLock<Written>,
}

/// What of the segment is committed.
struct Written {
    bytes: u64,
    /// Records and bytes of each partition that were appended here.
    own: Vec<Share>,
    /// What was copied here, once it is not written any more.
    copied: Vec<CopiedHere>,
    /// Where the records are, until that is in the index file.
    runs: Option<Runs>,
}

impl CopiedHere {
    fn of(run: &IndexRun) -> Self {
        let IndexRun { partition, first, count, bytes, .. } = *run;
        Self { partition, first, count: count.into(), bytes }
    }
}

impl Written {
    fn of(bytes: u64, runs: Runs) -> Self {
        Self { bytes, own: runs.shares(), copied: Vec::new(), runs: Some(runs) }
    }
}

/// Records of one partition and the bytes of their frames.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    count: u64,
    bytes: u64,
}

/// Copies of records of one partition whose offsets follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CopiedHere {
    pub(super) partition: Partition,
    pub(super) first: Offset,
    pub(super) count: u64,
    /// Of their frames.
    pub(super) bytes: u64,
}

/// Where the records of a segment are that is written, or was just scanned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Runs {
    /// Of each partition, also those without a record.
    own: Vec<Run>,
    /// In the order of the file.
    copied: Vec<Run>,
}

/// Where one record was put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlacedRecord {
    pub(super) partition: Partition,
    pub(super) kind: RunKind,
    pub(super) offset: Offset,
    pub(super) position: u32,
    /// Of the whole frame.
    pub(super) bytes: u64,
}

impl Runs {
    /// Of a segment without a record.
    pub(super) fn new(header: &SegmentHeader) -> Self {
        let own = (0..).map(Partition).zip(&header.bases).map(|(partition, base)| Run {
            partition,
            kind: RunKind::Own,
            first: base.offset,
            bytes: 0,
            positions: Vec::new(),
        });
        Self { own: own.collect(), copied: Vec::new() }
    }

    /// The offset of the partition's next own record.
    pub(super) fn next(&self, partition: Partition) -> Option<Offset> {
        self.own.get(usize::from(partition.0)).map(|run| run.first + run.positions.len() as u64)
    }

    /// Notes a record, of a partition that the segment has.
    pub(super) fn push(&mut self, record: PlacedRecord) {
        let PlacedRecord { partition, kind, offset, position, bytes } = record;
        let run = match kind {
            RunKind::Own => &mut self.own[usize::from(partition.0)],
            RunKind::Copied => {
                let last = self.copied.iter().rposition(|run| run.partition == partition);
                let continued = last.filter(|last| {
                    let run = &self.copied[*last];
                    run.first + run.positions.len() as u64 == offset
                });
                let index = continued.unwrap_or_else(|| {
                    self.copied.push(Run { partition, kind, first: offset, bytes: 0, positions: Vec::new() });
                    self.copied.len() - 1
                });
                &mut self.copied[index]
            }
        };
        run.bytes += bytes;
        run.positions.push(position);
    }

    /// All runs, also those without a record.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Run> {
        self.own.iter().chain(&self.copied)
    }

    fn shares(&self) -> Vec<Share> {
        self.own.iter().map(|run| Share { count: run.positions.len() as u64, bytes: run.bytes }).collect()
    }
}

/// A segment could not give what it must have.
#[derive(Debug, thiserror::Error)]
pub(super) enum SegmentFault {
    #[error("segment {}, position {position}: {fault}", path.display())]
    Damaged { path: PathBuf, position: u64, fault: FormatFault },
    #[error("index {}: {fault}", path.display())]
    Index { path: PathBuf, fault: FormatFault },
    #[error("segment {} does not have offset {offset} of partition {partition}", path.display())]
    Missing { path: PathBuf, partition: u16, offset: Offset },
    #[error("{}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
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
    pub(super) fn create(
        directory: &Path,
        header: SegmentHeader,
        disk: &Arc<dyn Disk>,
        metrics: &EmbeddedMetrics,
    ) -> io::Result<Self> {
        let path = segment_path(directory, header.number);
        let unfinished = path.with_extension("new");
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&unfinished)?;
        let bytes = header.encode();
        disk.write_at(&file, &bytes, 0)?;
        disk.sync(&file)?;
        std::fs::rename(&unfinished, &path)?;
        sync_directory(directory)?;
        metrics.written_bytes.inc_by(bytes.len() as u64);
        let runs = Runs::new(&header);
        let written = Written::of(bytes.len() as u64, runs);
        let file = RwLock::new(Some(Arc::new(file)));
        Ok(Self { header, path, file, disk: Arc::clone(disk), written: RwLock::new(written) })
    }

    /// Opens a segment that is there, for reading and writing. Its records are not looked at; see [`Segment::restore`].
    pub(super) fn open(
        directory: &Path,
        number: u64,
        partitions: usize,
        disk: &Arc<dyn Disk>,
    ) -> Result<Self, OpenLogError> {
        let path = segment_path(directory, number);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|source| OpenLogError::Io { path: path.clone(), source })?;
        let io = |source| OpenLogError::Io { path: path.clone(), source };
        let bytes = file.metadata().map_err(io)?.len();
        let header = read_header(&**disk, &file, partitions).map_err(io)?;
        let header = header
            .map_err(|fault| OpenLogError::Damaged { path: path.clone(), reason: fault.to_string() })?;
        if header.number != number || header.bases.len() != partitions {
            let reason = "it is another segment than its name says".to_owned();
            return Err(OpenLogError::Damaged { path, reason });
        }
        let own = vec![Share::default(); partitions];
        let written = RwLock::new(Written { bytes, own, copied: Vec::new(), runs: None });
        let file = RwLock::new(Some(Arc::new(file)));
        Ok(Self { header, path, file, disk: Arc::clone(disk), written })
    }

    /// Length of the committed part.
    pub(super) fn bytes(&self) -> u64 {
        self.written.read().bytes
    }

    pub(super) fn base(&self, partition: Partition) -> Base {
        self.header.base(partition).expect("every segment knows every partition")
    }

    /// The file; of a sealed segment for reading.
    pub(super) fn file(&self) -> io::Result<Arc<File>> {
        match &*self.file.read() {
            Some(file) => Ok(Arc::clone(file)),
            None => File::open(&self.path).map(Arc::new),
        }
    }

    /// Closes the file of a segment that is not written any more.
    pub(super) fn release(&self) {
        *self.file.write() = None;
    }

    /// Takes what a scan found in the file.
    pub(super) fn restore(&self, bytes: u64, runs: Runs) {
        *self.written.write() = Written::of(bytes, runs);
    }

    /// Makes records readable that were committed up to `bytes`.
    pub(super) fn publish(&self, bytes: u64, records: impl Iterator<Item = PlacedRecord>) {
        let mut written = self.written.write();
        let Written { bytes: end, own, runs, .. } = &mut *written;
        *end = bytes;
        let runs = runs.as_mut().expect("only the last segment is written");
        for record in records {
            if record.kind == RunKind::Own {
                let share = &mut own[usize::from(record.partition.0)];
                share.count += 1;
                share.bytes += record.bytes;
            }
            runs.push(record);
        }
    }

    /// Writes the index file. The segment is not written again.
    pub(super) fn seal(&self, metrics: &EmbeddedMetrics) -> io::Result<()> {
        let bytes = {
            let written = self.written.read();
            let Some(runs) = &written.runs else { return Ok(()) };
            let all: Vec<_> = runs.iter().collect();
            encode_index(self.header.number, written.bytes, self.header.bases.len(), &all)
        };
        write_whole(&index_path(&self.path), &bytes)?;
        metrics.written_bytes.inc_by(bytes.len() as u64);
        self.release();
        let copied = self.copied_runs();
        let mut written = self.written.write();
        written.copied = copied;
        written.runs = None;
        Ok(())
    }

    /// Takes what the front of the index file says; false if it is not there or does not belong to this segment.
    pub(super) fn adopt_index(&self) -> bool {
        let Ok(index) = File::open(index_path(&self.path)) else { return false };
        let Ok(header) = self.index_header(&index) else { return false };
        let mut written = self.written.write();
        let (own, copied): (Vec<_>, _) = header.runs.into_iter().partition(|run| run.kind == RunKind::Own);
        for run in own {
            let share = &mut written.own[usize::from(run.partition.0)];
            *share = Share { count: run.count.into(), bytes: run.bytes };
        }
        written.copied = copied.iter().map(CopiedHere::of).collect();
        true
    }

    /// Finds the records in the segment itself, because the index is damaged. They are kept in memory; the index is made
    /// again at the next start.
    fn do_without_index(&self, fault: &SegmentFault) -> Result<(), SegmentFault> {
        let io = |source| SegmentFault::Io { path: self.path.clone(), source };
        let file = self.file().map_err(io)?;
        let Scan { runs, bytes, rest, .. } = scan(&*self.disk, &file, &self.header).map_err(io)?;
        match rest {
            Rest::Nothing => {}
            Rest::Torn => return Err(self.damaged(bytes, FormatFault::Short)),
            Rest::Unsynced { position, fault } | Rest::Damaged { position, fault } => {
                return Err(self.damaged(position, fault));
            }
        }
        tracing::warn!(%fault, "reading the segment without its index");
        self.restore(bytes, runs);
        // If it stays it is met again.
        let _ = std::fs::remove_file(index_path(&self.path));
        Ok(())
    }

    fn damaged(&self, position: u64, fault: FormatFault) -> SegmentFault {
        SegmentFault::Damaged { path: self.path.clone(), position, fault }
    }

    /// Reads the front of the index.
    fn index_header(&self, index: &File) -> Result<IndexHeader, SegmentFault> {
        let path = index_path(&self.path);
        let header = read_index_header(&*self.disk, index, &self.header)
            .map_err(|source| SegmentFault::Io { path: path.clone(), source })?;
        match header {
            Ok(header) if header.segment_bytes == self.bytes() => Ok(header),
            Ok(_) => Err(SegmentFault::Index { path, fault: FormatFault::Value { field: "segment" } }),
            Err(fault) => Err(SegmentFault::Index { path, fault }),
        }
    }

    /// Bytes of the own records at or above `floors`.
    pub(super) fn own_live_bytes(&self, floors: &[Offset]) -> u64 {
        let written = self.written.read();
        let own = written.own.iter().zip(&self.header.bases).zip(floors);
        own.map(|((share, base), floor)| live_part(share.bytes, base.offset, share.count, *floor)).sum()
    }

    /// Offset behind the last own record of `partition`.
    pub(super) fn own_end(&self, partition: Partition) -> Offset {
        let count = self.written.read().own.get(usize::from(partition.0)).map_or(0, |share| share.count);
        self.base(partition).offset + count
    }

    /// The fault that it does not have a record that it must have.
    pub(super) fn without(&self, partition: Partition, offset: Offset) -> SegmentFault {
        SegmentFault::Missing { path: self.path.clone(), partition: partition.0, offset }
    }

    /// Removes the files. Whoever reads the segment now reads on.
    pub(super) fn remove(&self) -> io::Result<()> {
        match std::fs::remove_file(index_path(&self.path)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        std::fs::remove_file(&self.path)?;
        // Segments go one after the other, also when the power fails: a hole would be taken for damage.
        self.path.parent().map_or(Ok(()), sync_directory)
    }
}

/// Reads the header of the segment in `file`; the inner error if it is not one.
pub(super) fn read_header(
    disk: &dyn Disk,
    file: &File,
    partitions: usize,
) -> io::Result<Result<SegmentHeader, FormatFault>> {
    let mut bytes = Vec::new();
    let length = SegmentHeader::length_max(partitions) as u64;
    FileAt { disk, file, position: 0 }.take(length).read_to_end(&mut bytes)?;
    Ok(SegmentHeader::decode(&bytes))
}

/// Reads the front of the index in `file`, of the segment that begins with `segment`; the inner error if it is not one.
pub(super) fn read_index_header(
    disk: &dyn Disk,
    file: &File,
    segment: &SegmentHeader,
) -> io::Result<Result<IndexHeader, FormatFault>> {
    let available = file.metadata()?.len();
    let mut bytes = Vec::new();
    let mut reader = FileAt { disk, file, position: 0 };
    reader.by_ref().take(IndexHeader::FRONT as u64).read_to_end(&mut bytes)?;
    let length = match IndexHeader::length(&bytes) {
        Ok(length) if length <= available => length,
        Ok(_) => return Ok(Err(FormatFault::Short)),
        Err(fault) => return Ok(Err(fault)),
    };
    reader.take(length.saturating_sub(bytes.len() as u64)).read_to_end(&mut bytes)?;
    bytes.truncate(usize::try_from(length).unwrap_or(usize::MAX));
    Ok(IndexHeader::decode(&bytes, segment))
}

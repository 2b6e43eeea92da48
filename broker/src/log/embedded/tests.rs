use super::disk::Disk;
use super::segment::segment_path;
use super::*;
use crate::log::state::{CommitOutcome, StateWrite};
use crate::log::{AppendError, ReadEvent, StoredRecord};
use bytes::Bytes;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

const PARTITION: Partition = Partition(1);

fn partitioning() -> Partitioning {
    Partitioning::new(3, 2).unwrap()
}

/// A disk that fails as told.
#[derive(Default)]
struct FaultyDisk {
    plan: Mutex<Plan>,
}

#[derive(Default)]
struct Plan {
    full: bool,
    /// A full disk still takes this much of a write.
    partial: usize,
    sync_fails: bool,
    syncs: usize,
}

impl Disk for FaultyDisk {
    fn write_at(&self, file: &File, bytes: &[u8], position: u64) -> io::Result<()> {
        let plan = self.plan.lock();
        if plan.full {
            SystemDisk.write_at(file, &bytes[..plan.partial.min(bytes.len())], position)?;
            return Err(io::ErrorKind::StorageFull.into());
        }
        SystemDisk.write_at(file, bytes, position)
    }

    fn sync(&self, _: &File) -> io::Result<()> {
        let mut plan = self.plan.lock();
        plan.syncs += 1;
        if plan.sync_fails { Err(io::Error::other("injected")) } else { Ok(()) }
    }

    fn available(&self, _: &Path) -> io::Result<u64> {
        Ok(u64::MAX)
    }
}

struct Scene {
    temporary: tempfile::TempDir,
    disk: Arc<FaultyDisk>,
    segment_bytes: u64,
}

impl Scene {
    fn new() -> Self {
        Self::with_segments_of(SEGMENT_BYTES)
    }

    fn with_segments_of(segment_bytes: u64) -> Self {
        Self { temporary: tempfile::tempdir().unwrap(), disk: Arc::default(), segment_bytes }
    }

    fn data(&self) -> PathBuf {
        self.temporary.path().join("data")
    }

    fn try_open(&self) -> Result<Arc<EmbeddedLog>, OpenLogError> {
        let directory = DataDirectory::lock(&self.data()).unwrap();
        let disk = Arc::clone(&self.disk);
        EmbeddedLog::open_with(&directory, partitioning(), disk, self.segment_bytes)
    }

    fn open(&self) -> Arc<EmbeddedLog> {
        self.try_open().unwrap()
    }

    fn segments(&self) -> Vec<PathBuf> {
        let mut paths: Vec<_> = std::fs::read_dir(self.data().join("log"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().unwrap() == "segment")
            .collect();
        paths.sort();
        paths
    }

    fn segment(&self, number: u64) -> PathBuf {
        segment_path(&self.data().join("log"), number)
    }
}

fn start(log: &dyn Log, partition: Partition, bytes: &[u8]) -> mpsc::Receiver<Result<Offset, AppendError>> {
    let (answer, answered) = mpsc::sync_channel(1);
    let build = &mut |_| Bytes::copy_from_slice(bytes);
    log.append(partition, build, Box::new(move |result| drop(answer.send(result))));
    answered
}

fn append(log: &dyn Log, partition: Partition, bytes: &[u8]) -> Offset {
    start(log, partition, bytes).recv().unwrap().unwrap()
}

async fn read_all(log: &dyn Log, partition: Partition, from: Offset) -> Vec<StoredRecord> {
    let mut records = Vec::new();
    let mut reader = log.reader(partition, from);
    while let ReadEvent::Records(more) = reader.next().await.unwrap() {
        records.extend(more);
    }
    records
}

async fn texts(log: &dyn Log, partition: Partition) -> Vec<Bytes> {
    read_all(log, partition, 0).await.into_iter().map(|record| record.bytes).collect()
}

#[tokio::test]
async fn a_log_cut_at_any_byte_of_its_last_batch_has_exactly_the_batches_before() {
    let scene = Scene::new();
    let log = scene.open();
    append(&*log, PARTITION, b"first");
    append(&*log, PARTITION, b"second");
    let whole_before = std::fs::metadata(scene.segment(1)).unwrap().len();
    // One batch: the committer is busy with a trim at most, and takes both together or not at all.
    let mut build = |_| Bytes::from_static(b"third");
    log.append(PARTITION, &mut build, Box::new(|_| {}));
    append(&*log, Partition(2), b"fourth");
    log.close().await;
    drop(log);
    let bytes = std::fs::read(scene.segment(1)).unwrap();
    let batches = batch_ends(&bytes);

    for length in whole_before..bytes.len() as u64 {
        std::fs::write(scene.segment(1), &bytes[..usize::try_from(length).unwrap()]).unwrap();
        let log = scene.open();
        let kept = batches.iter().filter(|end| **end <= length).max().unwrap();
        assert_eq!(std::fs::metadata(scene.segment(1)).unwrap().len(), *kept, "cut to {length}");
        let texts = texts(&*log, PARTITION).await;
        assert_eq!(texts[..2], ["first", "second"], "cut to {length}");
        assert_eq!(append(&*log, PARTITION, b"next"), texts.len() as u64, "cut to {length}");
    }
}

/// Ends of the batches of a segment, read frame by frame.
fn batch_ends(segment: &[u8]) -> Vec<u64> {
    let header = format::SegmentHeader::decode(segment).unwrap();
    let mut at = format::SegmentHeader::length(3);
    let mut ends = Vec::new();
    while at < segment.len() {
        let (_, place, length) = format::decode_frame(&segment[at..], header.salt).unwrap();
        at += length;
        if place == format::Place::LastOfBatch {
            ends.push(at as u64);
        }
    }
    ends
}

#[tokio::test]
async fn a_flipped_bit_in_a_sealed_segment_is_reported_with_the_name_of_the_segment() {
    let scene = Scene::with_segments_of(1_000);
    let log = scene.open();
    for _ in 0..40 {
        append(&*log, PARTITION, &[7; 100]);
    }
    drop(log);
    let path = scene.segment(1);
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&path, bytes).unwrap();

    let log = scene.open();
    let mut reader = log.reader(PARTITION, 0);
    let error = loop {
        match reader.next().await {
            Ok(ReadEvent::Records(_)) => {}
            Ok(ReadEvent::End(end)) => panic!("reached the end {end}"),
            Err(error) => break error,
        }
    };

    let ReadError::Damaged { partition: 1, offset, reason } = error else { panic!("{error:?}") };
    assert!(reason.contains(path.to_str().unwrap()), "{reason}");
    assert!(offset < 40);
    assert_eq!(read_all(&*log, PARTITION, offset + 1).await.len() as u64, 39 - offset, "others are read");
}

#[test]
fn damage_in_front_of_later_batches_is_not_taken_for_a_torn_batch() {
    let scene = Scene::new();
    let log = scene.open();
    for _ in 0..3 {
        append(&*log, PARTITION, b"a record");
    }
    drop(log);
    let path = scene.segment(1);
    let mut bytes = std::fs::read(&path).unwrap();
    let first = format::SegmentHeader::length(3);
    bytes[first + 20] ^= 1;
    std::fs::write(&path, &bytes).unwrap();

    let refused = scene.try_open().map(|_| ()).unwrap_err();

    assert!(matches!(&refused, OpenLogError::Damaged { path: named, .. } if *named == path), "{refused}");
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "nothing was cut");
}

#[tokio::test]
async fn a_log_of_many_segments_is_read_whole_after_a_restart_also_without_an_index() {
    let scene = Scene::with_segments_of(5_000);
    let log = scene.open();
    let mut expected = [Vec::new(), Vec::new()];
    for number in 0..500_u32 {
        let bytes = vec![b'x'; (number % 70) as usize];
        append(&*log, Partition(u16::try_from(number % 2).unwrap()), &bytes);
        expected[(number % 2) as usize].push(Bytes::from(bytes));
    }
    drop(log);
    assert!(scene.segments().len() > 4);
    std::fs::remove_file(scene.segment(2).with_extension("index")).unwrap();
    std::fs::write(scene.segment(3).with_extension("index"), b"damaged").unwrap();

    let log = scene.open();

    assert!(texts(&*log, Partition(0)).await == expected[0]);
    assert!(texts(&*log, Partition(1)).await == expected[1]);
    let middle = read_all(&*log, Partition(0), 123).await;
    assert_eq!(middle[0].offset, 123);
    assert_eq!(middle.len(), 127);
}

#[tokio::test]
async fn records_larger_than_a_read_window_are_read() {
    let scene = Scene::with_segments_of(1 << 20);
    let log = scene.open();
    for size in [10, 700_000, 300_000, 5, 2_000_000, 20] {
        append(&*log, PARTITION, &vec![1; size]);
    }
    drop(log);

    let records = read_all(&*scene.open(), PARTITION, 0).await;

    let sizes: Vec<_> = records.iter().map(|record| record.bytes.len()).collect();
    assert_eq!(sizes, [10, 700_000, 300_000, 5, 2_000_000, 20]);
}

#[tokio::test]
async fn a_segment_is_removed_when_every_floor_is_beyond_it() {
    let scene = Scene::with_segments_of(1_000);
    let log = scene.open();
    append(&*log, Partition(2), b"of another partition");
    for _ in 0..50 {
        append(&*log, PARTITION, &[7; 100]);
    }
    let before = scene.segments().len();

    log.trim(PARTITION, 45).await.unwrap();
    assert_eq!(scene.segments().len(), before, "another partition still has a record in the first");
    log.trim(Partition(2), 1).await.unwrap();

    assert!(scene.segments().len() < 3, "{:?}", scene.segments());
    assert_eq!(read_all(&*log, PARTITION, 45).await.len(), 5);
    drop(log);
    let log = scene.open();
    assert_eq!(log.bounds(PARTITION).await, Ok(Bounds { start: 45, end: 50 }));
    assert_eq!(log.bounds(Partition(2)).await, Ok(Bounds { start: 1, end: 1 }));
}

#[tokio::test]
async fn a_failed_sync_fails_the_log_for_good_and_acknowledges_nothing() {
    let scene = Scene::new();
    let log = scene.open();
    append(&*log, PARTITION, b"durable");
    let mut reader = log.reader(PARTITION, 1);
    scene.disk.plan.lock().sync_fails = true;

    let refused = start(&*log, PARTITION, b"never").recv().unwrap();
    scene.disk.plan.lock().sync_fails = false;
    let later = start(&*log, PARTITION, b"later").recv().unwrap();

    assert_eq!([refused, later], [Err(AppendError::Closed), Err(AppendError::Closed)]);
    assert!(log.failed().await.contains("injected"));
    assert_eq!(reader.next().await, Err(ReadError::Closed));
    assert_eq!(log.trim(PARTITION, 1).await, Err(ReadError::Closed));
    assert_eq!(log.bounds(PARTITION).await, Err(ReadError::Closed));
}

#[tokio::test]
async fn appends_wait_for_a_full_disk_and_nothing_of_a_partial_write_stays() {
    let scene = Scene::new();
    let log = scene.open();
    append(&*log, PARTITION, b"before");
    *scene.disk.plan.lock() = Plan { full: true, partial: 11, ..Plan::default() };

    let waiting = start(&*log, PARTITION, b"waiting");
    until_congested(&*log).await;
    assert_eq!(waiting.try_recv(), Err(mpsc::TryRecvError::Empty));
    let copy = tempfile::tempdir().unwrap();
    std::fs::create_dir(copy.path().join("log")).unwrap();
    std::fs::create_dir(copy.path().join("state")).unwrap();
    std::fs::copy(scene.segment(1), copy.path().join("log/00000000000000000001.segment")).unwrap();
    scene.disk.plan.lock().full = false;

    assert_eq!(waiting.recv().unwrap(), Ok(1));
    log.relieved().await;
    assert_eq!(texts(&*log, PARTITION).await, ["before", "waiting"]);
    let directory = DataDirectory::lock(copy.path()).unwrap();
    let log = EmbeddedLog::open(&directory, partitioning()).unwrap();
    assert_eq!(texts(&*log, PARTITION).await, ["before"], "a crash on the full disk would have kept this");
}

#[tokio::test]
async fn records_whose_state_is_gone_are_refused() {
    let scene = Scene::new();
    let log = scene.open();
    append(&*log, PARTITION, b"before");
    drop(log);
    let copy = tempfile::tempdir().unwrap();
    std::fs::create_dir(copy.path().join("log")).unwrap();
    std::fs::copy(scene.segment(1), copy.path().join("log/00000000000000000001.segment")).unwrap();
    let directory = DataDirectory::lock(copy.path()).unwrap();

    let refused = EmbeddedLog::open(&directory, partitioning());

    let error = refused.err().expect("nobody would know who needs the records").to_string();
    assert!(error.contains("state is damaged"), "{error}");
}

#[tokio::test]
async fn a_full_disk_is_trimmed_and_closed_without_acknowledging() {
    let scene = Scene::with_segments_of(500);
    let log = scene.open();
    for _ in 0..20 {
        append(&*log, PARTITION, &[7; 100]);
    }
    let before = scene.segments().len();
    scene.disk.plan.lock().full = true;
    let waiting = start(&*log, PARTITION, b"waiting");
    until_congested(&*log).await;

    log.trim(PARTITION, 20).await.unwrap();
    assert!(scene.segments().len() < before, "space was made");
    log.close().await;

    assert_eq!(waiting.recv().unwrap(), Err(AppendError::Closed));
}

async fn until_congested(log: &dyn Log) {
    while !log.is_congested() {
        tokio::task::yield_now().await;
    }
}

#[test]
fn another_partitioning_is_refused_in_plain_words() {
    let scene = Scene::new();
    drop(scene.open());
    let directory = DataDirectory::lock(&scene.data()).unwrap();

    let refused = EmbeddedLog::open(&directory, Partitioning::new(4, 2).unwrap()).map(|_| ()).unwrap_err();

    let expected = format!(
        "data directory {} was created with 3 partitions in 2 groups, which cannot change; the configuration asks \
         for 4 in 2",
        scene.data().display()
    );
    assert_eq!(refused.to_string(), expected);
}

#[test]
fn a_missing_segment_is_refused() {
    let scene = Scene::with_segments_of(500);
    let log = scene.open();
    for _ in 0..20 {
        append(&*log, PARTITION, &[7; 100]);
    }
    drop(log);
    std::fs::remove_file(scene.segment(2)).unwrap();

    let refused = scene.try_open().map(|_| ()).unwrap_err();

    assert!(refused.to_string().ends_with("segment 2 is missing"), "{refused}");
}

#[test]
fn many_appends_share_one_sync() {
    let scene = Scene::new();
    let log = scene.open();
    scene.disk.plan.lock().full = true;
    let first = start(&*log, PARTITION, b"holds the committer");
    while !log.is_congested() {
        std::thread::yield_now();
    }
    let syncs = scene.disk.plan.lock().syncs;
    let waiting: Vec<_> = (0..1_000).map(|_| start(&*log, PARTITION, b"x")).collect();
    scene.disk.plan.lock().full = false;
    first.recv().unwrap().unwrap();
    for answered in waiting {
        answered.recv().unwrap().unwrap();
    }

    assert_eq!(scene.disk.plan.lock().syncs - syncs, 2);
}

#[tokio::test]
async fn a_key_that_is_too_long_is_never_said_to_be_committed() {
    let log = Scene::new();
    let log = log.open();
    let mut opened = log.state.open_group(PartitionGroup(0), vec![Partition(0)]).await.unwrap();
    let key = Bytes::from(vec![1; crate::log::state::KEY_BYTES_MAX + 1]);

    let write = StateWrite { partition: Partition(0), key, value: Some(Bytes::new()) };

    assert_eq!(opened.writer.commit(vec![write]).await, CommitOutcome::Unknown);
}

//! A slow queue does not pin the disk, and copying loses and repeats nothing, whenever the broker is killed or the power
//! fails.

use super::fixture::{PARTITION, Scene, append, cases, partitioning, read_all, start};
use super::*;
use crate::log::StoredRecord;
use bytes::Bytes;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

const SLOW: Partition = Partition(2);

/// Appends so much that is trimmed at once that a sixth segment is begun.
async fn fill_and_trim(log: &EmbeddedLog, records: u32) {
    for _ in 0..records {
        let offset = append(log, PARTITION, &[7; 100]);
        log.trim(PARTITION, offset + 1).await.unwrap();
    }
}

async fn until_segments(scene: &Scene, most: usize) {
    while scene.segments().len() > most {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn one_slow_queue_does_not_pin_the_disk_and_its_records_stay_as_they_are() {
    let scene = Scene::with_segments_of(2_000);
    let log = scene.open();
    for number in 0..3_u8 {
        append(&*log, SLOW, &[number; 20]);
    }
    let before = read_all(&*log, SLOW, 0).await;

    for _ in 0..10 {
        fill_and_trim(&log, 60).await;
        until_segments(&scene, 6).await;
    }

    assert!(scene.segments()[0] > scene.segment(1), "the first segment has gone");
    assert_eq!(read_all(&*log, SLOW, 0).await, before, "also their append times");
    assert_eq!(append(&*log, SLOW, b"next"), 3);
    let mut reader = log.reader(SLOW, 1);
    let from_the_middle = read_all(&*log, SLOW, 1).await;
    assert_eq!(from_the_middle.iter().map(|record| record.offset).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(matches!(reader.next().await, Ok(crate::log::ReadEvent::Records(_))));
    drop(log);
    for index in std::fs::read_dir(scene.data().join("log")).unwrap() {
        let path = index.unwrap().path();
        if path.extension().unwrap() == "index" {
            std::fs::remove_file(path).unwrap();
        }
    }
    let log = scene.open();
    assert_eq!(read_all(&*log, SLOW, 0).await[..3], before, "also when the indexes are made again");
    assert_eq!(log.bounds(SLOW).await, Ok(Bounds { start: 0, end: 4 }));

    log.trim(SLOW, 4).await.unwrap();
    fill_and_trim(&log, 100).await;
    drop(log);
    let log = scene.open();
    assert_eq!(log.bounds(SLOW).await, Ok(Bounds { start: 4, end: 4 }));
    assert_eq!(read_all(&*log, SLOW, 4).await, []);
}

#[tokio::test]
async fn copying_writes_at_most_a_quarter_of_what_is_appended() {
    let scene = Scene::with_segments_of(2_000);
    let log = scene.open();
    // A tenth of what comes is for a queue that takes nothing at all until it has 20 kB.
    for number in 0..4_000_u32 {
        append(&*log, SLOW, &[1; 10]);
        let offset = append(&*log, PARTITION, &[7; 100]);
        log.trim(PARTITION, offset + 1).await.unwrap();
        if number > 1_000 {
            log.trim(SLOW, u64::from(number) - 1_000).await.unwrap();
        }
    }

    let metrics = log.metrics();
    let (appended, copied) = (metrics.record_bytes.get(), metrics.copied_bytes.get());
    assert!(copied > 0);
    assert!(copied * 4 <= appended, "{copied} of {appended}");
    let (all, live) = (metrics.bytes.get(), metrics.live_bytes.get());
    assert!(all <= live * 5 + 7 * 2_200, "{live} of {all} bytes are live");
}

#[tokio::test]
async fn the_log_tells_how_much_of_it_is_live() {
    let scene = Scene::with_segments_of(2_000);
    let log = scene.open();
    for _ in 0..100 {
        append(&*log, PARTITION, &[7; 88]);
    }
    log.trim(PARTITION, 10).await.unwrap();
    let metrics = log.metrics();

    let sizes = |scene: &Scene| {
        scene.segments().iter().map(|path| std::fs::metadata(path).unwrap().len()).sum::<u64>()
    };
    assert_eq!(u64::try_from(metrics.bytes.get()).unwrap(), sizes(&scene));
    let live = u64::try_from(metrics.live_bytes.get()).unwrap();
    assert!((90 * 88..90 * 110).contains(&live), "{live}");
    assert_eq!(metrics.record_bytes.get(), 8_800);
}

#[tokio::test]
async fn a_damaged_record_that_is_needed_is_kept_where_it_is_and_told() {
    let scene = Scene::with_segments_of(2_000);
    let log = scene.open();
    append(&*log, SLOW, &[9; 20]);
    drop(log);
    let path = scene.segment(1);
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.len() - 1;
    let log = scene.open();
    fill_and_trim(&log, 15).await;
    bytes = std::fs::read(&path).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&path, &bytes).unwrap();

    fill_and_trim(&log, 200).await;

    assert_eq!(scene.segments()[0], path);
    let error = log.reader(SLOW, 0).next().await.unwrap_err().to_string();
    let position = format::SegmentHeader::length_max(3);
    assert!(error.contains(&format!("{}, position {position}", path.display())), "{error}");
    log.trim(SLOW, 1).await.unwrap();
    until_segments(&scene, 6).await;
}

#[tokio::test]
async fn while_the_disk_is_short_more_is_copied() {
    let scene = Scene::with_segments_of(2_000);
    let log = scene.open();
    append(&*log, SLOW, &[9; 500]);
    fill_and_trim(&log, 30).await;
    let before = scene.segments();
    assert_eq!(before[0], scene.segment(1), "so few segments are left in peace");

    scene.disk.plan.lock().available = Some(Shares::of(u64::MAX).reserved_bytes + 1);
    fill_and_trim(&log, 30).await;

    until_segments(&scene, 3).await;
    assert_eq!(read_all(&*log, SLOW, 0).await.len(), 1);
}

#[derive(Debug, Clone)]
enum Step {
    Append {
        partition: u16,
        bytes: usize,
        count: usize,
    },
    /// Trims the given share, in tenths, of what is there.
    Trim {
        partition: u16,
        tenths: u64,
    },
    Restart,
    /// After so many more writes and syncs the broker is killed while it appends; of what was not synced the given
    /// share, in hundredths, is kept.
    Crash {
        operations: usize,
        kept: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let append = (0..3_u16, 0..150_usize, 1..12_usize).prop_map(|(partition, bytes, count)| Step::Append {
        partition,
        bytes,
        count,
    });
    let trim = (1..3_u16, 4..=10_u64).prop_map(|(partition, tenths)| Step::Trim { partition, tenths });
    let crash = (0..12_usize, 0..=100_u64).prop_map(|(operations, kept)| Step::Crash { operations, kept });
    prop_oneof![12 => append, 8 => trim, 1 => Just(Step::Restart), 3 => crash]
}

/// What must be in the log.
#[derive(Default)]
struct Model {
    partitions: BTreeMap<u16, ModelPartition>,
    written: usize,
}

#[derive(Default)]
struct ModelPartition {
    floor: Offset,
    /// From offset 0 on.
    records: Vec<Bytes>,
}

impl Model {
    fn payload(&mut self, bytes: usize) -> Bytes {
        self.written += 1;
        let mut payload = self.written.to_string().into_bytes();
        payload.resize(payload.len() + bytes, b'.');
        payload.into()
    }

    fn partition(&mut self, partition: u16) -> &mut ModelPartition {
        self.partitions.entry(partition).or_default()
    }

    /// Compares everything. `lost` is what a power cut may have taken from the end of each partition.
    async fn check(&mut self, log: &EmbeddedLog, maybe: Option<(u16, Bytes)>, may_lose: bool) {
        for partition in partitioning().partitions() {
            let bounds = log.bounds(partition).await.unwrap();
            let expected = self.partition(partition.0);
            if let Some((of, bytes)) = &maybe
                && *of == partition.0
                && bounds.end == expected.records.len() as u64 + 1
            {
                // It was written, and nobody was told.
                expected.records.push(bytes.clone());
            }
            if may_lose && bounds.end < expected.records.len() as u64 {
                expected.records.truncate(usize::try_from(bounds.end).unwrap());
                expected.floor = expected.floor.min(bounds.end);
            }
            assert_eq!(bounds.end, expected.records.len() as u64, "end of {partition:?}");
            assert!(bounds.start <= expected.floor, "{bounds:?} but floor {}", expected.floor);
            let read = read_all(log, partition, expected.floor).await;
            let read: Vec<_> =
                read.into_iter().map(|StoredRecord { offset, bytes, .. }| (offset, bytes)).collect();
            let floor = usize::try_from(expected.floor).unwrap();
            let wanted = (expected.floor..).zip(expected.records[floor..].iter().cloned());
            assert_eq!(read, wanted.collect::<Vec<_>>(), "{partition:?}");
        }
    }
}

/// Appends until the disk fails; answers what was started and not answered well.
fn append_until_killed(log: &EmbeddedLog, model: &mut Model) -> Option<(u16, Bytes)> {
    for number in 0..15_u16 {
        let partition = number % 3;
        let payload = model.payload(30);
        match start(log, Partition(partition), &payload).recv().unwrap() {
            Ok(_) => model.partition(partition).records.push(payload),
            Err(_) => return Some((partition, payload)),
        }
    }
    None
}

/// Cuts the last segment to what was synced and a share of what was not.
fn cut_unsynced(scene: &Scene, kept: u64) {
    let active = scene.segments().pop().unwrap();
    let metadata = std::fs::metadata(&active).unwrap();
    let synced = scene.disk.plan.lock().synced.get(&metadata.ino()).copied().unwrap_or(metadata.len());
    let unsynced = metadata.len().saturating_sub(synced);
    let file = std::fs::OpenOptions::new().write(true).open(&active).unwrap();
    file.set_len(metadata.len().min(synced + unsynced * kept / 100)).unwrap();
}

async fn run(durability: Durability, is_short: bool, steps: Vec<Step>) -> u64 {
    let mut scene = Scene::with_segments_of(700);
    scene.durability = durability;
    scene.disk.plan.lock().available = is_short.then(|| Shares::of(u64::MAX).reserved_bytes + 1);
    let may_lose = durability != Durability::Fsync;
    let mut model = Model::default();
    let mut log = scene.open();
    let mut copied = 0;
    for step in steps {
        match step {
            Step::Append { partition, bytes, count } => {
                let payloads: Vec<_> = (0..count).map(|_| model.payload(bytes)).collect();
                let started: Vec<_> =
                    payloads.iter().map(|payload| start(&*log, Partition(partition), payload)).collect();
                for answer in started {
                    answer.recv().unwrap().unwrap();
                }
                model.partition(partition).records.extend(payloads);
            }
            Step::Trim { partition, tenths } => {
                let expected = model.partition(partition);
                let end = expected.records.len() as u64;
                let floor = expected.floor + (end - expected.floor) * tenths / 10;
                expected.floor = floor;
                log.trim(Partition(partition), floor).await.unwrap();
            }
            Step::Restart => {
                copied += log.metrics().copied_bytes.get();
                drop(log);
                log = scene.open();
            }
            Step::Crash { operations, kept } => {
                scene.disk.plan.lock().left = Some(operations);
                let maybe = append_until_killed(&log, &mut model);
                copied += log.metrics().copied_bytes.get();
                drop(log);
                scene.disk.plan.lock().left = None;
                cut_unsynced(&scene, kept);
                log = scene.open();
                model.check(&log, maybe, may_lose).await;
            }
        }
    }
    model.check(&log, None, false).await;
    copied + log.metrics().copied_bytes.get()
}

fn run_blocking(durability: Durability, is_short: bool, steps: Vec<Step>) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(run(durability, is_short, steps))
}

proptest! {
    #![proptest_config(cases(24, 400))]

    #[test]
    fn nothing_synced_is_lost_or_repeated_by_copying_and_crashes(
        is_short in any::<bool>(),
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        run_blocking(Durability::Fsync, is_short, steps);
    }

    #[test]
    fn a_power_cut_takes_only_the_end_of_each_partition(
        is_short in any::<bool>(),
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        run_blocking(Durability::Interval(Duration::from_secs(3_600)), is_short, steps);
    }
}

/// The property tests would prove nothing about copies if none were made.
#[test]
fn the_steps_of_the_property_tests_make_copies() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let steps = proptest::collection::vec(step(), 60..80);
    for (is_short, least) in [(false, 100), (true, 2_000)] {
        let copied: u64 = (0..5)
            .map(|_| {
                let steps = steps.new_tree(&mut runner).unwrap().current();
                run_blocking(Durability::Fsync, is_short, steps)
            })
            .sum();
        assert!(copied >= least, "{copied} bytes, short: {is_short}");
    }
}

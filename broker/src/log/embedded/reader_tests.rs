//! What readers take from segments.

use super::fixture::{PARTITION, Scene, append, partitioning};
use super::*;
use crate::log::{ReadEvent, StoredRecord};

async fn next_of(reader: &mut dyn LogReader, wanted: &[Offset]) -> Vec<StoredRecord> {
    match reader.next_of(wanted).await.unwrap() {
        ReadEvent::Records(records) => records,
        ReadEvent::End(end) => panic!("the end {end} before what is wanted"),
    }
}

/// The segment has a batch before the end of its partitions moves: a reader that is behind may look at that moment.
#[tokio::test]
async fn what_the_segment_has_and_the_partition_not_yet_is_not_read() {
    let scene = Scene::new();
    let log = scene.open();
    for number in 0..4 {
        append(&*log, PARTITION, &[number]);
    }
    log.close().await;
    drop(log);
    let (disk, metrics) = (Arc::clone(&scene.disk) as Arc<dyn Disk>, EmbeddedMetrics::new());
    let directory = scene.data().join("log");
    let Opened { segments, mut bounds, .. } =
        open_segments(&directory, partitioning(), &disk, &metrics).unwrap();
    bounds[usize::from(PARTITION.0)].end = 3;
    let shared = Arc::new(Shared {
        directory,
        disk,
        health: Arc::new(Health::new()),
        intake: Intake::new(partitioning(), RECORD_BYTES_MAX),
        trims: Mutex::default(),
        losses: Mutex::default(),
        tails: bounds.into_iter().map(|bounds| Tail::new(bounds, 3)).collect(),
        segments: RwLock::new(segments),
        metrics,
    });
    let mut reader = EmbeddedReader::new(shared, PARTITION, 0);

    let ReadEvent::Records(records) = reader.next().await.unwrap() else { panic!("there are records") };
    let offsets: Vec<Offset> = records.iter().map(|record| record.offset).collect();

    assert_eq!(offsets, [0, 1, 2]);
    assert_eq!(reader.next().await, Ok(ReadEvent::End(3)));
}

#[tokio::test]
async fn what_is_not_wanted_is_not_read_from_sealed_segments() {
    const RECORDS: u64 = 2_000;
    const RECORD_BYTES: usize = 1_000;
    let scene = Scene::with_segments_of(200_000);
    let log = scene.open();
    for number in 0..RECORDS {
        append(&*log, Partition(u16::try_from(number % 2).unwrap()), &[b'x'; RECORD_BYTES]);
    }
    drop(log);
    let log = scene.open();
    let wanted: Vec<Offset> = (0..RECORDS / 2).step_by(100).collect();
    scene.disk.plan.lock().reads.clear();

    let mut reader = log.reader(PARTITION, 0);
    let (mut left, mut offsets) = (&wanted[..], Vec::new());
    while !left.is_empty() {
        let records = next_of(&mut *reader, left).await;
        assert!(records.iter().all(|record| record.bytes.len() == RECORD_BYTES));
        offsets.extend(records.iter().map(|record| record.offset));
        left = &left[left.partition_point(|offset| offsets.last() >= Some(offset))..];
    }

    let found = offsets.iter().filter(|offset| wanted.contains(offset)).count();
    assert_eq!(found, wanted.len());
    let read: u64 = scene.disk.plan.lock().reads.values().sum();
    let all = RECORDS * RECORD_BYTES as u64;
    assert!(read < all / 10, "{read} bytes were read of {all} for {} records", wanted.len());
}

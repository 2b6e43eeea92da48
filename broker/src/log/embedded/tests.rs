use super::fixture::{PARTITION, Scene, append, partitioning, read_all, texts};
use super::*;
use crate::log::ReadEvent;
use crate::log::state::{CommitOutcome, StateWrite};
use bytes::Bytes;

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
    let mut at = header.length();
    let mut ends = Vec::new();
    while at < segment.len() {
        let placed = format::decode_frame(&segment[at..], &header).unwrap();
        at += placed.length;
        if placed.place == format::Place::LastOfBatch {
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
    let first = format::SegmentHeader::length_max(3);
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
async fn a_damaged_index_is_done_without_and_made_again() {
    let scene = Scene::with_segments_of(5_000);
    let log = scene.open();
    for number in 0..200_u8 {
        append(&*log, PARTITION, &[number; 50]);
    }
    drop(log);
    let index = scene.segment(1).with_extension("index");
    let mut bytes = std::fs::read(&index).unwrap();
    // The front is whole, so that a start takes it.
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&index, &bytes).unwrap();

    for _ in 0..2 {
        let log = scene.open();
        let read = texts(&*log, PARTITION).await;
        assert_eq!(read.iter().map(|text| text[0]).collect::<Vec<_>>(), (0..200).collect::<Vec<_>>());
    }
    assert!(inspect::Inspection::open(&scene.data()).unwrap().check().unwrap().is_fine());
}

#[tokio::test]
async fn only_the_last_of_many_segments_is_kept_open() {
    let scene = Scene::with_segments_of(1_000);
    let log = scene.open();
    for _ in 0..100 {
        append(&*log, PARTITION, &[7; 100]);
    }
    assert_eq!(read_all(&*log, PARTITION, 0).await.len(), 100);
    drop(log);

    let log = scene.open();

    let segments = scene.segments();
    let is_open = |path: &std::path::PathBuf| {
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
        let mut targets = descriptors.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        targets.any(|target| target == *path)
    };
    let open: Vec<_> = segments.iter().filter(|path| is_open(path)).collect();
    assert_eq!(open, [segments.last().unwrap()]);
    assert_eq!(read_all(&*log, PARTITION, 0).await.len(), 100);
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
async fn many_segments_are_removed_over_several_turns_while_appends_go_on() {
    let scene = Scene::with_segments_of(1_000);
    let log = scene.open();
    for _ in 0..400 {
        append(&*log, PARTITION, &[7; 100]);
    }
    let before = scene.segments().len();
    assert!(before > 40);

    log.trim(PARTITION, 400).await.unwrap();
    assert_eq!(append(&*log, PARTITION, b"next"), 400);

    while scene.segments().len() > 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(texts_from(&*log, 400).await, ["next"]);
    drop(log);
    assert_eq!(scene.open().bounds(PARTITION).await, Ok(Bounds { start: 400, end: 401 }));
}

async fn texts_from(log: &dyn Log, from: Offset) -> Vec<Bytes> {
    read_all(log, PARTITION, from).await.into_iter().map(|record| record.bytes).collect()
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

    let refused = EmbeddedLog::open(&directory, partitioning(), Durability::Fsync);

    let error = refused.err().expect("nobody would know who needs the records").to_string();
    assert!(error.contains("state is damaged"), "{error}");
}

#[test]
fn another_partitioning_is_refused_in_plain_words() {
    let scene = Scene::new();
    drop(scene.open());
    let directory = DataDirectory::lock(&scene.data()).unwrap();

    let refused = EmbeddedLog::open(&directory, Partitioning::new(4, 2).unwrap(), Durability::Fsync)
        .map(|_| ())
        .unwrap_err();

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

#[tokio::test]
async fn a_key_that_is_too_long_is_never_said_to_be_committed() {
    let log = Scene::new();
    let log = log.open();
    let mut opened = log.state.open_group(PartitionGroup(0), vec![Partition(0)]).await.unwrap();
    let key = Bytes::from(vec![1; crate::log::state::KEY_BYTES_MAX + 1]);

    let write = StateWrite { partition: Partition(0), key, value: Some(Bytes::new()) };

    assert_eq!(opened.writer.commit(vec![write].into()).await, CommitOutcome::Unknown);
}

//! A disk that is full, or whose sync fails.

use super::fixture::{PARTITION, Plan, Scene, append, partitioning, start, texts};
use super::*;
use crate::log::AppendError;
use crate::log::index::IndexWrite;
use crate::log::state::{Commit, CommitOutcome, State, StateWrite};
use bytes::Bytes;
use std::sync::mpsc;
use tidemill_core::queue::index::Block;

#[tokio::test]
async fn a_failed_sync_fails_the_log_for_good_and_acknowledges_nothing() {
    let scene = Scene::new();
    let log = scene.open();
    append(&*log, PARTITION, b"durable");
    let mut reader = log.reader(PARTITION, 1);
    scene.disk.plan.lock().sync_fails = true;

    let refused = start(&*log, PARTITION, b"never").recv().unwrap();
    scene.disk.plan.lock().sync_fails = false;
    let syncs = scene.disk.plan.lock().syncs;
    let later = start(&*log, PARTITION, b"later").recv().unwrap();

    assert_eq!([refused, later], [Err(AppendError::Closed), Err(AppendError::Closed)]);
    assert!(log.failed().await.contains("injected"));
    assert_eq!(reader.next().await, Err(ReadError::Closed));
    assert_eq!(log.trim(PARTITION, 1).await, Err(ReadError::Closed));
    assert_eq!(log.bounds(PARTITION).await, Err(ReadError::Closed));
    drop((log, reader));
    assert_eq!(scene.disk.plan.lock().syncs, syncs, "a second answer would prove nothing");
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
    assert_eq!(log.metrics().waits_for_space.get(), 1);
    let copy = tempfile::tempdir().unwrap();
    std::fs::create_dir(copy.path().join("log")).unwrap();
    std::fs::create_dir(copy.path().join("state")).unwrap();
    std::fs::copy(scene.segment(1), copy.path().join("log/00000000000000000001.segment")).unwrap();
    scene.disk.plan.lock().full = false;

    assert_eq!(waiting.recv().unwrap(), Ok(1));
    log.relieved().await;
    assert_eq!(log.metrics().waits_for_space.get(), 0);
    assert_eq!(texts(&*log, PARTITION).await, ["before", "waiting"]);
    let directory = DataDirectory::lock(copy.path()).unwrap();
    let log = EmbeddedLog::open(&directory, partitioning(), Durability::Fsync).unwrap();
    assert_eq!(texts(&*log, PARTITION).await, ["before"], "a crash on the full disk would have kept this");
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

#[tokio::test]
async fn the_state_waits_below_its_reserve_and_goes_on_when_there_is_space() {
    let scene = Scene::new();
    let log = scene.open();
    let mut opened = log.state.open_group(PartitionGroup(0), vec![Partition(0)]).await.unwrap();
    scene.disk.plan.lock().available = Some(0);
    let write = StateWrite { partition: Partition(0), key: Bytes::from_static(b"k"), value: None };

    let committing = tokio::spawn(async move { opened.writer.commit(vec![write].into()).await });
    while log.metrics().state_waits_for_space.get() == 0 {
        tokio::task::yield_now().await;
    }
    assert!(!committing.is_finished());
    scene.disk.plan.lock().available = None;

    assert_eq!(committing.await.unwrap(), CommitOutcome::Committed);
    assert_eq!(log.metrics().state_waits_for_space.get(), 0);
}

#[tokio::test]
async fn below_the_reserve_appends_wait_and_nothing_is_copied() {
    let scene = Scene::with_segments_of(500);
    let log = scene.open();
    append(&*log, Partition(2), b"needed");
    for _ in 0..8 {
        append(&*log, PARTITION, &[7; 100]);
    }
    scene.disk.plan.lock().available = Some(Shares::of(u64::MAX).reserved_bytes - 1);

    log.trim(PARTITION, 8).await.unwrap();
    let waiting = start(&*log, PARTITION, b"waiting");
    until_congested(&*log).await;

    assert_eq!(log.metrics().copied_bytes.get(), 0);
    assert_eq!(scene.segments()[0], scene.segment(1));
    scene.disk.plan.lock().available = None;
    assert_eq!(waiting.recv().unwrap(), Ok(8));
}

async fn until_congested(log: &dyn Log) {
    while !log.is_congested() {
        tokio::task::yield_now().await;
    }
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
async fn blocks_of_the_index_are_left_out_before_the_disk_is_full_and_the_state_goes_on() {
    let scene = Scene::new();
    let log = scene.open();
    let index = State::index(&*log).unwrap();
    let mut opened = State::open(&*log, PartitionGroup(0), vec![Partition(0)]).await.unwrap();
    let block = |first| Block { first, end: first + 1, bytes: Bytes::from_static(b"block") };
    let commit = |first| Commit {
        writes: vec![StateWrite { partition: Partition(0), key: Bytes::from_static(b"k"), value: None }],
        index: vec![IndexWrite::Block { partition: Partition(0), block: block(first) }],
    };

    for (first, free) in [(0, None), (1, Some(200 << 20)), (2, None)] {
        scene.disk.plan.lock().available = free;
        assert_eq!(opened.writer.commit(commit(first)).await, CommitOutcome::Committed);
    }

    assert_eq!(index.blocks(Partition(0), 0).await.unwrap(), [block(0), block(2)]);
}

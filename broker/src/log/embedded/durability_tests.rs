//! What each durability keeps, when a broker is killed and when the power fails.

use super::fixture::{PARTITION, Scene, append, read_all, start, texts};
use super::*;
use crate::log::AppendError;
use crate::log::state::{CommitOutcome, StateWrite};
use bytes::Bytes;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

const LONG: Durability = Durability::Interval(Duration::from_secs(3_600));
const SHORT: Durability = Durability::Interval(Duration::from_millis(1));

fn scene(durability: Durability) -> Scene {
    let mut scene = Scene::new();
    scene.durability = durability;
    scene
}

/// Length of the first segment when it was synced last.
fn synced(scene: &Scene) -> u64 {
    let inode = std::fs::metadata(scene.segment(1)).unwrap().ino();
    scene.disk.plan.lock().synced.get(&inode).copied().unwrap_or(0)
}

fn syncs(scene: &Scene) -> usize {
    scene.disk.plan.lock().syncs
}

/// Appends `count` records, each in a batch of its own.
fn append_numbers(log: &EmbeddedLog, count: u32) -> Vec<Bytes> {
    let numbers: Vec<_> = (0..count).map(|number| Bytes::from(number.to_string())).collect();
    for number in &numbers {
        append(log, PARTITION, number);
    }
    numbers
}

#[tokio::test]
async fn with_fsync_every_append_waits_for_a_sync_that_covers_it() {
    let scene = scene(Durability::Fsync);
    let log = scene.open();

    for _ in 0..10 {
        append(&*log, PARTITION, b"x");
        assert_eq!(synced(&scene), std::fs::metadata(scene.segment(1)).unwrap().len());
    }
}

#[tokio::test]
async fn with_interval_and_none_appends_do_not_wait_for_a_sync_and_closing_makes_one() {
    for durability in [LONG, Durability::None] {
        let scene = scene(durability);
        let log = scene.open();
        let before = syncs(&scene);

        append_numbers(&log, 50);
        assert_eq!(syncs(&scene), before, "{durability:?}");
        log.close().await;

        assert_eq!(syncs(&scene), before + 1, "{durability:?}");
        assert_eq!(synced(&scene), std::fs::metadata(scene.segment(1)).unwrap().len());
    }
}

#[tokio::test]
async fn with_interval_a_sync_follows_although_nothing_else_happens() {
    let scene = scene(SHORT);
    let log = scene.open();

    append(&*log, PARTITION, b"x");

    // Nothing else wakes the committer: it must do it by itself.
    while synced(&scene) < std::fs::metadata(scene.segment(1)).unwrap().len() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn with_interval_many_appends_share_one_sync() {
    let scene = scene(LONG);
    let log = scene.open();
    let before = syncs(&scene);

    append_numbers(&log, 500);
    log.close().await;

    assert_eq!(syncs(&scene) - before, 1);
}

#[tokio::test]
async fn a_sync_that_fails_later_fails_the_log_just_the_same_and_is_not_repeated() {
    let scene = scene(LONG);
    let log = scene.open();
    append(&*log, PARTITION, b"done before");
    scene.disk.plan.lock().sync_fails = true;
    let before = syncs(&scene);

    log.close().await;
    let later = start(&*log, PARTITION, b"later").recv().unwrap();
    drop(log);

    assert_eq!(later, Err(AppendError::Closed));
    assert_eq!(syncs(&scene), before + 1, "asking again would prove nothing");
}

#[tokio::test]
async fn a_killed_broker_loses_nothing_acknowledged_whatever_the_durability() {
    for durability in [Durability::Fsync, LONG, Durability::None] {
        let scene = scene(durability);
        let log = scene.open();
        let numbers = append_numbers(&log, 100);
        let mut opened = log.state.open_group(PartitionGroup(0), vec![Partition(0)]).await.unwrap();
        let value = Some(Bytes::from_static(b"v"));
        let write = StateWrite { partition: Partition(0), key: Bytes::from_static(b"k"), value };
        assert_eq!(opened.writer.commit(vec![write].into()).await, CommitOutcome::Committed);
        // What a kill leaves: the files as they are, with nothing closed or synced after this.
        let killed = tempfile::tempdir().unwrap();
        copy_directory(&scene.data(), killed.path());

        let directory = DataDirectory::lock(killed.path()).unwrap();
        let log = EmbeddedLog::open(&directory, fixture::partitioning(), Durability::Fsync).unwrap();

        assert_eq!(texts(&*log, PARTITION).await, numbers, "{durability:?}");
        let opened = log.state.open_group(PartitionGroup(0), vec![Partition(0)]).await.unwrap();
        assert_eq!(opened.entries.len(), 1, "{durability:?}");
    }
}

fn copy_directory(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_directory(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[tokio::test]
async fn a_power_cut_takes_a_suffix_and_never_what_was_synced() {
    let scene = scene(LONG);
    let log = scene.open();
    let kept = append_numbers(&log, 20);
    log.close().await;
    drop(log);
    let log = scene.open();
    let after: Vec<_> = (0..20).map(|number| Bytes::from(format!("after {number}"))).collect();
    for text in &after {
        append(&*log, PARTITION, text);
    }
    let at_cut = std::fs::read(scene.segment(1)).unwrap();
    log.close().await;
    drop(log);
    let from = at_cut.len() - 300;
    let all: Vec<_> = kept.iter().chain(&after).cloned().collect();

    for hole in (from..at_cut.len() - 20).step_by(7) {
        // The page with this byte never reached the disk, later ones did.
        let mut bytes = at_cut.clone();
        bytes[hole..hole + 20].fill(0);
        std::fs::write(scene.segment(1), &bytes).unwrap();

        let log = scene.open();

        let texts = texts(&*log, PARTITION).await;
        assert!(texts.len() >= kept.len(), "hole at {hole}: {texts:?}");
        assert!(texts[..] == all[..texts.len()], "hole at {hole}: {texts:?}");
        assert!(texts.len() < all.len(), "hole at {hole}");
        append(&*log, PARTITION, b"goes on");
    }
}

#[tokio::test]
async fn damage_in_front_of_a_batch_that_followed_a_sync_is_no_power_cut() {
    let scene = scene(LONG);
    let log = scene.open();
    append_numbers(&log, 5);
    log.close().await;
    drop(log);
    let log = scene.open();
    append(&*log, PARTITION, b"everything before was synced");
    log.close().await;
    drop(log);
    let mut bytes = std::fs::read(scene.segment(1)).unwrap();
    let first = format::SegmentHeader::length_max(3);
    bytes[first + 12] ^= 1;
    std::fs::write(scene.segment(1), &bytes).unwrap();

    let refused = scene.try_open().map(|_| ()).unwrap_err().to_string();

    assert!(refused.contains(&format!("at position {first}")), "{refused}");
}

#[tokio::test]
async fn offsets_that_were_lost_with_the_power_are_given_up_and_passed_over() {
    let scene = scene(LONG);
    let log = scene.open();
    append_numbers(&log, 10);
    let mut waiting = log.reader(PARTITION, 10);
    assert_eq!(waiting.next().await, Ok(crate::log::ReadEvent::End(10)));

    log.give_up(PARTITION, 100).await.unwrap();
    log.give_up(PARTITION, 50).await.unwrap();
    assert_eq!(log.bounds(PARTITION).await, Ok(Bounds { start: 0, end: 100 }));
    assert_eq!(append(&*log, PARTITION, b"next"), 100);

    let mut log = log;
    for _ in 0..2 {
        for from in [5, 9, 10, 11, 99, 100] {
            let offsets: Vec<_> =
                read_all(&*log, PARTITION, from).await.iter().map(|record| record.offset).collect();
            let expected: Vec<_> = (from..10).chain([100]).collect();
            assert_eq!(offsets, expected, "from {from}");
        }
        assert_eq!(read_all(&*log, PARTITION, 101).await, []);
        log.close().await;
        drop((log, waiting));
        // The same after a restart.
        log = scene.open();
        waiting = log.reader(PARTITION, 100);
    }
}

//! The embedded log and processes: what a killed broker leaves, and two brokers on one directory.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use bytes::Bytes;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use tidemill_broker::log::embedded::{DataDirectory, Durability, EmbeddedLog};
use tidemill_broker::log::state::{CommitOutcome, State, StateWrite};
use tidemill_broker::log::{Log, ReadEvent};
use tidemill_core::partition::{Offset, Partition, PartitionGroup, Partitioning};
use tokio::sync::oneshot;

/// Names the data directory to a test that runs as the child of another one.
const CHILD_DIRECTORY: &str = "TIDEMILL_TEST_CHILD_DIRECTORY";
const APPENDERS: u16 = 4;

/// Held by each test that starts children: between fork and exec a child also holds the lock of every data directory
/// that another test has open.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn partitioning() -> Partitioning {
    Partitioning::new(APPENDERS, 2).expect("two groups of two partitions")
}

/// Runs the test `name` of this binary in a process of its own.
fn spawn_child(name: &str, directory: &Path) -> Child {
    Command::new(std::env::current_exe().expect("a test knows its binary"))
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(CHILD_DIRECTORY, directory)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child can be started")
}

async fn append(log: &dyn Log, partition: Partition, bytes: String) -> Offset {
    let (answer, answered) = oneshot::channel();
    let bytes = Bytes::from(bytes);
    log.append(partition, &mut |_| bytes.clone(), Box::new(move |result| drop(answer.send(result))));
    answered.await.expect("every append is answered").expect("the append is committed")
}

/// The child of the test below: tells every acknowledged append and commit until it is killed. Without a parent it has
/// nothing to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_appends_until_it_is_killed() {
    let Ok(path) = std::env::var(CHILD_DIRECTORY) else { return };
    let directory = DataDirectory::lock(Path::new(&path)).unwrap();
    let log = EmbeddedLog::open(&directory, partitioning(), Durability::Fsync).unwrap();
    let mut appenders = tokio::task::JoinSet::new();
    for partition in 0..APPENDERS {
        let log = Arc::clone(&log);
        appenders.spawn(async move {
            for number in 0_u64.. {
                let text = format!("{number} {}", "x".repeat(usize::try_from(number % 500).unwrap()));
                let offset = append(&*log, Partition(partition), text).await;
                // One write, so that a line is told whole or not at all.
                std::io::stdout()
                    .write_all(format!("append {partition} {offset} {number}\n").as_bytes())
                    .unwrap();
            }
        });
    }
    appenders.spawn(async move {
        let partitions = vec![Partition(0), Partition(2)];
        let mut opened = log.open(PartitionGroup(0), partitions).await.unwrap();
        for number in 0_u64.. {
            let value = Some(Bytes::from(number.to_string()));
            let write = StateWrite { partition: Partition(2), key: Bytes::from_static(b"n"), value };
            assert_eq!(opened.writer.commit(vec![write].into()).await, CommitOutcome::Committed);
            std::io::stdout().write_all(format!("commit {number}\n").as_bytes()).unwrap();
        }
    });
    while let Some(ended) = appenders.join_next().await {
        ended.unwrap();
    }
}

#[tokio::test]
async fn a_broker_killed_while_appending_loses_nothing_acknowledged() {
    let _alone = ALONE.lock().await;
    let temporary = tempfile::tempdir().unwrap();
    for round in 0..5 {
        let mut child = spawn_child("child_appends_until_it_is_killed", temporary.path());
        let mut told = Vec::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            told.push(line.unwrap());
            if told.len() == 300 {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(told.len() >= 300, "the child ended by itself: {told:?}");

        let directory = DataDirectory::lock(temporary.path()).unwrap();
        let log = EmbeddedLog::open(&directory, partitioning(), Durability::Fsync).unwrap();

        for partition in 0..APPENDERS {
            let records = read_all(&*log, Partition(partition)).await;
            for line in &told {
                let ["append", of, offset, number] = line.split(' ').collect::<Vec<_>>()[..] else {
                    continue;
                };
                if of != partition.to_string() {
                    continue;
                }
                let record = &records[offset.parse::<usize>().unwrap()];
                assert!(record.starts_with(&format!("{number} ")), "round {round}: {line}, but {record}");
            }
        }
        let committed =
            told.iter().filter_map(|line| line.strip_prefix("commit ")?.parse::<u64>().ok()).max().unwrap();
        let opened = log.open(PartitionGroup(0), vec![Partition(0), Partition(2)]).await.unwrap();
        let kept: u64 = std::str::from_utf8(&opened.entries[0].value).unwrap().parse().unwrap();
        assert!(kept >= committed, "round {round}: {committed} was committed, {kept} is there");
    }
}

async fn read_all(log: &dyn Log, partition: Partition) -> Vec<String> {
    let mut texts = Vec::new();
    let mut reader = log.reader(partition, 0);
    while let ReadEvent::Records(records) = reader.next().await.expect("the log can be read") {
        for record in records {
            assert_eq!(record.offset, texts.len() as u64, "offsets are contiguous");
            texts.push(String::from_utf8(record.bytes.to_vec()).expect("the child appended text"));
        }
    }
    texts
}

/// `tests/data/embedded-log-v1` was written by the first version: three partitions in two groups, segments of 500 bytes.
/// Partitions 1 and 2 got twelve records each in turn, then the floor of partition 1 was set to 3.
#[tokio::test]
async fn a_data_directory_of_the_first_version_is_read_and_gone_on_with() {
    let temporary = tempfile::tempdir().unwrap();
    let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/embedded-log-v1");
    std::fs::create_dir_all(temporary.path().join("log")).unwrap();
    std::fs::create_dir_all(temporary.path().join("state")).unwrap();
    std::fs::copy(stored.join("partitioning"), temporary.path().join("partitioning")).unwrap();
    for entry in std::fs::read_dir(stored.join("log")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, temporary.path().join("log").join(path.file_name().unwrap())).unwrap();
    }
    let partitioning = Partitioning::new(3, 2).unwrap();

    for opened in 0..2 {
        let directory = DataDirectory::lock(temporary.path()).unwrap();
        let log = EmbeddedLog::open(&directory, partitioning, Durability::Fsync).unwrap();

        for partition in [1, 2] {
            let bounds = log.bounds(Partition(partition)).await.unwrap();
            assert_eq!(bounds.start, if partition == 1 { 3 } else { 0 });
            let mut reader = log.reader(Partition(partition), bounds.start);
            let mut records = Vec::new();
            while let ReadEvent::Records(more) = reader.next().await.unwrap() {
                records.extend(more);
            }
            let (old, new): (Vec<_>, Vec<_>) = records.iter().partition(|record| record.offset < 12);
            let texts: Vec<_> = old.iter().map(|record| String::from_utf8_lossy(&record.bytes)).collect();
            let expected: Vec<_> = (bounds.start..12)
                .map(|number| format!("of partition {partition}, number {number}"))
                .collect();
            assert_eq!(texts, expected);
            assert!(old.iter().all(|record| record.append_time_ms > 1_796_000_000_000));
            assert_eq!(new.len(), opened, "what was appended to it in the new version");
            assert_eq!(append(&*log, Partition(partition), "new".into()).await, 12 + opened as u64);
        }
        assert_eq!(log.bounds(Partition(0)).await.unwrap().end, 0);
    }
}

/// The child of the test below.
#[test]
fn child_tries_to_lock() {
    let Ok(path) = std::env::var(CHILD_DIRECTORY) else { return };
    match DataDirectory::lock(Path::new(&path)) {
        Ok(_) => println!("locked"),
        Err(error) => println!("refused: {error}"),
    }
}

#[test]
fn a_second_process_is_refused_and_told_who_has_the_directory() {
    let _alone = ALONE.blocking_lock();
    let temporary = tempfile::tempdir().unwrap();
    let try_to_lock = || {
        let output = spawn_child("child_tries_to_lock", temporary.path()).wait_with_output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };

    let held = DataDirectory::lock(temporary.path()).unwrap();
    let while_held = try_to_lock();
    drop(held);
    let afterwards = try_to_lock();

    let pid = std::process::id();
    let refused = format!("refused: data directory {} is used by process {pid}", temporary.path().display());
    assert!(while_held.contains(&refused), "{while_held}");
    assert!(afterwards.contains("locked"), "{afterwards}");
}

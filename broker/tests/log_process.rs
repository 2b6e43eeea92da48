//! The embedded log as a user sees it: what a power cut may take is said, and `log check` and `log dump` explain what is in
//! a data directory.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "fixture/client.rs"]
mod client;
#[path = "fixture/process.rs"]
mod process;

use bytes::Bytes;
use client::{Client, connect};
use process::{Process, command};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tidemill_broker::log::embedded::{DataDirectory, Durability, EmbeddedLog};
use tidemill_broker::log::{Log, ReadEvent};
use tidemill_core::packet::{QoS, Version};
use tidemill_core::partition::{Partition, Partitioning};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;

/// Exit code, standard output and standard error of `tidemill-broker log …`.
async fn log_command(arguments: &[&str]) -> (i32, String, String) {
    let output = command(&[&["log"], arguments].concat()).output().await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Names and contents of the files of a log.
fn files(data: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let log = std::fs::read_dir(data.join("log")).unwrap().map(|entry| entry.unwrap().path());
    log.chain([data.join("lock"), data.join("partitioning")])
        .map(|path| (path.clone(), std::fs::read(&path).unwrap()))
        .collect()
}

#[tokio::test]
async fn the_log_of_a_killed_broker_is_checked_and_dumped_but_not_while_it_runs() {
    let data = tempfile::tempdir().unwrap();
    let path = data.path().to_str().unwrap();
    let (broker, address) = Process::start(data.path()).await;
    let mut session = connect(Version::V3_1_1, "subscriber");
    session.clean_start = false;
    let (mut subscriber, _) = Client::connect_with(address, session).await;
    subscriber.subscribe(&[("t/#", QoS::AtLeastOnce)]).await;
    let mut publisher = Client::connect(address, Version::V3_1_1, "publisher \"1\"").await;
    for id in 1..=3_u16 {
        publisher.publish(&format!("t/{id}"), format!("payload {id}\n").as_bytes(), Some(id)).await;
        publisher.receive().await;
    }

    let (code, _, error) = log_command(&["check", "--data", path]).await;
    assert_eq!(code, 2);
    let pid = std::fs::read_to_string(data.path().join("lock")).unwrap();
    assert!(error.contains(&format!("is used by process {}", pid.trim())), "{error}");
    assert_eq!(log_command(&["dump", "--data", path]).await.0, 2);

    broker.end(Signal::KILL).await;
    let before = files(data.path());
    let (code, report, error) = log_command(&["check", "--data", path]).await;
    assert_eq!((code, &*error), (0, ""), "{report}");
    assert!(report.contains("log/00000000000000000001.segment: whole: "), "{report}");
    assert!(report.contains("3 records, 0 copies\nfine\n"), "{report}");

    let (code, dump, error) = log_command(&["dump", "--data", path]).await;
    assert_eq!((code, &*error), (0, ""));
    let lines: Vec<_> = dump.lines().collect();
    assert_eq!(lines.len(), 3, "{dump}");
    for (offset, line) in lines.iter().enumerate() {
        let number = offset + 1;
        assert!(line.contains(&format!(" offset={offset} time=2")), "{line}");
        let sent = format!(
            "topic=\"t/{number}\" qos=1 retain=false publisher=\"publisher \\\"1\\\"\" payloadBytes=10"
        );
        assert!(line.ends_with(&sent), "{line}");
    }
    let partition = lines[0].split(['=', ' ']).nth(1).unwrap();
    let chosen =
        ["dump", "--data", path, "--partition", partition, "--from", "1", "--limit", "1", "--payload"];
    let (_, dump, _) = log_command(&chosen).await;
    assert_eq!(dump.lines().count(), 1);
    assert!(dump.contains(" offset=1 ") && dump.ends_with("payload=\"payload 2\\n\"\n"), "{dump}");
    assert!(files(data.path()) == before, "nothing was written");

    let (code, dump, error) = log_command(&["dump", "--data", path, "--partition", "99"]).await;
    assert_eq!((code, &*dump), (2, ""));
    assert!(error.contains("no partition 99: partitions are 0 to 31"), "{error}");
}

/// Appends `records` of 1 MiB each to a broker's log; a segment takes 16 of them.
async fn fill(data: &Path, records: u16) {
    let directory = DataDirectory::lock(data).unwrap();
    let partitioning = Partitioning::new(32, 16).unwrap();
    let log = EmbeddedLog::open(&directory, partitioning, Durability::Fsync).unwrap();
    let mut record = client::record("large", "");
    record.message.payload = Bytes::from(vec![b'x'; 1 << 20]);
    let bytes = record.encode();
    for number in 0..records {
        let (done, is_done) = oneshot::channel();
        let done = Box::new(move |result| drop(done.send(result)));
        log.append(Partition(number % 4), &mut |_| bytes.clone(), done);
        is_done.await.unwrap().unwrap();
    }
    log.close().await;
}

/// Flips a bit of the last record of a segment but one, so that others are on both sides; answers its place.
fn damage(path: &Path) -> u64 {
    let mut bytes = std::fs::read(path).unwrap();
    let at = bytes.len() - (3 << 19);
    bytes[at] ^= 1;
    std::fs::write(path, &bytes).unwrap();
    at as u64
}

#[tokio::test]
async fn damage_in_a_sealed_and_in_the_last_segment_is_named_with_its_place() {
    let data = tempfile::tempdir().unwrap();
    let path = data.path().to_str().unwrap();
    fill(data.path(), 22).await;
    let sealed = data.path().join("log/00000000000000000001.segment");
    let last = data.path().join("log/00000000000000000002.segment");

    let place = damage(&sealed);
    let (code, report, _) = log_command(&["check", "--data", path]).await;
    assert_eq!(code, 1, "{report}");
    let named = |report: &str, file: &str| {
        let line = report.lines().find(|line| line.starts_with(file)).unwrap().to_owned();
        let (_, at) = line.split_once("DAMAGED: ").unwrap().1.split_once("damaged at byte ").unwrap();
        at.split(':').next().unwrap().parse::<u64>().unwrap()
    };
    let at = named(&report, "log/00000000000000000001.segment");
    assert!(at < place && place < at + (1 << 20) + 200, "{at} {place}");
    // The broker starts: only who needs that record is told.
    let (broker, _) = Process::start(data.path()).await;
    assert!(broker.end(Signal::TERM).await.success());

    let place = damage(&last);
    let (code, report, _) = log_command(&["check", "--data", path]).await;
    assert_eq!(code, 1, "{report}");
    let at = named(&report, "log/00000000000000000002.segment");
    assert!(at < place && place < at + (1 << 20) + 200, "{at} {place}");
    assert!(report.ends_with("damaged\n"), "{report}");
    // Now it does not start, and says why.
    let mut broker = Process::spawn(data.path(), &[]);
    let refusal = broker.line_with("is damaged").await;
    assert!(refusal.contains(last.to_str().unwrap()) && refusal.contains(&format!("at position {at}")));
    assert_eq!(broker.wait().await.code(), Some(1));

    let (code, dump, errors) = log_command(&["dump", "--data", path]).await;
    assert_eq!(code, 1);
    assert_eq!(dump.lines().count(), 20);
    assert_eq!(errors.lines().count(), 2, "{errors}");
    assert!(errors.contains(&format!("damaged: {}, bytes {at} to ", last.display())), "{errors}");
}

#[tokio::test]
async fn a_directory_that_is_none_of_a_broker_cannot_be_checked_and_stays_empty() {
    let data = tempfile::tempdir().unwrap();

    let (code, _, error) = log_command(&["check", "--data", data.path().to_str().unwrap()]).await;

    assert_eq!(code, 2);
    assert!(error.contains("not the data directory"), "{error}");
    assert_eq!(std::fs::read_dir(data.path()).unwrap().count(), 0);
}

async fn metrics(admin: SocketAddr) -> String {
    let mut socket = tokio::net::TcpStream::connect(admin).await.unwrap();
    socket.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn a_broker_that_does_not_sync_says_so_and_a_kill_takes_nothing() {
    for (durability, warning) in [("interval", "durability is interval"), ("none", "durability is none")] {
        let data = tempfile::tempdir().unwrap();
        let setting = format!("embedded.durability={durability}");
        let mut broker = Process::spawn(data.path(), &["--set", &setting]);
        broker.line_with(warning).await;
        let line = broker.line_with("\"addresses\":\"[").await;
        let between = |begin: &str, end: &str| -> SocketAddr {
            line.split_once(begin).unwrap().1.split_once(end).unwrap().0.parse().unwrap()
        };
        let (address, admin) = (between("\"addresses\":\"[", "]"), between("\"admin\":\"", "\""));
        let mut session = connect(Version::V3_1_1, "subscriber");
        session.clean_start = false;
        let (mut subscriber, _) = Client::connect_with(address, session.clone()).await;
        subscriber.subscribe(&[("t", QoS::AtLeastOnce)]).await;
        let mut publisher = Client::connect(address, Version::V3_1_1, "publisher").await;
        for id in 1..=20_u16 {
            publisher.publish("t", id.to_string().as_bytes(), Some(id)).await;
            publisher.receive().await;
        }
        let metrics = metrics(admin).await;
        let value = |name: &str| {
            let line = metrics.lines().find(|line| line.starts_with(&format!("tidemill_{name} ")));
            line.unwrap().rsplit(' ').next().unwrap().parse::<u64>().unwrap()
        };
        assert!(value("log_record_bytes_total") > 20 * 20, "{metrics}");
        assert!(value("log_written_bytes_total") > value("log_record_bytes_total"));
        assert_eq!((value("log_waits_for_space"), value("state_waits_for_space")), (0, 0));
        broker.end(Signal::KILL).await;

        let (broker, address) = Process::start(data.path()).await;
        let (mut subscriber, _) = Client::connect_with(address, session).await;
        for id in 1..=20_u16 {
            assert_eq!(subscriber.receive().await.message().2, id.to_string().as_bytes(), "{durability}");
        }
        assert!(broker.end(Signal::TERM).await.success());
    }
}

#[tokio::test]
async fn what_is_dumped_is_what_is_read() {
    let data = tempfile::tempdir().unwrap();
    fill(data.path(), 10).await;
    let directory = DataDirectory::lock(data.path()).unwrap();
    let partitioning = Partitioning::new(32, 16).unwrap();
    let log = EmbeddedLog::open(&directory, partitioning, Durability::Fsync).unwrap();
    let mut reader = log.reader(Partition(1), 0);
    let mut read = Vec::new();
    while let ReadEvent::Records(records) = reader.next().await.unwrap() {
        read.extend(records.into_iter().map(|record| (record.offset, record.bytes.len())));
    }
    drop((log, reader, directory));

    let path = data.path().to_str().unwrap();
    let (_, dump, _) = log_command(&["dump", "--data", path, "--partition", "1"]).await;

    let shown: Vec<_> = dump
        .lines()
        .map(|line| {
            let value = |key: &str| {
                let rest = line.split_once(key).unwrap().1;
                rest.split(' ').next().unwrap().parse::<u64>().unwrap()
            };
            (value("offset="), usize::try_from(value(" bytes=")).unwrap())
        })
        .collect();
    assert_eq!(shown, read);
    assert_eq!(shown.len(), 3);
}

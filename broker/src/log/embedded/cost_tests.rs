//! What a record costs on the disk, and what a start reads.

use super::fixture::{PARTITION, Scene, append, partitioning, start};
use super::*;
use bytes::Bytes;
use std::os::unix::fs::MetadataExt;
use tidemill_core::member::{Incarnation, Member, MemberId};
use tidemill_core::message::Message;
use tidemill_core::packet::QoS;
use tidemill_core::record::{Origin, Record, RecordBody};
use tidemill_core::topic::TopicName;

const RECORDS: u64 = 20_000;

fn record(sequence: u64, unique_id: Option<u128>) -> Record {
    let member = Member {
        id: MemberId::new("a-host-with-a-name-of-a-length-that-is-not-unheard-of.example.com"),
        incarnation: Incarnation(u64::MAX),
    };
    Record {
        body: RecordBody::Inline,
        retry: false,
        origin: Origin { member, producer: 1, sequence },
        unique_id,
        message: Message {
            topic: TopicName::parse("plant/7/line/3/temperature").unwrap(),
            payload: Bytes::from(vec![b'x'; 200]),
            qos: QoS::AtLeastOnce,
            retain: false,
            properties: None,
            publisher: "sensor-4711".into(),
            publish_time_ms: 1_796_000_000_000,
        },
    }
}

/// Bytes of the log's files, bytes that were written for them, and bytes that clients sent.
fn fill(scene: &Scene, unique_id: Option<u128>) -> (u64, u64, u64) {
    let log = scene.open();
    let mut sent = 0;
    let waiting: Vec<_> = (0..RECORDS)
        .map(|sequence| {
            let record = record(sequence, unique_id);
            sent += (record.message.bytes() + record.message.publisher.len()) as u64;
            start(&*log, PARTITION, &record.encode_compact())
        })
        .collect();
    for answered in waiting {
        answered.recv().unwrap().unwrap();
    }
    let metrics = log.metrics().clone();
    // The last append is answered before its segment is sealed.
    drop(log);
    let files = std::fs::read_dir(scene.data().join("log")).unwrap();
    let stored = files.map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    (stored, metrics.written_bytes.get(), sent)
}

#[test]
fn a_record_costs_at_most_64_bytes_beyond_what_the_client_sent_also_at_qos_2() {
    for unique_id in [None, Some(u128::from(u64::MAX) << 64 | u128::from(u32::MAX))] {
        // So many segments that most records are in an index.
        let (stored, _, sent) = fill(&Scene::with_segments_of(256 << 10), unique_id);

        let cost = (stored - sent).div_ceil(RECORDS);
        assert!(cost <= 56, "{cost} bytes for {unique_id:?}, of which 8 are kept for larger numbers");
    }
}

#[test]
fn under_group_commit_at_most_1_3_bytes_are_written_for_each_byte_stored() {
    let scene = Scene::with_segments_of(256 << 10);
    let (stored, written, sent) = fill(&scene, None);

    assert!(written * 10 <= sent * 13, "{written} written for {sent} that clients sent");
    assert!(written.abs_diff(stored) < 1_024, "{written} counted, {stored} there");
}

#[test]
fn a_start_reads_of_sealed_segments_their_headers_only() {
    let scene = Scene::with_segments_of(20_000);
    let log = scene.open();
    for _ in 0..2_000 {
        append(&*log, PARTITION, &[7; 100]);
    }
    drop(log);
    let segments = scene.segments();
    let (active, sealed) = segments.split_last().unwrap();
    assert!(sealed.len() > 8);
    scene.disk.plan.lock().reads.clear();

    let log = scene.open();

    assert_eq!(log.shared.tails[usize::from(PARTITION.0)].bounds().end, 2_000);
    let reads = scene.disk.plan.lock().reads.clone();
    let read_of =
        |path: &std::path::Path| reads.get(&std::fs::metadata(path).unwrap().ino()).copied().unwrap_or(0);
    let partitions = usize::from(partitioning().partition_count());
    let header = format::SegmentHeader::length_max(partitions) as u64;
    for path in sealed {
        assert_eq!(read_of(path), header, "{}", path.display());
        let index = path.with_extension("index");
        assert!(read_of(&index) < 200, "{} of {}", read_of(&index), index.display());
    }
    assert!(read_of(active) >= std::fs::metadata(active).unwrap().len(), "the last one is read whole");
}

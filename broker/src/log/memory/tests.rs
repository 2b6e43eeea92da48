use super::*;
use crate::log::state::{CommitOutcome, StateWrite};
use crate::log::{ReadEvent, Sequence};
use bytes::Bytes;
use std::sync::mpsc;

fn log(offsets: Offsets) -> MemoryLog {
    MemoryLog::new(Partitioning::new(4, 2).unwrap(), offsets)
}

fn append(log: &MemoryLog, bytes: &'static str) -> mpsc::Receiver<Result<Offset, AppendError>> {
    let (answer, answered) = mpsc::sync_channel(1);
    let build = &mut |_| Bytes::from_static(bytes.as_bytes());
    log.append(Partition(0), build, Box::new(move |result| answer.send(result).unwrap()));
    answered
}

fn sequence_of_next_append(log: &MemoryLog) -> Sequence {
    let mut built = None;
    let build = &mut |sequence| {
        built = Some(sequence);
        Bytes::new()
    };
    log.append(Partition(0), build, Box::new(|_| {}));
    built.unwrap()
}

#[tokio::test]
async fn a_held_append_is_neither_read_nor_answered_until_it_is_released() {
    let log = log(Offsets::Contiguous);
    log.hold_appends();
    let answered = append(&log, "held");

    assert_eq!(log.reader(Partition(0), 0).next().await, Ok(ReadEvent::End(0)));
    assert_eq!(answered.try_recv(), Err(mpsc::TryRecvError::Empty));
    log.release_appends();

    assert_eq!(answered.recv(), Ok(Ok(0)));
}

#[tokio::test]
async fn an_appender_that_dies_after_the_commit_is_not_answered_and_its_record_is_read() {
    let log = log(Offsets::Contiguous);
    log.die_after_commit();
    let answered = append(&log, "last words");

    assert_eq!(answered.recv(), Err(mpsc::RecvError));
    let event = log.reader(Partition(0), 0).next().await.unwrap();

    assert!(matches!(event, ReadEvent::Records(records) if records[0].bytes == "last words"));
}

#[test]
fn a_failed_producer_answers_what_waits_and_numbers_start_again() {
    let log = log(Offsets::Contiguous);
    append(&log, "before").recv().unwrap().unwrap();
    log.hold_appends();
    let waiting = [append(&log, "one"), append(&log, "two")];
    log.fail_producer();
    for answered in waiting {
        assert_eq!(
            answered.recv().unwrap(),
            Err(AppendError::ProducerFailed { reason: "injected".to_owned() })
        );
    }

    assert_eq!(sequence_of_next_append(&log), Sequence { producer: 2, sequence: 0 });
}

#[tokio::test]
async fn a_failed_storage_is_told_and_answers_closed() {
    let log = log(Offsets::Contiguous);
    log.hold_appends();
    let answered = append(&log, "never");

    log.fail("broken");

    assert_eq!(log.failed().await, "broken");
    assert_eq!(answered.recv().unwrap(), Err(AppendError::Closed));
}

#[tokio::test]
async fn an_unreadable_log_says_so_and_can_be_read_again() {
    let log = log(Offsets::Contiguous);
    append(&log, "there").recv().unwrap().unwrap();
    let mut reader = log.reader(Partition(0), 0);

    log.make_unreadable();
    assert!(matches!(reader.next().await, Err(ReadError::Unavailable { partition: 0, .. })));
    log.make_readable();

    assert!(matches!(reader.next().await, Ok(ReadEvent::Records(_))));
}

#[tokio::test]
async fn an_unknown_commit_is_stored_or_lost_as_the_test_asks() {
    let log = log(Offsets::Contiguous);
    let group = PartitionGroup(0);
    let write = |key: &'static str| {
        vec![StateWrite { partition: Partition(0), key: key.into(), value: Some("v".into()) }]
    };
    let mut opened = log.open(group, vec![Partition(0)]).await.unwrap();

    log.lose_next_commit(UnknownCommit::Stored);
    assert_eq!(opened.writer.commit(write("stored").into()).await, CommitOutcome::Unknown);
    log.lose_next_commit(UnknownCommit::Lost);
    assert_eq!(opened.writer.commit(write("lost").into()).await, CommitOutcome::Unknown);

    let entries = log.open(group, vec![Partition(0)]).await.unwrap().entries;
    assert_eq!(entries.iter().map(|entry| &entry.key[..]).collect::<Vec<_>>(), [b"stored"]);
}

#[tokio::test]
async fn offsets_with_gaps_have_them_between_records_and_behind_the_last() {
    let log = log(Offsets::WithGaps);

    let offsets: Vec<_> = (0..6).map(|_| append(&log, "x").recv().unwrap().unwrap()).collect();

    assert_eq!(offsets, [0, 2, 6, 7, 9, 12]);
    append(&log, "x").recv().unwrap().unwrap();
    assert_eq!(log.bounds(Partition(0)).await.unwrap(), Bounds { start: 0, end: 15 });
}

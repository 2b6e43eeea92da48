//! Promises about appending.

use super::{Store, append, append_numbers, committed, numbers, read_records, read_to_end, start_append};
use super::{start_built, within};
use crate::log::{AppendError, ReadError, Sequence};
use bytes::Bytes;
use std::sync::Arc;
use tidemill_core::partition::Partition;

const PARTITION: Partition = Partition(1);

/// Two appends to one partition from one thread get offsets in the order of the calls.
pub async fn appends_from_one_thread_keep_their_order(store: &dyn Store) {
    let log = store.open().await.log;

    let offsets = append_numbers(&*log, PARTITION, 0..2_000).await;

    assert!(offsets.is_sorted_by(|left, right| left < right), "offsets in the order of the calls");
    let records = read_records(&mut *log.reader(PARTITION, 0), 2_000).await;
    assert_eq!(numbers(&records), (0..2_000).collect::<Vec<_>>());
    let read: Vec<_> = records.iter().map(|record| record.offset).collect();
    assert_eq!(read, offsets, "a record is where its appender was told");
}

/// Appends of many threads to many partitions are all there, each thread's in its order.
pub async fn many_threads_interleave_without_loss(store: &dyn Store) {
    const THREADS: u32 = 8;
    const EACH: u32 = 300;
    let log = store.open().await.log;
    let partitions: Vec<_> = store.partitioning().partitions().take(3).collect();

    let appenders: Vec<_> = (0..THREADS)
        .map(|thread| {
            let log = Arc::clone(&log);
            let partitions = partitions.clone();
            std::thread::spawn(move || {
                let mut started = Vec::new();
                for number in 0..EACH {
                    for partition in &partitions {
                        let number = thread * EACH + number;
                        started.push(start_append(&*log, *partition, number.to_string().into_bytes()));
                    }
                }
                started
            })
        })
        .collect();
    for appender in appenders {
        for appended in appender.join().expect("the appender does not panic") {
            committed(appended).await;
        }
    }

    for partition in partitions {
        let records = read_records(&mut *log.reader(partition, 0), (THREADS * EACH) as usize).await;
        let read = numbers(&records);
        for thread in 0..THREADS {
            let of_thread = thread * EACH..(thread + 1) * EACH;
            let in_order: Vec<_> = read.iter().copied().filter(|number| of_thread.contains(number)).collect();
            assert_eq!(in_order, of_thread.collect::<Vec<_>>(), "partition {partition:?}, thread {thread}");
        }
    }
}

/// Bytes come back as they were given, of every length, with the time the log took them.
pub async fn what_was_appended_is_read_back_equal(store: &dyn Store) {
    let log = store.open().await.log;
    let appended: Vec<Bytes> = [0_usize, 1, 255, 4_096, 70_000, 300_000]
        .iter()
        .map(|length| (0..*length).map(|at| at.to_le_bytes()[0] ^ 0xa5).collect())
        .collect();

    for bytes in &appended {
        append(&*log, PARTITION, bytes.clone()).await;
    }

    let records = read_records(&mut *log.reader(PARTITION, 0), appended.len()).await;
    let read: Vec<_> = records.iter().map(|record| record.bytes.clone()).collect();
    assert!(read == appended, "every byte is as it was");
    assert!(
        records.iter().all(|record| record.append_time_ms > 1_600_000_000_000),
        "times are wall-clock times"
    );
}

/// A record learns its producer number and its place among the appends of this broker to this partition.
pub async fn sequence_numbers_have_no_gaps_per_producer_and_partition(store: &dyn Store) {
    let log = store.open().await.log;
    let mut places = Vec::new();

    for partition in [Partition(0), Partition(1), Partition(0), Partition(0), Partition(1)] {
        let mut built = None;
        committed(start_built(&*log, partition, &mut |place| {
            built = Some(place);
            Bytes::from_static(b"x")
        }))
        .await;
        places.push((partition.0, built.expect("the record was built before append returned")));
    }

    let place = |sequence| Sequence { producer: 1, sequence };
    let expected = [(0, place(0)), (1, place(0)), (0, place(1)), (0, place(2)), (1, place(1))];
    assert_eq!(places, expected);
}

/// What two brokers append to one partition at the same time is all there, each one's in its order.
pub async fn two_appenders_interleave(store: &dyn Store) {
    let one = store.open().await.log;
    let other = store.open().await.log;

    let (ones, others) = tokio::join!(
        append_numbers(&*one, PARTITION, 0..500),
        append_numbers(&*other, PARTITION, 500..1_000)
    );

    let records = read_records(&mut *one.reader(PARTITION, 0), 1_000).await;
    let read = numbers(&records);
    let of = |range: std::ops::Range<u32>| -> Vec<u32> {
        read.iter().copied().filter(|number| range.contains(number)).collect()
    };
    assert_eq!(of(0..500), (0..500).collect::<Vec<_>>());
    assert_eq!(of(500..1_000), (500..1_000).collect::<Vec<_>>());
    for record in &records {
        assert!(
            ones.contains(&record.offset) != others.contains(&record.offset),
            "each offset is of one of them"
        );
    }
}

/// A record is read although nobody was told that it was committed.
pub async fn a_record_whose_appender_died_right_after_the_commit_is_read(store: &dyn Store) {
    let reading = store.open().await.log;
    let mut reader = reading.reader(PARTITION, 0);
    assert_eq!(read_to_end(&mut *reader).await.0, []);
    let appending = store.open().await.log;

    drop(start_append(&*appending, PARTITION, "last words"));
    let records = read_records(&mut *reader, 1).await;

    assert_eq!(records[0].bytes, "last words");
}

/// Everything that was committed is there after all brokers were stopped, and offsets go on behind it.
pub async fn a_restart_keeps_everything_committed(store: &dyn Store) {
    let log = store.open().await.log;
    let before = append_numbers(&*log, PARTITION, 0..100).await;
    drop(log);

    let log = store.restart().await.log;
    let behind = append(&*log, PARTITION, "100").await;

    let records = read_records(&mut *log.reader(PARTITION, 0), 101).await;
    assert_eq!(numbers(&records), (0..101).collect::<Vec<_>>());
    let offsets: Vec<_> = records.iter().map(|record| record.offset).collect();
    assert_eq!(offsets[..100], before);
    assert_eq!(offsets[100], behind);
}

/// However much is appended at once, every append is answered and the congestion ends.
pub async fn after_a_flood_the_log_is_relieved(store: &dyn Store) {
    let log = store.open().await.log;
    let record = Bytes::from(vec![7; 100]);

    let started: Vec<_> = (0..20_000).map(|_| start_append(&*log, PARTITION, record.clone())).collect();
    for appended in started {
        committed(appended).await;
    }

    within("relief", log.relieved()).await;
    assert!(!log.is_congested());
}

/// Closing commits what was taken; later appends and reads are told.
pub async fn a_closed_log_commits_what_it_took_and_answers_closed(store: &dyn Store) {
    let log = store.open().await.log;
    let mut reader = log.reader(PARTITION, 0);
    assert_eq!(read_to_end(&mut *reader).await.0, []);
    let taken: Vec<_> =
        (0..100_u32).map(|n| start_append(&*log, PARTITION, n.to_string().into_bytes())).collect();

    within("close", log.close()).await;

    for appended in taken {
        committed(appended).await;
    }
    let late =
        within("append", start_append(&*log, PARTITION, "late")).await.expect("every append is answered");
    assert_eq!(late, Err(AppendError::Closed));
    let ended = loop {
        match within("read", reader.next()).await {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(ended, ReadError::Closed);
    drop((reader, log));
    let log = store.restart().await.log;
    assert_eq!(
        numbers(&read_records(&mut *log.reader(PARTITION, 0), 100).await),
        (0..100).collect::<Vec<_>>()
    );
}

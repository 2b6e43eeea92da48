//! Promises about reading.

use super::{Store, append, append_numbers, next, numbers, read_records, read_to_end, within};
use crate::log::{READ_BYTES_MAX, READ_RECORDS_MAX, ReadError, ReadEvent};
use bytes::Bytes;
use futures::FutureExt;
use tidemill_core::partition::{Offset, Partition};

const PARTITION: Partition = Partition(2);

/// A reader tells once that it is at the end, then waits, and is woken by the next commit.
pub async fn the_end_is_yielded_once_then_the_reader_waits_and_wakes(store: &dyn Store) {
    let log = store.open().await.log;
    let mut reader = log.reader(PARTITION, 0);
    assert_eq!(next(&mut *reader).await, ReadEvent::End(0));

    let waiting = tokio::spawn(async move {
        let records = read_records(&mut *reader, 1).await;
        (records, next(&mut *reader).await)
    });
    let offset = append(&*log, PARTITION, "1").await;

    let (records, event) = within("waiting reader", waiting).await.expect("the reader does not panic");
    assert_eq!(records[0].offset, offset);
    assert!(matches!(event, ReadEvent::End(end) if end > offset), "{event:?} after {offset}");
}

/// A reader yields what is at or after its position, whether or not that offset has a record.
pub async fn a_reader_starts_in_the_middle_across_gaps(store: &dyn Store) {
    let log = store.open().await.log;
    let offsets = append_numbers(&*log, PARTITION, 0..40).await;

    for from in 0..=offsets[39] {
        let first = offsets.partition_point(|offset| *offset < from);
        let mut reader = log.reader(PARTITION, from);
        let records = read_records(&mut *reader, 40 - first).await;
        let read: Vec<_> = records.iter().map(|record| record.offset).collect();
        assert_eq!(read, offsets[first..], "from {from}");
        if from > 8 {
            // Every kind of gap was met; the last record is enough for the rest.
            break;
        }
    }
    let records = read_records(&mut *log.reader(PARTITION, offsets[39]), 1).await;
    assert_eq!(numbers(&records), [39]);
}

/// A read that is dropped while it waits, or before it was polled to its end, loses nothing.
pub async fn a_dropped_read_loses_nothing(store: &dyn Store) {
    let log = store.open().await.log;
    let mut reader = log.reader(PARTITION, 0);
    assert_eq!(read_to_end(&mut *reader).await.0, []);

    let mut read = Vec::new();
    for number in 0..50 {
        append(&*log, PARTITION, number.to_string().into_bytes()).await;
        if let Some(Ok(ReadEvent::Records(records))) = reader.next().now_or_never() {
            read.extend(records);
        }
    }
    while read.len() < 50 {
        read.extend(read_records_some(&mut *reader).await);
    }

    assert_eq!(numbers(&read), (0..50).collect::<Vec<_>>());
}

async fn read_records_some(reader: &mut dyn crate::log::LogReader) -> Vec<crate::log::StoredRecord> {
    match next(reader).await {
        ReadEvent::Records(records) => records,
        ReadEvent::End(_) => Vec::new(),
    }
}

/// A position outside the log is an error that names the bounds, again and again; nothing is repositioned.
pub async fn reading_out_of_range_is_an_error_with_bounds(store: &dyn Store) {
    let log = store.open().await.log;
    let offsets = append_numbers(&*log, PARTITION, 0..10).await;
    let end = within("bounds", log.bounds(PARTITION)).await.expect("bounds can be asked").end;
    within("trim", log.trim(PARTITION, offsets[5])).await.expect("the log can be trimmed");

    for position in [0, end + 1_000] {
        let mut reader = log.reader(PARTITION, position);
        for _ in 0..2 {
            let expected =
                ReadError::OutOfRange { partition: PARTITION.0, offset: position, start: offsets[5], end };
            assert_eq!(within("read", reader.next()).await, Err(expected));
        }
    }
}

/// Each of several readers sees everything, whatever the others do, also one that is never polled.
pub async fn readers_do_not_disturb_each_other(store: &dyn Store) {
    let log = store.open().await.log;
    let mut unpolled = log.reader(PARTITION, 0);
    let mut early = log.reader(PARTITION, 0);
    append_numbers(&*log, PARTITION, 0..500).await;
    let read_early = read_records(&mut *early, 500).await;
    let dropped = log.reader(PARTITION, 0);
    drop(dropped);
    let mut late = log.reader(PARTITION, 0);
    append_numbers(&*log, PARTITION, 500..1_000).await;

    let expected: Vec<_> = (0..1_000).collect();
    let (rest_early, read_late) =
        tokio::join!(read_records(&mut *early, 500), read_records(&mut *late, 1_000));

    assert_eq!(numbers(&read_early), expected[..500]);
    assert_eq!(numbers(&rest_early), expected[500..]);
    assert_eq!(numbers(&read_late), expected);
    assert_eq!(numbers(&read_records(&mut *unpolled, 1_000).await), expected);
}

/// No event carries more records or bytes than allowed, and together they carry everything.
pub async fn events_stay_within_their_bounds(store: &dyn Store) {
    let log = store.open().await.log;
    append_numbers(&*log, PARTITION, 0..2_500).await;
    let large = Bytes::from(vec![1; 100_000]);
    for _ in 0..30 {
        append(&*log, PARTITION, large.clone()).await;
    }

    let mut count = 0;
    let mut reader = log.reader(PARTITION, 0);
    while let ReadEvent::Records(records) = next(&mut *reader).await {
        count += records.len();
        assert!(records.len() <= READ_RECORDS_MAX);
        let bytes: usize = records.iter().map(|record| record.bytes.len()).sum();
        assert!(bytes < READ_BYTES_MAX + large.len(), "{bytes} bytes");
    }

    assert_eq!(count, 2_530);
}

/// The end that the log names is behind every append that was done, by any broker.
pub async fn bounds_include_every_append_done_before(store: &dyn Store) {
    let appending = store.open().await.log;
    let asking = store.open().await.log;

    for number in 0..20_u32 {
        let offset = append(&*appending, PARTITION, number.to_string().into_bytes()).await;
        let bounds = within("bounds", asking.bounds(PARTITION)).await.expect("bounds can be asked");
        assert_eq!(bounds.start, 0);
        assert!(bounds.end > offset, "end {} after offset {offset}", bounds.end);
    }
}

/// A reader that is told what is wanted yields it, and nothing that was yielded before; it goes on behind the last record
/// yielded, also to records that were not wanted by the call before.
pub async fn what_is_wanted_is_read_in_order_and_nothing_of_it_is_passed_over(store: &dyn Store) {
    let log = store.open().await.log;
    let offsets = append_numbers(&*log, PARTITION, 0..5_000).await;
    let log = {
        drop(log);
        store.restart().await.log
    };
    for (step, from) in [(1, 0), (2, 1), (7, 3), (900, 10)] {
        let wanted: Vec<Offset> = offsets.iter().copied().skip(from).step_by(step).collect();
        let mut reader = log.reader(PARTITION, offsets[0]);
        let (mut left, mut read) = (&wanted[..], Vec::new());
        while !left.is_empty() {
            // No more than some of them at a time, as a caller asks who does not know the rest yet.
            let asked = &left[..left.len().min(500)];
            let event = within("read", reader.next_of(asked)).await.expect("the log can be read");
            let ReadEvent::Records(records) = event else { panic!("the end lies behind what is wanted") };
            assert!(records.is_sorted_by(|one, next| one.offset < next.offset));
            let last = records.last().expect("an event of records has at least one").offset;
            read.extend(records.iter().map(|record| record.offset).filter(|offset| wanted.contains(offset)));
            left = &left[left.partition_point(|offset| *offset <= last)..];
        }
        assert_eq!(read, wanted, "every {step}th from {from}");
    }
}

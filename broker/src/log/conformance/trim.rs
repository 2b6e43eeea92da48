//! Promises about forgetting.

use super::{Store, append, append_numbers, numbers, read_records, within};
use crate::log::{Bounds, Log, ReadError};
use tidemill_core::partition::{Offset, Partition};

const PARTITION: Partition = Partition(3);

async fn bounds(log: &dyn Log, partition: Partition) -> Bounds {
    within("bounds", log.bounds(partition)).await.expect("bounds can be asked")
}

async fn trim(log: &dyn Log, floor: Offset) {
    within("trim", log.trim(PARTITION, floor)).await.expect("the log can be trimmed");
}

/// What is below the floor is gone, what is above stays, of other partitions all.
pub async fn trim_forgets_below_the_floor_and_never_above(store: &dyn Store) {
    let other = Partition(0);
    let log = store.open().await.log;
    let offsets = append_numbers(&*log, PARTITION, 0..20).await;
    append_numbers(&*log, other, 0..20).await;
    let before = bounds(&*log, PARTITION).await;

    trim(&*log, offsets[7]).await;

    assert_eq!(bounds(&*log, PARTITION).await, Bounds { start: offsets[7], end: before.end });
    let records = read_records(&mut *log.reader(PARTITION, offsets[7]), 13).await;
    assert_eq!(numbers(&records), (7..20).collect::<Vec<_>>());
    let records = read_records(&mut *log.reader(other, 0), 20).await;
    assert_eq!(numbers(&records), (0..20).collect::<Vec<_>>());
}

/// The floor never goes back: a former owner with an old floor does no harm.
pub async fn a_lower_floor_changes_nothing(store: &dyn Store) {
    let log = store.open().await.log;
    let offsets = append_numbers(&*log, PARTITION, 0..20).await;

    for floor in [10, 10, 3, 0] {
        trim(&*log, offsets[floor]).await;
        assert_eq!(bounds(&*log, PARTITION).await.start, offsets[10]);
    }
}

/// A floor that the log has not reached is an error with bounds and changes nothing.
pub async fn a_floor_above_the_end_is_refused(store: &dyn Store) {
    let log = store.open().await.log;
    append_numbers(&*log, PARTITION, 0..5).await;
    let before = bounds(&*log, PARTITION).await;

    let refused = within("trim", log.trim(PARTITION, before.end + 10)).await;

    let Bounds { start, end } = before;
    let expected = ReadError::OutOfRange { partition: PARTITION.0, offset: end + 10, start, end };
    assert_eq!(refused, Err(expected));
    assert_eq!(bounds(&*log, PARTITION).await, before);
}

/// What was lost is given up only by a log that may lose it, and its offsets never come again; where nothing is lost
/// there is nothing to give up.
pub async fn lost_offsets_are_refused_or_given_up_and_never_come_again(store: &dyn Store) {
    let log = store.open().await.log;
    let offsets = append_numbers(&*log, PARTITION, 0..5).await;
    let before = bounds(&*log, PARTITION).await;

    assert_eq!(within("give up", log.give_up(PARTITION, before.end)).await, Ok(()));
    assert_eq!(bounds(&*log, PARTITION).await, before);
    let until = before.end + 10;
    let given_up = within("give up", log.give_up(PARTITION, until)).await;

    let Bounds { start, end } = before;
    let refused = ReadError::OutOfRange { partition: PARTITION.0, offset: until, start, end };
    let end = match given_up {
        Ok(()) => until,
        Err(error) => {
            assert_eq!(error, refused);
            end
        }
    };
    assert_eq!(bounds(&*log, PARTITION).await, Bounds { start, end });
    assert!(append(&*log, PARTITION, "5").await >= end);
    let records = read_records(&mut *log.reader(PARTITION, offsets[0]), 6).await;
    assert_eq!(numbers(&records), (0..6).collect::<Vec<_>>());
}

/// A log that was trimmed up to its end is empty, also after a restart, and its offsets do not start again.
pub async fn a_trimmed_log_keeps_its_bounds_over_a_restart(store: &dyn Store) {
    let log = store.open().await.log;
    append_numbers(&*log, PARTITION, 0..20).await;
    let end = bounds(&*log, PARTITION).await.end;
    trim(&*log, end).await;
    drop(log);

    let log = store.restart().await.log;

    assert_eq!(bounds(&*log, PARTITION).await, Bounds { start: end, end });
    assert!(append(&*log, PARTITION, "20").await >= end);
    assert_eq!(numbers(&read_records(&mut *log.reader(PARTITION, end), 1).await), [20]);
}

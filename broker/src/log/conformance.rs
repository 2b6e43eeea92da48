//! What every log and every state promises, as tests that run against any implementation.
//!
//! An implementation gives a [`Store`] and calls [`crate::log_conformance!`], which makes one test of each promise.
//! The functions panic where a promise is broken.

pub mod append;
pub mod index;
pub mod owner;
pub mod read;
pub mod retained;
pub mod trim;

use super::state::{Commit, CommitOutcome, OpenedGroup, State, StateWrite, StateWriter};
use super::{AppendError, Log, LogReader, ReadEvent, Sequence, StoredRecord};
use bytes::Bytes;
use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;
use tidemill_core::partition::{Offset, Partition, PartitionGroup, Partitioning};
use tokio::sync::oneshot;

/// What one broker has of a store.
#[derive(Clone)]
pub struct Handles {
    /// The records.
    pub log: Arc<dyn Log>,
    /// The state.
    pub state: Arc<dyn State>,
}

/// A store under test, empty at first. Needs at least four partitions and two groups.
pub trait Store: Send + Sync {
    /// Partitions and groups of the store.
    fn partitioning(&self) -> Partitioning;

    /// The handles of one more broker; a store for one process alone answers the handles it has.
    fn open(&self) -> BoxFuture<'_, Handles>;

    /// Stops all brokers and starts one anew, on what is stored.
    fn restart(&self) -> BoxFuture<'_, Handles>;
}

/// Makes one `#[tokio::test]` of every promise. `$open` is an expression that makes a [`Store`]; it may await.
#[macro_export]
macro_rules! log_conformance {
    ($open:expr) => {
        $crate::log_conformance!(@tests $open;
            append: appends_from_one_thread_keep_their_order
            append: many_threads_interleave_without_loss
            append: what_was_appended_is_read_back_equal
            append: sequence_numbers_have_no_gaps_per_producer_and_partition
            append: two_appenders_interleave
            append: a_record_whose_appender_died_right_after_the_commit_is_read
            append: a_restart_keeps_everything_committed
            append: after_a_flood_the_log_is_relieved
            append: a_closed_log_commits_what_it_took_and_answers_closed
            read: the_end_is_yielded_once_then_the_reader_waits_and_wakes
            read: a_reader_starts_in_the_middle_across_gaps
            read: a_dropped_read_loses_nothing
            read: reading_out_of_range_is_an_error_with_bounds
            read: readers_do_not_disturb_each_other
            read: events_stay_within_their_bounds
            read: bounds_include_every_append_done_before
            read: what_is_wanted_is_read_in_order_and_nothing_of_it_is_passed_over
            trim: trim_forgets_below_the_floor_and_never_above
            trim: a_lower_floor_changes_nothing
            trim: a_floor_above_the_end_is_refused
            trim: lost_offsets_are_refused_or_given_up_and_never_come_again
            trim: a_trimmed_log_keeps_its_bounds_over_a_restart
            owner: a_new_group_is_empty
            owner: open_loads_the_last_values_only_and_no_deleted_key
            owner: a_commit_is_all_or_nothing
            owner: a_zombie_owner_is_refused_and_its_writes_never_appear
            owner: an_open_while_another_owner_commits_misses_nothing
            owner: an_unknown_outcome_can_be_repeated
            owner: groups_do_not_fence_each_other
            owner: committed_state_survives_a_restart
        );
    };
    (@tests $open:expr; $($part:ident: $promise:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $promise() {
                let store = $open;
                $crate::log::conformance::$part::$promise(&store).await;
            }
        )*
    };
}

/// Bound of one step. Reaching it means that the promise is broken by waiting for ever.
const STEP: Duration = Duration::from_secs(60);

async fn within<F: Future>(what: &str, step: F) -> F::Output {
    match tokio::time::timeout(STEP, step).await {
        Ok(output) => output,
        Err(_) => panic!("{what}: nothing within {STEP:?}"),
    }
}

type Appended = oneshot::Receiver<Result<Offset, AppendError>>;

/// Starts an append; the receiver gets what the log answers.
fn start_append(log: &dyn Log, partition: Partition, bytes: impl Into<Bytes>) -> Appended {
    let bytes = bytes.into();
    start_built(log, partition, &mut |_| bytes.clone())
}

fn start_built(log: &dyn Log, partition: Partition, build: &mut dyn FnMut(Sequence) -> Bytes) -> Appended {
    let (answer, appended) = oneshot::channel();
    // The receiver may be gone: whoever died after the commit does not listen.
    log.append(partition, build, Box::new(move |result| drop(answer.send(result))));
    appended
}

async fn append(log: &dyn Log, partition: Partition, bytes: impl Into<Bytes>) -> Offset {
    committed(start_append(log, partition, bytes)).await
}

async fn committed(appended: Appended) -> Offset {
    within("append", appended).await.expect("every append is answered").expect("the append is committed")
}

/// Appends the numbers of `range` as text, all started before the first is awaited. Answers their offsets.
async fn append_numbers(log: &dyn Log, partition: Partition, range: std::ops::Range<u32>) -> Vec<Offset> {
    let started: Vec<_> =
        range.map(|number| start_append(log, partition, number.to_string().into_bytes())).collect();
    let mut offsets = Vec::new();
    for appended in started {
        offsets.push(committed(appended).await);
    }
    offsets
}

/// Reads until `count` records came; ends on the way are passed over.
async fn read_records(reader: &mut dyn LogReader, count: usize) -> Vec<StoredRecord> {
    let mut records = Vec::new();
    while records.len() < count {
        if let ReadEvent::Records(more) = next(reader).await {
            assert!(!more.is_empty(), "an event of records has at least one");
            records.extend(more);
        }
    }
    assert_eq!(records.len(), count, "no more was appended");
    let increasing = records.is_sorted_by(|left, right| left.offset < right.offset);
    assert!(increasing, "offsets increase");
    records
}

/// Reads everything up to the end, and the end.
async fn read_to_end(reader: &mut dyn LogReader) -> (Vec<StoredRecord>, Offset) {
    let mut records = Vec::new();
    loop {
        match next(reader).await {
            ReadEvent::Records(more) => records.extend(more),
            ReadEvent::End(end) => return (records, end),
        }
    }
}

async fn next(reader: &mut dyn LogReader) -> ReadEvent {
    within("read", reader.next()).await.expect("the log can be read")
}

fn numbers(records: &[StoredRecord]) -> Vec<u32> {
    let number = |record: &StoredRecord| {
        std::str::from_utf8(&record.bytes)
            .ok()
            .and_then(|text| text.parse().ok())
            .expect("the test appended a number")
    };
    records.iter().map(number).collect()
}

async fn open_group(store: &dyn Store, state: &dyn State, group: PartitionGroup) -> OpenedGroup {
    let partitions = store.partitioning().partitions_of(group).collect();
    within("open", state.open(group, partitions)).await.expect("the group can be opened")
}

fn write(partition: Partition, key: &str, value: &str) -> StateWrite {
    StateWrite {
        partition,
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: Some(Bytes::copy_from_slice(value.as_bytes())),
    }
}

fn delete(partition: Partition, key: &str) -> StateWrite {
    StateWrite { partition, key: Bytes::copy_from_slice(key.as_bytes()), value: None }
}

/// Commits as an owner does: an unknown outcome is repeated.
async fn commit(writer: &mut dyn StateWriter, commit: impl Into<Commit>) -> CommitOutcome {
    let commit = commit.into();
    for _ in 0..20 {
        match within("commit", writer.commit(commit.clone())).await {
            CommitOutcome::Unknown => {}
            known @ (CommitOutcome::Committed | CommitOutcome::Fenced) => return known,
        }
    }
    panic!("the outcome of a commit stays unknown");
}

/// What a group holds, sorted, as `(partition, key, value)`.
fn contents(opened: &OpenedGroup) -> Vec<(u16, String, String)> {
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    let mut contents: Vec<_> = opened
        .entries
        .iter()
        .map(|entry| (entry.partition.0, text(&entry.key), text(&entry.value)))
        .collect();
    contents.sort();
    contents
}

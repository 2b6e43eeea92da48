//! Promises about retained messages.

use super::{Store, within};
use crate::log::AppendError;
use crate::log::retained::{LOAD_BYTES_MAX, LOAD_ENTRIES_MAX, RetainedEntry, RetainedLog, RetainedVersion};
use bytes::Bytes;
use bytestring::ByteString;
use std::sync::Arc;
use tokio::sync::oneshot;

/// A store that keeps retained messages, too.
pub trait RetainingStore: Store {
    /// Those of the broker that was opened last; opens one if there is none.
    fn retained(&self) -> Arc<dyn RetainedLog>;
}

/// Makes one `#[tokio::test]` of every promise about retained messages. `$open` is an expression that makes a
/// [`RetainingStore`].
#[macro_export]
macro_rules! retained_conformance {
    ($open:expr) => {
        $crate::log_conformance!(@tests $open;
            retained: a_new_store_has_no_retained_message
            retained: the_last_message_of_each_topic_is_loaded_also_after_a_restart
            retained: changes_keep_their_order_whether_or_not_somebody_waits
            retained: versions_grow_also_over_a_restart
            retained: what_nobody_waits_for_is_stored_before_the_log_closes
            retained: a_closed_store_answers_closed
            retained: everything_is_loaded_once_in_order_and_in_bounded_pieces
            retained: the_longest_topic_is_stored
            retained: after_a_flood_the_store_is_relieved
        );
    };
}

type Stored = oneshot::Receiver<Result<RetainedVersion, AppendError>>;

fn start(log: &dyn RetainedLog, topic: &str, message: Option<&str>) -> Stored {
    let (answer, stored) = oneshot::channel();
    let done = Box::new(move |outcome| drop(answer.send(outcome)));
    log.store(&ByteString::from(topic), bytes(message), Some(done));
    stored
}

fn start_lazily(log: &dyn RetainedLog, topic: &str, message: Option<&str>) {
    log.store(&ByteString::from(topic), bytes(message), None);
}

fn bytes(message: Option<&str>) -> Option<Bytes> {
    message.map(|message| Bytes::copy_from_slice(message.as_bytes()))
}

async fn stored(stored: Stored) -> RetainedVersion {
    within("store", stored).await.expect("every change is answered").expect("the change is stored")
}

async fn store(log: &dyn RetainedLog, topic: &str, message: Option<&str>) -> RetainedVersion {
    stored(start(log, topic, message)).await
}

async fn load(log: &dyn RetainedLog) -> Vec<RetainedEntry> {
    let mut all: Vec<RetainedEntry> = Vec::new();
    loop {
        let after = all.last().map(|last| last.topic.clone());
        let more = within("load", log.load(after)).await.expect("retained messages can be loaded");
        if more.is_empty() {
            return all;
        }
        assert!(more.len() <= LOAD_ENTRIES_MAX, "{} at once", more.len());
        let but_last: usize = more.iter().rev().skip(1).map(|entry| entry.message.len()).sum();
        assert!(but_last < LOAD_BYTES_MAX, "{but_last} bytes before the last message");
        all.extend(more);
    }
}

fn texts(entries: &[RetainedEntry]) -> Vec<(String, String)> {
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    entries.iter().map(|entry| (text(&entry.topic), text(&entry.message))).collect()
}

fn pair(topic: &str, message: &str) -> (String, String) {
    (topic.to_owned(), message.to_owned())
}

/// Nothing is there that nobody stored.
pub async fn a_new_store_has_no_retained_message(store: &dyn RetainingStore) {
    assert_eq!(load(&*store.retained()).await, []);
}

/// Of each topic its last message is loaded, and none of a topic that was cleared.
pub async fn the_last_message_of_each_topic_is_loaded_also_after_a_restart(brokers: &dyn RetainingStore) {
    let log = brokers.retained();
    for (topic, message) in [("a", "1"), ("b", "1"), ("c", "1"), ("a", "2")] {
        store(&*log, topic, Some(message)).await;
    }
    store(&*log, "b", None).await;
    store(&*log, "never there", None).await;
    let expected = [pair("a", "2"), pair("c", "1")];
    assert_eq!(texts(&load(&*log).await), expected);
    drop(log);

    brokers.restart().await;

    assert_eq!(texts(&load(&*brokers.retained()).await), expected);
}

/// Replacements in quick succession: the last one is there, and once one is answered, those before it are durable.
pub async fn changes_keep_their_order_whether_or_not_somebody_waits(brokers: &dyn RetainingStore) {
    let log = brokers.retained();
    for round in 0..50 {
        let mut waiting = Vec::new();
        for number in 0..40 {
            let (topic, text) = (format!("t{}", number % 3), format!("{round} {number}"));
            let message = (number % 7 != 6).then_some(text.as_str());
            if number % 2 == 0 {
                waiting.push(start(&*log, &topic, message));
            } else {
                start_lazily(&*log, &topic, message);
            }
        }
        let last = start(&*log, "last", None);
        for change in waiting {
            stored(change).await;
        }
        stored(last).await;

        let expected = [
            pair("t0", &format!("{round} 39")),
            pair("t1", &format!("{round} 37")),
            pair("t2", &format!("{round} 38")),
        ];
        assert_eq!(texts(&load(&*log).await), expected);
    }
}

/// Each change has a higher version than those before it, clearing included; what is loaded has the version that its
/// change was answered with.
pub async fn versions_grow_also_over_a_restart(brokers: &dyn RetainingStore) {
    let log = brokers.retained();
    let mut last = store(&*log, "kept", Some("x")).await;
    let kept = last;
    for number in 0..10 {
        let message = (number % 3 > 0).then_some("y");
        let started = [start(&*log, "t", message), start(&*log, "u", Some("z")), start(&*log, "t", None)];
        for change in started {
            let version = stored(change).await;
            assert!(version > last, "{version} after {last}");
            last = version;
        }
    }
    drop(log);

    brokers.restart().await;

    let log = brokers.retained();
    let entries = load(&*log).await;
    assert_eq!(texts(&entries), [pair("kept", "x"), pair("u", "z")]);
    assert_eq!(entries.first().map(|entry| entry.version), Some(kept));
    let version = store(&*log, "t", Some("after")).await;
    assert!(version > last, "{version} after {last}");
}

/// Closing commits everything that was handed over.
pub async fn what_nobody_waits_for_is_stored_before_the_log_closes(brokers: &dyn RetainingStore) {
    let handles = brokers.open().await;
    let log = brokers.retained();
    for number in 0..3_000 {
        start_lazily(&*log, &format!("t{:04}", number % 2_000), Some(&number.to_string()));
    }

    within("close", handles.log.close()).await;
    drop((handles, log));
    brokers.restart().await;

    let entries = texts(&load(&*brokers.retained()).await);
    assert_eq!(entries.len(), 2_000);
    for (topic, message) in entries {
        let (number, message): (u32, u32) =
            (topic[1..].parse().expect("a number"), message.parse().expect("a number"));
        assert_eq!(message, if number < 1_000 { number + 2_000 } else { number }, "{topic}");
    }
}

/// What comes after the end is refused, never left without an answer.
pub async fn a_closed_store_answers_closed(brokers: &dyn RetainingStore) {
    let handles = brokers.open().await;
    let log = brokers.retained();
    within("close", handles.log.close()).await;

    let answer = within("store", start(&*log, "t", Some("late"))).await.expect("every change is answered");

    assert_eq!(answer, Err(AppendError::Closed));
    start_lazily(&*log, "t", Some("later"));
    assert!(!log.is_congested());
}

/// However many there are: pieces have a bound in number and in bytes.
pub async fn everything_is_loaded_once_in_order_and_in_bounded_pieces(brokers: &dyn RetainingStore) {
    const MESSAGES: usize = LOAD_ENTRIES_MAX + LOAD_ENTRIES_MAX / 2;
    let log = brokers.retained();
    let large = "x".repeat(LOAD_BYTES_MAX / 3);
    for number in 0..MESSAGES {
        let message = if number % 1_000 == 0 { large.as_str() } else { "small" };
        start_lazily(&*log, &format!("t/{number:05}"), Some(message));
    }
    store(&*log, "t", Some("last")).await;
    within("relieved", log.relieved()).await;

    let entries = load(&*log).await;

    assert_eq!(entries.len(), MESSAGES + 1);
    assert!(entries.is_sorted_by(|left, right| left.topic < right.topic), "each once, in order");
}

/// A topic may have 65,535 bytes.
pub async fn the_longest_topic_is_stored(brokers: &dyn RetainingStore) {
    let log = brokers.retained();
    let topic = "t".repeat(65_535);

    store(&*log, &topic, Some("far")).await;

    assert_eq!(texts(&load(&*log).await), [pair(&topic, "far")]);
}

/// More is handed over than a store likes; it takes it all and then says that there is room.
pub async fn after_a_flood_the_store_is_relieved(brokers: &dyn RetainingStore) {
    let log = brokers.retained();
    for number in 0..40_000 {
        start_lazily(&*log, &format!("t{}", number % 10), Some(&number.to_string()));
    }

    within("relief", log.relieved()).await;

    assert!(!log.is_congested());
    store(&*log, "t", Some("goes on")).await;
    let expected: Vec<_> =
        (0..10).map(|number| pair(&format!("t{number}"), &format!("{}", 39_990 + number))).collect();
    assert_eq!(texts(&load(&*log).await)[1..], expected[..]);
}

//! Reads the state of a group after its former owners were fenced.

use super::Opening;
use crate::log::kafka::clients::state_consumer;
use crate::log::kafka::watermarks::watermarks;
use crate::log::state::StateEntry;
use bytes::Bytes;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::message::Message;
use rdkafka::{Offset as KafkaOffset, TopicPartitionList};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tidemill_core::partition::Partition;

/// Pause before the last stable offset is asked for again.
const STABLE_PAUSE: Duration = Duration::from_millis(20);
/// Bound of one wait for a record.
const POLL_MAX: Duration = Duration::from_millis(100);

/// The last value of every key. The error says what stood in the way.
///
/// The end is found by the end-of-partition event and not by comparing offsets, because the markers of transactions
/// take offsets that are never read. That event comes at the last stable offset, so first this must have reached the
/// high watermark: otherwise an open transaction hides what is behind it.
pub(super) fn load(opening: &Opening, deadline: Instant) -> Result<Vec<StateEntry>, String> {
    let topic = opening.settings.topics.state();
    let consumer = state_consumer(&opening.settings).map_err(|error| error.to_string())?;
    let mut assignment = TopicPartitionList::new();
    let mut unfinished = BTreeSet::new();
    for partition in &opening.partitions {
        let (_, high) = watermarks(&opening.probe, &topic, *partition).map_err(|error| error.to_string())?;
        let low = wait_until_stable(&consumer, &topic, *partition, high, deadline)?;
        if low == high {
            continue;
        }
        assignment
            .add_partition_offset(&topic, partition.0.into(), KafkaOffset::Offset(low))
            .map_err(|error| error.to_string())?;
        unfinished.insert(i32::from(partition.0));
    }
    let mut entries = BTreeMap::new();
    if !unfinished.is_empty() {
        consumer.assign(&assignment).map_err(|error| error.to_string())?;
    }
    while !unfinished.is_empty() {
        match consumer.poll(POLL_MAX) {
            Some(Ok(message)) => {
                let partition = u16::try_from(message.partition()).map_err(|error| error.to_string())?;
                let key = Bytes::copy_from_slice(message.key().unwrap_or_default());
                match message.payload() {
                    Some(value) => entries.insert((partition, key), Bytes::copy_from_slice(value)),
                    None => entries.remove(&(partition, key)),
                };
            }
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                unfinished.remove(&partition);
            }
            // Connections come and go; the deadline decides.
            Some(Err(error)) => tracing::debug!(%error, topic, "loading the state"),
            None => {}
        }
        if Instant::now() > deadline {
            return Err(format!("the end of {} of its partitions was not reached", unfinished.len()));
        }
    }
    // Closing it takes the client 100 ms, for which nobody needs to wait.
    tokio::task::spawn_blocking(move || drop(consumer));
    let entry = |((partition, key), value)| StateEntry { partition: Partition(partition), key, value };
    Ok(entries.into_iter().map(entry).collect())
}

/// Waits until everything below `high` is decided; answers the first offset.
fn wait_until_stable<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    topic: &str,
    partition: Partition,
    high: i64,
    deadline: Instant,
) -> Result<i64, String> {
    loop {
        let (low, stable) = watermarks(consumer, topic, partition).map_err(|error| error.to_string())?;
        if stable >= high {
            return Ok(low);
        }
        if Instant::now() > deadline {
            return Err(format!(
                "partition {}: an open transaction holds the state at offset {stable} of {high}",
                partition.0
            ));
        }
        std::thread::sleep(STABLE_PAUSE);
    }
}

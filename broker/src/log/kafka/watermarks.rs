//! Asks the leader of a partition where it begins and ends.

use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use std::time::{Duration, Instant};
use tidemill_core::partition::Partition;

/// Bound of one question, with its repeats.
const ASK_MAX: Duration = Duration::from_secs(5);
/// Pause before a question is repeated that came while the leader changed.
const ASK_PAUSE: Duration = Duration::from_millis(50);

/// First offset and end of `partition`. The end is the high watermark for a consumer that reads uncommitted, else the
/// last stable offset. Blocks.
pub(super) fn watermarks<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    topic: &str,
    partition: Partition,
) -> KafkaResult<(i64, i64)> {
    let deadline = Instant::now() + ASK_MAX;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match consumer.fetch_watermarks(topic, partition.0.into(), left) {
            Err(error) if is_passing(&error) && left > ASK_PAUSE => std::thread::sleep(ASK_PAUSE),
            answer => return answer,
        }
    }
}

/// Whether `error` is that of a leader that moves or is being found. The topics were checked when the broker started, so
/// one that is unknown is unknown only for now.
fn is_passing(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            RDKafkaErrorCode::NotLeaderForPartition
                | RDKafkaErrorCode::LeaderNotAvailable
                | RDKafkaErrorCode::OffsetNotAvailable
                | RDKafkaErrorCode::FencedLeaderEpoch
                | RDKafkaErrorCode::UnknownLeaderEpoch
                | RDKafkaErrorCode::BrokerTransportFailure
                | RDKafkaErrorCode::UnknownPartition
                | RDKafkaErrorCode::UnknownTopic
                | RDKafkaErrorCode::UnknownTopicOrPartition
        )
    )
}

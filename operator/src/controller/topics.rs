//! The Kafka topics of a cluster, as the operator looks at them. What they must be is in `tidemill_contract::topics`.
//! Pure.

use crate::controller::validate::{Store, ValidatedCluster};
use std::collections::BTreeMap;
use tidemill_contract::topics::{self, ObservedTopic, Topic, TopicNumbers};

/// What a look at Kafka showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KafkaObservation {
    /// It did not answer in time, or refused.
    Unreachable {
        /// In plain words.
        reason: String,
    },
    /// It answered.
    Reached {
        /// Those of the topics asked for that exist.
        topics: BTreeMap<String, ObservedTopic>,
    },
}

/// The topics of `cluster`, in order of creation. None for an embedded one.
#[must_use]
pub fn desired_topics(cluster: &ValidatedCluster) -> Vec<Topic> {
    let Store::Kafka { kafka, topics: names } = &cluster.store else { return Vec::new() };
    let numbers = TopicNumbers {
        partitions: kafka.partitions,
        replication_factor: kafka.replication_factor,
        min_in_sync_replicas: kafka.min_in_sync_replicas,
        maximum_packet_bytes: cluster.config.limits.maximum_packet_bytes,
    };
    topics::desired_topics(names, numbers)
}

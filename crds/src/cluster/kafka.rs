//! Where messages and state are kept.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const GROUPS_RULE: &str = "!has(self.partitionGroups) || self.partitionGroups <= self.partitions";
/// Writing down what the default is, or leaving it out again, is no change.
const GROUPS_STAY_RULE: &str = "(has(self.partitionGroups) ? self.partitionGroups : (self.partitions < 16 ? self.partitions : 16)) \
     == (has(oldSelf.partitionGroups) ? oldSelf.partitionGroups : (oldSelf.partitions < 16 ? oldSelf.partitions : 16))";

/// Kafka as the log and the state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = Rule::new("has(self.topicPrefix) == has(oldSelf.topicPrefix)")
        .message("topicPrefix cannot change: the messages would stay behind")
        .field_path(".topicPrefix"),
    validation = Rule::new("self.minInSyncReplicas <= self.replicationFactor")
        .message("minInSyncReplicas must not exceed replicationFactor, or nothing could be written")
        .field_path(".minInSyncReplicas"),
    validation = Rule::new(GROUPS_RULE)
        .message("partitionGroups must not exceed partitions")
        .field_path(".partitionGroups"),
    validation = Rule::new(GROUPS_STAY_RULE).message("partitionGroups cannot change").field_path(".partitionGroups")
)]
#[serde(rename_all = "camelCase")]
pub struct Kafka {
    /// `host:port,host:port` of Kafka's brokers.
    #[schemars(length(min = 3, max = 2048), regex(pattern = "^[^,\\s]+:[0-9]+(,[^,\\s]+:[0-9]+)*$"))]
    pub bootstrap_servers: String,
    /// Prefix of the topics. Default: `<namespace>.<name>`. Cannot change.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 200), regex(pattern = "^[a-zA-Z0-9._-]+$"))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("topicPrefix cannot change: the messages would stay behind"))]
    pub topic_prefix: Option<String>,
    /// Replicas of every topic. 1 is not power-loss durable.
    #[serde(default = "default_replication_factor")]
    #[schemars(range(min = 1, max = 100))]
    pub replication_factor: i16,
    /// `min.insync.replicas` of every topic.
    #[serde(default = "default_min_in_sync_replicas")]
    #[schemars(range(min = 1, max = 100))]
    pub min_in_sync_replicas: i16,
    /// Partitions of every topic, 1 to 64. Cannot change.
    #[serde(default = "default_partitions")]
    #[schemars(range(min = 1, max = 64))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("partitions cannot change: queues would be looked for in other partitions"))]
    pub partitions: u16,
    /// Partition groups, the unit that a broker owns; 1 to `partitions`. Default: 16, or `partitions` if these are fewer.
    /// Cannot change.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub partition_groups: Option<u16>,
    /// Who makes the topics.
    #[serde(default)]
    pub topic_management: TopicManagement,
}

/// Who makes the topics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Default)]
pub enum TopicManagement {
    /// The operator creates missing topics, and checks the others. It never deletes or alters one.
    #[default]
    Managed,
    /// The operator only checks them.
    Observe,
}

/// The embedded log of a single broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = Rule::new(GROUPS_RULE)
        .message("partitionGroups must not exceed partitions")
        .field_path(".partitionGroups"),
    validation = Rule::new(GROUPS_STAY_RULE).message("partitionGroups cannot change").field_path(".partitionGroups"),
    validation = Rule::new("!has(self.syncIntervalMs) || (has(self.durability) && self.durability == 'interval')")
        .message("syncIntervalMs only has a meaning with durability: interval")
        .field_path(".syncIntervalMs")
)]
#[serde(rename_all = "camelCase")]
pub struct Embedded {
    /// Partitions of the log, 1 to 64. Cannot change.
    #[serde(default = "default_partitions")]
    #[schemars(range(min = 1, max = 64))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("partitions cannot change: queues would be looked for in other partitions"))]
    pub partitions: u16,
    /// Partition groups, 1 to `partitions`. Default: 16, or `partitions` if these are fewer. Cannot change.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub partition_groups: Option<u16>,
    /// When a message is safe. Default: `fsync`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durability: Option<Durability>,
    /// Milliseconds between two syncs, 1 to 60,000. Only with `durability: interval`. Default: 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 60_000))]
    pub sync_interval_ms: Option<u32>,
}

/// When a message is safe, and with it what a power cut can take: `fsync` nothing that was acknowledged, `interval`
/// what came since the last sync, `none` what the system had not written to the disk. Default: `fsync`.
// What describes an optional enum in the definition is the description of its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// When it is synced.
    Fsync,
    /// When it is written; it is synced every `syncIntervalMs`.
    Interval,
    /// When it is written; the system decides when it reaches the disk.
    None,
}

fn default_replication_factor() -> i16 {
    3
}

fn default_min_in_sync_replicas() -> i16 {
    2
}

fn default_partitions() -> u16 {
    32
}

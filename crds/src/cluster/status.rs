//! What is observed of a cluster. It holds nothing that changes by itself (no times of renewal, no counters of traffic).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Types of the conditions.
pub mod condition {
    /// Every broker is ready and runs the spec, and nothing is degraded.
    pub const READY: &str = "Ready";
    /// At least one broker is ready: clients can connect.
    pub const AVAILABLE: &str = "Available";
    /// Brokers are being added, removed or replaced.
    pub const PROGRESSING: &str = "Progressing";
    /// Something needs attention; the message says what.
    pub const DEGRADED: &str = "Degraded";
    /// The operator reaches Kafka.
    pub const KAFKA_READY: &str = "KafkaReady";
    /// The topics are there as the spec wants them.
    pub const TOPICS_READY: &str = "TopicsReady";
    /// Every broker holds its lease and every partition group has an owner.
    pub const MEMBERSHIP_HEALTHY: &str = "MembershipHealthy";
    /// `spec.paused` is set: nothing is changed.
    pub const PAUSED: &str = "Paused";
}

/// Observed state of a cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema, Default)]
#[serde(rename_all = "camelCase")]
pub struct MqttClusterStatus {
    /// Generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Broker pods that exist.
    #[serde(default)]
    pub replicas: i32,
    /// Broker pods that are ready.
    #[serde(default)]
    pub ready_replicas: i32,
    /// Broker pods that run the newest pod template.
    #[serde(default)]
    pub updated_replicas: i32,
    /// Label selector of the broker pods, for the scale subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Where clients connect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub endpoints: Vec<Endpoint>,
    /// The brokers, as their leases tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub members: Vec<MemberStatus>,
    /// Ownership of the partition groups. Absent without leases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition_groups: Option<PartitionGroupsStatus>,
    /// What holds and what does not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Where clients reach one listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// Name of the listener.
    pub name: String,
    /// URL inside the Kubernetes cluster, for example `mqtt://demo-mqtt.default.svc:1883`.
    pub url: String,
    /// Port on every node, for the Service types NodePort and LoadBalancer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_port: Option<i32>,
    /// Addresses given by the load balancer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub load_balancer: Vec<String>,
}

/// One broker, as its lease tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemberStatus {
    /// Member id: the pod's name.
    pub name: String,
    /// Member epoch: grows with every start of the broker. 0 before the first.
    pub epoch: i32,
    /// `Joining`, `Serving`, `Draining` or `Leaving`; `Absent` when nobody holds the lease.
    pub state: String,
    /// Number of partition groups it owns.
    pub partition_groups: i32,
}

/// Ownership of the partition groups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PartitionGroupsStatus {
    /// All groups of the cluster.
    pub total: i32,
    /// Groups with an owner.
    pub owned: i32,
    /// Groups that nobody serves.
    pub unowned: i32,
}

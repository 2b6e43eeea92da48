//! The broker's config file: YAML, unknown keys refused. Keys have the same names as in the `MqttCluster` spec.

mod check;
mod sections;
mod sessions;
mod shared;

pub use check::ConfigError;
pub use sections::*;
pub use sessions::{QueuePolicy, SessionQueue, Sessions};
pub use shared::{SharedGroup, SharedStrategy, SharedSubscriptions};

use serde::{Deserialize, Serialize};

/// The whole config file. Every key has a default, so that an empty file is the standalone broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Config {
    /// Member id of this broker; in a pod the pod's name. Default: the host's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
    /// Name of the cluster; leases are named after it.
    pub cluster: ClusterName,
    /// Where clients connect. Default: `mqtt://127.0.0.1:1883`.
    pub listeners: Listeners,
    /// Health, readiness, metrics and the admin API.
    pub admin: Admin,
    /// Where the embedded log and the lock of the data directory are.
    pub data: Data,
    /// Who may connect.
    pub auth: Auth,
    /// Records and state in Kafka. Without it they are in the embedded log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kafka: Option<Kafka>,
    /// The embedded log. Not with `kafka`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedded: Option<Embedded>,
    /// How brokers agree on membership and ownership.
    pub coordination: Coordination,
    /// Lease timings and the Kubernetes objects behind `coordination: kubernetes`.
    pub membership: Membership,
    /// Links to the other brokers. Needed with `coordination: kubernetes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peers: Option<Peers>,
    /// Persistent sessions.
    pub sessions: Sessions,
    /// Shared subscriptions. Not with `coordination: kubernetes`, which does not serve them yet.
    pub shared_subscriptions: SharedSubscriptions,
    /// What this broker says and checks beyond what MQTT asks of every one.
    pub mqtt: Mqtt,
    /// Bounds.
    pub limits: Limits,
    /// Threads that serve connections. Default: one up to two cores, else cores - 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u16>,
}

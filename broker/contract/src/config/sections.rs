//! The sections of the config file.

use serde::de::{Deserializer, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// Name of a cluster, default `tidemill`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClusterName(pub String);

impl Default for ClusterName {
    fn default() -> Self {
        Self("tidemill".into())
    }
}

/// The listeners, default one `mqtt` on `127.0.0.1:1883`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Listeners(pub Vec<Listener>);

impl Default for Listeners {
    fn default() -> Self {
        let address = format!("127.0.0.1:{}", crate::ports::MQTT);
        Self(vec![Listener { name: "mqtt".into(), protocol: Protocol::Mqtt, address }])
    }
}

/// One address that clients connect to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Listener {
    /// Unique name, for logs and metrics.
    pub name: String,
    /// What is spoken on it.
    pub protocol: Protocol,
    /// `host:port` to bind.
    pub address: String,
}

/// What a listener speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// MQTT over TCP.
    Mqtt,
}

/// The admin port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Admin {
    /// `host:port` to bind. `/v1` is served only when the host is a loopback address.
    pub address: String,
}

impl Default for Admin {
    fn default() -> Self {
        Self { address: format!("127.0.0.1:{}", crate::ports::ADMIN) }
    }
}

/// The data directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Data {
    /// Created when missing; locked by the broker that uses it.
    pub directory: PathBuf,
}

impl Default for Data {
    fn default() -> Self {
        Self { directory: PathBuf::from("./tidemill-data") }
    }
}

/// Who may connect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Auth {
    /// Let clients in without credentials, also beyond loopback. Loopback-only brokers let them in anyway.
    #[serde(deserialize_with = "plain_bool")]
    pub anonymous: bool,
}

/// Kafka as the log and the state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Kafka {
    /// `host:port,host:port`.
    pub bootstrap_servers: String,
    /// Prefix of the topics. Default: `<namespace>.<cluster>`, without Kubernetes `<cluster>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic_prefix: Option<String>,
    /// Partitions of every topic, 1 to 64, fixed at creation.
    #[serde(default = "default_partitions")]
    pub partitions: u16,
    /// Partition groups, 1 to `partitions`. Default: 16, or `partitions` if these are fewer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_groups: Option<u16>,
    /// Replicas of every topic. 1 is not power-loss durable.
    #[serde(default = "default_replication_factor")]
    pub replication_factor: i16,
    /// `min.insync.replicas` of every topic.
    #[serde(default = "default_min_in_sync_replicas")]
    pub min_in_sync_replicas: i16,
    /// Let the first broker create the topics. The operator does it in a cluster.
    #[serde(default, deserialize_with = "plain_bool")]
    pub create_topics: bool,
}

/// Partitions when nothing is said.
#[must_use]
pub fn default_partitions() -> u16 {
    32
}
/// Partition groups when nothing is said about them, but that there are so many `partitions`.
#[must_use]
pub fn default_partition_groups(partitions: u16) -> u16 {
    partitions.min(16)
}
/// Replication factor when nothing is said.
#[must_use]
pub fn default_replication_factor() -> i16 {
    3
}
/// `min.insync.replicas` when nothing is said.
#[must_use]
pub fn default_min_in_sync_replicas() -> i16 {
    2
}

/// The embedded log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Embedded {
    /// Partitions, 1 to 64, fixed when the data directory is created.
    pub partitions: u16,
    /// Partition groups, 1 to `partitions`. Default: 16, or `partitions` if these are fewer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition_groups: Option<u16>,
    /// When an append is done, and with it what a power cut can take.
    pub durability: Durability,
    /// Milliseconds between two syncs with `durability: interval`, 1 to 60000. Default: 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_interval_ms: Option<u32>,
}

impl Default for Embedded {
    fn default() -> Self {
        Self {
            partitions: default_partitions(),
            partition_groups: None,
            durability: Durability::default(),
            sync_interval_ms: None,
        }
    }
}

impl Embedded {
    /// Milliseconds between two syncs with `durability: interval` when nothing is said.
    pub const SYNC_INTERVAL_MS: u32 = 100;
}

/// When what the embedded log was given is done. A broker that is killed loses nothing in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// When it is synced: a power cut takes nothing that was acknowledged.
    #[default]
    Fsync,
    /// When it is written; it is synced every `syncIntervalMs`: a power cut can take what came since.
    Interval,
    /// When it is written; the system decides when it reaches the disk.
    None,
}

/// How brokers agree on membership and ownership.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Coordination {
    /// One broker: a lock on the data directory; it owns all groups.
    #[default]
    Local,
    /// Leases in a Kubernetes API.
    Kubernetes,
}

/// Lease timings and where the leases are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Membership {
    /// Namespace of the leases. Default: the pod's, or the kubeconfig's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Seconds without an observed change after which others may expire this broker. Default by member count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_duration_secs: Option<u16>,
    /// Seconds between renewals. Default by member count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renew_interval_secs: Option<u16>,
    /// Seconds after the start of the last successful renewal at which this broker stops. Default by member count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_after_secs: Option<u16>,
    /// Do not take a pod of the same name with another UID as proof that the former one is dead: wait out its lease.
    #[serde(deserialize_with = "plain_bool")]
    pub strict_identity: bool,
}

/// Links to the other brokers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Peers {
    /// `host:port` to bind.
    #[serde(default = "default_peer_address")]
    pub address: String,
    /// `host:port` that other brokers dial; announced in the member lease. Default in a pod: the pod's IP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advertised: Option<String>,
    /// Mutual TLS: the certificate's name is the member id.
    pub tls: PeerTls,
}

fn default_peer_address() -> String {
    format!("0.0.0.0:{}", crate::ports::PEERS)
}

/// The three files of a broker's mutual TLS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PeerTls {
    /// PEM file: the cluster's certificate authority.
    pub ca_file: PathBuf,
    /// PEM file: this broker's certificate.
    pub certificate_file: PathBuf,
    /// PEM file: its private key.
    pub key_file: PathBuf,
}

/// What MQTT leaves to the broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Mqtt {
    /// Longest keep alive in seconds: a 5.0 client that asks for more, or for none, is told to use this one and held to
    /// it. 3.x clients cannot be told. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maximum_keep_alive_secs: Option<u16>,
    /// What a 5.0 client that asks for response information gets; `{clientId}` stands for its client id. Default:
    /// nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_information: Option<String>,
    /// Refuse payloads that say they are UTF-8 and are not, with 0x99.
    #[serde(deserialize_with = "plain_bool")]
    pub check_payload_format: bool,
    /// Seconds between two publishes of `$SYS/broker/...`; 0 = never.
    pub sys_interval_secs: u32,
}

impl Default for Mqtt {
    fn default() -> Self {
        Self {
            maximum_keep_alive_secs: None,
            response_information: None,
            check_payload_format: false,
            sys_interval_secs: 10,
        }
    }
}

/// Bounds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Limits {
    /// Largest MQTT packet a client may send, in bytes.
    pub maximum_packet_bytes: u32,
    /// Connections at the same time.
    pub connections: u32,
    /// Unacknowledged QoS > 0 publishes of one client: the receive maximum told to 5.0 clients, applied to 3.x ones.
    pub receive_maximum: u16,
    /// QoS > 0 deliveries in flight to a 3.x client (a 5.0 client tells its own number).
    pub in_flight: u16,
    /// Messages waiting for one connection.
    pub mailbox_messages: u32,
    /// Bytes waiting for one connection.
    pub mailbox_bytes: u32,
    /// Subscriptions of one session.
    pub subscriptions: u32,
    /// Bytes of all retained messages, bookkeeping included. Nothing is retained with `coordination: kubernetes` yet.
    pub retained_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            maximum_packet_bytes: 1 << 20,
            connections: 1_000_000,
            receive_maximum: 1_000,
            in_flight: 100,
            mailbox_messages: 1_000,
            mailbox_bytes: 1 << 20,
            subscriptions: 10_000,
            retained_bytes: 256 << 20,
        }
    }
}

/// Reads `true` or `false`, not the text `"true"`: whoever quotes it may mean anything.
fn plain_bool<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    struct PlainBool;

    impl Visitor<'_> for PlainBool {
        type Value = bool;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("true or false, without quotes")
        }

        fn visit_bool<E>(self, value: bool) -> Result<bool, E> {
            Ok(value)
        }
    }

    deserializer.deserialize_any(PlainBool)
}

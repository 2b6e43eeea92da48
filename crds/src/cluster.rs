//! `MqttCluster`: one Tidemill cluster.

pub(crate) mod kafka;
pub(crate) mod listener;
pub(crate) mod sessions;
pub(crate) mod settings;
pub(crate) mod shared;
pub(crate) mod status;

use k8s_openapi::api::core::v1::ResourceRequirements;
use kafka::{Embedded, Kafka};
use kube::{CustomResource, KubeSchema};
use listener::Listener;
use serde::{Deserialize, Serialize};
use sessions::Sessions;
use settings::{Auth, Limits, Membership, Mqtt, Storage};
use shared::SharedSubscriptions;
use status::MqttClusterStatus;

/// A cluster of Tidemill MQTT brokers.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "tidemill.dev",
    version = "v1alpha1",
    kind = "MqttCluster",
    plural = "mqttclusters",
    shortname = "mqc",
    namespaced,
    doc = "A cluster of Tidemill MQTT brokers.",
    status = "MqttClusterStatus",
    derive = "PartialEq",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".spec.replicas"),
    printcolumn(name = "ReadyReplicas", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(
        name = "Kafka",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"KafkaReady\")].status"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 40 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')")
        .message("the name becomes part of pod and Service names: at most 40 of a-z, 0-9 and '-', starting with a letter")
)]
#[x_kube(
    validation = Rule::new("has(self.auth)")
        .message("auth is missing: say who may connect, for example auth: {anonymous: true}"),
    validation = Rule::new("has(self.kafka) != has(self.embedded)")
        .message("exactly one of kafka and embedded must be given: it is where messages are kept"),
    validation = Rule::new("has(self.kafka) == has(oldSelf.kafka)")
        .message("a cluster cannot switch between kafka and embedded: its messages would stay behind"),
    validation = Rule::new("!has(self.embedded) || self.replicas == 1")
        .message("embedded keeps everything in one broker: replicas must be 1"),
    validation = Rule::new("has(self.embedded) || !has(self.storage) || !has(self.storage.storageClassName)")
        .message("storageClassName is only for embedded: with kafka the volume is an emptyDir")
        .field_path(".storage.storageClassName"),
    validation = Rule::new("has(self.embedded) || !has(self.limits) || !has(self.limits.retainedBytes)")
        .message("retainedBytes is only for embedded: with kafka nothing is retained yet")
        .field_path(".limits.retainedBytes"),
    validation = Rule::new("has(self.embedded) || !has(self.sharedSubscriptions)")
        .message("sharedSubscriptions is only for embedded: with kafka shared subscriptions are not served yet")
        .field_path(".sharedSubscriptions"),
    validation = Rule::new("!has(self.embedded) || (has(self.storage) == has(oldSelf.storage) && (!has(self.storage) || self.storage == oldSelf.storage))")
        .message("storage of an embedded cluster cannot change yet: its volume claim is immutable")
        .field_path(".storage")
)]
#[serde(rename_all = "camelCase")]
pub struct MqttClusterSpec {
    /// Image of the brokers. Without it a new cluster takes the operator's default and keeps it, so that upgrading the
    /// operator restarts no broker.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,
    /// Number of brokers, 1 to 64.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 1, max = 64))]
    pub replicas: i32,
    /// Where clients connect, each with a Service of its own. Default: MQTT on port 1883.
    #[serde(default = "default_listeners")]
    #[schemars(length(min = 1, max = 16))]
    #[x_kube(
        merge_strategy = ListMerge::Map(vec!["name".into()]),
        validation = Rule::new("self.all(one, self.exists_one(other, other.port == one.port))")
            .message("two listeners have the same port")
    )]
    pub listeners: Vec<Listener>,
    /// Messages and state in Kafka. Either this or `embedded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kafka: Option<Kafka>,
    /// Messages and state on the volume of a single broker. Either this or `kafka`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedded: Option<Embedded>,
    /// Who may connect. Must be given: nothing is open by accident.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<Auth>,
    /// Persistent sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions: Option<Sessions>,
    /// How the members of shared subscriptions share: by `strategy`, unless `groups` names their group. Only with
    /// `embedded`: several brokers do not serve them yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_subscriptions: Option<SharedSubscriptions>,
    /// What MQTT leaves to the brokers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mqtt: Option<Mqtt>,
    /// Bounds of every broker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Threads of every broker that serve connections. Default: one up to two cores, else cores - 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub threads: Option<u16>,
    /// Lease timings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub membership: Option<Membership>,
    /// CPU and memory of every broker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// The volume of every broker: a claim with `embedded`, an emptyDir with `kafka`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
    /// Stop changing anything; the status is still reported.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
}

fn default_replicas() -> i32 {
    3
}

fn default_listeners() -> Vec<Listener> {
    vec![Listener::default_mqtt()]
}

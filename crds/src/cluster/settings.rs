//! Settings that go into every broker's config file, and its volume.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Who may connect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = Rule::new("self.anonymous")
    .message("nobody could connect: this version knows only auth: {anonymous: true}"))]
#[serde(rename_all = "camelCase")]
pub struct Auth {
    /// Let clients in without credentials. Must be `true`, because this version knows no other kind of access.
    #[serde(default)]
    pub anonymous: bool,
}

/// What MQTT leaves to the brokers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "camelCase")]
pub struct Mqtt {
    /// Longest keep alive in seconds of a 5.0 client; one that asks for more, or for none, is told to use this one.
    /// Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub maximum_keep_alive_secs: Option<u16>,
    /// What a 5.0 client that asks for response information gets; `{clientId}` stands for its client id. Default:
    /// nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub response_information: Option<String>,
    /// Refuse payloads that say they are UTF-8 and are not. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check_payload_format: Option<bool>,
    /// Seconds between two publishes of `$SYS/broker/...` by each broker; 0 = never. Default: 10.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub sys_interval_secs: Option<u32>,
}

/// Bounds of every broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// Largest MQTT packet a client may send, in bytes. Default: 1 MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 128, max = 268_435_455))]
    pub maximum_packet_bytes: Option<u32>,
    /// Connections at the same time. Default: 1,000,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4_294_967_295_u32))]
    pub connections: Option<u32>,
    /// Unacknowledged QoS > 0 publishes of one client. Default: 1,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub receive_maximum: Option<u16>,
    /// QoS > 0 deliveries in flight to a 3.x client. Default: 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub in_flight: Option<u16>,
    /// Messages waiting for one connection. Default: 1,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4_294_967_295_u32))]
    pub mailbox_messages: Option<u32>,
    /// Bytes waiting for one connection. Default: 1 MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4_294_967_295_u32))]
    pub mailbox_bytes: Option<u32>,
    /// Subscriptions of one session. Default: 10,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4_294_967_295_u32))]
    pub subscriptions: Option<u32>,
    /// Memory of all retained messages. Only with `embedded`: several brokers retain nothing yet. Default: 256 MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_099_511_627_776_u64))]
    pub retained_bytes: Option<u64>,
}

/// Lease timings. Without the three numbers brokers derive them from their count: 2/6/9 s up to 16 brokers, 5/15/20 s
/// up to 64.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema, Default)]
#[x_kube(
    validation = Rule::new("has(self.leaseDurationSecs) == has(self.renewIntervalSecs) && has(self.renewIntervalSecs) == has(self.stopAfterSecs)")
        .message("renewIntervalSecs, stopAfterSecs and leaseDurationSecs come together"),
    validation = Rule::new("!has(self.leaseDurationSecs) || !has(self.renewIntervalSecs) || !has(self.stopAfterSecs) || (self.stopAfterSecs > 2 * self.renewIntervalSecs && self.leaseDurationSecs >= self.stopAfterSecs + 3)")
        .message("stopAfterSecs must exceed twice renewIntervalSecs, and leaseDurationSecs must exceed stopAfterSecs by 3 or more")
)]
#[serde(rename_all = "camelCase")]
pub struct Membership {
    /// Seconds without an observed change after which others may expire a broker.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 6, max = 300))]
    pub lease_duration_secs: Option<u16>,
    /// Seconds between renewals.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 60))]
    pub renew_interval_secs: Option<u16>,
    /// Seconds after the last successful renewal at which a broker stops serving.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 3, max = 240))]
    pub stop_after_secs: Option<u16>,
    /// Do not take a new pod of the same name as proof that the former one is dead. For clusters where pods are deleted
    /// by force while their process may still run. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strict_identity: Option<bool>,
}

/// The volume of every broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// Size, for example `8Gi`. Default: 8Gi with `embedded`, 1Gi with `kafka`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 32),
        regex(pattern = "^[0-9]+(\\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$")
    )]
    pub size: Option<String>,
    /// Storage class of the volume claim. Default: the Kubernetes cluster's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class_name: Option<String>,
}

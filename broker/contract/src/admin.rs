//! Documents of the admin API.

pub mod sessions;

use serde::{Deserialize, Serialize};

/// An error answer, RFC 9457 `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// What kind of problem this is; stable for one kind.
    pub title: String,
    /// The HTTP status code.
    pub status: u16,
    /// What went wrong this time, naming the subject.
    pub detail: String,
}

/// Answer of `GET /v1/status`: what this broker is and how it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BrokerStatus {
    /// The broker's version.
    pub version: String,
    /// Member id: the pod's name in a cluster.
    pub member: String,
    /// Incarnation of this process, 16 hexadecimal digits.
    pub incarnation: String,
    /// Member epoch; 0 before the broker has joined.
    pub epoch: u64,
    /// Whether `/readyz` answers 200, and if not, why.
    pub ready: bool,
    /// What readiness still waits for; empty when ready.
    pub waiting_for: Vec<String>,
    /// The partition groups this broker owns.
    pub partition_groups: Vec<OwnedGroup>,
    /// All members this broker knows.
    pub members: Vec<MemberStatus>,
    /// Connected clients.
    pub connections: u64,
}

/// One partition group that a broker owns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnedGroup {
    /// Number of the group.
    pub group: u16,
    /// Owner epoch.
    pub epoch: u32,
    /// Whether its queues are served: the log and the state are open.
    pub serving: bool,
}

/// One member as a broker sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberStatus {
    /// Member id.
    pub member: String,
    /// Member epoch.
    pub epoch: u64,
    /// `Joining`, `Serving` or `Leaving`.
    pub state: String,
    /// Whether a peer link to it is up; always true for the broker itself.
    pub reachable: bool,
}

/// Answer of `GET /v1/retained`: some retained messages, in the order of their topics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RetainedPage {
    /// At most as many as were asked for; fewer, or none, if many topics had to be looked at.
    pub messages: Vec<RetainedSummary>,
    /// `after` of the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// One retained message without its payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RetainedSummary {
    /// Its topic.
    pub topic: String,
    /// QoS that it was published with.
    pub qos: u8,
    /// Bytes of its payload.
    pub payload_bytes: u64,
    /// When the broker took it, RFC 3339.
    pub publish_time: String,
    /// When it expires, RFC 3339; absent if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiry_time: Option<String>,
    /// Client id of its publisher.
    pub publisher: String,
}

/// Answer of `GET /v1/retained/{topic}`: one retained message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RetainedMessage {
    /// What the list tells of it.
    #[serde(flatten)]
    pub summary: RetainedSummary,
    /// The payload, base64 with padding.
    pub payload_base64: String,
    /// The payload as text, if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_text: Option<String>,
    /// 5.0 properties that the publisher gave it; absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub properties: Option<MessageProperties>,
}

/// The 5.0 properties of a message.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageProperties {
    /// Whether the publisher says that the payload is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_is_utf8: Option<bool>,
    /// Content type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Response topic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_topic: Option<String>,
    /// Correlation data, base64 with padding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_data_base64: Option<String>,
    /// User properties in their order; a name may come more than once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub user_properties: Vec<UserProperty>,
}

/// One user property.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UserProperty {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

//! Persistent sessions in the admin API.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Answer of `GET /v1/sessions`: some persistent sessions, in the order of their client ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionPage {
    /// At most as many as were asked for.
    pub sessions: Vec<SessionSummary>,
    /// `after` of the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// One persistent session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionSummary {
    /// Client id.
    pub client_id: String,
    /// Whether the client is connected.
    pub connected: bool,
    /// Member id of the broker that the client is connected to; absent while it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Protocol version of the last connection: `3.1`, `3.1.1` or `5.0`.
    pub protocol_version: String,
    /// Seconds that the session outlives its connection; absent if it never ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiry_secs: Option<u32>,
    /// When the session began, RFC 3339.
    pub created_time: String,
    /// When its last connection ended, RFC 3339; absent while it is connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disconnected_time: Option<String>,
    /// Number of its subscriptions.
    pub subscription_count: u64,
    /// What waits for it.
    pub lag: SessionLag,
    /// Messages at the client that it has not acknowledged.
    pub in_flight: u64,
    /// Messages that were sent and not acknowledged, those in flight and the parked ones too.
    pub unacknowledged: u64,
    /// Of these, those kept outside the log.
    pub parked: u64,
    /// Last acknowledgement, RFC 3339; absent if there was none since the broker serves the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_acknowledgement_time: Option<String>,
    /// Messages that were sent again since the broker serves the session.
    pub redeliveries: u64,
    /// Messages that were given up since the broker serves the session, by reason: `messages`, `bytes`, `age`,
    /// `expired`, `maxDeliveries`.
    pub dropped: BTreeMap<String, u64>,
}

/// What waits for a session: not sent yet, and not given up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionLag {
    /// Messages.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Seconds since the oldest was published, at most; absent when nothing waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_secs: Option<u64>,
}

/// Answer of `GET /v1/sessions/{clientId}`: one persistent session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    /// What the list tells of it.
    #[serde(flatten)]
    pub summary: SessionSummary,
    /// Its subscriptions: the plain ones in the order of their filters, then the shared ones.
    pub subscriptions: Vec<SessionSubscription>,
}

/// One subscription of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionSubscription {
    /// As the client wrote it, a shared one with `$share`.
    pub filter: String,
    /// Highest QoS.
    pub qos: u8,
    /// Whether the client's own messages are left out.
    pub no_local: bool,
    /// Whether messages keep their retain flag.
    pub retain_as_published: bool,
    /// 5.0 subscription identifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identifier: Option<u32>,
}

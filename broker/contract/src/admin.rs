//! Documents of the admin API.

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

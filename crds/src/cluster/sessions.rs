//! Persistent sessions: how long they last, and what their queues may hold.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Persistent sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "camelCase")]
pub struct Sessions {
    /// Longest session expiry in seconds; also the expiry of 3.1.1 sessions. Default: 7 days.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4_294_967_295_u32))]
    pub max_expiry_secs: Option<u32>,
    /// What the queue of a session may hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<SessionQueue>,
    /// Seconds after which a message that a connected client does not acknowledge is kept outside the log. Default:
    /// 3,600.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4_294_967_295_u32))]
    pub park_after_secs: Option<u32>,
    /// How often a message is sent to a session that does not acknowledge it. Default: for as long as it takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub max_deliveries: Option<u16>,
    /// Messages per second that one session gets of what has waited for it. Default: as many as it takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4_294_967_295_u32))]
    pub replay_per_session: Option<u32>,
    /// Messages per second that all sessions of each broker together get of what has waited for them. Default: as many
    /// as they take.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4_294_967_295_u32))]
    pub replay_total: Option<u32>,
}

/// What may wait for one session, and what happens beyond it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema, Default)]
#[serde(rename_all = "camelCase")]
pub struct SessionQueue {
    /// Messages. Default: 100,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_099_511_627_776_u64))]
    pub messages: Option<u64>,
    /// Bytes of the messages. Default: 256 MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_099_511_627_776_u64))]
    pub bytes: Option<u64>,
    /// Seconds after its publish from which on a message that still waits is dropped. Default: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4_294_967_295_u32))]
    pub age_secs: Option<u32>,
    /// What gives way. Default: `dropOldest`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<QueuePolicy>,
    /// Where `policy: deadLetter` publishes what gives way; `{clientId}` stands for the client id. Default:
    /// `$dead/{clientId}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(
        validation = Rule::new(r"!self.matches('[+#\\x00]') && self != '$SYS' && !self.startsWith('$SYS/')")
            .message("deadLetterTopic must be a topic name, without + and #, and not $SYS or below"),
        validation = Rule::new("!self.startsWith('$share/') && !self.startsWith('$queue/')")
            .message("nobody could receive deadLetterTopic: $share/ and $queue/ begin shared subscriptions"),
        validation = Rule::new(r"!self.replace('{clientId}', '').matches('[{][a-zA-Z0-9_.-]*[}]')")
            .message("deadLetterTopic must have no word in braces but {clientId}"),
        validation = Rule::new("bytes(self).size() <= 1024")
            .message("deadLetterTopic must have at most 1024 bytes")
    )]
    pub dead_letter_topic: Option<String>,
}

/// What gives way when the queue of a session is at its bounds: `dropOldest` what has waited longest, `dropNewest` what
/// comes, `deadLetter` what has waited longest, to another topic. Default: `dropOldest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum QueuePolicy {
    /// What has waited longest.
    DropOldest,
    /// What comes.
    DropNewest,
    /// What has waited longest, to another topic.
    DeadLetter,
}

//! The section of the config file about persistent sessions.

use super::check::{ConfigError, range};
use serde::{Deserialize, Serialize};

/// Persistent sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Sessions {
    /// Longest session expiry in seconds; also the expiry of 3.1.1 sessions.
    pub max_expiry_secs: u32,
    /// What the queue of a session may hold.
    pub queue: SessionQueue,
    /// Seconds after which a message that a connected client does not acknowledge is kept outside the log.
    pub park_after_secs: u32,
    /// How often a message is sent to a session that does not acknowledge it. Default: for as long as it takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_deliveries: Option<u16>,
    /// Messages per second that one session gets of what has waited for it. Default: as many as it takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay_per_session: Option<u32>,
    /// Messages per second that all sessions of this broker together get of what has waited for them. Default: as many
    /// as they take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay_total: Option<u32>,
}

impl Default for Sessions {
    fn default() -> Self {
        Self {
            max_expiry_secs: 7 * 24 * 3600,
            queue: SessionQueue::default(),
            park_after_secs: 3_600,
            max_deliveries: None,
            replay_per_session: None,
            replay_total: None,
        }
    }
}

/// What may wait for one session, and what happens beyond it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SessionQueue {
    /// Messages.
    pub messages: u64,
    /// Bytes of the messages.
    pub bytes: u64,
    /// Seconds after its publish from which on a message that still waits is dropped. Default: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_secs: Option<u32>,
    /// What gives way.
    pub policy: QueuePolicy,
    /// Where `policy: deadLetter` publishes what gives way; `{clientId}` stands for the client id.
    pub dead_letter_topic: String,
}

impl Default for SessionQueue {
    fn default() -> Self {
        Self {
            messages: 100_000,
            bytes: 256 << 20,
            age_secs: None,
            policy: QueuePolicy::default(),
            dead_letter_topic: "$dead/{clientId}".into(),
        }
    }
}

/// What gives way when the queue of a session is at its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub enum QueuePolicy {
    /// What has waited longest.
    #[default]
    DropOldest,
    /// What comes.
    DropNewest,
    /// What has waited longest, to another topic.
    DeadLetter,
}

const TOPIC_BYTES_MAX: usize = 1_024;

impl Sessions {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let queue = &self.queue;
        let at_least_1 = "at least 1";
        let numbers = [
            ("sessions.maxExpirySecs", Some(u64::from(self.max_expiry_secs))),
            ("sessions.queue.messages", Some(queue.messages)),
            ("sessions.queue.bytes", Some(queue.bytes)),
            ("sessions.queue.ageSecs", queue.age_secs.map(u64::from)),
            ("sessions.parkAfterSecs", Some(u64::from(self.park_after_secs))),
            ("sessions.maxDeliveries", self.max_deliveries.map(u64::from)),
            ("sessions.replayPerSession", self.replay_per_session.map(u64::from)),
            ("sessions.replayTotal", self.replay_total.map(u64::from)),
        ];
        for (key, value) in numbers {
            range(key, value.unwrap_or(1), 1..=u64::MAX, at_least_1)?;
        }
        let topic = &queue.dead_letter_topic;
        let refused = |allowed| {
            Err(ConfigError::Name {
                key: "sessions.queue.deadLetterTopic".into(),
                value: topic.clone(),
                allowed,
            })
        };
        let is_of_broker = topic == "$SYS" || topic.starts_with("$SYS/");
        let is_name = (1..=TOPIC_BYTES_MAX).contains(&topic.len()) && !topic.contains(['+', '#', '\0']);
        if !is_name || is_of_broker {
            return refused("a topic name of 1 to 1024 bytes, not $SYS or below");
        }
        if topic.starts_with("$share/") || topic.starts_with("$queue/") {
            return refused(
                "a topic that can be subscribed to: $share/ and $queue/ begin shared subscriptions",
            );
        }
        if has_word_in_braces(&topic.replace("{clientId}", "")) {
            return refused("no word in braces but {clientId}");
        }
        Ok(())
    }
}

/// Whether something like `{name}` is in `text`.
fn has_word_in_braces(text: &str) -> bool {
    let is_word =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte));
    text.split('{').skip(1).any(|rest| rest.split_once('}').is_some_and(|(word, _)| is_word(word)))
}

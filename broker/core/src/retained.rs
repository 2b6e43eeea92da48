//! The retained messages of a broker: the last message of each topic whose publisher asked to keep it.
//!
//! Topics are kept as a tree of levels with children in order, so that a search visits only what its filter can match,
//! and can stop anywhere and go on later while the store changes. `$`-topics have a tree of their own: wildcards at the
//! first level do not see them (MQTT-4.7.2-1).

pub mod stored;

mod node;
mod size;

use crate::message::Message;
use crate::topic::{TopicFilter, TopicName};
use node::{Node, Start, Walk};
use size::MessageSize;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Retained messages by topic.
///
/// Invariants: no message is empty; `bytes` is what messages, levels of topics and expiry times cost together, whatever
/// the order in which they came; every message with an expiry is in `expiring`.
#[derive(Debug, Default)]
pub struct RetainedStore {
    plain: Node,
    /// Topics whose first level begins with `$`.
    reserved: Node,
    messages: usize,
    bytes: usize,
    /// When each message with an expiry expires, milliseconds since the Unix epoch.
    expiring: BTreeSet<(u64, TopicName)>,
}

/// The message would take the store above its bound. Nothing changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("retained messages would have {bytes} bytes")]
pub struct StoreFull {
    /// What the store would have.
    pub bytes: usize,
}

/// Where a search goes on: the first place that it has not visited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position(Box<str>);

impl Position {
    /// As text, to be kept and handed back through [`Position::from_text`].
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The position that `text` stands for. Any text is one: a search goes on behind what sorts before it.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        Self(text.into())
    }
}

/// What to search for, and how far in one go.
#[derive(Debug, Clone, Copy)]
pub struct Search<'a> {
    /// Which topics.
    pub filter: &'a TopicFilter,
    /// Where to go on; `None` begins.
    pub from: Option<&'a Position>,
    /// Levels of topics that are visited at most, matching or not; at least 1. Bounds the time of one call.
    pub visits_max: usize,
    /// Now, milliseconds since the Unix epoch: what has expired is passed over.
    pub now_ms: u64,
}

impl RetainedStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many messages there are, perhaps some that have expired and are not swept yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.messages
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages == 0
    }

    /// Memory of everything in the store, bookkeeping included, by an estimate that does not fall below it by much.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The message of a topic, unless it has expired at `now_ms`.
    #[must_use]
    pub fn get(&self, topic: &TopicName, now_ms: u64) -> Option<&Arc<Message>> {
        let (found, _) = self.root(topic).find(topic.as_str());
        found.filter(|message| !message.is_expired(now_ms))
    }

    /// Retains `message` in place of the topic's former one, which is given back. An empty payload clears the topic
    /// (MQTT-3.3.1-6), and so does a message that has expired already.
    ///
    /// # Errors
    ///
    /// [`StoreFull`] if the store would have more than `bytes_max` bytes then: the former message is still there.
    pub fn set(
        &mut self,
        message: Arc<Message>,
        bytes_max: usize,
        now_ms: u64,
    ) -> Result<Option<Arc<Message>>, StoreFull> {
        if message.payload.is_empty() || message.is_expired(now_ms) {
            return Ok(self.clear(&message.topic));
        }
        let topic = message.topic.clone();
        let (former, levels_bytes) = self.root(&topic).find(topic.as_str());
        let former_bytes = former.map_or(0, |former| former.retained_bytes());
        let bytes = self.bytes - former_bytes + message.retained_bytes() + levels_bytes;
        if bytes > bytes_max {
            return Err(StoreFull { bytes });
        }
        self.bytes = bytes;
        if let Some(expires_ms) = message.expires_ms() {
            self.expiring.insert((expires_ms, topic.clone()));
        }
        let new_expires_ms = message.expires_ms();
        let former = self.root_mut(&topic).insert(topic.as_str(), message);
        match &former {
            None => self.messages += 1,
            Some(former) if former.expires_ms() != new_expires_ms => self.forget_expiry(former),
            Some(_) => {}
        }
        Ok(former)
    }

    /// Takes a topic's message away.
    pub fn clear(&mut self, topic: &TopicName) -> Option<Arc<Message>> {
        let (former, levels_bytes) = self.root_mut(topic).remove(topic.as_str())?;
        self.messages -= 1;
        self.bytes -= former.retained_bytes() + levels_bytes;
        self.forget_expiry(&former);
        Some(former)
    }

    /// Calls `visit` for the messages that match and have not expired, topics in the order of their levels, until it
    /// breaks: then this message has not been taken and comes first when the search goes on. Answers where that is,
    /// `None` at the end.
    ///
    /// What is there from the first call to the last comes exactly once, in the version that it then has.
    pub fn search<'a>(
        &'a self,
        search: Search<'_>,
        visit: impl FnMut(&'a Arc<Message>) -> ControlFlow<()>,
    ) -> Option<Position> {
        let filter = search.filter.as_str();
        let root = if filter.starts_with('$') { &self.reserved } else { &self.plain };
        let start = search.from.map_or(Start::Here, |position| Start::Below(&position.0));
        let mut walk = Walk::new(search.visits_max, search.now_ms, visit);
        match root.search(Some(filter), start, &mut walk) {
            ControlFlow::Continue(()) => None,
            ControlFlow::Break(()) => Some(Position(walk.stopped_at())),
        }
    }

    /// Whether some message has expired at `now_ms` and is still there.
    #[must_use]
    pub fn has_expired(&self, now_ms: u64) -> bool {
        self.expiring.first().is_some_and(|(expires_ms, _)| *expires_ms <= now_ms)
    }

    /// Takes away what has expired at `now_ms`, at most `messages_max` messages, and gives it back.
    pub fn sweep(&mut self, now_ms: u64, messages_max: usize) -> Vec<Arc<Message>> {
        let mut swept = Vec::new();
        while swept.len() < messages_max && self.has_expired(now_ms) {
            let Some((_, topic)) = self.expiring.pop_first() else { break };
            swept.extend(self.clear(&topic));
        }
        swept
    }

    fn forget_expiry(&mut self, message: &Message) {
        if let Some(expires_ms) = message.expires_ms() {
            self.expiring.remove(&(expires_ms, message.topic.clone()));
        }
    }

    fn root(&self, topic: &TopicName) -> &Node {
        if topic.is_reserved() { &self.reserved } else { &self.plain }
    }

    fn root_mut(&mut self, topic: &TopicName) -> &mut Node {
        if topic.is_reserved() { &mut self.reserved } else { &mut self.plain }
    }
}

#[cfg(test)]
mod tests;

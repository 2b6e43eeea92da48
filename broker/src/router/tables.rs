//! Who wants which filter: local receivers, groups that share, peers and partitions, in one table, so that a topic is matched once.
//!
//! Filters without wildcards are spread over shards, those with wildcards share one; each shard has a version, which
//! tells cached matches that they are stale.

use super::shared::ShareGroup;
use crate::cluster::LiveClass;
use crate::mailbox::Mailbox;
use parking_lot::RwLock;
use std::cmp::Ordering as Order;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidemill_core::member::MemberId;
use tidemill_core::packet::{QoS, SubscriptionOptions};
use tidemill_core::partition::Partition;
use tidemill_core::topic::{TopicFilter, TopicName};
use tidemill_core::trie::FilterTrie;

const SHARDS: usize = 64;

/// One local receiver of one filter. Two words, because there are millions.
#[derive(Debug, Clone)]
pub(super) struct Receiver {
    pub(super) mailbox: Arc<Mailbox>,
    /// 0 is no identifier, and no client may send it (MQTT-3.8.2.1.2).
    pub(super) identifier: Option<NonZeroU32>,
    pub(super) qos: QoS,
    pub(super) no_local: bool,
    pub(super) retain_as_published: bool,
    pub(super) class: LiveClass,
}

impl Receiver {
    pub(super) fn new(
        mailbox: Arc<Mailbox>,
        options: SubscriptionOptions,
        identifier: Option<u32>,
        class: LiveClass,
    ) -> Self {
        let SubscriptionOptions { qos, no_local, retain_as_published, retain_handling: _ } = options;
        let identifier = identifier.and_then(NonZeroU32::new);
        Self { mailbox, identifier, qos, no_local, retain_as_published, class }
    }
}

/// One peer, and what it wants.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PeerRoute {
    pub(super) member: MemberId,
    pub(super) class: LiveClass,
}

/// What a filter leads to. Ordered by what it names, not by how it wants to be served.
#[derive(Debug, Clone)]
pub(super) enum Entry {
    Local(Receiver),
    /// Apart, so that it does not make every entry larger.
    Peer(Box<PeerRoute>),
    Durable(Partition),
    Shared(Arc<ShareGroup>),
}

impl Entry {
    pub(super) fn peer(member: &MemberId, class: LiveClass) -> Self {
        Self::Peer(Box::new(PeerRoute { member: member.clone(), class }))
    }

    fn key(&self) -> (u8, u64, Option<&PeerRoute>) {
        match self {
            Self::Local(receiver) => (0, receiver.mailbox.id(), None),
            Self::Peer(route) => (1, 0, Some(route)),
            Self::Durable(partition) => (2, u64::from(partition.0), None),
            Self::Shared(group) => (3, u64::from(group.id().0), None),
        }
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Order {
        self.key().cmp(&other.key())
    }
}

/// The state of the tables that a match was computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MatchVersion {
    shard: usize,
    exact: u64,
    wildcard: u64,
}

struct Shard {
    version: AtomicU64,
    filters: RwLock<FilterTrie<Entry, RandomState>>,
}

impl Shard {
    fn new(hasher: &RandomState) -> Self {
        Self { version: AtomicU64::new(0), filters: RwLock::new(FilterTrie::with_hasher(hasher.clone())) }
    }
}

/// The tables.
pub(super) struct Tables {
    hasher: RandomState,
    exact: Vec<Shard>,
    wildcard: Shard,
}

impl Tables {
    pub(super) fn new() -> Self {
        let hasher = RandomState::new();
        let exact = (0..SHARDS).map(|_| Shard::new(&hasher)).collect();
        Self { exact, wildcard: Shard::new(&hasher), hasher }
    }

    /// Adds or replaces an entry. True if it is new.
    pub(super) fn insert(&self, filter: &TopicFilter, entry: Entry) -> bool {
        let shard = self.shard_of_filter(filter);
        let mut filters = shard.filters.write();
        let was_there = filters.remove(filter, &entry);
        filters.insert(filter, entry);
        shard.version.fetch_add(1, Ordering::Release);
        !was_there
    }

    /// Takes an entry away. True if it was there.
    pub(super) fn remove(&self, filter: &TopicFilter, entry: &Entry) -> bool {
        let shard = self.shard_of_filter(filter);
        let mut filters = shard.filters.write();
        let was_there = filters.remove(filter, entry);
        if was_there {
            shard.version.fetch_add(1, Ordering::Release);
        }
        was_there
    }

    /// Visits every entry that matches; the version is that from before, so that a change meanwhile makes it stale.
    pub(super) fn for_each_match(&self, topic: &TopicName, mut visit: impl FnMut(&Entry)) -> MatchVersion {
        let version = self.version_of(topic);
        if let Some(shard) = self.exact.get(version.shard) {
            shard.filters.read().for_each_match(topic, &mut visit);
        }
        self.wildcard.filters.read().for_each_match(topic, &mut visit);
        version
    }

    /// Whether a match computed at `version` still holds.
    pub(super) fn is_current(&self, version: MatchVersion) -> bool {
        let exact = self.exact.get(version.shard).map(|shard| shard.version.load(Ordering::Acquire));
        exact == Some(version.exact) && self.wildcard.version.load(Ordering::Acquire) == version.wildcard
    }

    fn version_of(&self, topic: &TopicName) -> MatchVersion {
        let shard = self.shard_number(topic.as_str());
        let exact = self.exact.get(shard).map_or(0, |shard| shard.version.load(Ordering::Acquire));
        MatchVersion { shard, exact, wildcard: self.wildcard.version.load(Ordering::Acquire) }
    }

    fn shard_of_filter(&self, filter: &TopicFilter) -> &Shard {
        if filter.has_wildcard() {
            return &self.wildcard;
        }
        self.exact.get(self.shard_number(filter.as_str())).unwrap_or(&self.wildcard)
    }

    fn shard_number(&self, text: &str) -> usize {
        usize::try_from(self.hasher.hash_one(text) >> 32).unwrap_or(0) % SHARDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_takes_two_words() {
        assert_eq!(size_of::<Entry>(), 16);
    }
}

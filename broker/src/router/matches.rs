//! What one topic leads to, computed once and cached by whoever publishes.

use super::tables::{Entry, MatchVersion, Receiver, Tables};
use crate::cluster::LiveClass;
use crate::mailbox::Mailbox;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tidemill_core::member::MemberId;
use tidemill_core::packet::QoS;
use tidemill_core::topic::TopicName;

/// Topics that one cache remembers; at the bound it starts anew.
const CACHED_TOPICS_MAX: usize = 256;

/// One local client that a topic reaches, whatever number of its subscriptions match.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) mailbox: Arc<Mailbox>,
    /// Highest QoS of the subscriptions that match.
    pub(super) qos: QoS,
    /// Served from memory only when published at QoS 0: above, its queue has the message.
    pub(super) class: LiveClass,
    pub(super) retain_as_published: bool,
    /// Of all subscriptions that match, ascending.
    pub(super) identifiers: Option<Arc<[u32]>>,
}

/// One peer with live receivers.
#[derive(Debug)]
pub(super) struct PeerTarget {
    pub(super) member: MemberId,
    pub(super) class: LiveClass,
}

/// Everything that one topic leads to.
#[derive(Debug)]
pub(super) struct Matches {
    version: MatchVersion,
    pub(super) targets: Vec<Target>,
    pub(super) peers: Vec<PeerTarget>,
    /// Partitions with interested queues, one bit each.
    pub(super) durable: u64,
}

/// Whose publish is matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Publisher {
    /// The local connection with this mailbox id: its own subscriptions may ask to be left out.
    Connection(u64),
    /// A peer, a will or the broker itself.
    Other,
}

impl Matches {
    /// The peers that a publish at `qos` goes to.
    pub(super) fn peers_of(&self, qos: QoS) -> impl Iterator<Item = &PeerTarget> {
        self.peers.iter().filter(move |peer| qos == QoS::AtMostOnce || peer.class == LiveClass::AnyQos)
    }

    pub(super) fn compute(tables: &Tables, topic: &TopicName, publisher: Publisher) -> Self {
        let mut local: BTreeMap<u64, Gathered> = BTreeMap::new();
        let mut peers: BTreeMap<MemberId, LiveClass> = BTreeMap::new();
        let mut durable = 0;
        let version = tables.for_each_match(topic, |entry| match entry {
            Entry::Local(receiver) => gather(&mut local, receiver, publisher),
            Entry::Peer(member, class) => {
                let known = peers.entry(member.clone()).or_insert(*class);
                *known = (*known).min(*class);
            }
            Entry::Durable(partition) => durable |= 1_u64 << (partition.0 % 64),
        });
        let targets = local.into_values().map(Gathered::into_target).collect();
        let peers = peers.into_iter().map(|(member, class)| PeerTarget { member, class }).collect();
        Self { version, targets, peers, durable }
    }
}

struct Gathered {
    mailbox: Arc<Mailbox>,
    qos: QoS,
    class: LiveClass,
    retain_as_published: bool,
    identifiers: Vec<u32>,
}

fn gather(local: &mut BTreeMap<u64, Gathered>, receiver: &Receiver, publisher: Publisher) {
    let id = receiver.mailbox.id();
    if receiver.options.no_local && publisher == Publisher::Connection(id) {
        return;
    }
    let gathered = local.entry(id).or_insert_with(|| Gathered {
        mailbox: Arc::clone(&receiver.mailbox),
        qos: QoS::AtMostOnce,
        class: LiveClass::AnyQos,
        retain_as_published: false,
        identifiers: Vec::new(),
    });
    gathered.qos = gathered.qos.max(receiver.options.qos);
    // One subscription above QoS 0 of a persistent session brings the message by its queue.
    gathered.class = gathered.class.max(receiver.class);
    gathered.retain_as_published |= receiver.options.retain_as_published;
    gathered.identifiers.extend(receiver.identifier);
}

impl Gathered {
    fn into_target(mut self) -> Target {
        self.identifiers.sort_unstable();
        self.identifiers.dedup();
        Target {
            mailbox: self.mailbox,
            qos: self.qos,
            class: self.class,
            retain_as_published: self.retain_as_published,
            identifiers: (!self.identifiers.is_empty()).then(|| self.identifiers.into()),
        }
    }
}

/// The matches of the topics that one publisher used lately, the last one at hand.
///
/// Bound: 256 topics. A cached match keeps mailboxes of closed connections alive, but not their sockets or buffers.
#[derive(Debug)]
pub struct RouteCache {
    publisher: Publisher,
    last: Option<(TopicName, Arc<Matches>)>,
    topics: HashMap<TopicName, Arc<Matches>>,
}

impl RouteCache {
    /// An empty cache for one publisher.
    #[must_use]
    pub fn new(publisher: Publisher) -> Self {
        Self { publisher, last: None, topics: HashMap::new() }
    }

    pub(super) fn look_up(&mut self, tables: &Tables, topic: &TopicName) -> Arc<Matches> {
        if let Some((last, matches)) = &self.last
            && last == topic
            && tables.is_current(matches.version)
        {
            return Arc::clone(matches);
        }
        let cached = self.topics.get(topic).filter(|matches| tables.is_current(matches.version));
        let matches = match cached {
            Some(matches) => Arc::clone(matches),
            None => {
                let matches = Arc::new(Matches::compute(tables, topic, self.publisher));
                if self.topics.len() >= CACHED_TOPICS_MAX {
                    self.topics.clear();
                }
                // A publisher of one topic needs no map.
                if self.last.as_ref().is_some_and(|(last, _)| last != topic) {
                    self.topics.insert(topic.clone(), Arc::clone(&matches));
                }
                matches
            }
        };
        self.last = Some((topic.clone(), Arc::clone(&matches)));
        matches
    }
}

//! What one topic leads to, computed once and cached by whoever publishes.

use super::shared::ShareGroup;
use super::tables::{Entry, MatchVersion, Receiver, Tables};
use crate::cluster::LiveClass;
use crate::mailbox::Mailbox;
use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
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
    /// Groups of which one member gets it, whatever else it gets.
    pub(super) groups: Vec<Arc<ShareGroup>>,
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
        let mut groups = Vec::new();
        let mut durable = 0;
        let version = tables.for_each_match(topic, |entry| match entry {
            Entry::Local(receiver) => gather(&mut local, receiver, publisher),
            Entry::Peer(route) => {
                let known = peers.entry(route.member.clone()).or_insert(route.class);
                *known = (*known).min(route.class);
            }
            Entry::Durable(partition) => durable |= 1_u64 << (partition.0 % 64),
            Entry::Shared(group) => groups.push(Arc::clone(group)),
        });
        let targets = local.into_values().map(Gathered::into_target).collect();
        let peers = peers.into_iter().map(|(member, class)| PeerTarget { member, class }).collect();
        Self { version, targets, groups, peers, durable }
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
    if receiver.no_local && publisher == Publisher::Connection(id) {
        return;
    }
    let gathered = local.entry(id).or_insert_with(|| Gathered {
        mailbox: Arc::clone(&receiver.mailbox),
        qos: QoS::AtMostOnce,
        class: LiveClass::AnyQos,
        retain_as_published: false,
        identifiers: Vec::new(),
    });
    gathered.qos = gathered.qos.max(receiver.qos);
    // One subscription above QoS 0 of a persistent session brings the message by its queue.
    gathered.class = gathered.class.max(receiver.class);
    gathered.retain_as_published |= receiver.retain_as_published;
    gathered.identifiers.extend(receiver.identifier.map(NonZeroU32::get));
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
    /// Only of a publisher of more than one topic. Boxed: who publishes nothing pays for it too.
    #[expect(clippy::box_collection, reason = "as said")]
    topics: Option<Box<HashMap<TopicName, Arc<Matches>>>>,
}

impl RouteCache {
    /// An empty cache for one publisher.
    #[must_use]
    pub fn new(publisher: Publisher) -> Self {
        Self { publisher, last: None, topics: None }
    }

    pub(super) fn look_up(&mut self, tables: &Tables, topic: &TopicName) -> Arc<Matches> {
        if let Some((last, matches)) = &self.last
            && last == topic
            && tables.is_current(matches.version)
        {
            return Arc::clone(matches);
        }
        let known = self.topics.as_ref().and_then(|topics| topics.get(topic));
        let cached = known.filter(|matches| tables.is_current(matches.version));
        let matches = match cached {
            Some(matches) => Arc::clone(matches),
            None => {
                let matches = Arc::new(Matches::compute(tables, topic, self.publisher));
                if self.last.as_ref().is_some_and(|(last, _)| last != topic) {
                    let topics = self.topics.get_or_insert_default();
                    if topics.len() >= CACHED_TOPICS_MAX {
                        topics.clear();
                    }
                    topics.insert(topic.clone(), Arc::clone(&matches));
                }
                matches
            }
        };
        self.last = Some((topic.clone(), Arc::clone(&matches)));
        matches
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mailbox::{Flush, MailboxContext, MailboxLimits, Probe};
    use crate::metrics::Metrics;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use tidemill_core::packet::{RetainHandling, SubscriptionOptions};
    use tidemill_core::partition::Partition;
    use tidemill_core::topic::TopicFilter;

    /// Few, so that filters meet each other and the topics.
    const FILTERS: [&str; 7] = ["a/b", "a/+", "a/#", "+/b", "#", "a", "b"];
    const TOPICS: [&str; 4] = ["a/b", "a", "b/b", "$a/b"];

    #[derive(Debug, Clone)]
    enum Step {
        Subscribe { client: usize, filter: usize, qos: u8, no_local: bool, identifier: Option<u32> },
        Unsubscribe { client: usize, filter: usize },
        Peer { is_there: bool, number: u8, filter: usize, class: LiveClass },
        Durable { is_there: bool, partition: u16, filter: usize },
    }

    fn step() -> impl Strategy<Value = Step> {
        let class = prop_oneof![Just(LiveClass::AnyQos), Just(LiveClass::QosZeroOnly)];
        let filter = 0..FILTERS.len();
        prop_oneof![
            (0..3_usize, filter.clone(), 0..2_u8, any::<bool>(), proptest::option::of(1..4_u32)).prop_map(
                |(client, filter, qos, no_local, identifier)| {
                    Step::Subscribe { client, filter, qos, no_local, identifier }
                }
            ),
            (0..3_usize, filter.clone()).prop_map(|(client, filter)| Step::Unsubscribe { client, filter }),
            (any::<bool>(), 0..2_u8, filter.clone(), class)
                .prop_map(|(is_there, number, filter, class)| Step::Peer { is_there, number, filter, class }),
            (any::<bool>(), 0..3_u16, filter).prop_map(|(is_there, partition, filter)| Step::Durable {
                is_there,
                partition,
                filter
            }),
        ]
    }

    /// The oracle: plain maps, searched filter by filter.
    #[derive(Default)]
    struct Model {
        local: BTreeMap<(usize, usize), (u8, bool, Option<u32>)>,
        peers: BTreeSet<(u8, usize, LiveClass)>,
        durable: BTreeSet<(u16, usize)>,
    }

    /// Client, QoS, class, identifiers.
    type ExpectedTarget = (usize, QoS, LiveClass, Vec<u32>);

    impl Model {
        fn targets(&self, topic: &TopicName, publisher: usize) -> Vec<ExpectedTarget> {
            let mut targets: BTreeMap<usize, ExpectedTarget> = BTreeMap::new();
            for ((client, filter), (qos, no_local, identifier)) in &self.local {
                let is_match = TopicFilter::parse(FILTERS[*filter]).unwrap().matches(topic);
                if !is_match || (*no_local && *client == publisher) {
                    continue;
                }
                let new = (*client, QoS::AtMostOnce, LiveClass::AnyQos, Vec::new());
                let target = targets.entry(*client).or_insert(new);
                target.1 = target.1.max(QoS::from_number(*qos).unwrap());
                target.2 = target.2.max(class_of(*client, *qos));
                target.3.extend(identifier);
            }
            let finish = |mut target: ExpectedTarget| {
                target.3.sort_unstable();
                target.3.dedup();
                target
            };
            targets.into_values().map(finish).collect()
        }
    }

    /// The third client has a persistent session.
    fn class_of(client: usize, qos: u8) -> LiveClass {
        if client == 2 && qos > 0 { LiveClass::QosZeroOnly } else { LiveClass::AnyQos }
    }

    fn mailboxes() -> Vec<Arc<Mailbox>> {
        let context = Arc::new(MailboxContext {
            limits: MailboxLimits { messages: 1, bytes: 1 },
            metrics: Metrics::new().unwrap(),
            may_acknowledge: Box::new(|| true),
        });
        let new = |_| Mailbox::new(Arc::clone(&context), Flush::Probe(Arc::new(Probe::default())));
        (0..3).map(new).collect()
    }

    fn apply(step: &Step, tables: &Tables, model: &mut Model, mailboxes: &[Arc<Mailbox>]) {
        let filter_of = |number: usize| TopicFilter::parse(FILTERS[number]).unwrap();
        let receiver = |client: usize, qos: u8, no_local: bool, identifier: Option<u32>| {
            let options = SubscriptionOptions {
                qos: QoS::from_number(qos).unwrap(),
                no_local,
                retain_as_published: false,
                retain_handling: RetainHandling::Send,
            };
            Receiver::new(Arc::clone(&mailboxes[client]), options, identifier, class_of(client, qos))
        };
        match *step {
            Step::Subscribe { client, filter, qos, no_local, identifier } => {
                tables.insert(&filter_of(filter), Entry::Local(receiver(client, qos, no_local, identifier)));
                model.local.insert((client, filter), (qos, no_local, identifier));
            }
            Step::Unsubscribe { client, filter } => {
                tables.remove(&filter_of(filter), &Entry::Local(receiver(client, 0, false, None)));
                model.local.remove(&(client, filter));
            }
            Step::Peer { is_there, number, filter, class } => {
                let entry = Entry::peer(&MemberId::new(&format!("peer-{number}")), class);
                if is_there {
                    tables.insert(&filter_of(filter), entry);
                    model.peers.insert((number, filter, class));
                } else {
                    tables.remove(&filter_of(filter), &entry);
                    model.peers.remove(&(number, filter, class));
                }
            }
            Step::Durable { is_there, partition, filter } => {
                let entry = Entry::Durable(Partition(partition));
                if is_there {
                    tables.insert(&filter_of(filter), entry);
                    model.durable.insert((partition, filter));
                } else {
                    tables.remove(&filter_of(filter), &entry);
                    model.durable.remove(&(partition, filter));
                }
            }
        }
    }

    proptest! {
        #[test]
        fn a_cached_match_is_what_the_subscriptions_say_after_every_change(
            steps in proptest::collection::vec((step(), 0..TOPICS.len()), 1..60),
        ) {
            let (tables, mailboxes) = (Tables::new(), mailboxes());
            let mut model = Model::default();
            let publisher = 0;
            let mut cache = RouteCache::new(Publisher::Connection(mailboxes[publisher].id()));
            for (step, topic) in steps {
                apply(&step, &tables, &mut model, &mailboxes);
                let topic = TopicName::parse(TOPICS[topic]).unwrap();
                let is_match = |filter: usize| TopicFilter::parse(FILTERS[filter]).unwrap().matches(&topic);

                let matches = cache.look_up(&tables, &topic);

                let client_of = |target: &Target| {
                    mailboxes.iter().position(|mailbox| mailbox.id() == target.mailbox.id()).unwrap()
                };
                let targets: Vec<ExpectedTarget> = matches
                    .targets
                    .iter()
                    .map(|target| {
                        let identifiers = target.identifiers.as_deref().unwrap_or_default().to_vec();
                        (client_of(target), target.qos, target.class, identifiers)
                    })
                    .collect();
                prop_assert_eq!(targets, model.targets(&topic, publisher));
                let peers_at = |qos| matches.peers_of(qos).count();
                let expected_at = |qos: QoS| {
                    let matching = model.peers.iter().filter(|(_, filter, _)| is_match(*filter));
                    let reached = matching
                        .filter(|(_, _, class)| qos == QoS::AtMostOnce || *class == LiveClass::AnyQos);
                    reached.map(|(number, _, _)| *number).collect::<BTreeSet<_>>().len()
                };
                for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
                    prop_assert_eq!(peers_at(qos), expected_at(qos));
                }
                let durable = model.durable.iter().filter(|(_, filter)| is_match(*filter));
                prop_assert_eq!(matches.durable, durable.fold(0, |bits, (partition, _)| bits | 1 << partition));
            }
        }
    }
}

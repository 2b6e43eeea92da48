//! What each peer has acknowledged, and which routes of which partition count.

use super::RouteSink;
use super::mirror::Mirror;
use super::own::{Delta, OwnRoutes};
use crate::cluster::ClusterView;
use crate::cluster::peer::lane::Crowding;
use crate::cluster::peer::link::Link;
use crate::cluster::wire::Body;
use crate::cluster::wire::routes::{PartitionChange, PartitionChangeKind, RouteAck};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use tidemill_core::member::{Member, MemberId, OwnerEpoch};
use tidemill_core::partition::{Partition, Partitioning};

/// One incarnation of a peer.
pub(super) struct Peer {
    member: Member,
    link: Option<Arc<Link>>,
    pub(super) mirror: Mirror,
    /// It has this broker's routes up to here.
    acknowledged: u64,
    /// Acknowledgements that name a data frame which was not handled yet, in order.
    waiting: VecDeque<RouteAck>,
}

impl Peer {
    /// Takes an acknowledgement; whether it counts already.
    pub(super) fn acknowledge(&mut self, ack: RouteAck, data_received: u64) -> bool {
        self.waiting.push_back(ack);
        self.count_acks(data_received)
    }

    /// Counts acknowledgements whose data frames were handled; whether there were any.
    pub(super) fn count_acks(&mut self, data_received: u64) -> bool {
        let mut counted = false;
        while let Some(ack) = self.waiting.front().copied() {
            if ack.data_sequence > data_received {
                break;
            }
            self.waiting.pop_front();
            self.acknowledged = self.acknowledged.max(ack.sequence);
            counted = true;
        }
        counted
    }
}

/// All peers that were ever linked and are members.
#[derive(Default)]
pub(super) struct Peers {
    peers: BTreeMap<MemberId, Peer>,
}

impl Peers {
    pub(super) fn start(&mut self, link: &Arc<Link>) {
        let member = link.peer().clone();
        let acknowledged = match self.peers.get(&member.id) {
            Some(peer) if peer.member == member => peer.acknowledged,
            Some(_) | None => 0,
        };
        let peer = Peer {
            member: member.clone(),
            link: Some(Arc::clone(link)),
            mirror: Mirror::default(),
            acknowledged,
            waiting: VecDeque::new(),
        };
        self.peers.insert(member.id, peer);
    }

    pub(super) fn stop(&mut self, link: &Arc<Link>) {
        if let Some(peer) = self.over(link) {
            peer.link = None;
            peer.waiting.clear();
        }
    }

    /// Whether an acknowledgement waits for a data frame.
    pub(super) fn acks_wait(&self) -> bool {
        self.peers.values().any(|peer| !peer.waiting.is_empty())
    }

    /// The peer whose present link this is.
    pub(super) fn over(&mut self, link: &Arc<Link>) -> Option<&mut Peer> {
        let peer = self.peers.get_mut(&link.peer().id)?;
        peer.link.as_ref().is_some_and(|current| Arc::ptr_eq(current, link)).then_some(peer)
    }

    pub(super) fn links(&self) -> Vec<Arc<Link>> {
        self.peers.values().filter_map(|peer| peer.link.clone()).collect()
    }

    fn get(&self, member: &Member) -> Option<&Peer> {
        self.peers.get(&member.id).filter(|peer| peer.member == *member)
    }

    pub(super) fn is_linked(&self, member: &Member) -> bool {
        self.get(member).is_some_and(|peer| peer.link.is_some())
    }

    pub(super) fn acknowledged(&self, member: &Member) -> u64 {
        self.get(member).map_or(0, |peer| peer.acknowledged)
    }

    /// Whether all routes of this incarnation are here.
    pub(super) fn is_complete(&self, member: &Member) -> bool {
        self.get(member).is_some_and(|peer| peer.mirror.sequence().is_some())
    }

    /// Forgets who is no member; returns them.
    pub(super) fn retain(&mut self, view: &ClusterView) -> Vec<Member> {
        let is_gone =
            |peer: &Peer| view.members.get(&peer.member.id).is_none_or(|info| info.member != peer.member);
        let gone: Vec<_> =
            self.peers.values().filter(|peer| is_gone(peer)).map(|peer| peer.member.clone()).collect();
        self.peers.retain(|_, peer| !is_gone(peer));
        gone
    }
}

/// Which owner epoch was heard last for each partition. Older speakers are not listened to.
pub(super) struct Heard {
    epochs: BTreeMap<Partition, OwnerEpoch>,
    all: BTreeSet<Partition>,
}

impl Heard {
    pub(super) fn new(partitioning: Partitioning) -> Self {
        Self { epochs: BTreeMap::new(), all: partitioning.partitions().collect() }
    }

    pub(super) fn unknown(&self) -> Vec<Partition> {
        self.all.iter().filter(|partition| !self.epochs.contains_key(partition)).copied().collect()
    }

    /// All routes of a peer.
    pub(super) fn replace(&mut self, member: &MemberId, all: &Delta, sink: Option<&dyn RouteSink>) {
        if let Some(sink) = sink {
            sink.replace_live(member, &all.live_added);
        }
        self.apply_partitions(&all.partitions, sink);
    }

    /// Changes of a peer's routes.
    pub(super) fn change(&mut self, member: &MemberId, delta: &Delta, sink: Option<&dyn RouteSink>) {
        if let Some(sink) = sink
            && !(delta.live_added.is_empty() && delta.live_removed.is_empty())
        {
            sink.apply_live(member, &delta.live_added, &delta.live_removed);
        }
        self.apply_partitions(&delta.partitions, sink);
    }

    /// Changes of this broker's own durable routes. Its live ones are the router's own business.
    pub(super) fn change_own(&mut self, delta: &Delta, sink: Option<&dyn RouteSink>) {
        self.apply_partitions(&delta.partitions, sink);
    }

    fn apply_partitions(&mut self, changes: &[PartitionChange], sink: Option<&dyn RouteSink>) {
        for change in changes {
            self.apply_partition(change, sink);
        }
    }

    fn apply_partition(&mut self, change: &PartitionChange, sink: Option<&dyn RouteSink>) {
        let heard = self.epochs.get(&change.partition).copied();
        if !self.all.contains(&change.partition) || heard.is_some_and(|heard| change.epoch < heard) {
            return;
        }
        match change.kind {
            // The routes stay valid until the next owner speaks.
            PartitionChangeKind::Releases => {}
            PartitionChangeKind::Replaces => {
                self.epochs.insert(change.partition, change.epoch);
                if let Some(sink) = sink {
                    sink.replace_partition(change.partition, &change.added);
                    if heard.is_none() {
                        sink.set_unknown_partitions(&self.unknown());
                    }
                }
            }
            PartitionChangeKind::Amends => {
                if let Some(sink) = sink.filter(|_| heard == Some(change.epoch)) {
                    sink.apply_partition(change.partition, &change.added, &change.removed);
                }
            }
        }
    }
}

/// Sends all routes. They may pass the bound of the queue: they are bounded by the table they come from.
pub(super) fn send_snapshot(own: &OwnRoutes, link: &Link) {
    for part in own.snapshot(link.data_sent()) {
        let _ = link.send(Body::RouteSnapshot(part), Crowding::Unbounded);
    }
}

/// Sends a change. A full lane has broken the link; the next one begins with a snapshot.
pub(super) fn send_delta(own: &OwnRoutes, delta: &Delta, link: &Link) {
    for part in own.delta_frames(delta, link.data_sent()) {
        if link.send(Body::RouteDelta(part), Crowding::Waits).is_err() {
            return;
        }
    }
}

/// Acknowledges the peer's routes up to `sequence`; `None` asks for all.
pub(super) fn send_ack(link: &Link, sequence: Option<u64>) {
    let ack = RouteAck {
        sequence: sequence.unwrap_or(0),
        data_sequence: link.data_sent(),
        wants_snapshot: sequence.is_none(),
    };
    let _ = link.send(Body::RouteAck(ack), Crowding::Waits);
}

//! A broker of the tests: a real cluster node, everything around it recorded.

use super::network::{Authority, Identity, Proxy};
use super::surroundings::{FakeCoordination, Seen, Surroundings};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tidemill_broker::cluster::node::{ClusterNode, LocalParts, PeerAccess};
use tidemill_broker::cluster::peer::handshake::LinkTerms;
use tidemill_broker::cluster::wire::routes::LiveKey;
use tidemill_broker::cluster::{
    ClusterView, DurableGate, GroupOwner, LiveClass, MemberInfo, Route, RouteChange,
};
use tidemill_core::member::{Incarnation, Member, MemberEpoch, MemberId, OwnerEpoch};
use tidemill_core::message::Message;
use tidemill_core::packet::QoS;
use tidemill_core::partition::{Partition, Partitioning};
use tidemill_core::record::{Origin, Record, RecordBody};
use tidemill_core::topic::{TopicFilter, TopicName};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Far beyond what anything here takes; a test that gets there has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// One broker.
pub(crate) struct TestNode {
    pub(crate) member: Member,
    pub(crate) node: Arc<ClusterNode>,
    pub(crate) around: Arc<Surroundings>,
    pub(crate) identity: Identity,
    /// Where it listens.
    pub(crate) address: String,
    /// What stands before it.
    pub(crate) proxy: Proxy,
    coordination: Arc<FakeCoordination>,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

pub(crate) fn member(id: &str, incarnation: u64) -> Member {
    Member { id: MemberId::new(id), incarnation: Incarnation(incarnation) }
}

pub(crate) fn terms() -> LinkTerms {
    LinkTerms {
        cluster: "test".into(),
        partitioning: Partitioning::new(4, 1).unwrap(),
        packet_bytes_max: 1 << 20,
    }
}

impl TestNode {
    pub(crate) async fn start(authority: &Authority, member: Member, durable_gate: Duration) -> Self {
        Self::start_with(authority, member, Arc::new(move |_| durable_gate)).await
    }

    pub(crate) async fn start_with(authority: &Authority, member: Member, durable_gate: DurableGate) -> Self {
        let identity = Identity::new(authority, member.id.as_str());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let view = ClusterView {
            own: member.clone(),
            own_epoch: MemberEpoch(1),
            members: BTreeMap::new(),
            owners: vec![None],
        };
        let coordination = Arc::new(FakeCoordination::new(view));
        let node = ClusterNode::new(terms(), coordination.clone(), durable_gate);
        let around = Arc::<Surroundings>::default();
        node.start(LocalParts {
            owner: around.clone(),
            host: around.clone(),
            attachments: around.clone(),
            routes: around.clone(),
            forwards: around.clone(),
        });
        let stop = CancellationToken::new();
        let access = PeerAccess { tls: identity.tls.clone(), listener, membership: None };
        let running = tokio::spawn(Arc::clone(&node).run(Some(access), stop.clone()));
        let proxy = Proxy::to(address.clone()).await;
        Self { member, node, around, identity, address, proxy, coordination, stop, running }
    }

    /// Changes what this node knows of the cluster.
    pub(crate) fn see(&self, change: impl FnOnce(&mut ClusterView)) {
        self.coordination.view.send_modify(|view| change(Arc::make_mut(view)));
    }

    /// Waits until the fakes have heard what `is_so` says.
    pub(crate) async fn until(&self, what: &str, is_so: impl Fn(&Seen) -> bool) -> Seen {
        let mut seen = self.around.seen.subscribe();
        match timeout(PATIENCE, seen.wait_for(|seen| is_so(seen))).await {
            Ok(seen) => seen.unwrap().clone(),
            Err(_) => panic!("{}: never so: {what}; seen {:?}", self.member.id, self.seen()),
        }
    }

    pub(crate) fn seen(&self) -> Seen {
        self.around.seen.borrow().clone()
    }

    /// Waits until exactly these peers are linked.
    pub(crate) async fn linked_to(&self, peers: &[&str]) {
        let peers: BTreeSet<_> = peers.iter().map(|id| MemberId::new(id)).collect();
        let mut reachable = self.coordination.reachable.subscribe();
        let is_linked = timeout(PATIENCE, reachable.wait_for(|now| *now == peers)).await.is_ok();
        let now = self.coordination.reachable.borrow().clone();
        assert!(is_linked, "{} is never linked to {peers:?}, but to {now:?}", self.member.id);
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.running.await.unwrap();
    }
}

/// Tells all nodes that they all are members, reached through their proxies.
pub(crate) fn acquaint(nodes: &[&TestNode]) {
    let members: BTreeMap<_, _> = nodes.iter().map(|node| (node.member.id.clone(), info(node))).collect();
    // Who accepts first, so that the first dial succeeds and proxies can tell lanes apart.
    for node in nodes.iter().rev() {
        node.see(|view| view.members = members.clone());
    }
}

pub(crate) fn info(node: &TestNode) -> MemberInfo {
    MemberInfo {
        member: node.member.clone(),
        epoch: MemberEpoch(1),
        endpoint: node.proxy.address.clone(),
        serving: true,
        leaving: false,
    }
}

/// Tells all nodes who owns the only group.
pub(crate) fn give_group(nodes: &[&TestNode], owner: &Member, epoch: u32) {
    for node in nodes {
        let owner = GroupOwner { member: owner.clone(), epoch: OwnerEpoch(epoch) };
        node.see(|view| view.owners = vec![Some(owner)]);
    }
}

/// Three linked nodes.
pub(crate) async fn three(durable_gate: Duration) -> [TestNode; 3] {
    let authority = Authority::new();
    let nodes = [
        TestNode::start(&authority, member("a", 1), durable_gate).await,
        TestNode::start(&authority, member("b", 1), durable_gate).await,
        TestNode::start(&authority, member("c", 1), durable_gate).await,
    ];
    acquaint(&nodes.each_ref());
    nodes[0].linked_to(&["b", "c"]).await;
    nodes[1].linked_to(&["a", "c"]).await;
    nodes[2].linked_to(&["a", "b"]).await;
    nodes
}

pub(crate) fn filter(text: &str) -> TopicFilter {
    TopicFilter::parse(text).unwrap()
}

pub(crate) fn live(text: &str) -> RouteChange {
    RouteChange::Add(Route::Live { filter: filter(text), class: LiveClass::AnyQos })
}

pub(crate) fn live_key(text: &str) -> LiveKey {
    LiveKey { filter: filter(text), class: LiveClass::AnyQos }
}

pub(crate) fn durable(partition: u16, text: &str) -> RouteChange {
    RouteChange::Add(Route::Durable { partition: Partition(partition), filter: filter(text) })
}

pub(crate) fn record(payload: impl Into<Bytes>, qos: QoS) -> (Arc<Record>, Bytes) {
    let record = Record {
        body: RecordBody::Inline,
        retry: false,
        origin: Origin { member: member("a", 1), producer: 1, sequence: 0 },
        unique_id: None,
        message: Message {
            topic: TopicName::parse("t").unwrap(),
            payload: payload.into(),
            qos,
            retain: false,
            properties: None,
            publisher: "p".into(),
            publish_time_ms: 0,
        },
    };
    let encoded = record.encode();
    (Arc::new(record), encoded)
}

//! A broker of the tests: a real cluster node, everything around it recorded.

use super::network::{Authority, Identity, Proxy};
use bytes::Bytes;
use bytestring::ByteString;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tidemill_broker::cluster::directory::reattach::{AttachmentSource, ReattachOutcome};
use tidemill_broker::cluster::exchange::RouteSink;
use tidemill_broker::cluster::forward::ForwardSink;
use tidemill_broker::cluster::node::{ClusterNode, LocalParts, PeerAccess};
use tidemill_broker::cluster::peer::handshake::LinkTerms;
use tidemill_broker::cluster::wire::routes::LiveKey;
use tidemill_broker::cluster::{
    ClusterView, Coordination, DurableGate, ForwardDone, GroupCommand, GroupOwner, LiveClass, MemberInfo,
    Route, RouteChange, Validity,
};
use tidemill_broker::owner::{HostSide, OwnerSide};
use tidemill_core::attach::{
    Acked, AttachGrant, AttachRequest, Attachment, ConnectionEpoch, Deliver, Detach, HostAttachments,
    OwnerError, SessionNumber, StoredSubscription, SubscribeRequest, SubscriptionReasons, UnsubscribeRequest,
};
use tidemill_core::member::{Incarnation, Member, MemberEpoch, MemberId, OwnerEpoch};
use tidemill_core::message::Message;
use tidemill_core::packet::{QoS, ReasonCode};
use tidemill_core::partition::{Partition, PartitionGroup, Partitioning};
use tidemill_core::record::{Origin, Record, RecordBody};
use tidemill_core::topic::{TopicFilter, TopicName};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Far beyond what anything here takes; a test that gets there has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Membership as the test says.
pub(crate) struct FakeCoordination {
    view: watch::Sender<Arc<ClusterView>>,
    reachable: watch::Sender<BTreeSet<MemberId>>,
}

impl Coordination for FakeCoordination {
    fn view(&self) -> watch::Receiver<Arc<ClusterView>> {
        self.view.subscribe()
    }
    fn validity(&self) -> Arc<Validity> {
        Arc::new(Validity::always())
    }
    fn take_group_commands(&self) -> Option<mpsc::Receiver<GroupCommand>> {
        None
    }
    fn raise_epoch(&self, _: PartitionGroup, _: OwnerEpoch) {}
    fn group_lost(&self, _: PartitionGroup) {}
    fn ready_to_serve(&self) {}
    fn set_reachable(&self, reachable: Vec<MemberId>) {
        self.reachable.send_replace(reachable.into_iter().collect());
    }
    fn ended(&self) -> BoxFuture<'static, String> {
        Box::pin(std::future::pending())
    }
    fn leave(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// What a node heard, in a form that a test can wait for.
#[derive(Debug, Default, Clone)]
pub(crate) struct Seen {
    pub(crate) live: BTreeMap<MemberId, BTreeSet<LiveKey>>,
    pub(crate) live_snapshots: usize,
    pub(crate) durable: BTreeMap<Partition, BTreeSet<TopicFilter>>,
    pub(crate) unknown: BTreeSet<Partition>,
    pub(crate) forwarded: Vec<String>,
    pub(crate) gaps: Vec<Member>,
    pub(crate) attached: Vec<AttachRequest>,
    pub(crate) subscribed: Vec<SubscribeRequest>,
    pub(crate) detached: Vec<Detach>,
    pub(crate) acked: Vec<Acked>,
    pub(crate) reattached: Vec<(Member, PartitionGroup, usize)>,
    pub(crate) words: Vec<HostAttachments>,
    pub(crate) outcomes: Vec<ReattachOutcome>,
    pub(crate) delivered: Vec<Deliver>,
    pub(crate) taken_over: Vec<(String, ConnectionEpoch)>,
}

/// All fakes around one node.
pub(crate) struct Surroundings {
    seen: watch::Sender<Seen>,
    /// Whether forwards are put into mailboxes at once; else their acknowledgements are kept here.
    pub(crate) takes_forwards: Mutex<bool>,
    pub(crate) kept: Mutex<Vec<ForwardDone>>,
    pub(crate) attachments: Mutex<Vec<Attachment>>,
    pub(crate) attaching: Mutex<Vec<ByteString>>,
    pub(crate) refuses: Mutex<Option<OwnerError>>,
    /// Whether attaches are answered.
    pub(crate) answers_attaches: watch::Sender<bool>,
    /// What every grant brings.
    pub(crate) stored: Mutex<Vec<StoredSubscription>>,
    /// Connections that are taken over close when it becomes false.
    pub(crate) closes_slowly: watch::Sender<bool>,
    counter: Mutex<u32>,
}

impl Surroundings {
    fn note(&self, change: impl FnOnce(&mut Seen)) {
        self.seen.send_modify(change);
    }

    fn connection(&self) -> ConnectionEpoch {
        let mut counter = self.counter.lock();
        *counter += 1;
        ConnectionEpoch { owner: OwnerEpoch(1), counter: *counter }
    }
}

impl RouteSink for Surroundings {
    fn apply_live(&self, member: &MemberId, added: &[LiveKey], removed: &[LiveKey]) {
        self.note(|seen| {
            let live = seen.live.entry(member.clone()).or_default();
            live.retain(|key| !removed.contains(key));
            live.extend(added.iter().cloned());
        });
    }
    fn replace_live(&self, member: &MemberId, all: &[LiveKey]) {
        self.note(|seen| {
            seen.live_snapshots += 1;
            seen.live.insert(member.clone(), all.iter().cloned().collect());
        });
    }
    fn apply_partition(&self, partition: Partition, added: &[TopicFilter], removed: &[TopicFilter]) {
        self.note(|seen| {
            let durable = seen.durable.entry(partition).or_default();
            durable.retain(|filter| !removed.contains(filter));
            durable.extend(added.iter().cloned());
        });
    }
    fn replace_partition(&self, partition: Partition, filters: &[TopicFilter]) {
        self.note(|seen| drop(seen.durable.insert(partition, filters.iter().cloned().collect())));
    }
    fn drop_member(&self, member: &MemberId) {
        self.note(|seen| drop(seen.live.remove(member)));
    }
    fn set_unknown_partitions(&self, partitions: &[Partition]) {
        self.note(|seen| seen.unknown = partitions.iter().copied().collect());
    }
}

impl ForwardSink for Surroundings {
    fn deliver_forwarded(&self, _: &Member, record: Arc<Record>, _: Bytes, taken: Option<ForwardDone>) {
        let text = String::from_utf8_lossy(&record.message.payload).chars().take(20).collect();
        match taken {
            Some(taken) if *self.takes_forwards.lock() => taken(),
            Some(taken) => self.kept.lock().push(taken),
            None => {}
        }
        self.note(|seen| seen.forwarded.push(text));
    }
    fn on_gap(&self, from: &Member) {
        self.note(|seen| seen.gaps.push(from.clone()));
    }
}

impl OwnerSide for Surroundings {
    fn attach(&self, request: AttachRequest) -> BoxFuture<'static, Result<AttachGrant, OwnerError>> {
        self.note(|seen| seen.attached.push(request));
        let grant = AttachGrant {
            session: SessionNumber::new(OwnerEpoch(1), 1),
            connection: self.connection(),
            session_present: false,
            subscriptions: self.stored.lock().clone(),
            in_flight: None,
        };
        let answer = self.refuses.lock().map_or(Ok(grant), Err);
        let mut answers = self.answers_attaches.subscribe();
        Box::pin(async move {
            // An error means that the test is over.
            let _ = answers.wait_for(|answers| *answers).await;
            answer
        })
    }
    fn detach(&self, detach: Detach) {
        self.note(|seen| seen.detached.push(detach));
    }
    fn subscribe(
        &self,
        request: SubscribeRequest,
    ) -> BoxFuture<'static, Result<SubscriptionReasons, OwnerError>> {
        let reasons = request.subscriptions.iter().map(|_| ReasonCode(1)).collect();
        self.note(|seen| seen.subscribed.push(request));
        Box::pin(std::future::ready(Ok(reasons)))
    }
    fn unsubscribe(
        &self,
        request: UnsubscribeRequest,
    ) -> BoxFuture<'static, Result<SubscriptionReasons, OwnerError>> {
        Box::pin(std::future::ready(Ok(request.targets.iter().map(|_| ReasonCode(0)).collect())))
    }
    fn acked(&self, acked: Acked) {
        self.note(|seen| seen.acked.push(acked));
    }
    fn reattach(
        &self,
        group: PartitionGroup,
        host: Member,
        attachments: HostAttachments,
    ) -> BoxFuture<'static, Result<Vec<Result<ConnectionEpoch, OwnerError>>, OwnerError>> {
        let answer = attachments.attached.iter().map(|_| Ok(self.connection())).collect();
        self.note(|seen| {
            seen.reattached.push((host, group, attachments.attached.len()));
            seen.words.push(attachments);
        });
        Box::pin(std::future::ready(Ok(answer)))
    }
}

impl HostSide for Surroundings {
    fn deliver(&self, _: &Member, deliver: Deliver) {
        self.note(|seen| seen.delivered.push(deliver));
    }
    fn take_over(&self, _: &Member, client_id: &str, connection: ConnectionEpoch) -> BoxFuture<'static, ()> {
        self.note(|seen| seen.taken_over.push((client_id.to_owned(), connection)));
        let mut slowly = self.closes_slowly.subscribe();
        Box::pin(async move { drop(slowly.wait_for(|slowly| !slowly).await) })
    }
}

impl AttachmentSource for Surroundings {
    fn attaching(&self, _: PartitionGroup) -> Vec<ByteString> {
        self.attaching.lock().clone()
    }
    fn attachments(&self, _: PartitionGroup) -> Vec<Attachment> {
        self.attachments.lock().clone()
    }
    fn reattached(&self, _: PartitionGroup, outcomes: Vec<ReattachOutcome>) {
        self.note(|seen| seen.outcomes.extend(outcomes));
    }
}

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
        let coordination = Arc::new(FakeCoordination {
            view: watch::Sender::new(Arc::new(view)),
            reachable: watch::Sender::new(BTreeSet::new()),
        });
        let node = ClusterNode::new(terms(), coordination.clone(), durable_gate);
        let around = Arc::new(Surroundings {
            seen: watch::Sender::new(Seen::default()),
            takes_forwards: Mutex::new(true),
            kept: Mutex::default(),
            attachments: Mutex::default(),
            attaching: Mutex::default(),
            refuses: Mutex::default(),
            answers_attaches: watch::Sender::new(true),
            stored: Mutex::default(),
            closes_slowly: watch::Sender::new(false),
            counter: Mutex::default(),
        });
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

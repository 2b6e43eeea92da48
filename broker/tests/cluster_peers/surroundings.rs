//! What stands around a node in the tests: membership, router, registry and owner, each recording what it hears.

use bytes::Bytes;
use bytestring::ByteString;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidemill_broker::cluster::directory::reattach::{AttachmentSource, ReattachOutcome};
use tidemill_broker::cluster::exchange::RouteSink;
use tidemill_broker::cluster::forward::ForwardSink;
use tidemill_broker::cluster::wire::routes::LiveKey;
use tidemill_broker::cluster::{ClusterView, Coordination, ForwardDone, GroupCommand, Validity};
use tidemill_broker::owner::{HostSide, OwnerSide};
use tidemill_core::attach::{
    Acked, AttachGrant, AttachRequest, Attachment, ConnectionEpoch, Deliver, Detach, ExactlyOnceRequest,
    HostAttachments, OwnerError, Release, SessionNumber, StoredSubscription, SubscribeRequest,
    SubscriptionReasons, UnsubscribeRequest, WillOver,
};
use tidemill_core::member::{Member, MemberId, OwnerEpoch};
use tidemill_core::packet::ReasonCode;
use tidemill_core::partition::{Partition, PartitionGroup};
use tidemill_core::record::Record;
use tidemill_core::topic::TopicFilter;
use tokio::sync::{mpsc, watch};

/// Membership as the test says.
pub(crate) struct FakeCoordination {
    pub(crate) view: watch::Sender<Arc<ClusterView>>,
    pub(crate) reachable: watch::Sender<BTreeSet<MemberId>>,
}

impl FakeCoordination {
    pub(crate) fn new(view: ClusterView) -> Self {
        Self { view: watch::Sender::new(Arc::new(view)), reachable: watch::Sender::new(BTreeSet::new()) }
    }
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
    pub(crate) stored: Vec<ExactlyOnceRequest>,
    pub(crate) wills_over: Vec<WillOver>,
    pub(crate) released: Vec<Release>,
}

/// All fakes around one node.
pub(crate) struct Surroundings {
    pub(crate) seen: watch::Sender<Seen>,
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

impl Default for Surroundings {
    fn default() -> Self {
        Self {
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
        }
    }
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
    fn will_over(&self, over: WillOver) {
        self.note(|seen| seen.wills_over.push(over));
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
    fn store_exactly_once(&self, request: ExactlyOnceRequest) -> BoxFuture<'static, Result<(), OwnerError>> {
        self.note(|seen| seen.stored.push(request));
        Box::pin(std::future::ready(Ok(())))
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
    fn release(&self, _: &Member, release: Release) {
        self.note(|seen| seen.released.push(release));
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

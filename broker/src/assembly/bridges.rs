//! Lets the owner and the cluster, which do not know router and registry, work with them.

use crate::app::DataPath;
use crate::cluster::directory::reattach::{AttachmentSource, ReattachOutcome};
use crate::cluster::exchange::RouteSink;
use crate::cluster::forward::ForwardSink;
use crate::cluster::wire::routes::LiveKey;
use crate::cluster::{Coordination, ForwardDone, Route, RouteChange};
use crate::mailbox::Turn;
use crate::metrics::Metrics;
use crate::owner::parts::{RestoredWill, Surroundings};
use crate::registry::Registry;
use crate::router::{Publisher, RouteCache, Router};
use bytes::Bytes;
use bytestring::ByteString;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tidemill_core::attach::Attachment;
use tidemill_core::member::{Member, MemberId, OwnerEpoch};
use tidemill_core::partition::{Partition, PartitionGroup};
use tidemill_core::record::Record;
use tidemill_core::topic::TopicFilter;

/// The router takes routes, those of the own owner included: the exchange knows whose word counts.
pub(super) struct RouterRoutes {
    router: Arc<Router>,
}

impl RouterRoutes {
    pub(super) fn new(router: &Arc<Router>) -> Self {
        Self { router: Arc::clone(router) }
    }
}

impl RouteSink for RouterRoutes {
    fn apply_live(&self, member: &MemberId, added: &[LiveKey], removed: &[LiveKey]) {
        let route = |key: &LiveKey| Route::Live { filter: key.filter.clone(), class: key.class };
        let added = added.iter().map(|key| RouteChange::Add(route(key)));
        let removed = removed.iter().map(|key| RouteChange::Remove(route(key)));
        self.router.apply_peer_routes(member, &added.chain(removed).collect::<Vec<_>>());
    }

    fn replace_live(&self, member: &MemberId, all: &[LiveKey]) {
        let routes = all.iter().map(|key| (key.filter.clone(), key.class)).collect();
        self.router.set_peer_routes(member, routes);
    }

    fn apply_partition(&self, partition: Partition, added: &[TopicFilter], removed: &[TopicFilter]) {
        self.router.apply_durable(partition, added, removed);
    }

    fn replace_partition(&self, partition: Partition, filters: &[TopicFilter]) {
        self.router.set_partition_routes(partition, filters.iter().cloned().collect());
    }

    fn drop_member(&self, member: &MemberId) {
        self.router.set_peer_routes(member, BTreeSet::new());
    }

    fn set_unknown_partitions(&self, partitions: &[Partition]) {
        for partition in partitions {
            self.router.forget_partition_routes(*partition);
        }
    }
}

/// The router takes messages that peers forward.
pub(super) struct RouterForwards {
    router: Arc<Router>,
    registry: Arc<Registry>,
    metrics: Metrics,
    /// Matches of the topics that each peer forwarded lately. A peer's messages come one after the other.
    caches: Mutex<BTreeMap<MemberId, Arc<Mutex<RouteCache>>>>,
}

impl RouterForwards {
    pub(super) fn new(data_path: &DataPath) -> Self {
        Self {
            router: Arc::clone(&data_path.router),
            registry: Arc::clone(&data_path.registry),
            metrics: data_path.metrics.clone(),
            caches: Mutex::default(),
        }
    }

    fn cache(&self, peer: &MemberId) -> Arc<Mutex<RouteCache>> {
        let mut caches = self.caches.lock();
        let cache = caches
            .entry(peer.clone())
            .or_insert_with(|| Arc::new(Mutex::new(RouteCache::new(Publisher::Other))));
        Arc::clone(cache)
    }
}

impl ForwardSink for RouterForwards {
    fn deliver_forwarded(&self, from: &Member, record: Arc<Record>, _: Bytes, taken: Option<ForwardDone>) {
        let cache = self.cache(&from.id);
        let mut turn = Turn::begin(&self.metrics);
        self.router.deliver_forwarded(&record, &mut cache.lock(), &mut turn);
        turn.finish();
        // A mailbox that has no room has closed its client, so the message is taken either way.
        if let Some(taken) = taken {
            taken();
        }
    }

    fn on_gap(&self, from: &Member) {
        let closed = self.registry.close_clean_sessions();
        tracing::warn!(member = %from.id, closed, "messages of a peer may be lost; closed the clean sessions");
    }
}

/// The registry's connections, as a new owner hears of them.
pub(super) struct RegistryAttachments {
    registry: Arc<Registry>,
}

impl RegistryAttachments {
    pub(super) fn new(registry: &Arc<Registry>) -> Self {
        Self { registry: Arc::clone(registry) }
    }
}

impl AttachmentSource for RegistryAttachments {
    fn attaching(&self, group: PartitionGroup) -> Vec<ByteString> {
        self.registry.attaching(group)
    }

    fn attachments(&self, group: PartitionGroup) -> Vec<Attachment> {
        self.registry.attachments(group)
    }

    fn reattached(&self, _: PartitionGroup, outcomes: Vec<ReattachOutcome>) {
        for outcome in outcomes {
            self.registry.reattached(&outcome.attachment, outcome.result);
        }
    }
}

/// What the owner asks the rest of the broker.
pub(super) struct BrokerSurroundings {
    coordination: Arc<dyn Coordination>,
    data_path: DataPath,
}

impl BrokerSurroundings {
    pub(super) fn new(coordination: Arc<dyn Coordination>, data_path: DataPath) -> Self {
        Self { coordination, data_path }
    }
}

impl Surroundings for BrokerSurroundings {
    fn now_ms(&self) -> u64 {
        let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
    }

    fn awaited_members(&self) -> Vec<MemberId> {
        let view = self.coordination.view();
        let view = view.borrow();
        let peers = view.members.values().filter(|info| info.member != view.own);
        if view.members.len() > 1 { peers.map(|info| info.member.id.clone()).collect() } else { Vec::new() }
    }

    fn is_dead(&self, host: &Member) -> bool {
        let view = self.coordination.view();
        let view = view.borrow();
        view.members.get(&host.id).is_none_or(|info| info.member != *host)
    }

    fn raise_epoch(&self, group: PartitionGroup, epoch: OwnerEpoch) {
        self.coordination.raise_epoch(group, epoch);
    }

    fn restore_will(&self, will: RestoredWill) {
        self.data_path.restore_will(will);
    }

    fn may_get_retained(&self, filter: &TopicFilter) -> bool {
        self.data_path.router.may_get_retained(filter)
    }

    fn fenced(&self, group: PartitionGroup) {
        self.coordination.group_lost(group);
    }
}

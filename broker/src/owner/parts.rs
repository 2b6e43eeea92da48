//! What the owner is made of and works on.

use super::HostSide;
use super::metrics::OwnerMetrics;
use crate::cluster::{RouteExchange, Validity};
use crate::log::Log;
use crate::log::state::State;
use std::sync::Arc;
use tidemill_core::member::{Member, MemberId, OwnerEpoch};
use tidemill_core::partition::{Partition, PartitionGroup, Partitioning};
use tidemill_core::topic::TopicFilter;

/// The durable routes of this broker's own partitions, for its own router; peers learn them through the
/// [`RouteExchange`]. Calls come from one task for each partition, in order, and must not block. When this broker stops
/// owning a partition its routes stay as they are until the next owner speaks.
pub trait DurableRoutes: Send + Sync + 'static {
    /// The partition's routes are exactly these.
    fn set_partition(&self, partition: Partition, filters: &[TopicFilter]);
    /// The partition has a queue interested in `filter`; perhaps it had one before.
    fn add(&self, partition: Partition, filter: &TopicFilter);
    /// The partition has no queue interested in `filter` any more.
    fn remove(&self, partition: Partition, filter: &TopicFilter);
}

/// What the owner asks and tells the rest of the broker. Calls must not block.
pub trait Surroundings: Send + Sync + 'static {
    /// Milliseconds since the Unix epoch. For deadlines only, never for order.
    fn now_ms(&self) -> u64;
    /// Members whose re-attach frames a new owner awaits before it lets new connections in. Empty on a broker without
    /// peers.
    fn awaited_members(&self) -> Vec<MemberId>;
    /// Whether this start of a member is over for good, so that its connections are gone.
    fn is_dead(&self, host: &Member) -> bool;
    /// The group is served with an epoch above the one of its lease.
    fn raise_epoch(&self, group: PartitionGroup, epoch: OwnerEpoch);
    /// Another owner has opened the group; this one has stopped serving it.
    fn fenced(&self, group: PartitionGroup);
}

/// What [`super::service::OwnerService`] works on.
#[derive(Clone)]
pub struct OwnerParts {
    /// Partitions and groups.
    pub partitioning: Partitioning,
    /// Most subscriptions of one persistent session.
    pub subscriptions_max: usize,
    /// The records.
    pub log: Arc<dyn Log>,
    /// The state.
    pub state: Arc<dyn State>,
    /// The hosts of the sessions.
    pub hosts: Arc<dyn HostSide>,
    /// The peers' routers.
    pub route_exchange: Arc<dyn RouteExchange>,
    /// The own router.
    pub durable_routes: Arc<dyn DurableRoutes>,
    /// Everything else.
    pub surroundings: Arc<dyn Surroundings>,
    /// Whether this broker may act.
    pub validity: Arc<Validity>,
    /// What is counted.
    pub metrics: OwnerMetrics,
}

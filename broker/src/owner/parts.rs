//! What the owner is made of and works on.

pub use super::group::RestoredWill;

use super::HostSide;
use super::metrics::OwnerMetrics;
use crate::cluster::{RouteExchange, Validity};
use crate::log::Log;
use crate::log::state::State;
use std::sync::Arc;
use std::time::Duration;
use tidemill_core::member::{Member, MemberId, OwnerEpoch};
use tidemill_core::partition::{PartitionGroup, Partitioning};

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
    /// The broker of a connection died with its will: it is published when it is due, unless the client comes back.
    fn restore_will(&self, will: RestoredWill);
    /// Another owner has opened the group; this one has stopped serving it.
    fn fenced(&self, group: PartitionGroup);
}

/// What [`super::service::OwnerService`] works on.
#[derive(Clone)]
pub struct OwnerParts {
    /// Partitions and groups.
    pub partitioning: Partitioning,
    /// How often a partition's trim floor is looked at when little is read.
    pub trim_interval: Duration,
    /// Most subscriptions of one persistent session.
    pub subscriptions_max: usize,
    /// The records.
    pub log: Arc<dyn Log>,
    /// The state.
    pub state: Arc<dyn State>,
    /// The hosts of the sessions.
    pub hosts: Arc<dyn HostSide>,
    /// The routers, the own one included.
    pub route_exchange: Arc<dyn RouteExchange>,
    /// Everything else.
    pub surroundings: Arc<dyn Surroundings>,
    /// Whether this broker may act.
    pub validity: Arc<Validity>,
    /// What is counted.
    pub metrics: OwnerMetrics,
}

//! What the owner is made of and works on.

pub use super::group::RestoredWill;

use super::metrics::OwnerMetrics;
use super::{DeadLetters, HostSide};
use crate::cluster::{RouteExchange, Validity};
use crate::log::Log;
use crate::log::state::State;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tidemill_core::member::{Member, MemberId, OwnerEpoch};
use tidemill_core::partition::{Offset, PartitionGroup, Partitioning};
use tidemill_core::queue::limits::QueueLimits;
use tidemill_core::queue::pace::TokenBucket;
use tidemill_core::topic::TopicFilter;

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
    /// Whether a new subscription to `filter` may get retained messages that outlive this broker. It may say so where
    /// the answer would take long.
    fn may_get_retained(&self, filter: &TopicFilter) -> bool;
    /// Another owner has opened the group; this one has stopped serving it.
    fn fenced(&self, group: PartitionGroup);
}

/// What queues may hold, and how fast they are served.
#[derive(Debug, Clone)]
pub struct QueueRules {
    /// Bounds of each.
    pub limits: QueueLimits,
    /// Topic of the dead letters, with `{clientId}`.
    pub dead_letter_topic: Arc<str>,
    /// How long a receiver may have a message before it is kept outside the log.
    pub park_after: Duration,
    /// Messages per second that one queue gets behind the head; `None`: as many as its receiver takes.
    pub replay_per_queue: Option<u32>,
    /// What all queues of this broker together get behind the head; `None`: as many as their receivers take.
    pub replay_total: Option<Arc<Mutex<TokenBucket>>>,
}

impl Default for QueueRules {
    /// No bounds; a message is parked after an hour.
    fn default() -> Self {
        Self {
            limits: QueueLimits::NONE,
            dead_letter_topic: "$dead/{clientId}".into(),
            park_after: Duration::from_secs(3_600),
            replay_per_queue: None,
            replay_total: None,
        }
    }
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
    /// What queues may hold, and how fast they are served.
    pub queues: QueueRules,
    /// Offsets of one block of the index, if the state keeps one.
    pub index_block_offsets: Offset,
    /// The records.
    pub log: Arc<dyn Log>,
    /// The state.
    pub state: Arc<dyn State>,
    /// The hosts of the sessions.
    pub hosts: Arc<dyn HostSide>,
    /// Where what queues gave up is published.
    pub dead_letters: Arc<dyn DeadLetters>,
    /// The routers, the own one included.
    pub route_exchange: Arc<dyn RouteExchange>,
    /// Everything else.
    pub surroundings: Arc<dyn Surroundings>,
    /// Whether this broker may act.
    pub validity: Arc<Validity>,
    /// What is counted.
    pub metrics: OwnerMetrics,
}

//! Where a message goes: local mailboxes, peers with live routes, partitions with durable routes. A topic is matched
//! once for all three.

mod countdown;
mod live;
mod matches;
mod probe;
mod publish;
mod retained;
mod routes;
mod shared;
mod tables;
mod unsettled;

pub use countdown::{PublishDone, PublishEnd};
pub use live::LiveSubscription;
pub use matches::{Publisher, RouteCache};
pub use probe::RouterProbe;
pub use retained::{RetainedPage, RetainedProgress, RetainedRequest};
pub use shared::{MemberLeaves, SharedSubscription};
pub use unsettled::Joined;

use crate::cluster::{Forwarder, RouteExchange};
use crate::log::Log;
use crate::metrics::Metrics;
use live::Announced;
use parking_lot::Mutex;
use retained::Retained;
use routes::KnownRoutes;
use shared::Groups;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tables::Tables;
use tidemill_core::member::Member;
use tidemill_core::partition::{Partition, Partitioning};
use unsettled::Unsettled;

/// The router of one broker. Share it behind an `Arc`.
pub struct Router {
    own: Member,
    log: Arc<dyn Log>,
    metrics: Metrics,
    tables: Tables,
    /// Partitions whose durable routes are not known: they count as matching everything.
    unknown_partitions: AtomicU64,
    known: Mutex<KnownRoutes>,
    shared: Groups,
    links: OnceLock<Links>,
    /// Counts the QoS 2 publishes of this incarnation.
    exactly_once: AtomicU64,
    /// Those whose packet ids are stored.
    unsettled: Arc<Unsettled>,
    /// Unset when nothing is retained.
    retained: OnceLock<Retained>,
}

/// The way to the peers; a broker that can have none keeps no account of what they are told.
struct Links {
    announced: Mutex<Announced>,
    exchange: Arc<dyn RouteExchange>,
    forwarder: Arc<dyn Forwarder>,
}

impl Router {
    /// A router that knows no routes yet: every partition counts as interested in everything, so that it appends rather
    /// than loses.
    #[must_use]
    pub fn new(own: Member, partitioning: Partitioning, log: Arc<dyn Log>, metrics: Metrics) -> Self {
        let unknown = partitioning.partitions().fold(0, |bits, partition| bits | bit(partition));
        Self {
            own,
            log,
            metrics,
            tables: Tables::new(),
            unknown_partitions: AtomicU64::new(unknown),
            known: Mutex::new(KnownRoutes::default()),
            shared: Groups::default(),
            links: OnceLock::new(),
            exactly_once: AtomicU64::new(0),
            unsettled: Arc::default(),
            retained: OnceLock::new(),
        }
    }

    /// Connects the router with the peers. Once, before the first client; without it there are none.
    pub fn connect(&self, exchange: Arc<dyn RouteExchange>, forwarder: Arc<dyn Forwarder>) {
        let is_first = self.links.set(Links { announced: Mutex::default(), exchange, forwarder }).is_ok();
        debug_assert!(is_first, "a router is connected once");
    }

    /// The log that durable publishes go to.
    #[must_use]
    pub fn log(&self) -> &Arc<dyn Log> {
        &self.log
    }

    /// Where this router counts.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Partitions whose durable routes are not known, in order; empty once this broker may be ready.
    #[must_use]
    pub fn unknown_partitions(&self) -> Vec<Partition> {
        let bits = self.unknown_partitions.load(Ordering::Acquire);
        partitions_of(bits).collect()
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Router").field("own", &self.own).finish_non_exhaustive()
    }
}

fn bit(partition: Partition) -> u64 {
    1_u64 << (partition.0 % 64)
}

fn partitions_of(bits: u64) -> impl Iterator<Item = Partition> {
    (0..64).filter(move |number| bits & (1_u64 << number) != 0).map(Partition)
}

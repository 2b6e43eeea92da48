//! Membership, ownership and the links between brokers, as the rest of the broker sees them.

pub mod directory;
pub mod exchange;
pub mod forward;
pub mod lease;
pub mod local;
pub mod node;
pub mod peer;
pub mod wire;

use bytes::Bytes;
use futures::future::BoxFuture;
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidemill_core::member::{Member, MemberEpoch, MemberId, OwnerEpoch};
use tidemill_core::partition::{Partition, PartitionGroup};
use tidemill_core::record::Record;
use tidemill_core::topic::TopicFilter;
use tokio::sync::{mpsc, oneshot, watch};

/// Who is in the cluster and who owns what, as this broker sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterView {
    /// This broker.
    pub own: Member,
    /// Its member epoch; 0 before it has joined.
    pub own_epoch: MemberEpoch,
    /// All members whose lease is held, this broker included.
    pub members: BTreeMap<MemberId, MemberInfo>,
    /// The owner of each partition group, by group number; `None` while nobody has it.
    pub owners: Vec<Option<GroupOwner>>,
}

/// One member whose lease is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberInfo {
    /// The start that holds the lease.
    pub member: Member,
    /// Its epoch.
    pub epoch: MemberEpoch,
    /// Where its peers reach it, `host:port`.
    pub endpoint: String,
    /// Whether it takes part in ownership: `Serving`.
    pub serving: bool,
    /// Whether it said that it goes: `Draining` or `Leaving`.
    pub leaving: bool,
}

/// Who owns a partition group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupOwner {
    /// The owner.
    pub member: Member,
    /// Since which change.
    pub epoch: OwnerEpoch,
}

/// Until when this broker may acknowledge, deliver and commit. One atomic load and one clock read on the hot path.
#[derive(Debug)]
pub struct Validity {
    valid_until_nanos: AtomicU64,
}

impl Validity {
    /// Valid for good: `coordination: local`, where the data directory's lock is the proof.
    #[must_use]
    pub fn always() -> Self {
        Self { valid_until_nanos: AtomicU64::new(u64::MAX) }
    }

    /// Not valid until [`Self::set`] says so.
    #[must_use]
    pub fn never() -> Self {
        Self { valid_until_nanos: AtomicU64::new(0) }
    }

    /// Sets the end, in nanoseconds of the boot-time clock ([`boot_time_nanos`]).
    pub fn set(&self, until_nanos: u64) {
        self.valid_until_nanos.store(until_nanos, Ordering::Release);
    }

    /// Whether it has no end: this broker is a cluster of its own.
    #[must_use]
    pub fn is_for_good(&self) -> bool {
        self.valid_until_nanos.load(Ordering::Acquire) == u64::MAX
    }

    /// Whether this broker may act now. Check it just before each acknowledgement.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let until = self.valid_until_nanos.load(Ordering::Acquire);
        until == u64::MAX || boot_time_nanos() < until
    }
}

/// The clock of leases: monotonic, and it runs while the machine sleeps (`CLOCK_BOOTTIME`).
#[must_use]
pub fn boot_time_nanos() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let secs = u64::try_from(time.tv_sec).unwrap_or(0);
    secs.saturating_mul(1_000_000_000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// What coordination tells the owner.
#[derive(Debug)]
pub enum GroupCommand {
    /// This broker has the group: fence, load, serve. The epoch it serves with is the higher of `epoch` and the stored
    /// one + 1; see [`Coordination::raise_epoch`].
    Start {
        /// The group.
        group: PartitionGroup,
        /// Epoch claimed in the lease.
        epoch: OwnerEpoch,
    },
    /// Stop serving the group for good, then say so. Nothing of it may be acknowledged after `stopped` is sent.
    Stop {
        /// The group.
        group: PartitionGroup,
        /// Say so here.
        stopped: oneshot::Sender<()>,
    },
}

/// How brokers agree on membership and ownership: `local` or `kubernetes`.
pub trait Coordination: Send + Sync + 'static {
    /// The present view and its changes.
    fn view(&self) -> watch::Receiver<Arc<ClusterView>>;

    /// Whether this broker may act. When it turns invalid every client is closed and every group stopped; the process
    /// then starts anew.
    fn validity(&self) -> Arc<Validity>;

    /// The commands for the owner. Taken once; `None` afterwards.
    fn take_group_commands(&self) -> Option<mpsc::Receiver<GroupCommand>>;

    /// The owner serves `group` with `epoch`, which is above the one of the lease: write it back.
    fn raise_epoch(&self, group: PartitionGroup, epoch: OwnerEpoch);

    /// The owner has stopped serving `group` for good without being told to: another owner has opened it, or its state
    /// cannot be read. The group is given back; with `local` the whole membership ends, because the newest start wins.
    fn group_lost(&self, group: PartitionGroup);

    /// This broker has its listeners bound and the routes of all serving members: `Joining` becomes `Serving`.
    fn ready_to_serve(&self);

    /// Which members answer on their peer links; written into the member lease with the next renewal.
    fn set_reachable(&self, reachable: Vec<MemberId>);

    /// Digest of this broker's routes, for people and for members that join; written with the next renewal.
    fn set_route_digest(&self, digest: u128) {
        let _ = digest;
    }

    /// Completes when this incarnation's membership has ended against its will: the process must exit.
    fn ended(&self) -> BoxFuture<'static, String>;

    /// Leaves: stops and releases every group, then the member lease. Bounded by the lease's duration.
    fn leave(&self) -> BoxFuture<'static, ()>;
}

/// What a live route is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LiveClass {
    /// A clean session, or a QoS 0 subscription of a persistent one: every publish.
    AnyQos = 1,
    /// Only persistent sessions with QoS > 0: publishes at QoS 0.
    QosZeroOnly = 2,
}

/// One route that this broker announces to its peers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Route {
    /// This broker has an online receiver served from memory.
    Live {
        /// What it subscribed to.
        filter: TopicFilter,
        /// What is sent for it.
        class: LiveClass,
    },
    /// A partition holds at least one interested queue. The route belongs to the partition, not to its owner.
    Durable {
        /// The partition.
        partition: Partition,
        /// What the queue subscribed to.
        filter: TopicFilter,
    },
}

/// A change of this broker's routes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteChange {
    /// First receiver.
    Add(Route),
    /// Last receiver is gone.
    Remove(Route),
}

/// A gate was not passed: nobody may be told that the route is effective.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("members that did not confirm the route in time: {missing:?}")]
pub struct GateClosed {
    /// Who did not confirm.
    pub missing: Vec<MemberId>,
}

/// How long a durable gate that begins now stays open at most: the duration of a lease, which may depend on how many
/// members there are, + 5 s.
pub type DurableGate = Arc<dyn Fn(&ClusterView) -> Duration + Send + Sync>;

/// Tells peers about routes and waits until they have them.
pub trait RouteExchange: Send + Sync + 'static {
    /// Announces changes, in order. The future completes when every peer that is reachable has them, or after 200 ms
    /// (counted): the gate of a live SUBACK. The change itself is announced even when the future is dropped.
    fn announce_live(&self, changes: Vec<RouteChange>) -> BoxFuture<'static, ()>;

    /// Announces changes, in order. Completes when every member that is valid, or joining with a snapshot, has them:
    /// the gate of a durable SUBACK. By itself it ends after [`Self::durable_gate`].
    fn announce_durable(&self, changes: Vec<RouteChange>) -> BoxFuture<'static, Result<(), GateClosed>>;

    /// How long a durable gate that begins now stays open at most.
    fn durable_gate(&self) -> Duration;

    /// This broker serves or stops serving `partition`. While it serves it, the partition's durable routes are
    /// exactly those announced since; peers are told the full set.
    fn set_partition_routes(&self, partition: Partition, epoch: OwnerEpoch, filters: Vec<TopicFilter>);

    /// This broker no longer speaks for `partition`; its routes stay valid until the next owner speaks.
    fn release_partition(&self, partition: Partition);
}

/// Called once when a peer has taken a forwarded message into its mailboxes, or when its link was broken.
pub type ForwardDone = Box<dyn FnOnce() + Send>;

/// Sends messages to peers that have live routes.
pub trait Forwarder: Send + Sync + 'static {
    /// Sends one message to one peer. With `done` (QoS > 0) it is called when the peer took it; a peer that does not
    /// answer in 2 s has its link broken and counts as gone. Never waits.
    fn forward(&self, to: &MemberId, record: &Arc<Record>, encoded: &Bytes, done: Option<ForwardDone>);
}

//! Routes between brokers: announces this broker's, takes those of the peers, and holds the gates of SUBACK.
//!
//! A peer gets a snapshot when its link comes up and deltas after it; it acknowledges each, verifies the digest that
//! each carries, and asks for a snapshot when something does not fit. Durable routes belong to their partition: they
//! stay when the peer goes, and an owner with a higher epoch replaces them.

mod mirror;
mod own;
mod peers;
#[cfg(test)]
mod tests;

use super::peer::link::Link;
use super::wire::WireError;
use super::wire::routes::{LiveKey, RouteAck, RouteDelta, RouteSnapshot};
use super::{ClusterView, DurableGate, GateClosed, Route, RouteChange, RouteExchange};
use futures::future::BoxFuture;
use own::Delta;
use parking_lot::Mutex;
use peers::{Heard, Peers};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tidemill_core::member::{Member, MemberId, OwnerEpoch};
use tidemill_core::partition::{Partition, Partitioning};
use tidemill_core::topic::TopicFilter;
use tokio::sync::watch;
use tokio::time::timeout;

/// A live gate waits this long for reachable peers.
pub const LIVE_GATE: Duration = Duration::from_millis(200);

/// Takes the routes that this broker must go by. Called in order and under a lock: must not wait and must not call the
/// exchange.
pub trait RouteSink: Send + Sync + 'static {
    /// Live routes of a peer came and went.
    fn apply_live(&self, member: &MemberId, added: &[LiveKey], removed: &[LiveKey]);

    /// The live routes of a peer are exactly these.
    fn replace_live(&self, member: &MemberId, all: &[LiveKey]);

    /// Durable routes of a partition came and went; also those that this broker's own owner announces.
    fn apply_partition(&self, partition: Partition, added: &[TopicFilter], removed: &[TopicFilter]);

    /// The durable routes of a partition are exactly these; it is not unknown any more.
    fn replace_partition(&self, partition: Partition, filters: &[TopicFilter]);

    /// A peer is no member any more: its live routes end.
    fn drop_member(&self, member: &MemberId);

    /// Nothing is known of the routes of these partitions, so they match every topic. All others are known.
    fn set_unknown_partitions(&self, partitions: &[Partition]);
}

/// What the gates have cost so far; for metrics.
#[derive(Debug, Default)]
pub struct GateCounts {
    /// Live gates that gave up after 200 ms.
    pub live_timeouts: AtomicU64,
    /// Durable gates that closed.
    pub durable_closed: AtomicU64,
    /// Snapshots asked for because routes did not fit.
    pub divergences: AtomicU64,
}

struct State {
    own: own::OwnRoutes,
    peers: Peers,
    heard: Heard,
    sink: Option<Arc<dyn RouteSink>>,
}

/// The routes of all brokers, as this one has told and heard them. Cheap to clone.
#[derive(Clone)]
pub struct Exchange {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    view: watch::Receiver<Arc<ClusterView>>,
    /// Changes whenever a gate may have become passable.
    progress: watch::Sender<u64>,
    ready: watch::Sender<bool>,
    durable_gate: DurableGate,
    /// Whether an acknowledgement may wait for a data frame: keeps the lock out of the way of messages.
    acks_wait: AtomicBool,
    counts: GateCounts,
}

impl Exchange {
    /// Without routes.
    #[must_use]
    pub fn new(
        partitioning: Partitioning,
        view: watch::Receiver<Arc<ClusterView>>,
        durable_gate: DurableGate,
    ) -> Self {
        let state = State {
            own: own::OwnRoutes::default(),
            peers: Peers::default(),
            heard: Heard::new(partitioning),
            sink: None,
        };
        let shared = Shared {
            state: Mutex::new(state),
            view,
            progress: watch::Sender::new(0),
            ready: watch::Sender::new(false),
            durable_gate,
            acks_wait: AtomicBool::new(false),
            counts: GateCounts::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Gives the sink, which first hears that all partitions are unknown. Must come before every other call.
    pub fn start(&self, sink: Arc<dyn RouteSink>) {
        let mut state = self.shared.state.lock();
        sink.set_unknown_partitions(&state.heard.unknown());
        state.sink = Some(sink);
    }

    /// Whether the routes of all members that serve or own a group have arrived. Until then the broker is not ready.
    #[must_use]
    pub fn has_all_routes(&self) -> watch::Receiver<bool> {
        self.shared.ready.subscribe()
    }

    /// Digest of this broker's routes.
    #[must_use]
    pub fn digest(&self) -> u128 {
        self.shared.state.lock().own.digest()
    }

    /// What the gates have cost so far.
    #[must_use]
    pub fn counts(&self) -> &GateCounts {
        &self.shared.counts
    }

    /// A link is up: the peer gets a snapshot.
    pub fn link_up(&self, link: &Arc<Link>) {
        let mut state = self.shared.state.lock();
        let state = &mut *state;
        state.peers.start(link);
        peers::send_snapshot(&state.own, link);
    }

    /// A link is down: live gates do not wait for its peer any more.
    pub fn link_down(&self, link: &Arc<Link>) {
        self.shared.state.lock().peers.stop(link);
        self.shared.advance();
    }

    /// The view has changed: members that are gone take their live routes with them. Returns who is gone.
    pub fn follow(&self, view: &ClusterView) -> Vec<Member> {
        let mut state = self.shared.state.lock();
        let gone = state.peers.retain(view);
        if let Some(sink) = &state.sink {
            gone.iter().for_each(|member| sink.drop_member(&member.id));
        }
        self.shared.judge_readiness(&state, view);
        drop(state);
        self.shared.advance();
        gone
    }

    /// A part of a peer's snapshot.
    ///
    /// # Errors
    ///
    /// [`WireError`]; break the link.
    pub fn handle_snapshot(&self, link: &Arc<Link>, part: RouteSnapshot) -> Result<(), WireError> {
        self.handle_routes(link, |mirror| mirror.handle_snapshot(part))
    }

    /// A part of a peer's delta.
    ///
    /// # Errors
    ///
    /// [`WireError`]; break the link.
    pub fn handle_delta(&self, link: &Arc<Link>, part: RouteDelta) -> Result<(), WireError> {
        self.handle_routes(link, |mirror| mirror.handle_delta(part))
    }

    fn handle_routes(
        &self,
        link: &Arc<Link>,
        handle: impl FnOnce(&mut mirror::Mirror) -> Result<mirror::Outcome, WireError>,
    ) -> Result<(), WireError> {
        let mut state = self.shared.state.lock();
        let state = &mut *state;
        let Some(peer) = state.peers.over(link) else { return Ok(()) };
        let outcome = handle(&mut peer.mirror)?;
        let sequence = match outcome {
            mirror::Outcome::Nothing => return Ok(()),
            mirror::Outcome::Diverged => {
                self.shared.counts.divergences.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(member = %link.peer().id, "routes do not fit their digest; asking for all");
                None
            }
            mirror::Outcome::Replaced(all) => {
                state.heard.replace(&link.peer().id, &all, state.sink.as_deref());
                peer.mirror.sequence()
            }
            mirror::Outcome::Changed(delta) => {
                state.heard.change(&link.peer().id, &delta, state.sink.as_deref());
                peer.mirror.sequence()
            }
        };
        peers::send_ack(link, sequence);
        let view = self.shared.view.borrow().clone();
        self.shared.judge_readiness(state, &view);
        Ok(())
    }

    /// A peer has this broker's routes up to a sequence, or asks for all of them.
    pub fn handle_ack(&self, link: &Arc<Link>, ack: RouteAck) {
        let mut state = self.shared.state.lock();
        let state = &mut *state;
        let Some(peer) = state.peers.over(link) else { return };
        if ack.wants_snapshot {
            peers::send_snapshot(&state.own, link);
            return;
        }
        // Set before the frames handled so far are looked at: whoever handles the next ones then looks here.
        self.shared.acks_wait.store(true, Ordering::SeqCst);
        if peer.acknowledge(ack, link.data_received()) {
            self.shared.advance();
        }
        self.shared.acks_wait.store(state.peers.acks_wait(), Ordering::SeqCst);
    }

    /// The peer's data frames up to `data_sequence` were handled: acknowledgements that name them count now.
    pub fn data_processed(&self, link: &Arc<Link>, data_sequence: u64) {
        if !self.shared.acks_wait.load(Ordering::SeqCst) {
            return;
        }
        let mut state = self.shared.state.lock();
        let advanced = state.peers.over(link).is_some_and(|peer| peer.count_acks(data_sequence));
        self.shared.acks_wait.store(state.peers.acks_wait(), Ordering::SeqCst);
        drop(state);
        if advanced {
            self.shared.advance();
        }
    }

    /// Tells a change to all peers that are linked.
    fn tell(state: &mut State, delta: &Delta) {
        if delta.is_empty() {
            return;
        }
        state.heard.change_own(delta, state.sink.as_deref());
        for link in state.peers.links() {
            peers::send_delta(&state.own, delta, &link);
        }
    }
}

impl Shared {
    fn advance(&self) {
        self.progress.send_modify(|count| *count += 1);
    }

    fn judge_readiness(&self, state: &State, view: &ClusterView) {
        let owners: BTreeSet<&Member> = view.owners.iter().flatten().map(|owner| &owner.member).collect();
        let is_ready = view.own_epoch.0 > 0
            && view.members.contains_key(&view.own.id)
            && view
                .members
                .values()
                .filter(|info| info.member != view.own && (info.serving || owners.contains(&info.member)))
                .all(|info| state.peers.is_complete(&info.member));
        self.ready.send_if_modified(|ready| std::mem::replace(ready, is_ready) != is_ready);
    }

    /// Waits until `missing` is empty.
    async fn wait(&self, missing: impl Fn(&Self) -> Vec<MemberId>) {
        let mut progress = self.progress.subscribe();
        loop {
            progress.borrow_and_update();
            if missing(self).is_empty() || progress.changed().await.is_err() {
                return;
            }
        }
    }

    /// Who of `members` has not acknowledged `sequence` and is linked.
    fn reachable_without(&self, members: &[Member], sequence: u64) -> Vec<MemberId> {
        let state = self.state.lock();
        let waits =
            |member: &&Member| state.peers.is_linked(member) && state.peers.acknowledged(member) < sequence;
        members.iter().filter(waits).map(|member| member.id.clone()).collect()
    }

    /// Who of `members` has not acknowledged `sequence` and is still a member.
    fn members_without(&self, members: &[Member], sequence: u64) -> Vec<MemberId> {
        let view = self.view.borrow().clone();
        let state = self.state.lock();
        let waits = |member: &&Member| {
            view.members.get(&member.id).is_some_and(|info| info.member == **member)
                && state.peers.acknowledged(member) < sequence
        };
        members.iter().filter(waits).map(|member| member.id.clone()).collect()
    }
}

impl RouteExchange for Exchange {
    fn announce_live(&self, changes: Vec<RouteChange>) -> BoxFuture<'static, ()> {
        let mut state = self.shared.state.lock();
        let announcement = state.own.change(changes);
        Self::tell(&mut state, &announcement.delta);
        let linked: Vec<Member> = state.peers.links().iter().map(|link| link.peer().clone()).collect();
        drop(state);
        let shared = Arc::clone(&self.shared);
        let sequence = announcement.known_at;
        Box::pin(async move {
            let passed = shared.wait(|shared| shared.reachable_without(&linked, sequence));
            if timeout(LIVE_GATE, passed).await.is_err() {
                shared.counts.live_timeouts.fetch_add(1, Ordering::Relaxed);
            }
        })
    }

    /// As the trait says. Removals need no gate: a peer that still has the route appends too much, never too little.
    fn announce_durable(&self, changes: Vec<RouteChange>) -> BoxFuture<'static, Result<(), GateClosed>> {
        debug_assert!(changes.iter().all(|change| match change {
            RouteChange::Add(route) | RouteChange::Remove(route) => matches!(route, Route::Durable { .. }),
        }));
        let mut state = self.shared.state.lock();
        let announcement = state.own.change(changes);
        Self::tell(&mut state, &announcement.delta);
        drop(state);
        let view = self.shared.view.borrow().clone();
        if announcement.is_foreign {
            // The group was released meanwhile: this broker does not speak for the partition.
            let closed = GateClosed { missing: vec![view.own.id.clone()] };
            return Box::pin(async move { Err(closed) });
        }
        let members: Vec<Member> = view
            .members
            .values()
            .filter(|info| info.member.id != view.own.id)
            .map(|info| info.member.clone())
            .collect();
        let shared = Arc::clone(&self.shared);
        let sequence = announcement.known_at;
        let bound = (shared.durable_gate)(&view);
        Box::pin(async move {
            let passed = shared.wait(|shared| shared.members_without(&members, sequence));
            if timeout(bound, passed).await.is_ok() {
                return Ok(());
            }
            shared.counts.durable_closed.fetch_add(1, Ordering::Relaxed);
            Err(GateClosed { missing: shared.members_without(&members, sequence) })
        })
    }

    fn durable_gate(&self) -> Duration {
        (self.shared.durable_gate)(&self.shared.view.borrow())
    }

    fn set_partition_routes(&self, partition: Partition, epoch: OwnerEpoch, filters: Vec<TopicFilter>) {
        let mut state = self.shared.state.lock();
        let delta = state.own.set_partition(partition, epoch, filters);
        Self::tell(&mut state, &delta);
    }

    fn release_partition(&self, partition: Partition) {
        let mut state = self.shared.state.lock();
        if let Some(delta) = state.own.release_partition(partition) {
            Self::tell(&mut state, &delta);
        }
    }
}

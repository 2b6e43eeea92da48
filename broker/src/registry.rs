//! Which client is connected here, and the host's side of the conversation with owners.

mod slot;

use crate::mailbox::{CloseReason, Mailbox, QueueDeliveries, Turn};
use crate::metrics::{DropReason, Metrics};
use crate::owner::{HostSide, OwnerSide};
use bytestring::ByteString;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use slot::{Slot, Slots};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tidemill_core::attach::{
    Acked, AttachGrant, AttachRequest, Attachment, ConnectionEpoch, Deliver, Detach, OwnerError, Release,
    SessionLifetime, SessionNumber, WillOutcome,
};
use tidemill_core::member::Member;
use tidemill_core::packet::ReasonCode;
use tidemill_core::partition::{PartitionGroup, Partitioning, QueueKind};
use tokio::sync::SetOnce;

/// How long a taken-over connection may take to close before it is given up. Its successor goes on before that: the owner
/// waits for 5 s.
const TAKE_OVER_WAIT: Duration = Duration::from_secs(6);
const SHARDS: usize = 64;

/// The connections of this broker by client id. Share it behind an `Arc`.
pub struct Registry {
    own: Member,
    partitioning: Partitioning,
    metrics: Metrics,
    hasher: RandomState,
    shards: Vec<Mutex<Slots>>,
    owner: OnceLock<Arc<dyn OwnerSide>>,
}

/// One connected client. The connection's task holds it and ends it.
#[derive(Debug)]
pub struct Registered {
    /// Where messages for it go.
    pub mailbox: Arc<Mailbox>,
    /// As it was granted; `clean_start` is false, because it says how to go on.
    pub request: AttachRequest,
    /// Number of its session.
    pub session: SessionNumber,
    /// Its connection epoch; changes when the group gets another owner.
    pub connection: Mutex<ConnectionEpoch>,
    /// Set when the connection is closed.
    pub closed: SetOnce<()>,
}

/// A client id whose attach is under way. Dropped without [`Attaching::complete`] it leaves no trace.
#[derive(Debug)]
pub struct Attaching {
    registry: Arc<Registry>,
    client_id: ByteString,
    is_completed: bool,
}

/// The connection was taken over before it had begun. It closes with 0x8E.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the connection was taken over while it attached")]
pub struct TakenOver;

impl Registry {
    /// Without connections.
    #[must_use]
    pub fn new(own: Member, partitioning: Partitioning, metrics: Metrics) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::new(Slots::default())).collect();
        Self { own, partitioning, metrics, hasher: RandomState::new(), shards, owner: OnceLock::new() }
    }

    /// Names the owner that this host reports to. Once, before the first client.
    pub fn connect(&self, owner: Arc<dyn OwnerSide>) {
        let is_first = self.owner.set(owner).is_ok();
        debug_assert!(is_first, "a registry is connected once");
    }

    /// Announces that `client_id` is about to attach, so that deliveries and takeovers that overtake the grant are not
    /// lost.
    #[must_use]
    pub fn begin(self: &Arc<Self>, client_id: &ByteString) -> Attaching {
        self.shard(client_id).lock().entry(client_id.clone()).or_default().attaching += 1;
        Attaching { registry: Arc::clone(self), client_id: client_id.clone(), is_completed: false }
    }

    /// The connection of `client_id`, if it is here.
    #[must_use]
    pub fn find(&self, client_id: &str) -> Option<Arc<Registered>> {
        self.shard(client_id).lock().get(client_id).and_then(|slot| slot.current.clone())
    }

    /// Every connection, in no particular order.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Registered>> {
        let current = |slots: &Slots| slots.values().filter_map(|slot| slot.current.clone()).collect();
        self.shards.iter().flat_map(|shard| -> Vec<_> { current(&shard.lock()) }).collect()
    }

    /// The connection has ended: its place is free, unless a newer one has it.
    pub fn end(&self, registered: &Arc<Registered>) {
        let client_id = &registered.request.client_id;
        let mut slots = self.shard(client_id).lock();
        if let Some(slot) = slots.get_mut(client_id)
            && slot.current.as_ref().is_some_and(|current| Arc::ptr_eq(current, registered))
        {
            slot.current = None;
        }
        Slot::remove_if_idle(&mut slots, client_id);
        drop(slots);
        // Only the first call sets it.
        let _ = registered.closed.set(());
    }

    /// Asks every connection to end.
    pub fn close_all(&self, reason: ReasonCode) {
        for registered in self.all() {
            registered.mailbox.close(CloseReason::Broker(reason));
        }
    }

    /// Asks every clean session to end: messages for it may have been lost. Answers how many there were.
    pub fn close_clean_sessions(&self) -> usize {
        let clean: Vec<_> = self.all().into_iter().filter(|registered| !registered.is_persistent()).collect();
        for registered in &clean {
            registered.mailbox.close(CloseReason::Broker(ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR));
        }
        clean.len()
    }

    /// The client ids in `group` whose attach is under way.
    #[must_use]
    pub fn attaching(&self, group: PartitionGroup) -> Vec<ByteString> {
        let of_shard = |shard: &Mutex<Slots>| -> Vec<ByteString> {
            let slots = shard.lock();
            let attaching = slots.iter().filter(|(_, slot)| slot.attaching > 0);
            attaching.map(|(client_id, _)| client_id.clone()).collect()
        };
        let attaching = self.shards.iter().flat_map(of_shard);
        attaching.filter(|client_id| self.group_of(client_id) == group).collect()
    }

    fn group_of(&self, client_id: &str) -> PartitionGroup {
        self.partitioning.group_of(self.partitioning.partition_of(QueueKind::Session, client_id))
    }

    /// All attachments of this host in `group`, for its new owner.
    #[must_use]
    pub fn attachments(&self, group: PartitionGroup) -> Vec<Attachment> {
        let attached = self.all().into_iter().filter(|one| self.group_of(&one.request.client_id) == group);
        attached
            .map(|registered| {
                let (in_flight, done) = registered.mailbox.offsets();
                Attachment {
                    request: registered.request.clone(),
                    session: registered.session,
                    connection: *registered.connection.lock(),
                    done,
                    in_flight,
                }
            })
            .collect()
    }

    /// Goes on as a new owner answered for one attachment. A connection that it cannot have is closed; for one that has
    /// ended since, the owner hears of the end under the new name.
    pub fn reattached(&self, told: &Attachment, answer: Result<ConnectionEpoch, OwnerError>) {
        let client_id = &told.request.client_id;
        let current = self.find(client_id).filter(|current| {
            let connection = *current.connection.lock();
            // A delivery may have brought the new name before the answer.
            current.session == told.session && (connection == told.connection || answer == Ok(connection))
        });
        match (current, answer) {
            (Some(registered), Ok(connection)) => *registered.connection.lock() = connection,
            (Some(registered), Err(error)) => {
                tracing::info!(%client_id, %error, "not re-attached");
                let reason = match error {
                    OwnerError::TakenOver => ReasonCode::SESSION_TAKEN_OVER,
                    OwnerError::Unavailable => ReasonCode::UNSPECIFIED_ERROR,
                    OwnerError::NotAuthorized => ReasonCode::NOT_AUTHORIZED,
                    OwnerError::QuotaExceeded => ReasonCode::QUOTA_EXCEEDED,
                };
                registered.mailbox.close(CloseReason::Broker(reason));
            }
            (None, Ok(connection)) => {
                if let Some(owner) = self.owner.get() {
                    owner.detach(Detach {
                        client_id: client_id.clone(),
                        connection,
                        session_expiry_secs: None,
                        in_flight: None,
                        will: WillOutcome::Over,
                    });
                }
            }
            (None, Err(_)) => {}
        }
    }

    fn shard(&self, client_id: &str) -> &Mutex<Slots> {
        let number = usize::try_from(self.hasher.hash_one(client_id) >> 32).unwrap_or(0) % SHARDS;
        &self.shards[number]
    }

    /// What the owner must hear of it, if anything.
    fn hand_over(&self, registered: &Registered, deliver: &Deliver) -> Option<Acked> {
        let mut turn = Turn::begin(&self.metrics);
        let deliveries = QueueDeliveries { deliveries: &deliver.deliveries };
        let taken = registered.mailbox.deliver_queue(deliveries, &mut turn);
        turn.finish();
        (!taken.done.is_empty()).then(|| Acked {
            queue: deliver.queue.clone(),
            partition: deliver.partition,
            connection: *registered.connection.lock(),
            done: taken.done,
        })
    }

    fn report(&self, acked: impl IntoIterator<Item = Acked>) {
        let Some(owner) = self.owner.get() else { return };
        for acked in acked {
            owner.acked(acked);
        }
    }
}

impl Attaching {
    /// The owner let the connection in: from now on it is found. Deliveries that came before are handed over.
    ///
    /// # Errors
    ///
    /// [`TakenOver`] if a takeover overtook the grant.
    pub fn complete(
        mut self,
        mailbox: Arc<Mailbox>,
        request: AttachRequest,
        grant: &AttachGrant,
    ) -> Result<Arc<Registered>, TakenOver> {
        let registered = Arc::new(Registered {
            mailbox,
            request: AttachRequest { clean_start: false, ..request },
            session: grant.session,
            connection: Mutex::new(grant.connection),
            closed: SetOnce::new(),
        });
        self.is_completed = true;
        let registry = Arc::clone(&self.registry);
        let mut slots = registry.shard(&self.client_id).lock();
        let slot = slots.entry(self.client_id.clone()).or_default();
        if slot.is_revoked(grant.connection) {
            slot.end_attach();
            Slot::remove_if_idle(&mut slots, &self.client_id);
            return Err(TakenOver);
        }
        let early = slot.take_early(grant.connection);
        slot.end_attach();
        let former = slot.current.replace(Arc::clone(&registered));
        // Under the lock, so that no later delivery overtakes an early one.
        let acked: Vec<_> =
            early.iter().filter_map(|deliver| registry.hand_over(&registered, deliver)).collect();
        drop(slots);
        registry.report(acked);
        if let Some(former) = former {
            former.mailbox.close(CloseReason::Broker(ReasonCode::SESSION_TAKEN_OVER));
        }
        Ok(registered)
    }
}

impl Drop for Attaching {
    fn drop(&mut self) {
        if self.is_completed {
            return;
        }
        let mut slots = self.registry.shard(&self.client_id).lock();
        if let Some(slot) = slots.get_mut(&self.client_id) {
            slot.end_attach();
        }
        Slot::remove_if_idle(&mut slots, &self.client_id);
    }
}

/// For messages and takeovers on this broker; `host` is this broker.
impl HostSide for Registry {
    fn deliver(&self, _host: &Member, deliver: Deliver) {
        let slots = self.shard(&deliver.queue.name);
        let mut slots = slots.lock();
        let Some(slot) = slots.get_mut(&deliver.queue.name) else {
            return self.metrics.count_drop(DropReason::NoConnection);
        };
        let current = slot.current.clone();
        match current {
            Some(registered) if registered.is_meant_by(&deliver, slot.attaching) => {
                drop(slots);
                self.report(self.hand_over(&registered, &deliver));
            }
            Some(_) | None if slot.attaching > 0 => slot.push_early(deliver),
            Some(_) | None => self.metrics.count_drop(DropReason::NoConnection),
        }
    }

    fn release(&self, _host: &Member, release: Release) {
        // A connection that is not the present one is told by its grant.
        let current = self.find(&release.queue.name).filter(|registered| {
            registered.session == release.queue.number && *registered.connection.lock() == release.connection
        });
        if let Some(registered) = current {
            let mut turn = Turn::begin(&self.metrics);
            registered.mailbox.release_stored(&release.packet_ids, &mut turn);
            turn.finish();
        }
    }

    fn take_over(
        &self,
        _host: &Member,
        client_id: &str,
        connection: ConnectionEpoch,
    ) -> BoxFuture<'static, ()> {
        let mut slots = self.shard(client_id).lock();
        let Some(slot) = slots.get_mut(client_id) else { return futures::future::ready(()).boxed() };
        slot.revoke(connection);
        let current = slot.current.clone().filter(|current| *current.connection.lock() <= connection);
        drop(slots);
        let Some(registered) = current else { return futures::future::ready(()).boxed() };
        registered.mailbox.close(CloseReason::Broker(ReasonCode::SESSION_TAKEN_OVER));
        async move {
            let closed = registered.closed.wait();
            if tokio::time::timeout(TAKE_OVER_WAIT, closed).await.is_err() {
                tracing::warn!(client_id = %registered.request.client_id, "taken-over connection is slow to close");
            }
        }
        .boxed()
    }
}

impl Registered {
    /// Whether `deliver` is for this connection. A new owner delivers under the connection's new name, perhaps before
    /// its answer to the re-attach is here; only an owner gives out higher names, so it is taken over from the delivery.
    fn is_meant_by(&self, deliver: &Deliver, attaching: u32) -> bool {
        let mut connection = self.connection.lock();
        let is_renamed =
            attaching == 0 && self.session == deliver.queue.number && deliver.connection > *connection;
        if is_renamed {
            *connection = deliver.connection;
        }
        *connection == deliver.connection
    }

    /// Whether the session outlives the connection.
    #[must_use]
    pub fn is_persistent(&self) -> bool {
        match self.request.lifetime {
            SessionLifetime::Clean => false,
            SessionLifetime::Persistent { .. } => true,
        }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Registry").field("own", &self.own).finish_non_exhaustive()
    }
}

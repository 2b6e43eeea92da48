//! Finds the owner of a client id and the host of a session, wherever they are.
//!
//! [`Directory`] implements [`OwnerSide`] and [`HostSide`] for the whole cluster: what concerns this broker goes to the
//! local implementations, everything else over peer links. Requests are answered by number; a request whose link ended or
//! whose target was not the owner is asked again while its time lasts. Owners treat a repeated request like a new one.

mod incoming;
mod owners;
mod parts;
pub mod reattach;
mod requests;

use super::peer::lane::Crowding;
use super::peer::link::Link;
use super::peer::table::LinkTable;
use super::wire::Body;
use super::wire::attach::Refusal;
use super::{ClusterView, DurableGate, GroupOwner};
use crate::owner::{HostSide, OwnerSide};
use futures::future::BoxFuture;
use owners::Target;
use parking_lot::Mutex;
use parts::Unfinished;
use reattach::AttachmentSource;
use requests::Requests;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tidemill_core::attach::{
    Acked, AttachGrant, AttachRequest, ConnectionEpoch, Deliver, DeliveriesDone, Detach, ExactlyOnceRequest,
    HostAttachments, OwnerError, Release, SubscribeRequest, SubscriptionReasons, UnsubscribeRequest,
    WillOver,
};
use tidemill_core::member::Member;
use tidemill_core::partition::{PartitionGroup, Partitioning, QueueKind};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

/// Longest wait for a group to have an owner that can be reached.
pub const OWNER_WAIT: Duration = Duration::from_secs(10);
/// Longest wait for the answer of an owner to subscribe and unsubscribe, beyond the gate: longer than the owner itself
/// waits.
const SUBSCRIBE_REPLY_BEYOND_GATE: Duration = Duration::from_secs(15);
/// Longest wait for a connection to be closed by its host; the owner's own, of 5 s, is below it.
pub const TAKE_OVER_WAIT: Duration = Duration::from_secs(6);
/// Requests of peers being answered at a time; more are refused as unavailable.
const INCOMING_MAX: usize = 65_536;

/// Longest wait for the answer of an owner to steps of QoS 2: longer than the owner itself waits.
const EXACTLY_ONCE_REPLY: Duration = Duration::from_secs(15);

/// Offsets in one frame.
const ACKED_OFFSETS_MAX: usize = 4_096;

/// The local implementations.
pub struct LocalSides {
    /// Owns the groups of this broker.
    pub owner: Arc<dyn OwnerSide>,
    /// Its connections as owners see them.
    pub host: Arc<dyn HostSide>,
    /// Its connections as they are told to a new owner.
    pub attachments: Arc<dyn AttachmentSource>,
}

/// Owners and hosts of the whole cluster. Cheap to clone.
#[derive(Clone)]
pub struct Directory {
    shared: Arc<Shared>,
}

struct Shared {
    partitioning: Partitioning,
    view: watch::Receiver<Arc<ClusterView>>,
    links: Arc<LinkTable>,
    local: OnceLock<LocalSides>,
    requests: Requests,
    unfinished: Unfinished,
    /// The highest connection of each group that this broker has been granted.
    granted: Mutex<BTreeMap<PartitionGroup, ConnectionEpoch>>,
    /// Questions of peers being answered.
    permits: Arc<Semaphore>,
    durable_gate: DurableGate,
}

impl Directory {
    /// Knows nobody yet: until [`Self::start`] everything is unavailable.
    #[must_use]
    pub fn new(
        partitioning: Partitioning,
        view: watch::Receiver<Arc<ClusterView>>,
        links: Arc<LinkTable>,
        durable_gate: DurableGate,
    ) -> Self {
        let shared = Shared {
            partitioning,
            view,
            links,
            local: OnceLock::new(),
            requests: Requests::default(),
            unfinished: Unfinished::default(),
            granted: Mutex::default(),
            permits: Arc::new(Semaphore::new(INCOMING_MAX)),
            durable_gate,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Gives the local implementations, once; later calls change nothing.
    pub fn start(&self, local: LocalSides) {
        let _ = self.shared.local.set(local);
    }

    /// A link is down: its questions are asked again elsewhere.
    pub fn link_down(&self, link: &Arc<Link>) {
        self.shared.requests.fail(link);
        self.shared.unfinished.forget(link.number());
    }
}

impl Shared {
    /// Longest wait for a SUBACK or UNSUBACK.
    fn subscribe_reply(&self) -> Duration {
        (self.durable_gate)(&self.view()) + SUBSCRIBE_REPLY_BEYOND_GATE
    }

    fn view(&self) -> Arc<ClusterView> {
        self.view.borrow().clone()
    }

    fn owner_of(&self, group: PartitionGroup) -> Option<GroupOwner> {
        self.view().owners.get(usize::from(group.0)).cloned().flatten()
    }

    fn group_of_client(&self, client_id: &str) -> PartitionGroup {
        let partitioning = self.partitioning;
        partitioning.group_of(partitioning.partition_of(QueueKind::Session, client_id))
    }

    /// This broker has a connection of that name.
    fn note_granted(&self, group: PartitionGroup, connection: ConnectionEpoch) {
        let mut granted = self.granted.lock();
        let highest = granted.entry(group).or_insert(connection);
        *highest = connection.max(*highest);
    }

    /// Whether the view says that this broker owns `group`.
    fn owns(&self, group: PartitionGroup) -> bool {
        self.owner_of(group).is_some_and(|owner| owner.member == self.view().own)
    }
}

impl OwnerSide for Directory {
    fn attach(&self, request: AttachRequest) -> BoxFuture<'static, Result<AttachGrant, OwnerError>> {
        let shared = Arc::clone(&self.shared);
        let group = shared.group_of_client(&request.client_id);
        Box::pin(async move {
            let grant = shared.attach(group, request).await?;
            shared.note_granted(group, grant.connection);
            Ok(grant)
        })
    }

    fn detach(&self, detach: Detach) {
        let group = self.shared.group_of_client(&detach.client_id);
        let Some(target) = self.shared.target(group) else { return };
        match target {
            Target::Local(owner) => owner.detach(detach),
            // Lost with the link; the re-attach over the next one does not name the connection any more.
            Target::Remote { link, .. } => {
                let _ = link.send(Body::Detach((&detach).into()), Crowding::Waits);
            }
        }
    }

    fn will_over(&self, over: WillOver) {
        let group = self.shared.group_of_client(&over.client_id);
        let Some(target) = self.shared.target(group) else { return };
        match target {
            Target::Local(owner) => owner.will_over(over),
            // Lost with the link: then it is published once more when this broker dies before the session ends.
            Target::Remote { link, .. } => {
                let _ = link.send(Body::WillOver((&over).into()), Crowding::Waits);
            }
        }
    }

    fn subscribe(
        &self,
        request: SubscribeRequest,
    ) -> BoxFuture<'static, Result<SubscriptionReasons, OwnerError>> {
        let shared = Arc::clone(&self.shared);
        let group = shared.group_of_client(&request.client_id);
        Box::pin(async move { shared.subscribe(group, request).await })
    }

    fn unsubscribe(
        &self,
        request: UnsubscribeRequest,
    ) -> BoxFuture<'static, Result<SubscriptionReasons, OwnerError>> {
        let shared = Arc::clone(&self.shared);
        let group = shared.group_of_client(&request.client_id);
        Box::pin(async move { shared.unsubscribe(group, request).await })
    }

    fn store_exactly_once(&self, request: ExactlyOnceRequest) -> BoxFuture<'static, Result<(), OwnerError>> {
        let shared = Arc::clone(&self.shared);
        let group = shared.group_of_client(&request.client_id);
        Box::pin(async move { shared.store_exactly_once(group, request).await })
    }

    fn acked(&self, acked: Acked) {
        let group = self.shared.partitioning.group_of(acked.partition);
        let Some(target) = self.shared.target(group) else { return };
        match target {
            Target::Local(owner) => owner.acked(acked),
            // Lost with the link; the re-attach over the next one repeats it.
            Target::Remote { link, .. } => {
                for part in acked_parts(acked) {
                    let _ = link.send(Body::Acked((&part).into()), Crowding::Waits);
                }
            }
        }
    }

    fn reattach(
        &self,
        group: PartitionGroup,
        host: Member,
        attachments: HostAttachments,
    ) -> BoxFuture<'static, Result<Vec<Result<ConnectionEpoch, OwnerError>>, OwnerError>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let told = shared.reattach_once(group, host, &attachments).await;
            told.map_err(|refusal| match refusal {
                Refusal::Owner(error) => error,
                Refusal::NotOwner => OwnerError::Unavailable,
            })
        })
    }
}

/// Splits what a client is done with, so that each part fits a frame.
fn acked_parts(acked: Acked) -> Vec<Acked> {
    let DeliveriesDone { finished, received, completed, retained } = &acked.done;
    if retained.is_empty() && finished.len() + received.len() + completed.len() <= ACKED_OFFSETS_MAX {
        return vec![acked];
    }
    let part = |done| Acked { done, ..acked.clone() };
    let none = DeliveriesDone::default;
    let finished = finished.chunks(ACKED_OFFSETS_MAX);
    let finished = finished.map(|part| DeliveriesDone { finished: part.to_vec(), ..none() });
    let received = received.chunks(ACKED_OFFSETS_MAX);
    let received = received.map(|part| DeliveriesDone { received: part.to_vec(), ..none() });
    let completed = completed.chunks(ACKED_OFFSETS_MAX);
    let completed = completed.map(|part| DeliveriesDone { completed: part.to_vec(), ..none() });
    let retained = retained.iter().map(|one| DeliveriesDone { retained: vec![one.clone()], ..none() });
    finished.chain(received).chain(completed).chain(retained).map(part).collect()
}

impl HostSide for Directory {
    fn deliver(&self, host: &Member, deliver: Deliver) {
        if *host == self.shared.view().own {
            if let Some(local) = self.shared.local.get() {
                local.host.deliver(host, deliver);
            }
        } else if let Some(link) = self.shared.links.to(host) {
            // Lost with the link; the host re-attaches over the next one, with what it has in flight.
            let _ = link.send(Body::Deliver((&deliver).into()), Crowding::Waits);
        }
    }

    fn release(&self, host: &Member, release: Release) {
        if *host == self.shared.view().own {
            if let Some(local) = self.shared.local.get() {
                local.host.release(host, release);
            }
        } else if let Some(link) = self.shared.links.to(host) {
            // Lost with the link; the host re-attaches over the next one, and is told again.
            let _ = link.send(Body::Release((&release).into()), Crowding::Waits);
        }
    }

    fn take_over(
        &self,
        host: &Member,
        client_id: &str,
        connection: ConnectionEpoch,
    ) -> BoxFuture<'static, ()> {
        if *host == self.shared.view().own {
            return match self.shared.local.get() {
                Some(local) => local.host.take_over(host, client_id, connection),
                None => Box::pin(std::future::ready(())),
            };
        }
        let shared = Arc::clone(&self.shared);
        let (host, client_id) = (host.clone(), client_id.to_owned());
        Box::pin(async move {
            // The owner goes on before that: whatever the host still does for the old connection carries an older epoch.
            let _ = timeout(TAKE_OVER_WAIT, shared.take_over(&host, client_id, connection)).await;
        })
    }
}

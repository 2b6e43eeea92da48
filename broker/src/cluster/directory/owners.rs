//! Asking owners and hosts.

use super::{LocalSides, OWNER_WAIT, Shared};
use crate::cluster::GroupOwner;
use crate::cluster::peer::end::LinkEnd;
use crate::cluster::peer::lane::{Crowding, PushError};
use crate::cluster::peer::link::Link;
use crate::cluster::wire::attach::{Attach, Reattach, Refusal, TakeOver};
use crate::cluster::wire::exactly_once::StoreExactlyOnce;
use crate::cluster::wire::parts::split;
use crate::cluster::wire::subscribe::{Subscribe, Unsubscribe};
use crate::cluster::wire::{Body, WireError};
use crate::owner::OwnerSide;
use std::sync::Arc;
use std::time::Duration;
use tidemill_core::attach::{
    AttachGrant, AttachRequest, ConnectionEpoch, ExactlyOnceRequest, HostAttachments, OwnerError,
    SubscribeRequest, SubscriptionReasons, UnsubscribeRequest,
};
use tidemill_core::member::Member;
use tidemill_core::partition::PartitionGroup;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Longest wait for the answer of an owner to attach and re-attach: the takeover of the old connection is in it.
const ATTACH_REPLY: Duration = Duration::from_secs(15);
/// Pause before a broker that was not the owner is asked again, unless the view changes first.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Where the owner of a group is.
pub(super) enum Target {
    /// In this process.
    Local(Arc<dyn OwnerSide>),
    /// At the other end of a link.
    Remote { link: Arc<Link>, owner: GroupOwner },
}

type ReattachOutcomes = Vec<Result<ConnectionEpoch, OwnerError>>;

impl Shared {
    /// The owner, if it can be asked now.
    pub(super) fn target(&self, group: PartitionGroup) -> Option<Target> {
        let owner = self.owner_of(group)?;
        if owner.member == self.view().own {
            return self.local.get().map(|local: &LocalSides| Target::Local(Arc::clone(&local.owner)));
        }
        let link = self.links.to(&owner.member)?;
        Some(Target::Remote { link, owner })
    }

    /// Waits for an owner that can be asked.
    async fn target_by(&self, group: PartitionGroup, deadline: Instant) -> Result<Target, OwnerError> {
        let mut view = self.view.clone();
        let mut links = self.links.changes();
        loop {
            view.borrow_and_update();
            links.borrow_and_update();
            if let Some(target) = self.target(group) {
                return Ok(target);
            }
            tokio::select! {
                changed = view.changed() => changed.map_err(|_| OwnerError::Unavailable)?,
                _ = links.changed() => {}
                () = sleep_until(deadline) => return Err(OwnerError::Unavailable),
            }
        }
    }

    /// Calls the owner of `group`, and whoever is the owner then, for 10 s, as long as the answer is that it is not or
    /// cannot: an owner that has just claimed the group may not have started to serve it.
    async fn with_owner<T, Calling>(
        &self,
        group: PartitionGroup,
        call: impl Fn(Target) -> Calling,
    ) -> Result<T, OwnerError>
    where
        Calling: Future<Output = Result<T, Refusal>>,
    {
        let deadline = Instant::now() + OWNER_WAIT;
        loop {
            let mut view = self.view.clone();
            view.borrow_and_update();
            match call(self.target_by(group, deadline).await?).await {
                Ok(answer) => return Ok(answer),
                Err(Refusal::NotOwner | Refusal::Owner(OwnerError::Unavailable)) => {
                    if Instant::now() >= deadline {
                        return Err(OwnerError::Unavailable);
                    }
                    tokio::select! {
                        Ok(()) = view.changed() => {}
                        () = sleep(RETRY_PAUSE) => {}
                    }
                }
                Err(Refusal::Owner(error)) => return Err(error),
            }
        }
    }

    /// Sends a request and waits for its reply; [`Refusal::NotOwner`] when the link ended.
    async fn ask<T>(
        &self,
        link: &Arc<Link>,
        patience: Duration,
        request: impl FnOnce(u64) -> Body,
        read: impl FnOnce(Body) -> Result<Result<T, Refusal>, WireError>,
    ) -> Result<T, Refusal> {
        let (number, reply) = self.requests.enter(link);
        self.send_request(link, number, request(number))?;
        self.await_reply(link, number, timeout(patience, reply).await.ok(), read)
    }

    fn send_request(&self, link: &Arc<Link>, number: u64, request: Body) -> Result<(), Refusal> {
        for part in request.into_parts() {
            if let Err(error) = link.send(part, Crowding::Waits) {
                self.requests.forget(number);
                return Err(unsent(error));
            }
        }
        Ok(())
    }

    fn await_reply<T>(
        &self,
        link: &Arc<Link>,
        number: u64,
        reply: Option<Result<Body, tokio::sync::oneshot::error::RecvError>>,
        read: impl FnOnce(Body) -> Result<Result<T, Refusal>, WireError>,
    ) -> Result<T, Refusal> {
        match reply {
            Some(Ok(body)) => read(body).unwrap_or_else(|error| {
                link.break_off(LinkEnd::Protocol(error));
                Err(Refusal::NotOwner)
            }),
            Some(Err(_)) => Err(Refusal::NotOwner),
            None => {
                self.requests.give_up(number);
                Err(Refusal::Owner(OwnerError::Unavailable))
            }
        }
    }

    pub(super) async fn attach(
        &self,
        group: PartitionGroup,
        request: AttachRequest,
    ) -> Result<AttachGrant, OwnerError> {
        let request = &request;
        self.with_owner(group, |target| async move {
            match target {
                Target::Local(owner) => owner.attach(request.clone()).await.map_err(Refusal::Owner),
                Target::Remote { link, owner } => {
                    let owner_epoch = owner.epoch.0;
                    let client = Some(request.into());
                    let (number, reply) = self.requests.enter_for(&link, Some(request.client_id.clone()));
                    let attach = Attach { request: number, owner_epoch, client };
                    self.send_request(&link, number, Body::Attach(Box::new(attach)))?;
                    let reply = timeout(ATTACH_REPLY, reply).await.ok();
                    self.await_reply(&link, number, reply, |body| match_reply(body).attach())
                }
            }
        })
        .await
    }

    pub(super) async fn subscribe(
        &self,
        group: PartitionGroup,
        request: SubscribeRequest,
    ) -> Result<SubscriptionReasons, OwnerError> {
        let request = &request;
        self.with_owner(group, |target| async move {
            match target {
                Target::Local(owner) => owner.subscribe(request.clone()).await.map_err(Refusal::Owner),
                Target::Remote { link, owner } => {
                    let body = |number| {
                        Body::Subscribe(Subscribe {
                            request: number,
                            owner_epoch: owner.epoch.0,
                            client_id: request.client_id.to_string(),
                            connection: Some(request.connection.into()),
                            subscriptions: request.subscriptions.iter().map(Into::into).collect(),
                            more: false,
                        })
                    };
                    self.ask(&link, self.subscribe_reply(), body, |body| match_reply(body).reasons()).await
                }
            }
        })
        .await
    }

    pub(super) async fn unsubscribe(
        &self,
        group: PartitionGroup,
        request: UnsubscribeRequest,
    ) -> Result<SubscriptionReasons, OwnerError> {
        let request = &request;
        self.with_owner(group, |target| async move {
            match target {
                Target::Local(owner) => owner.unsubscribe(request.clone()).await.map_err(Refusal::Owner),
                Target::Remote { link, owner } => {
                    let filters = request.targets.iter().map(ToString::to_string);
                    let body = |number| {
                        Body::Unsubscribe(Unsubscribe {
                            request: number,
                            owner_epoch: owner.epoch.0,
                            client_id: request.client_id.to_string(),
                            connection: Some(request.connection.into()),
                            filters: filters.collect(),
                        })
                    };
                    self.ask(&link, self.subscribe_reply(), body, |body| match_reply(body).reasons()).await
                }
            }
        })
        .await
    }

    pub(super) async fn store_exactly_once(
        &self,
        group: PartitionGroup,
        request: ExactlyOnceRequest,
    ) -> Result<(), OwnerError> {
        let request = &request;
        self.with_owner(group, |target| async move {
            match target {
                Target::Local(owner) => {
                    owner.store_exactly_once(request.clone()).await.map_err(Refusal::Owner)
                }
                Target::Remote { link, owner } => {
                    let body = |number| {
                        Body::StoreExactlyOnce(StoreExactlyOnce::new(number, owner.epoch.0, request))
                    };
                    self.ask(&link, super::EXACTLY_ONCE_REPLY, body, |body| match_reply(body).stored()).await
                }
            }
        })
        .await
    }

    /// Tells the owner of `group` all attachments of this host. Not asked again here: the next time they are others.
    pub(super) async fn reattach_once(
        &self,
        group: PartitionGroup,
        host: Member,
        attachments: &HostAttachments,
    ) -> Result<ReattachOutcomes, Refusal> {
        match self.target(group) {
            None => Err(Refusal::NotOwner),
            Some(Target::Local(owner)) => {
                let answer = timeout(ATTACH_REPLY, owner.reattach(group, host, attachments.clone())).await;
                answer.unwrap_or(Err(OwnerError::Unavailable)).map_err(Refusal::Owner)
            }
            Some(Target::Remote { link, owner }) => self.reattach_at(&link, &owner, group, attachments).await,
        }
    }

    /// In as many frames as they need.
    async fn reattach_at(
        &self,
        link: &Arc<Link>,
        owner: &GroupOwner,
        group: PartitionGroup,
        attachments: &HostAttachments,
    ) -> Result<ReattachOutcomes, Refusal> {
        let (number, reply) = self.requests.enter(link);
        let head = Reattach {
            request: number,
            owner_epoch: owner.epoch.0,
            group: group.0.into(),
            ..Reattach::default()
        };
        for part in reattach_parts(&head, attachments) {
            // Bounded by the connections of this broker.
            if let Err(error) = link.send(Body::Reattach(part), Crowding::Unbounded) {
                self.requests.forget(number);
                return Err(unsent(error));
            }
        }
        let reply = timeout(ATTACH_REPLY, reply).await.ok();
        let outcomes = self.await_reply(link, number, reply, |body| match_reply(body).reattach())?;
        if outcomes.len() == attachments.attached.len() {
            return Ok(outcomes);
        }
        let error = WireError::Value { field: "attachments", value: outcomes.len() as u64 };
        link.break_off(LinkEnd::Protocol(error));
        Err(Refusal::NotOwner)
    }

    /// Completes when the host has closed the connection or is no member any more. The caller bounds it.
    pub(super) async fn take_over(&self, host: &Member, client_id: String, connection: ConnectionEpoch) {
        let mut view = self.view.clone();
        let mut links = self.links.changes();
        loop {
            links.borrow_and_update();
            let is_member =
                view.borrow_and_update().members.get(&host.id).is_some_and(|info| info.member == *host);
            if !is_member {
                return;
            }
            if let Some(link) = self.links.to(host) {
                let client_id = client_id.clone();
                let body = |request| {
                    Body::TakeOver(TakeOver { request, client_id, connection: Some(connection.into()) })
                };
                let answer =
                    self.ask(&link, super::TAKE_OVER_WAIT, body, |body| match_reply(body).taken_over());
                if answer.await.is_ok() {
                    return;
                }
            }
            // The link ended before the answer: wait for the next one, or for the end of the host.
            tokio::select! {
                changed = view.changed() => if changed.is_err() { return },
                _ = links.changed() => {}
            }
        }
    }
}

/// The frames that tell the attachments of a host; `head` is alike in all of them.
fn reattach_parts(head: &Reattach, word: &HostAttachments) -> Vec<Reattach> {
    let attached = split(word.attached.iter().map(Into::into).collect());
    let attaching = split(word.attaching.iter().map(ToString::to_string).collect());
    let of_attached = attached.into_iter().map(|attachments| Reattach { attachments, ..head.clone() });
    let of_attaching = attaching.into_iter().map(|attaching| Reattach { attaching, ..head.clone() });
    let mut parts: Vec<_> = of_attached.chain(of_attaching).collect();
    if let Some(last) = parts.last_mut() {
        last.last = true;
        last.granted = word.granted.map(Into::into);
    }
    parts
}

/// A question that could not be sent: again over the next link, or never.
fn unsent(error: PushError) -> Refusal {
    match error {
        PushError::Full | PushError::Shed => Refusal::NotOwner,
        PushError::TooLarge { .. } => Refusal::Owner(OwnerError::QuotaExceeded),
    }
}

/// A reply that is read as the one that was asked for.
struct Reply(Body);

fn match_reply(body: Body) -> Reply {
    Reply(body)
}

impl Reply {
    fn wrong<T>() -> Result<Result<T, Refusal>, WireError> {
        Err(WireError::Missing { field: "reply" })
    }

    fn attach(self) -> Result<Result<AttachGrant, Refusal>, WireError> {
        if let Body::AttachReply(reply) = self.0 { reply.answer() } else { Self::wrong() }
    }

    fn reattach(self) -> Result<Result<ReattachOutcomes, Refusal>, WireError> {
        if let Body::ReattachReply(reply) = self.0 { reply.answer() } else { Self::wrong() }
    }

    fn reasons(self) -> Result<Result<SubscriptionReasons, Refusal>, WireError> {
        if let Body::SubscribeReply(reply) | Body::UnsubscribeReply(reply) = self.0 {
            reply.answer()
        } else {
            Self::wrong()
        }
    }

    fn stored(self) -> Result<Result<(), Refusal>, WireError> {
        if let Body::StoreExactlyOnceReply(reply) = self.0 { reply.answer() } else { Self::wrong() }
    }

    fn taken_over(self) -> Result<Result<(), Refusal>, WireError> {
        if let Body::TakenOver(_) = self.0 { Ok(Ok(())) } else { Self::wrong() }
    }
}

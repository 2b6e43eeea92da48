//! What peers ask this broker as owner, and tell it as host.

use super::{Directory, LocalSides, Shared};
use crate::cluster::peer::lane::Crowding;
use crate::cluster::peer::link::Link;
use crate::cluster::wire::attach::{
    Attach, AttachReply, Detach, Reattach, ReattachReply, Refusal, TakeOver, TakenOver, WillOver,
};
use crate::cluster::wire::deliver::{Acked, Deliver};
use crate::cluster::wire::exactly_once::{Release, StoreExactlyOnce, StoreExactlyOnceReply};
use crate::cluster::wire::subscribe::{ReasonsReply, Subscribe, Unsubscribe};
use crate::cluster::wire::{Body, WireError, narrow, required};
use crate::owner::OwnerSide;
use std::sync::Arc;
use tidemill_core::attach::{
    AttachRequest, Attachment, ConnectionEpoch, ExactlyOnceRequest, HostAttachments, OwnerError,
    SubscribeRequest, UnsubscribeRequest, WillOutcome,
};
use tidemill_core::partition::PartitionGroup;

const UNAVAILABLE: Refusal = Refusal::Owner(OwnerError::Unavailable);

impl Directory {
    /// A host asks to let a connection in.
    ///
    /// # Errors
    ///
    /// [`WireError`] as for all of these: the frame is malformed, or the peer speaks for another host; break the link.
    pub(crate) fn handle_attach(&self, link: &Arc<Link>, attach: Attach) -> Result<(), WireError> {
        let number = attach.request;
        let request = AttachRequest::try_from(required(attach.client, "client")?)?;
        from_its_host(link, &request)?;
        let group = self.shared.group_of_client(&request.client_id);
        self.shared.answer(link, group, move |local| {
            let attaching = local.map(|local| local.owner.attach(request));
            async move {
                let answer = match attaching {
                    Ok(attaching) => attaching.await.map_err(Refusal::Owner),
                    Err(refusal) => Err(refusal),
                };
                Body::AttachReply(AttachReply::new(number, &answer))
            }
        });
        Ok(())
    }

    /// A host tells all its attachments of a group.
    pub(crate) fn handle_reattach(&self, link: &Arc<Link>, part: Reattach) -> Result<(), WireError> {
        let number = part.request;
        let group = PartitionGroup(narrow(part.group, "group")?);
        let mut attachments = Vec::with_capacity(part.attachments.len());
        for attachment in part.attachments {
            let attachment = Attachment::try_from(attachment)?;
            from_its_host(link, &attachment.request)?;
            attachments.push(attachment);
        }
        let (unfinished, key) = (&self.shared.unfinished, (link.number(), number));
        let attached = unfinished.reattaches.add(key, attachments, !part.last)?;
        let attaching = unfinished.attaching.add(key, part.attaching, !part.last)?;
        let (Some(attached), Some(attaching)) = (attached, attaching) else { return Ok(()) };
        let attachments = HostAttachments {
            attached,
            attaching: attaching.into_iter().map(Into::into).collect(),
            granted: part.granted.map(Into::into),
        };
        let host = link.peer().clone();
        self.shared.answer(link, group, move |local| {
            let reattaching = local.map(|local| local.owner.reattach(group, host, attachments));
            async move {
                let answer = match reattaching {
                    Ok(reattaching) => reattaching.await.map_err(Refusal::Owner),
                    Err(refusal) => Err(refusal),
                };
                Body::ReattachReply(ReattachReply::new(number, &answer))
            }
        });
        Ok(())
    }

    /// A host asks for subscriptions.
    pub(crate) fn handle_subscribe(
        &self,
        link: &Arc<Link>,
        mut subscribe: Subscribe,
    ) -> Result<(), WireError> {
        let number = subscribe.request;
        let collected = &self.shared.unfinished.subscribes;
        let all = collected.add((link.number(), number), subscribe.subscriptions, subscribe.more)?;
        let Some(subscriptions) = all else { return Ok(()) };
        subscribe.subscriptions = subscriptions;
        let request = SubscribeRequest::try_from(subscribe)?;
        let group = self.shared.group_of_client(&request.client_id);
        self.shared.answer(link, group, move |local| {
            let subscribing = local.map(|local| local.owner.subscribe(request));
            async move {
                let answer = match subscribing {
                    Ok(subscribing) => subscribing.await.map_err(Refusal::Owner),
                    Err(refusal) => Err(refusal),
                };
                Body::SubscribeReply(ReasonsReply::new(number, &answer))
            }
        });
        Ok(())
    }

    /// A host asks to end subscriptions.
    pub(crate) fn handle_unsubscribe(
        &self,
        link: &Arc<Link>,
        unsubscribe: Unsubscribe,
    ) -> Result<(), WireError> {
        let number = unsubscribe.request;
        let request = UnsubscribeRequest::try_from(unsubscribe)?;
        let group = self.shared.group_of_client(&request.client_id);
        self.shared.answer(link, group, move |local| {
            let unsubscribing = local.map(|local| local.owner.unsubscribe(request));
            async move {
                let answer = match unsubscribing {
                    Ok(unsubscribing) => unsubscribing.await.map_err(Refusal::Owner),
                    Err(refusal) => Err(refusal),
                };
                Body::UnsubscribeReply(ReasonsReply::new(number, &answer))
            }
        });
        Ok(())
    }

    /// A host asks to store steps of QoS 2.
    pub(crate) fn handle_store_exactly_once(
        &self,
        link: &Arc<Link>,
        request: StoreExactlyOnce,
    ) -> Result<(), WireError> {
        let number = request.request;
        let request = ExactlyOnceRequest::try_from(request)?;
        let group = self.shared.group_of_client(&request.client_id);
        self.shared.answer(link, group, move |local| {
            let storing = local.map(|local| local.owner.store_exactly_once(request));
            async move {
                let answer = match storing {
                    Ok(storing) => storing.await.map_err(Refusal::Owner),
                    Err(refusal) => Err(refusal),
                };
                Body::StoreExactlyOnceReply(StoreExactlyOnceReply::new(number, &answer))
            }
        });
        Ok(())
    }

    /// An owner has stored PUBRECs.
    pub(crate) fn handle_release(&self, release: Release) -> Result<(), WireError> {
        let release = tidemill_core::attach::Release::try_from(release)?;
        if let Some(local) = self.shared.local.get() {
            local.host.release(&self.shared.view().own, release);
        }
        Ok(())
    }

    /// A connection of a peer ended. Passed over when this broker is not the owner: the owner learns it by the next
    /// re-attach, which does not name the connection any more.
    pub(crate) fn handle_detach(&self, detach: Detach) -> Result<(), WireError> {
        let detach = tidemill_core::attach::Detach::try_from(detach)?;
        let group = self.shared.group_of_client(&detach.client_id);
        if let Ok(local) = self.shared.local_owner(group) {
            local.owner.detach(detach);
        }
        Ok(())
    }

    /// A will that a peer was to publish later is over.
    pub(crate) fn handle_will_over(&self, over: WillOver) -> Result<(), WireError> {
        let over = tidemill_core::attach::WillOver::try_from(over)?;
        let group = self.shared.group_of_client(&over.client_id);
        if let Ok(local) = self.shared.local_owner(group) {
            local.owner.will_over(over);
        }
        Ok(())
    }

    /// A client of a peer is done with messages.
    pub(crate) fn handle_acked(&self, acked: Acked) -> Result<(), WireError> {
        let acked = tidemill_core::attach::Acked::try_from(acked)?;
        if let Ok(local) = self.shared.local_owner(self.shared.partitioning.group_of(acked.partition)) {
            local.owner.acked(acked);
        }
        Ok(())
    }

    /// An owner sends messages of a queue.
    pub(crate) fn handle_deliver(&self, deliver: Deliver) -> Result<(), WireError> {
        let deliver = tidemill_core::attach::Deliver::try_from(deliver)?;
        if let Some(local) = self.shared.local.get() {
            local.host.deliver(&self.shared.view().own, deliver);
        }
        Ok(())
    }

    /// An owner wants a connection closed.
    pub(crate) fn handle_take_over(&self, link: &Arc<Link>, order: TakeOver) -> Result<(), WireError> {
        let connection: ConnectionEpoch = required(order.connection, "connection")?.into();
        let closing = self
            .shared
            .local
            .get()
            .map(|local| local.host.take_over(&self.shared.view().own, &order.client_id, connection));
        let link = Arc::clone(link);
        tokio::spawn(async move {
            if let Some(closing) = closing {
                closing.await;
            }
            let reply = Body::TakenOver(TakenOver { request: order.request });
            let _ = link.send(reply, Crowding::Waits);
        });
        Ok(())
    }

    /// An owner has answered an attach, or a part of its answer is here.
    pub(crate) fn handle_attach_reply(
        &self,
        link: &Arc<Link>,
        mut reply: AttachReply,
    ) -> Result<(), WireError> {
        let collected = &self.shared.unfinished.attach_replies;
        let all = collected.add((link.number(), reply.request), reply.subscriptions, reply.more)?;
        let Some(subscriptions) = all else { return Ok(()) };
        reply.subscriptions = subscriptions;
        let grant = reply.connection;
        let unwanted = self.shared.requests.answer(link, reply.request, Body::AttachReply(reply));
        if let (Some(client_id), Some(connection)) = (unwanted, grant) {
            // Whoever asked has given up: there is no such connection.
            let connection = connection.into();
            let (session_expiry_secs, in_flight) = (None, None);
            self.detach(tidemill_core::attach::Detach {
                client_id,
                connection,
                session_expiry_secs,
                in_flight,
                will: WillOutcome::Over,
            });
        }
        Ok(())
    }

    /// An owner has answered a re-attach, or a part of its answer is here.
    pub(crate) fn handle_reattach_reply(
        &self,
        link: &Arc<Link>,
        mut reply: ReattachReply,
    ) -> Result<(), WireError> {
        let collected = &self.shared.unfinished.reattach_replies;
        let all = collected.add((link.number(), reply.request), reply.attachments, reply.more)?;
        let Some(attachments) = all else { return Ok(()) };
        reply.attachments = attachments;
        self.handle_reply(link, reply.request, Body::ReattachReply(reply));
        Ok(())
    }

    /// A peer has answered a question.
    pub(crate) fn handle_reply(&self, link: &Arc<Link>, number: u64, reply: Body) {
        self.shared.requests.answer(link, number, reply);
    }
}

impl Shared {
    /// The local owner, if this broker owns `group`.
    fn local_owner(&self, group: PartitionGroup) -> Result<&LocalSides, Refusal> {
        if !self.owns(group) {
            return Err(Refusal::NotOwner);
        }
        self.local.get().ok_or(UNAVAILABLE)
    }

    /// Starts the answer to a question at once, in the order of the frames, and sends it when it is there.
    fn answer<Answering>(
        &self,
        link: &Arc<Link>,
        group: PartitionGroup,
        start: impl FnOnce(Result<&LocalSides, Refusal>) -> Answering,
    ) where
        Answering: Future<Output = Body> + Send + 'static,
    {
        let permit = Arc::clone(&self.permits).try_acquire_owned();
        let local = self.local_owner(group);
        let answering = start(if permit.is_ok() { local } else { Err(UNAVAILABLE) });
        let link = Arc::clone(link);
        tokio::spawn(async move {
            for part in answering.await.into_parts() {
                // A link that has ended meanwhile lets its peer ask again over the next one.
                let _ = link.send(part, Crowding::Waits);
            }
            drop(permit);
        });
    }
}

/// A host speaks for its own connections only.
fn from_its_host(link: &Arc<Link>, request: &AttachRequest) -> Result<(), WireError> {
    if request.host == *link.peer() {
        Ok(())
    } else {
        Err(WireError::Value { field: "host", value: request.host.incarnation.0 })
    }
}

//! One broker among its peers: puts links, routes, forwards and the directory together.

use super::directory::reattach::AttachmentSource;
use super::directory::{Directory, LocalSides};
use super::exchange::{Exchange, RouteSink};
use super::forward::{ForwardSink, Forwards};
use super::peer::LinkHandler;
use super::peer::end::LinkEnd;
use super::peer::handshake::LinkTerms;
use super::peer::lane::Crowding;
use super::peer::link::Link;
use super::peer::mesh::{Mesh, MeshConfig};
use super::peer::table::LinkTable;
use super::peer::tls::PeerTls;
use super::wire::link::membership_body;
use super::wire::{Body, WireError};
use super::{Coordination, DurableGate, boot_time_nanos};
use crate::owner::{HostSide, OwnerSide};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tidemill_core::member::{Member, MemberId};
use tidemill_core::membership::message::PeerMessage;
use tidemill_core::time::BootTime;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

/// The digest of the own routes goes to the lease this often; the lease is renewed more seldom.
const DIGEST: Duration = Duration::from_secs(1);

/// Takes what members say about each other's leases.
pub trait MembershipSink: Send + Sync + 'static {
    /// A message of a member, in the order of its link. Must not wait.
    fn handle_message(&self, from: &Member, message: PeerMessage);
}

/// What this broker itself gives to the cluster.
pub struct LocalParts {
    /// Owns this broker's groups.
    pub owner: Arc<dyn OwnerSide>,
    /// Its connections as owners see them.
    pub host: Arc<dyn HostSide>,
    /// Its connections as they are told to a new owner.
    pub attachments: Arc<dyn AttachmentSource>,
    /// Its router, for routes.
    pub routes: Arc<dyn RouteSink>,
    /// Its router, for messages.
    pub forwards: Arc<dyn ForwardSink>,
}

/// The links to the peers, for a broker that has any.
pub struct PeerAccess {
    /// The TLS identity.
    pub tls: Arc<PeerTls>,
    /// Where peers dial in.
    pub listener: TcpListener,
    /// The lease protocol, if it talks over the links.
    pub membership: Option<Arc<dyn MembershipSink>>,
}

/// This broker's place in the cluster. A standalone broker has one too, without links: its gates pass at once.
pub struct ClusterNode {
    terms: LinkTerms,
    coordination: Arc<dyn Coordination>,
    links: Arc<LinkTable>,
    exchange: Exchange,
    directory: Directory,
    forwards: Arc<Forwards>,
    local: OnceLock<LocalParts>,
    membership: OnceLock<Arc<dyn MembershipSink>>,
}

impl ClusterNode {
    /// Builds the parts that the router, the registry and the owner need before they can be built themselves.
    #[must_use]
    pub fn new(
        terms: LinkTerms,
        coordination: Arc<dyn Coordination>,
        durable_gate: DurableGate,
    ) -> Arc<Self> {
        let links = Arc::new(LinkTable::default());
        let view = coordination.view();
        let exchange = Exchange::new(terms.partitioning, view.clone(), Arc::clone(&durable_gate));
        let directory = Directory::new(terms.partitioning, view, Arc::clone(&links), durable_gate);
        Arc::new(Self {
            terms,
            coordination,
            links,
            exchange,
            directory,
            forwards: Arc::new(Forwards::default()),
            local: OnceLock::new(),
            membership: OnceLock::new(),
        })
    }

    /// Routes between brokers: [`super::RouteExchange`].
    #[must_use]
    pub fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    /// Owners and hosts of all brokers: [`OwnerSide`] and [`HostSide`].
    #[must_use]
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Messages to peers: [`super::Forwarder`].
    #[must_use]
    pub fn forwards(&self) -> &Arc<Forwards> {
        &self.forwards
    }

    /// The links that are up.
    #[must_use]
    pub fn links(&self) -> &Arc<LinkTable> {
        &self.links
    }

    /// Sends a message of the lease protocol; dropped when no link is up.
    pub fn send_message(&self, to: &MemberId, message: &PeerMessage) {
        if let Some(link) = self.links.get(to) {
            let body = membership_body(message, BootTime(boot_time_nanos()));
            let _ = link.send(body, Crowding::Urgent);
        }
    }

    /// Gives this broker's own parts. Must come before [`Self::run`] and before the owner announces routes.
    pub fn start(&self, parts: LocalParts) {
        self.exchange.start(Arc::clone(&parts.routes));
        self.directory.start(LocalSides {
            owner: Arc::clone(&parts.owner),
            host: Arc::clone(&parts.host),
            attachments: Arc::clone(&parts.attachments),
        });
        let _ = self.local.set(parts);
    }

    /// Serves until `stop`: keeps the links, follows the view, re-attaches at new owners. Completes when all links are
    /// down.
    pub async fn run(self: Arc<Self>, peers: Option<PeerAccess>, stop: CancellationToken) {
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&self).follow_view(stop.clone()));
        tasks.spawn(self.directory.clone().keep_attached(stop.clone()));
        if let Some(peers) = peers {
            if let Some(membership) = peers.membership {
                let _ = self.membership.set(membership);
            }
            let config = MeshConfig {
                terms: self.terms.clone(),
                tls: peers.tls,
                coordination: Arc::clone(&self.coordination),
                links: Arc::clone(&self.links),
            };
            let handler: Arc<dyn LinkHandler> = self;
            tasks.spawn(Mesh::new(config, handler).run(peers.listener, stop));
        }
        while let Some(ended) = tasks.join_next().await {
            // A panic of a task of the cluster must not leave half a broker behind.
            if let Err(error) = ended {
                std::panic::resume_unwind(error.into_panic());
            }
        }
    }

    async fn follow_view(self: Arc<Self>, stop: CancellationToken) {
        let mut view = self.coordination.view();
        let mut digests = interval(DIGEST);
        digests.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let current = view.borrow_and_update().clone();
            for gone in self.exchange.follow(&current) {
                if let Some(local) = self.local.get() {
                    self.forwards.drop_member(&gone, &*local.forwards);
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                changed = view.changed() => if changed.is_err() { return },
                _ = digests.tick() => self.coordination.set_route_digest(self.exchange.digest()),
            }
        }
    }

    fn handle_membership(&self, from: &Member, message: PeerMessage) {
        if let Some(membership) = self.membership.get() {
            membership.handle_message(from, message);
        }
    }
}

impl LinkHandler for ClusterNode {
    fn link_up(&self, link: &Arc<Link>) {
        if let Some(local) = self.local.get() {
            self.forwards.link_up(link, &*local.forwards);
        }
        self.exchange.link_up(link);
    }

    fn handle_control(&self, link: &Arc<Link>, body: Body) -> Result<(), WireError> {
        match body {
            Body::RouteSnapshot(part) => self.exchange.handle_snapshot(link, part)?,
            Body::RouteDelta(part) => self.exchange.handle_delta(link, part)?,
            Body::RouteAck(ack) => self.exchange.handle_ack(link, ack),
            Body::ForwardAck(ack) => self.forwards.handle_ack(link, ack)?,
            Body::Attach(attach) => self.directory.handle_attach(link, *attach)?,
            Body::Detach(detach) => self.directory.handle_detach(detach)?,
            Body::Reattach(part) => self.directory.handle_reattach(link, part)?,
            Body::Subscribe(subscribe) => self.directory.handle_subscribe(link, subscribe)?,
            Body::Unsubscribe(unsubscribe) => self.directory.handle_unsubscribe(link, unsubscribe)?,
            Body::StoreExactlyOnce(request) => self.directory.handle_store_exactly_once(link, request)?,
            Body::StoreExactlyOnceReply(reply) => {
                self.directory.handle_reply(link, reply.request, Body::StoreExactlyOnceReply(reply));
            }
            Body::WillOver(over) => self.directory.handle_will_over(over)?,
            Body::TakeOver(order) => self.directory.handle_take_over(link, order)?,
            Body::Acked(acked) => self.directory.handle_acked(acked)?,
            Body::AttachReply(reply) => self.directory.handle_attach_reply(link, reply)?,
            Body::ReattachReply(reply) => self.directory.handle_reattach_reply(link, reply)?,
            Body::SubscribeReply(ref reply) | Body::UnsubscribeReply(ref reply) => {
                self.directory.handle_reply(link, reply.request, body);
            }
            Body::TakenOver(reply) => {
                self.directory.handle_reply(link, reply.request, Body::TakenOver(reply));
            }
            Body::Consent(consent) => self.handle_membership(link.peer(), consent.message()?),
            Body::Ping(ping) => {
                if let Some(nanos) = ping.grant_asked_at_nanos {
                    let message = PeerMessage::GrantAsk { asked_at: BootTime(nanos) };
                    self.handle_membership(link.peer(), message);
                }
            }
            Body::Pong(pong) => {
                if let Some(nanos) = pong.granted_asked_at_nanos {
                    self.handle_membership(link.peer(), PeerMessage::Grant { asked_at: BootTime(nanos) });
                }
            }
            Body::Hello(_) => return Err(WireError::Value { field: "hello", value: 2 }),
            // The link itself handles these and never passes them on.
            Body::Credit(_) | Body::Break(_) => {}
            // They belong to the data lane, which the link has checked.
            Body::Deliver(_) | Body::Forward(_) | Body::Appended(_) | Body::Release(_) | Body::Resume(_) => {}
        }
        Ok(())
    }

    fn handle_data(&self, link: &Arc<Link>, body: Body) -> Result<(), WireError> {
        let Some(local) = self.local.get() else { return Ok(()) };
        if let Body::Forward(forward) = body {
            self.forwards.handle_forward(link, forward, &*local.forwards)
        } else if let Body::Deliver(deliver) = body {
            self.directory.handle_deliver(deliver)
        } else if let Body::Release(release) = body {
            self.directory.handle_release(release)
        } else if let Body::Resume(resume) = body {
            self.forwards.handle_resume(link, resume, &*local.forwards);
            Ok(())
        } else {
            // A hint; the owner's fetch is the truth.
            Ok(())
        }
    }

    fn data_processed(&self, link: &Arc<Link>, sequence: u64) {
        self.forwards.data_processed(link);
        self.exchange.data_processed(link, sequence);
    }

    fn tick(&self, link: &Arc<Link>) {
        self.forwards.tick(link);
    }

    fn link_down(&self, link: &Arc<Link>, end: &LinkEnd) {
        self.forwards.link_down(link, end);
        self.exchange.link_down(link);
        self.directory.link_down(link);
    }
}

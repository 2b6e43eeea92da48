//! All links of this broker: dials, accepts, and keeps one link to every other member of the view.

use super::end::LinkEnd;
use super::handshake::{HandshakeError, LinkTerms, Which, check, greeting, read_hello, write_hello};
use super::link::{FrameBounds, Link, Streams};
use super::table::LinkTable;
use super::tls::{PeerTls, TlsError, names_member};
use super::{LinkHandler, random_u64};
use crate::admission::{Admission, AdmissionLimits, Admitted};
use crate::cluster::wire::Lane;
use crate::cluster::wire::link::Hello;
use crate::cluster::{ClusterView, Coordination, MemberInfo};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tidemill_core::member::{Member, MemberId};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};
use tokio_util::sync::CancellationToken;

/// Connecting, TLS and greeting of both lanes take at most this.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// An accepted connection has proved that it is a peer's after at most this.
const CERTIFICATE: Duration = Duration::from_secs(2);
/// Pause before the first dial again; doubles up to [`BACKOFF_MAX`], with jitter.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Longest pause between dials.
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// Accepted connections in handshake at a time; more are closed at once, and their peers dial again. Anybody can open
/// them: those of one address leave room for those of others.
const HANDSHAKES: AdmissionLimits = AdmissionLimits { total: 64, per_source: 8 };

type Stream = TlsStream<TcpStream>;

/// What the mesh is made of.
pub struct MeshConfig {
    /// What all brokers have alike.
    pub terms: LinkTerms,
    /// The TLS identity.
    pub tls: Arc<PeerTls>,
    /// Tells who the members are, and is told who can be reached.
    pub coordination: Arc<dyn Coordination>,
    /// Where the links that are up can be found.
    pub links: Arc<LinkTable>,
}

/// The links of this broker.
pub struct Mesh {
    config: MeshConfig,
    handler: Arc<dyn LinkHandler>,
    /// Accepted control lanes that wait for their data lane.
    halves: Mutex<HashMap<u64, oneshot::Sender<Stream>>>,
    handshakes: Arc<Admission>,
    reporting: Mutex<()>,
}

impl Mesh {
    /// A mesh without links.
    #[must_use]
    pub fn new(config: MeshConfig, handler: Arc<dyn LinkHandler>) -> Arc<Self> {
        Arc::new(Self {
            config,
            handler,
            halves: Mutex::default(),
            handshakes: Admission::new(HANDSHAKES),
            reporting: Mutex::new(()),
        })
    }

    /// Keeps the links until `stop`, then ends them all. Completes when all are down.
    pub async fn run(self: Arc<Self>, listener: TcpListener, stop: CancellationToken) {
        let mut view = self.config.coordination.view();
        let mut tasks = JoinSet::new();
        let mut dialers: BTreeMap<Member, AbortHandle> = BTreeMap::new();
        self.follow(&view.borrow_and_update().clone(), &mut dialers, &mut tasks);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                accepted = listener.accept() => match accepted {
                    Ok((socket, from)) => match self.handshakes.admit(from.ip()) {
                        Some(admitted) => { tasks.spawn(Arc::clone(&self).accept(socket, admitted)); }
                        None => tracing::debug!(%from, "too many connections that are no links yet"),
                    },
                    // Out of descriptors or the like: the sockets that exist must go on.
                    Err(error) => { tracing::warn!(%error, "cannot accept peers"); sleep(BACKOFF_MIN).await; }
                },
                changed = view.changed() => {
                    if changed.is_err() { break; }
                    let current = view.borrow_and_update().clone();
                    self.follow(&current, &mut dialers, &mut tasks);
                }
                Some(_) = tasks.join_next() => {}
            }
        }
        let links = self.config.links.all();
        links.iter().for_each(|link| link.break_off(LinkEnd::Stopping));
        for link in links {
            link.ended().await;
        }
        tasks.shutdown().await;
    }

    /// Dials whom this broker must dial and drops who is no member any more.
    fn follow(
        self: &Arc<Self>,
        view: &ClusterView,
        dialers: &mut BTreeMap<Member, AbortHandle>,
        tasks: &mut JoinSet<()>,
    ) {
        let links = self.config.links.all();
        for link in links {
            let is_member = view.members.get(&link.peer().id).is_some_and(|info| info.member == *link.peer());
            if !is_member {
                link.break_off(LinkEnd::NotMember);
            }
        }
        let joined = view.own_epoch.0 > 0;
        let wanted: BTreeMap<&Member, &MemberInfo> = view
            .members
            .values()
            .filter(|info| joined && view.own.id < info.member.id)
            .map(|info| (&info.member, info))
            .collect();
        dialers.retain(|member, dialer| {
            // A link that is up runs in its dialer's task and ends by itself.
            let keep = wanted.contains_key(member) && !dialer.is_finished();
            if !keep && self.config.links.get(&member.id).is_none_or(|link| link.peer() != member) {
                dialer.abort();
            }
            keep
        });
        for (member, info) in wanted {
            if !dialers.contains_key(member) {
                let dialer = tasks.spawn(Arc::clone(self).keep_dialing(info.clone()));
                dialers.insert(member.clone(), dialer);
            }
        }
    }

    async fn keep_dialing(self: Arc<Self>, info: MemberInfo) {
        let peer = &info.member.id;
        let mut backoff = BACKOFF_MIN;
        // Ends when the view no longer holds this incarnation: aborted, or seen here.
        loop {
            match timeout(HANDSHAKE, self.dial(&info)).await {
                Ok(Ok((link, streams))) => {
                    self.run_link(link, streams).await;
                    backoff = BACKOFF_MIN;
                }
                Ok(Err(error)) => tracing::debug!(%peer, %error, "cannot link to peer"),
                Err(_) => tracing::debug!(%peer, error = %HandshakeError::Timeout, "cannot link to peer"),
            }
            if !self.is_member(&info.member) {
                return;
            }
            sleep(jittered(backoff)).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    async fn dial(&self, info: &MemberInfo) -> Result<(Arc<Link>, Streams<Stream>), DialError> {
        let link = random_u64();
        let (control, answer) = self.dial_lane(info, link, Lane::Control).await?;
        let (data, _) = self.dial_lane(info, link, Lane::Data).await?;
        Ok((self.link_to(info, &answer), Streams { control, data }))
    }

    async fn dial_lane(
        &self,
        info: &MemberInfo,
        link: u64,
        lane: Lane,
    ) -> Result<(Stream, Hello), DialError> {
        let configs = self.config.tls.configs().await?;
        let name = ServerName::try_from(info.member.id.as_str().to_owned())
            .map_err(|_| HandshakeError::Certificate(info.member.id.clone()))?;
        let socket = TcpStream::connect(&info.endpoint).await.map_err(HandshakeError::Io)?;
        socket.set_nodelay(true).map_err(HandshakeError::Io)?;
        let connector = TlsConnector::from(configs.client);
        let mut stream =
            TlsStream::Client(connector.connect(name, socket).await.map_err(HandshakeError::Io)?);
        let which = Which { link, lane };
        let hello = greeting(&self.config.terms, &self.view(), &info.member, which);
        write_hello(&mut stream, hello).await?;
        let answer = read_hello(&mut stream).await?;
        let view = self.view();
        let known = check(&answer, &self.config.terms, &view)?;
        if known.member != info.member || answer.link != link || answer.lane()? != lane {
            return Err(HandshakeError::WrongPeer.into());
        }
        Ok((stream, answer))
    }

    async fn accept(self: Arc<Self>, socket: TcpStream, admitted: Admitted) {
        let accepted = timeout(HANDSHAKE, self.accept_lane(socket)).await;
        drop(admitted);
        let accepted = match accepted {
            Ok(Ok(accepted)) => accepted,
            Ok(Err(error)) => return tracing::debug!(%error, "refused a peer connection"),
            Err(_) => return tracing::debug!(error = %HandshakeError::Timeout, "refused a peer connection"),
        };
        if let Some(Accepted { link, control, data }) = accepted {
            let Ok(Ok(data)) = timeout(HANDSHAKE, data).await else { return };
            self.run_link(link, Streams { control, data }).await;
        }
    }

    /// Greets an accepted connection. A control lane is returned with the promise of its data lane.
    async fn accept_lane(&self, socket: TcpStream) -> Result<Option<Accepted>, DialError> {
        let configs = self.config.tls.configs().await?;
        socket.set_nodelay(true).map_err(HandshakeError::Io)?;
        let accepting = TlsAcceptor::from(configs.server).accept(socket);
        let accepted = timeout(CERTIFICATE, accepting).await.map_err(|_| HandshakeError::Timeout)?;
        let accepted = accepted.map_err(HandshakeError::Io)?;
        let mut stream = TlsStream::Server(accepted);
        let hello = read_hello(&mut stream).await?;
        let view = self.view();
        let info = check(&hello, &self.config.terms, &view)?.clone();
        certificate_names(&stream, &info.member.id)?;
        let lane = hello.lane()?;
        let data = (lane == Lane::Control).then(|| self.expect_data_lane(&hello));
        let which = Which { link: hello.link, lane };
        write_hello(&mut stream, greeting(&self.config.terms, &view, &info.member, which)).await?;
        if let Some(data) = data {
            return Ok(Some(Accepted { link: self.link_to(&info, &hello), control: stream, data }));
        }
        if let Some(control) = self.halves.lock().remove(&hello.link) {
            // Fails only when the control lane has ended meanwhile.
            let _ = control.send(stream);
        }
        Ok(None)
    }

    /// Links are numbered at random by an authenticated peer, so nobody else's half is met by chance.
    fn expect_data_lane(&self, hello: &Hello) -> oneshot::Receiver<Stream> {
        let (sender, receiver) = oneshot::channel();
        let mut halves = self.halves.lock();
        halves.retain(|_, waiting| !waiting.is_closed());
        halves.insert(hello.link, sender);
        receiver
    }

    async fn run_link(&self, link: Arc<Link>, streams: Streams<Stream>) {
        // Only a peer that dialed again has a former link; it ends before the new one starts.
        while let Err(former) = self.config.links.insert(&link) {
            former.break_off(LinkEnd::Replaced);
            former.ended().await;
        }
        self.handler.link_up(&link);
        self.report_reachable();
        tracing::info!(peer = %link.peer().id, "peer link is up");
        Arc::clone(&link).run(streams, Arc::clone(&self.handler), &self.config.links).await;
        self.report_reachable();
    }

    fn report_reachable(&self) {
        // Looked at and told in one step: of two links that change at once the later report must know both.
        let _reporting = self.reporting.lock();
        let reachable = self.config.links.all().into_iter().map(|link| link.peer().id.clone()).collect();
        self.config.coordination.set_reachable(reachable);
    }

    fn link_to(&self, info: &MemberInfo, hello: &Hello) -> Arc<Link> {
        let own_epoch = self.view().own_epoch;
        let bounds = FrameBounds {
            receives: self.config.terms.frame_bytes_max(),
            sends: usize::try_from(hello.frame_bytes_max).unwrap_or(usize::MAX),
        };
        Arc::new(Link::new(info.member.clone(), info.epoch, own_epoch, bounds))
    }

    fn view(&self) -> Arc<ClusterView> {
        watch::Receiver::borrow(&self.config.coordination.view()).clone()
    }

    fn is_member(&self, member: &Member) -> bool {
        self.view().members.get(&member.id).is_some_and(|info| info.member == *member)
    }
}

/// An accepted control lane.
struct Accepted {
    link: Arc<Link>,
    control: Stream,
    /// Its data lane, once it is there.
    data: oneshot::Receiver<Stream>,
}

#[derive(Debug, thiserror::Error)]
enum DialError {
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl From<crate::cluster::wire::WireError> for DialError {
    fn from(error: crate::cluster::wire::WireError) -> Self {
        Self::Handshake(error.into())
    }
}

fn certificate_names(stream: &Stream, member: &MemberId) -> Result<(), HandshakeError> {
    let (_, session) = stream.get_ref();
    let certificate = session.peer_certificates().and_then(|chain| chain.first());
    match certificate {
        Some(certificate) if names_member(certificate, member) => Ok(()),
        Some(_) | None => Err(HandshakeError::Certificate(member.clone())),
    }
}

/// Between half of `backoff` and all of it.
fn jittered(backoff: Duration) -> Duration {
    let half = backoff / 2;
    let span = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX).max(1);
    half + Duration::from_nanos(random_u64() % span)
}

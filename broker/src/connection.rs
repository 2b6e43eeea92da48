//! One client's connection: a lean task that sleeps until its socket is readable, its mailbox calls, or a subscription
//! is through. Nothing here is per message but the walk `read -> decode -> session -> router`.

mod exactly_once;
mod handshake;
mod input;
mod packets;
mod retained;
mod services;
mod shared;
mod subscriptions;
mod sweep;
mod threads;
mod will;

pub use services::{OwnerHandle, ServiceParts, Services};
pub use threads::{ConnectionThreads, default_count};
use will::WillEnd;
pub use will::Wills;

use crate::mailbox::{CloseReason, Flush, Mailbox, Turn};
use crate::metrics::ClosedBy;
use crate::registry::Registered;
use crate::router::{Publisher, RouteCache};
use bytes::BytesMut;
use bytestring::ByteString;
use exactly_once::ExactlyOnceWork;
use futures::future::BoxFuture;
use handshake::Connected;
use input::Input;
use retained::RetainedFeed;
use std::future::poll_fn;
use std::net;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use subscriptions::SubscriptionWork;
use tidemill_codec::Codec;
use tidemill_core::attach::{DeliveriesDone, Detach, WillOutcome, WillOver};
use tidemill_core::packet::{Answer, Disconnect, Packet, PublishPacket, ReasonCode, Will, reason_string};
use tidemill_core::session::in_flight::InFlight;
use tidemill_core::session::inbound::Inbound;
use tidemill_core::session::state::Subscriptions;
use tidemill_core::state::will::is_stored;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;

/// What is queued when a connection ends may take this long to leave.
const FAREWELL_WAIT: Duration = Duration::from_secs(2);
/// After the last byte the client has this long to close its side.
const LINGER_WAIT: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: usize = 1 << 20;
/// How long the end of a persistent session's connection may wait for the outcome of its QoS 2 publishes; below the bound
/// of a takeover. What has none then is published again when the client repeats it.
const SETTLE_WAIT: Duration = Duration::from_secs(4);
/// Reads in one poll of the task; then other connections have their turn.
const TURNS_PER_POLL: usize = 8;

/// Serves one client from its first byte to its last. Runs on a thread of connections; ends by itself, whatever the
/// client does, once its mailbox is asked to close.
///
/// Beginning and end are boxed: what they need is given back, so that a task that idles holds one pointer.
pub async fn serve(services: Arc<Services>, socket: net::TcpStream) {
    let Some(mut connection) = Box::pin(begin(services, socket)).await else { return };
    let reason = connection.run().await;
    Box::pin(connection.finish(reason)).await;
}

/// From the first byte to CONNACK; a client that is not let in is told why, and closed.
async fn begin(services: Arc<Services>, socket: net::TcpStream) -> Option<Box<Connection>> {
    let ready = TcpStream::from_std(socket).and_then(|socket| socket.set_nodelay(true).map(|()| socket));
    let socket = match ready {
        Ok(socket) => socket,
        Err(error) => {
            tracing::debug!(%error, "socket gone before it was served");
            return None;
        }
    };
    let (reader, writer) = socket.into_split();
    let writer = Arc::new(writer);
    let mailbox = Mailbox::new(Arc::clone(&services.mailboxes), Flush::PlainTcp(Arc::clone(&writer)));
    let mut input = Input::new(reader, BytesMut::new());

    match handshake::connect(&services, &mailbox, &mut input).await {
        Ok(connected) => Some(Box::new(Connection::new(services, mailbox, writer, input, connected))),
        Err(error) => {
            services.metrics.connection_refused();
            tracing::debug!(%error, "connection refused");
            // Before CONNACK says success there is no DISCONNECT.
            let reason = mailbox.closing().filter(|_| error.is_after_connack());
            let farewell = reason.and_then(|reason| farewell(reason, None));
            close(&services, &mailbox, (writer, input), farewell).await;
            None
        }
    }
}

/// What a 5.0 client is told at the end. `words` say more than the reason code does.
fn farewell(reason: CloseReason, words: Option<ByteString>) -> Option<Disconnect> {
    match reason {
        CloseReason::ConnectionLost | CloseReason::ClientDisconnect(_) => None,
        CloseReason::Broker(reason) => Some(Disconnect {
            reason_string: words.or_else(|| reason_string(Answer::Disconnect, reason)),
            ..Disconnect::new(reason)
        }),
    }
}

/// Tells a 5.0 client why, writes what is queued, then closes.
async fn close(
    services: &Services,
    mailbox: &Arc<Mailbox>,
    (writer, mut input): (Arc<OwnedWriteHalf>, Input),
    farewell: Option<Disconnect>,
) {
    if let Some(disconnect) = farewell {
        let mut turn = Turn::begin(&services.metrics);
        mailbox.send_farewell(&Packet::Disconnect(disconnect), &mut turn);
        turn.finish();
    }
    let drained = async {
        while !mailbox.is_drained() && writer.writable().await.is_ok() {
            mailbox.handle_writable();
        }
    };
    let _ = tokio::time::timeout(FAREWELL_WAIT, drained).await;
    mailbox.end();
    // Dropping the last handle of the writing half tells the client that nothing more comes.
    drop(writer);
    let _ = tokio::time::timeout(LINGER_WAIT, input.discard(LINGER_BYTES_MAX)).await;
}

/// A client that was let in.
struct Connection {
    services: Arc<Services>,
    mailbox: Arc<Mailbox>,
    writer: Arc<OwnedWriteHalf>,
    input: Input,
    codec: Codec,
    registered: Arc<Registered>,
    inbound: Inbound,
    cache: RouteCache,
    subscriptions: Subscriptions,
    /// A PUBLISH that must wait: for an acknowledgement (3.x) or for the log. Nothing is read meanwhile.
    held: Option<Box<PublishPacket>>,
    /// Completes when the log takes publishes again.
    relief: Option<BoxFuture<'static, ()>>,
    /// Bytes are here that may hold a whole packet.
    has_more: bool,
    /// SUBSCRIBE and UNSUBSCRIBE under way.
    work: SubscriptionWork,
    /// Retained messages that follow a SUBACK.
    retained: RetainedFeed,
    /// QoS 2 publishes that wait for the owner.
    exactly_once: ExactlyOnceWork,
    /// What the owner of the session's queue is to hear at the end of the turn.
    done: DeliveriesDone,
    will: Option<Box<Will>>,
    /// What was wrong with the client's last bytes; boxed, because a connection that is well pays for it too.
    words: Option<Box<ByteString>>,
    /// As CONNECT asked for, as a DISCONNECT may change it.
    session_expiry_secs: Option<u32>,
}

impl Connection {
    fn new(
        services: Arc<Services>,
        mailbox: Arc<Mailbox>,
        writer: Arc<OwnedWriteHalf>,
        input: Input,
        connected: Connected,
    ) -> Self {
        let Connected { codec, connect, registered, grant, resumed } = connected;
        let has_more = input.has_rest();
        let mut connection = Self {
            inbound: Inbound::new(connect.version, services.features, handshake::TOPIC_ALIAS_MAXIMUM)
                .with_payload_format(services.payload_format),
            cache: RouteCache::new(Publisher::Connection(mailbox.id())),
            subscriptions: Subscriptions::new(services.limits.subscriptions),
            services,
            mailbox,
            writer,
            input,
            codec,
            registered,
            held: None,
            relief: None,
            work: SubscriptionWork::default(),
            retained: RetainedFeed::default(),
            has_more,
            exactly_once: ExactlyOnceWork::resume(&resumed.intents),
            done: DeliveriesDone::default(),
            will: connect.will.clone(),
            words: None,
            session_expiry_secs: None,
        };
        connection.restore(grant.subscriptions);
        connection.restore_retained(resumed.retained);
        connection.begin_shared();
        connection
    }

    /// Serves the client until the connection is to end.
    async fn run(&mut self) -> CloseReason {
        self.services.metrics.connection_opened();
        let swept = sweep::watch(&self.mailbox);
        tracing::debug!(client_id = %self.registered.request.client_id, "client connected");
        let reason = poll_fn(|context| self.poll(context)).await;
        drop(swept);
        reason
    }

    /// Ends the session's part in it, and says so to the client.
    async fn finish(mut self: Box<Self>, reason: CloseReason) {
        self.mailbox.close(reason);
        if self.registered.is_persistent() {
            let settled = poll_fn(|context| {
                self.poll_exactly_once(context);
                self.mailbox.poll_settled(context)
            });
            let _ = tokio::time::timeout(SETTLE_WAIT, settled).await;
        }
        self.end(reason);
        let words = self.words.take().filter(|_| self.mailbox.closing() == Some(reason)).map(|words| *words);
        let farewell = self.mailbox.closing().and_then(|reason| farewell(reason, words));
        let Self { services, mailbox, writer, input, .. } = *self;
        close(&services, &mailbox, (writer, input), farewell).await;
    }

    /// Nothing is delivered or published any more, the will is out and the owner knows: a newer connection may go on.
    fn end(&mut self, reason: CloseReason) {
        let client_id = self.registered.request.client_id.clone();
        tracing::debug!(%client_id, ?reason, "client disconnected");
        self.services.metrics.connection_closed(match reason {
            CloseReason::ConnectionLost => ClosedBy::Network,
            CloseReason::ClientDisconnect(_) => ClosedBy::Client,
            CloseReason::Broker(_) => ClosedBy::Broker,
        });
        self.forget_subscriptions();
        self.end_shared();
        let will = self.end_will(reason);
        let in_flight = self.registered.is_persistent().then(|| {
            Box::new(InFlight { retained: self.retained.take_due(), ..self.mailbox.take_in_flight() })
        });
        self.services.owner.detach(Detach {
            client_id,
            will,
            connection: *self.registered.connection.lock(),
            session_expiry_secs: self.session_expiry_secs,
            in_flight,
        });
        self.services.registry.end(&self.registered);
    }

    /// The will goes out, now or later, unless the client said a normal farewell.
    fn end_will(&mut self, reason: CloseReason) -> WillOutcome {
        let is_wanted = reason != CloseReason::ClientDisconnect(ReasonCode::SUCCESS);
        let Some(will) = self.will.take().filter(|_| is_wanted) else { return WillOutcome::Over };
        let session_expiry_secs = self.expiry_secs();
        let request = &self.registered.request;
        let name = WillOver {
            client_id: request.client_id.clone(),
            session: self.registered.session,
            connection: *self.registered.connection.lock(),
        };
        let name = is_stored(&will, request.lifetime).then_some(name);
        let end = WillEnd { session_expiry_secs, is_brokers_own: reason.is_brokers_own(), stored: name };
        self.services.wills.handle_abnormal_end(&self.registered.request.client_id, *will, end)
    }

    /// Seconds that the session outlives this connection, as CONNECT and DISCONNECT asked for.
    fn expiry_secs(&self) -> u32 {
        self.session_expiry_secs.unwrap_or(self.registered.request.lifetime.expiry_secs())
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<CloseReason> {
        for _ in 0..TURNS_PER_POLL {
            let state = self.mailbox.poll_state(context);
            if let Some(reason) = state.closing {
                return Poll::Ready(reason);
            }
            if state.must_flush {
                self.mailbox.flush();
            }
            if state.is_blocked && self.writer.as_ref().as_ref().poll_write_ready(context).is_ready() {
                self.mailbox.handle_writable();
                continue;
            }
            self.poll_work(context);
            self.poll_exactly_once(context);
            self.poll_retained(context);
            // A client that does not read its answers gets no further ones. Its keep alive runs on.
            if state.is_crowded {
                return Poll::Pending;
            }
            if self.is_paused(context) {
                self.mailbox.handle_paused();
                return Poll::Pending;
            }
            match self.poll_turn(context) {
                Poll::Ready(ControlFlow::Continue(())) => {}
                Poll::Ready(ControlFlow::Break(reason)) => return Poll::Ready(reason),
                Poll::Pending => return Poll::Pending,
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Whether nothing may be read now. Whatever ends the pause wakes the task.
    fn is_paused(&mut self, context: &mut Context<'_>) -> bool {
        if self.work.is_full() {
            return true;
        }
        if self.held.is_none() {
            return false;
        }
        if let Some(relief) = &mut self.relief {
            if relief.as_mut().poll(context).is_pending() {
                return true;
            }
            self.relief = None;
        }
        !self.registered.request.version.is_v5() && self.mailbox.is_window_full()
    }

    /// One turn: what was held, what is here, else one read; then everything it touched is written.
    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<ControlFlow<CloseReason>> {
        let (mut buffer, count) = if self.has_more {
            (self.input.take_rest(), 0)
        } else {
            match self.input.poll_read(context) {
                Poll::Ready(Ok(read)) => read,
                Poll::Ready(Err(_)) => return Poll::Ready(ControlFlow::Break(CloseReason::ConnectionLost)),
                Poll::Pending => return Poll::Pending,
            }
        };
        let mut turn = Turn::begin(&self.services.metrics);
        turn.count_read(count);
        self.mailbox.handle_received(turn.now_us() / 1_000);
        let outcome = self.handle_input(&mut buffer, &mut turn);
        self.input.put_back(buffer);
        self.report_acked();
        // What waits for a new member follows its SUBACK.
        if !self.work.is_under_way() {
            self.drain_shared(&mut turn);
        }
        match outcome {
            ControlFlow::Continue(()) => turn.finish_with_round(),
            // Nothing of this connection must wait for a later turn.
            ControlFlow::Break(_) => turn.finish(),
        }
        Poll::Ready(outcome)
    }

    fn handle_input(&mut self, buffer: &mut BytesMut, turn: &mut Turn) -> ControlFlow<CloseReason> {
        if let Some(held) = self.held.take() {
            self.handle_publish(*held, turn)?;
        }
        self.has_more = true;
        while self.held.is_none() && !self.work.is_full() {
            match self.codec.decode(buffer) {
                Ok(Some(packet)) => {
                    turn.count_packet();
                    self.handle_packet(packet, turn)?;
                }
                Ok(None) => {
                    self.has_more = false;
                    break;
                }
                Err(error) => {
                    tracing::debug!(client_id = %self.registered.request.client_id, %error, "closing connection");
                    self.words = Some(Box::new(error.to_string().into()));
                    return ControlFlow::Break(CloseReason::Broker(error.reason()));
                }
            }
        }
        ControlFlow::Continue(())
    }
}

//! The mailbox of a connection *is* its outbound state: the outbound half of the session, the window of its
//! unacknowledged publishes and a byte buffer, under one lock. Whoever delivers or completes locks it, encodes the
//! packet into the buffer and remembers the mailbox in its [`Turn`]; at the end of the turn each such mailbox is
//! written once, by whoever delivered. The connection's own task wakes only when the socket does not take the bytes.

mod acks;
mod buffer;
mod close;
mod deliver;
mod flush;
mod shared;
mod turn;

pub use close::CloseReason;
pub use deliver::{LiveDelivery, QueueDeliveries, TakenDeliveries};
pub use flush::{Flush, Probe};
pub use shared::Offer;
pub use turn::{Turn, begin_rounds, finish_round};
pub(crate) use turn::{monotonic_us, unix_ms};

use crate::metrics::Metrics;
use buffer::OutBuffer;
use bytestring::ByteString;
use parking_lot::Mutex;
use std::fmt;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Waker};
use tidemill_codec::Encoder;
use tidemill_core::attach::DeliveriesDone;
use tidemill_core::packet::{Ack, AckKind, Packet, ReasonCode, Version};
use tidemill_core::partition::Offset;
use tidemill_core::session::ack_window::AckWindow;
use tidemill_core::session::aliases::TopicAliases;
use tidemill_core::session::in_flight::InFlight;
use tidemill_core::session::outbound::Outbound;
use tidemill_core::session::timers::KeepAlive;

/// Bounds of every mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MailboxLimits {
    /// Messages that wait for one connection.
    pub messages: usize,
    /// Bytes that wait for one connection.
    pub bytes: usize,
}

/// What all mailboxes of a broker share.
pub struct MailboxContext {
    /// Their bounds.
    pub limits: MailboxLimits,
    /// Where drops and latencies are counted.
    pub metrics: Metrics,
    /// Whether this broker may acknowledge; asked just before each acknowledgement.
    pub may_acknowledge: Box<dyn Fn() -> bool + Send + Sync>,
}

impl fmt::Debug for MailboxContext {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("MailboxContext").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// One connection's mailbox. Share it behind an `Arc`; after [`Mailbox::end`] it takes nothing and holds no socket.
#[derive(Debug)]
pub struct Mailbox {
    id: u64,
    context: Arc<MailboxContext>,
    /// Deliveries above QoS 0 in flight or waiting, as of the last change.
    load: AtomicUsize,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    client_id: ByteString,
    encoder: Encoder,
    outbound: Outbound,
    window: AckWindow,
    keep_alive: KeepAlive,
    /// Topic aliases that the client accepts; 0 = none.
    topic_alias_maximum: u16,
    /// Made with the first message for a client that accepts aliases.
    aliases: Option<Box<TopicAliases>>,
    buffer: OutBuffer,
    /// `None` after the connection has ended.
    flush: Option<Flush>,
    waker: Option<Waker>,
    closing: Option<CloseReason>,
    /// Some turn will flush it.
    is_dirty: bool,
    /// The connection's task is to flush it: an acknowledgement was queued outside of any turn.
    is_left_to_task: bool,
    /// Some thread writes to the socket, without the lock.
    is_writing: bool,
    /// The socket took no more; the connection's task waits for it.
    is_blocked: bool,
    /// Retained messages wait until there is room: the connection's task wants to hear of it.
    is_room_awaited: bool,
    /// What was in flight is taken: what ends now is not in it.
    is_told: bool,
}

/// What the connection's task must know before it goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MailboxState {
    /// The connection is to end.
    pub closing: Option<CloseReason>,
    /// Something was queued that no turn will write: call [`Mailbox::flush`]. Told once.
    pub must_flush: bool,
    /// The socket took no more bytes: wait until it is writable, then [`Mailbox::handle_writable`].
    pub is_blocked: bool,
    /// It is blocked with as many bytes as may wait: read nothing from the client until it has read something.
    pub is_crowded: bool,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Mailbox {
    /// A mailbox for a connection that was just accepted: it knows no client yet.
    #[must_use]
    pub fn new(context: Arc<MailboxContext>, flush: Flush) -> Arc<Self> {
        let inner = Inner {
            client_id: ByteString::new(),
            encoder: Encoder::new(Version::V3_1_1, None),
            outbound: Outbound::new(NonZeroU16::MIN),
            window: AckWindow::new(Version::V3_1_1, 1),
            keep_alive: KeepAlive::limit(0, 0),
            topic_alias_maximum: 0,
            aliases: None,
            buffer: OutBuffer::default(),
            flush: Some(flush),
            waker: None,
            closing: None,
            is_dirty: false,
            is_left_to_task: false,
            is_writing: false,
            is_blocked: false,
            is_room_awaited: false,
            is_told: false,
        };
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { id, context, load: AtomicUsize::new(0), inner: Mutex::new(inner) })
    }

    /// Unique among all connections of this process.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Client id; empty before CONNECT.
    #[must_use]
    pub fn client_id(&self) -> ByteString {
        self.inner.lock().client_id.clone()
    }

    /// Protocol version of the client, 3.1.1 before CONNECT.
    #[must_use]
    pub fn version(&self) -> Version {
        self.inner.lock().encoder.version()
    }

    /// The CONNECT was accepted: from now on messages are delivered as the client speaks.
    pub fn open(&self, client: OpenedClient) {
        let mut inner = self.inner.lock();
        inner.client_id = client.client_id;
        inner.encoder = client.encoder;
        let version = client.encoder.version();
        (inner.outbound, inner.window) = match client.kept {
            Kept::Nothing => (Outbound::new(client.window), AckWindow::new(version, client.receive_maximum)),
            Kept::Session(in_flight) => (
                Outbound::resume(client.window, in_flight.outgoing),
                AckWindow::resume(version, client.receive_maximum, &in_flight.received, &in_flight.intents),
            ),
        };
        inner.keep_alive = client.keep_alive;
        inner.topic_alias_maximum = client.topic_alias_maximum;
    }

    /// Goes on with what a resumed session has in flight: call it right after CONNACK. PUBREL is sent again, and what did
    /// not come from the queue; what did is sent again as the owner delivers it.
    pub fn resume(self: &Arc<Self>, turn: &mut Turn) {
        let mut inner = self.inner.lock();
        let released = inner.outbound.released();
        for packet_id in &released {
            acks::encode_ack(&mut inner, &Ack::new(AckKind::PubRel, *packet_id, ReasonCode::SUCCESS));
        }
        let mut done = DeliveriesDone::default();
        if deliver::encode_pending(&mut inner, &self.context, turn, &mut done) || !released.is_empty() {
            self.mark_dirty(&mut inner, turn);
        }
        self.note_load(&inner);
        debug_assert!(done.is_empty(), "nothing is here from the queue yet");
    }

    /// For a persistent session whose connection has ended and is closing: what it goes on with.
    pub fn take_in_flight(&self) -> InFlight {
        let mut inner = self.inner.lock();
        inner.is_told = true;
        let (received, outgoing) = (inner.window.take_received(), inner.outbound.take_in_flight());
        InFlight { received, outgoing, ..InFlight::default() }
    }

    /// Whether a persistent session has something at QoS 1 or 2 in flight that did not come from its queue.
    #[must_use]
    pub fn has_live_in_flight(&self) -> bool {
        self.inner.lock().outbound.has_live_in_flight()
    }

    /// Sets how to write to a client that is refused.
    pub fn set_encoder(&self, encoder: Encoder) {
        self.inner.lock().encoder = encoder;
    }

    /// Queues a packet that carries no message. A packet that the client does not accept ends the connection.
    pub fn send(self: &Arc<Self>, packet: &Packet, turn: &mut Turn) {
        let mut inner = self.inner.lock();
        let encoder = inner.encoder;
        let chunk = inner.buffer.back();
        if let Err(error) = encoder.encode(packet, chunk.encode_into(0)) {
            tracing::debug!(%error, "packet cannot be sent; closing connection");
            chunk.uncount(0);
            // A client that accepts no CONNACK cannot be told why: it comes before all others (MQTT-3.2.0-1).
            let is_first = matches!(packet, Packet::ConnAck(_));
            let told = CloseReason::Broker(ReasonCode::PACKET_TOO_LARGE);
            inner.closing.get_or_insert(if is_first { CloseReason::ConnectionLost } else { told });
        }
        self.mark_dirty(&mut inner, turn);
    }

    /// Queues the last packet: a 5.0 DISCONNECT. 3.x clients are not told why.
    pub fn send_farewell(self: &Arc<Self>, packet: &Packet, turn: &mut Turn) {
        if self.inner.lock().encoder.version().is_v5() {
            self.send(packet, turn);
        }
    }

    /// Asks the connection to end. The first reason counts.
    pub fn close(&self, reason: CloseReason) {
        let mut inner = self.inner.lock();
        inner.closing.get_or_insert(reason);
        wake(inner);
    }

    /// Something came from the client.
    pub fn handle_received(&self, now_ms: u64) {
        self.inner.lock().keep_alive.handle_received(now_ms);
    }

    /// The broker does not read from the client for a while.
    pub fn handle_paused(&self) {
        self.inner.lock().keep_alive.handle_paused();
    }

    /// Ends the connection if the client was silent for too long.
    pub fn sweep(&self, now_ms: u64) {
        let expired = self.inner.lock().keep_alive.is_expired(now_ms);
        if expired {
            self.close(CloseReason::Broker(ReasonCode::KEEP_ALIVE_TIMEOUT));
        }
    }

    /// For the connection's task: what it must know, and its waker.
    pub fn poll_state(&self, context: &mut Context<'_>) -> MailboxState {
        let mut inner = self.inner.lock();
        if !inner.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            inner.waker = Some(context.waker().clone());
        }
        MailboxState {
            must_flush: std::mem::take(&mut inner.is_left_to_task),
            closing: inner.closing,
            is_blocked: inner.is_blocked,
            is_crowded: inner.is_blocked && inner.buffer.unsent_bytes() >= self.context.limits.bytes,
        }
    }

    /// Why the connection is to end, if it is.
    #[must_use]
    pub fn closing(&self) -> Option<CloseReason> {
        self.inner.lock().closing
    }

    /// Whether as many publishes are not complete as may be, or of a 3.x client unacknowledged.
    #[must_use]
    pub fn is_window_full(&self) -> bool {
        self.inner.lock().window.is_full()
    }

    /// Offsets that are in flight and offsets that are done, for re-attach.
    #[must_use]
    pub fn offsets(&self) -> (Vec<Offset>, Vec<Offset>) {
        let inner = self.inner.lock();
        (inner.outbound.in_flight_offsets(), inner.outbound.done_offsets())
    }

    /// Whether nothing waits for the socket. What is queued after it failed does not: it is never written.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        let inner = self.inner.lock();
        inner.flush.is_none() || inner.buffer.unsent_bytes() == 0
    }

    /// The connection has ended: gives up socket, buffers and all that is in flight. Later deliveries vanish.
    pub fn end(&self) {
        let mut inner = self.inner.lock();
        inner.flush = None;
        inner.waker = None;
        inner.outbound = Outbound::new(NonZeroU16::MIN);
        inner.window = AckWindow::new(Version::V3_1_1, 1);
        inner.aliases = None;
        inner.buffer = OutBuffer::default();
        inner.closing.get_or_insert(CloseReason::ConnectionLost);
    }

    fn mark_dirty(self: &Arc<Self>, inner: &mut Inner, turn: &mut Turn) {
        if !inner.is_dirty {
            inner.is_dirty = true;
            turn.remember(Arc::clone(self));
        }
    }
}

/// What is known of a client when its CONNECT was accepted.
#[derive(Debug)]
pub struct OpenedClient {
    /// Client id, given or assigned.
    pub client_id: ByteString,
    /// How to write to it.
    pub encoder: Encoder,
    /// Unacknowledged deliveries it accepts.
    pub window: NonZeroU16,
    /// Unacknowledged publishes it may have.
    pub receive_maximum: u16,
    /// How long it may be silent.
    pub keep_alive: KeepAlive,
    /// Whether its session outlives the connection.
    pub kept: Kept,
    /// Topic aliases it accepts.
    pub topic_alias_maximum: u16,
}

/// What a session has beyond its connection.
#[derive(Debug)]
pub enum Kept {
    /// It is clean.
    Nothing,
    /// It is persistent, and had this in flight before.
    Session(InFlight),
}

/// Wakes the connection's task after the lock is released.
fn wake(inner: parking_lot::MutexGuard<'_, Inner>) {
    let waker = inner.waker.clone();
    drop(inner);
    if let Some(waker) = waker {
        waker.wake();
    }
}

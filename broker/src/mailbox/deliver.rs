//! Messages into a mailbox.

use super::acks::encode_ack;
use super::buffer::SHARED_PAYLOAD_BYTES_MIN;
use super::{CloseReason, Inner, Mailbox, MailboxContext, MailboxLimits, Turn};
use crate::metrics::DropReason;
use bytes::Bytes;
use parking_lot::MutexGuard;
use std::num::NonZeroU16;
use std::sync::Arc;
use tidemill_codec::{EncodeError, PublishParts};
use tidemill_core::attach::{DeliveriesDone, Delivery};
use tidemill_core::message::Message;
use tidemill_core::packet::{Ack, AckKind, QoS, ReasonCode};
use tidemill_core::session::aliases::{AliasChoice, TopicAliases};
use tidemill_core::session::delivery::{Admission, OutgoingDelivery, Received, Sending, Source};

/// A thread that waits for another one's write to a socket, which never blocks, looks so often; then the mailbox is full.
const LOOKS_MAX: usize = 10_000;

/// One message for one client, from memory.
#[derive(Debug, Clone, Copy)]
pub struct LiveDelivery<'a> {
    /// What was published.
    pub message: &'a Arc<Message>,
    /// QoS of this delivery.
    pub qos: QoS,
    /// Retain flag of the PUBLISH.
    pub retain: bool,
    /// 5.0: the client's subscription identifiers that matched.
    pub identifiers: Option<&'a Arc<[u32]>>,
}

impl LiveDelivery<'_> {
    /// What is kept of it while it waits or is in flight.
    fn to_outgoing(self, source: Source) -> OutgoingDelivery {
        OutgoingDelivery {
            message: Arc::clone(self.message),
            qos: self.qos,
            retain: self.retain,
            identifiers: self.identifiers.cloned(),
            source,
            sent_as: None,
            is_repeated: false,
        }
    }
}

/// Messages of a session's queue.
#[derive(Debug, Clone, Copy)]
pub struct QueueDeliveries<'a> {
    /// In offset order.
    pub deliveries: &'a [Delivery],
}

/// What became of [`QueueDeliveries`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TakenDeliveries {
    /// What the client needs no more: done before, expired, or larger than it accepts. Report it.
    pub done: DeliveriesDone,
}

impl Mailbox {
    /// Delivers one message from memory. At the bound a QoS 0 message is dropped and counted, and a client that does
    /// not take its QoS > 0 messages is closed with 0x97.
    pub fn deliver(self: &Arc<Self>, delivery: LiveDelivery<'_>, turn: &mut Turn) {
        let mut inner = self.lock_with_room(delivery.message.held_bytes());
        if !inner.takes_messages() {
            return;
        }
        if self.context.limits.are_reached(&inner, delivery.message.held_bytes()) {
            return self.handle_full(inner, delivery.qos);
        }
        self.take(&mut inner, delivery, Source::Live, turn);
    }

    /// The lock, with room for `bytes` unless the client keeps them waiting: what only waits for the end of a turn is
    /// written first, by this thread or by the one that is at it.
    pub(super) fn lock_with_room(&self, bytes: usize) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner.lock();
        for _ in 0..LOOKS_MAX {
            // What only waits for acknowledgements makes no room by a write.
            let can_be_written = !inner.is_blocked && inner.buffer.unsent_bytes() > 0;
            if !can_be_written || !self.context.limits.are_reached(&inner, bytes) {
                break;
            }
            if inner.is_writing {
                drop(inner);
                std::thread::yield_now();
            } else {
                self.write(inner);
            }
            inner = self.inner.lock();
        }
        inner
    }

    /// Takes a message from memory for which there is room.
    pub(super) fn take(
        self: &Arc<Self>,
        inner: &mut Inner,
        delivery: LiveDelivery<'_>,
        source: Source,
        turn: &mut Turn,
    ) {
        match inner.outbound.admit((delivery.qos, None), source, || delivery.to_outgoing(source)) {
            Admission::Send(sending) => {
                let mut done = DeliveriesDone::default();
                encode(inner, &self.context, Outgoing::live(&delivery, sending), (turn, &mut done));
                debug_assert!(done.is_empty(), "it did not come from the queue");
                self.mark_dirty(inner, turn);
            }
            Admission::Wait => {}
            Admission::InFlight | Admission::Done => {
                debug_assert!(false, "a live delivery has no offset");
            }
        }
        self.note_load(inner);
    }

    /// Delivers messages of the session's queue; what is in flight or done is not sent again. They are never refused:
    /// the owner hands out no more than the window it was told and, in bytes, than
    /// [`IN_FLIGHT_BYTES`](tidemill_core::queue::IN_FLIGHT_BYTES) and one message until it hears that the client is
    /// done with some. After a change of owner, what is here already does not count there.
    pub fn deliver_queue(
        self: &Arc<Self>,
        deliveries: QueueDeliveries<'_>,
        turn: &mut Turn,
    ) -> TakenDeliveries {
        let mut taken = TakenDeliveries::default();
        let mut inner = self.inner.lock();
        if !inner.takes_messages() {
            return taken;
        }
        for delivery in deliveries.deliveries {
            let source = Source::Queue(delivery.offset);
            let kept = || OutgoingDelivery {
                message: Arc::new(delivery.record.message.clone()),
                qos: delivery.qos,
                retain: delivery.retain,
                identifiers: (!delivery.identifiers.is_empty())
                    .then(|| delivery.identifiers.as_slice().into()),
                source,
                sent_as: None,
                is_repeated: false,
            };
            match inner.outbound.admit((delivery.qos, delivery.packet_id), source, kept) {
                Admission::Send(sending) => {
                    let outgoing = Outgoing {
                        message: &delivery.record.message,
                        retain: delivery.retain,
                        sending,
                        identifiers: &delivery.identifiers,
                    };
                    encode(&mut inner, &self.context, outgoing, (turn, &mut taken.done));
                }
                Admission::Wait => {}
                Admission::InFlight => {}
                Admission::Done => taken.done.finished.push(delivery.offset),
            }
        }
        self.mark_dirty(&mut inner, turn);
        self.note_load(&inner);
        taken
    }

    /// Delivers a retained message if it can be written now. Never more than half of the mailbox is taken, so that a
    /// client with many of them still has room for what is published, and never is it closed because of them. True if
    /// it was taken; else it comes again when the client has acknowledged, or read, something: the connection's task
    /// is woken then.
    pub fn deliver_retained(self: &Arc<Self>, delivery: LiveDelivery<'_>, turn: &mut Turn) -> bool {
        let mut inner = self.inner.lock();
        if !inner.takes_messages() {
            return false;
        }
        let limits = self.context.limits;
        let half = MailboxLimits { messages: limits.messages.div_ceil(2), bytes: limits.bytes / 2 };
        if half.are_reached(&inner, delivery.message.held_bytes()) {
            inner.is_room_awaited = true;
            return false;
        }
        // Acknowledgements come to the task by itself.
        if !inner.outbound.takes_at_once(delivery.qos) {
            return false;
        }
        self.take(&mut inner, delivery, Source::Live, turn);
        true
    }

    fn handle_full(&self, mut inner: MutexGuard<'_, Inner>, qos: QoS) {
        if qos == QoS::AtMostOnce {
            self.context.metrics.count_drop(DropReason::MailboxFull);
            return;
        }
        self.context.metrics.count_drop(DropReason::SlowClientClosed);
        inner.closing = Some(CloseReason::Broker(ReasonCode::QUOTA_EXCEEDED));
        super::wake(inner);
    }
}

impl MailboxLimits {
    /// Whether a message of `bytes` does not fit any more.
    pub(super) fn are_reached(self, inner: &Inner, bytes: usize) -> bool {
        let waiting = inner.buffer.unsent_bytes() + inner.outbound.pending_bytes();
        let messages = inner.buffer.unsent_messages() + inner.outbound.pending_count();
        // An empty mailbox takes any message, however large.
        messages >= self.messages || (waiting > 0 && waiting + bytes > self.bytes)
    }
}

/// Encodes what waited for room in the client's receive maximum. True if there was something.
pub(super) fn encode_pending(
    inner: &mut Inner,
    context: &MailboxContext,
    turn: &mut Turn,
    done: &mut DeliveriesDone,
) -> bool {
    let mut is_any = false;
    while let Some((sending, pending)) = inner.outbound.poll_pending() {
        let outgoing = Outgoing {
            message: &pending.message,
            retain: pending.retain,
            sending,
            identifiers: pending.identifiers.as_deref().unwrap_or(&[]),
        };
        encode(inner, context, outgoing, (turn, done));
        is_any = true;
    }
    is_any
}

struct Outgoing<'a> {
    message: &'a Message,
    retain: bool,
    sending: Sending,
    identifiers: &'a [u32],
}

impl<'a> Outgoing<'a> {
    fn live(delivery: &LiveDelivery<'a>, sending: Sending) -> Self {
        Self {
            message: delivery.message,
            retain: delivery.retain,
            sending,
            identifiers: delivery.identifiers.map_or(&[], |identifiers| identifiers),
        }
    }
}

/// Encodes one PUBLISH. A message that has expired or that the client does not accept is dropped for it alone; what to
/// report then, if it came from a queue, goes to `done`. What was begun is completed: a message that is sent again has
/// not expired (MQTT 5.0 section 3.3.2.3.3).
fn encode(
    inner: &mut Inner,
    context: &MailboxContext,
    outgoing: Outgoing<'_>,
    (turn, done): (&mut Turn, &mut DeliveriesDone),
) {
    let Outgoing { message, sending, .. } = outgoing;
    let mut remaining_secs = message.remaining_expiry_secs(turn.now_ms());
    if sending.dup {
        remaining_secs = remaining_secs.map(|secs| secs.max(1));
    }
    if remaining_secs == Some(0) {
        context.metrics.count_drop(DropReason::Expired);
        return not_written(inner, sending, done);
    }
    let parts = PublishParts {
        dup: sending.dup,
        retain: outgoing.retain,
        qos: sending.qos,
        packet_id: sending.packet_id,
        topic: message.topic.as_str(),
        topic_alias: None,
        payload: &message.payload,
        properties: message.properties.as_deref(),
        message_expiry_secs: remaining_secs,
        subscription_identifiers: outgoing.identifiers,
    };
    match write_with_alias(inner, &parts, &message.payload) {
        Ok(()) => turn.count_sent(sending.qos, message.payload.len()),
        Err(error) => {
            context.metrics.count_drop(match error {
                EncodeError::TooLarge { .. } => DropReason::LargerThanClientAccepts,
                EncodeError::Unrepresentable(_) => DropReason::Unrepresentable,
            });
            not_written(inner, sending, done);
        }
    }
}

fn not_written(inner: &mut Inner, sending: Sending, done: &mut DeliveriesDone) {
    match (inner.outbound.handle_not_written(sending), sending.packet_id) {
        (Some(Received::Release), Some(packet_id)) => {
            encode_ack(inner, &Ack::new(AckKind::PubRel, packet_id, ReasonCode::SUCCESS));
        }
        (Some(Received::Store(offset)), _) => done.received.push(offset),
        (Some(Received::Refused(offset)), _) => done.finished.extend(offset),
        (Some(Received::Release | Received::Waiting) | None, _) => {}
    }
}

/// Writes a PUBLISH with its topic, with a topic alias, or with both, as the client knows it. An alias that was not
/// written does not exist.
fn write_with_alias(inner: &mut Inner, parts: &PublishParts<'_>, payload: &Bytes) -> Result<(), EncodeError> {
    let choice = match NonZeroU16::new(inner.topic_alias_maximum) {
        None => AliasChoice::Topic,
        Some(maximum) => {
            let aliases = inner.aliases.get_or_insert_with(|| Box::new(TopicAliases::new(maximum)));
            aliases.choose(parts.topic)
        }
    };
    match choice {
        AliasChoice::Topic => write(inner, parts, payload),
        AliasChoice::Known(alias) => {
            write(inner, &PublishParts { topic: "", topic_alias: Some(alias), ..*parts }, payload)
        }
        AliasChoice::New(alias) => {
            match write(inner, &PublishParts { topic_alias: Some(alias), ..*parts }, payload) {
                Ok(()) => {
                    if let Some(aliases) = &mut inner.aliases {
                        aliases.confirm(alias, parts.topic);
                    }
                    Ok(())
                }
                // The alias itself takes three bytes.
                Err(EncodeError::TooLarge { .. }) => write(inner, parts, payload),
                Err(error @ EncodeError::Unrepresentable(_)) => Err(error),
            }
        }
    }
}

fn write(inner: &mut Inner, parts: &PublishParts<'_>, payload: &Bytes) -> Result<(), EncodeError> {
    let encoder = inner.encoder;
    let chunk = inner.buffer.back();
    let outcome = if payload.len() > SHARED_PAYLOAD_BYTES_MIN {
        let outcome = encoder.encode_publish_head(parts, chunk.encode_into(1));
        if outcome.is_ok() {
            chunk.push_shared(payload.clone());
        }
        outcome
    } else {
        encoder.encode_publish(parts, chunk.encode_into(1))
    };
    if outcome.is_err() {
        chunk.uncount(1);
    }
    outcome
}

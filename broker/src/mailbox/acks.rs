//! Acknowledgements in both directions.

use super::{CloseReason, Inner, Mailbox, Turn, deliver, monotonic_us, wake};
use std::sync::Arc;
use std::task::{Context, Poll};
use tidemill_core::attach::DeliveriesDone;
use tidemill_core::packet::{Ack, AckKind, Answer, PacketId, QoS, ReasonCode, reason_string};
use tidemill_core::session::ack_window::{Opened, Ticket};
use tidemill_core::session::delivery::{AckError, Received};

impl Mailbox {
    /// A PUBLISH with `qos` above 0 came. The PUBREC of a repeated one leaves with the turn, if its predecessors have left.
    pub fn open_ticket(self: &Arc<Self>, packet_id: PacketId, qos: QoS, turn: &mut Turn) -> Opened {
        let mut inner = self.inner.lock();
        let opened = inner.window.open(packet_id, qos, turn.now_us());
        if opened == Opened::Repeated && self.encode_acks(&mut inner, turn.now_us()) {
            self.mark_dirty(&mut inner, turn);
        }
        opened
    }

    /// A publish ended, on the thread of `turn`: its acknowledgement leaves with the turn, if its predecessors have
    /// left. Nothing leaves, and the connection ends, when this broker may no longer acknowledge.
    pub fn complete(self: &Arc<Self>, ticket: Ticket, reason: ReasonCode, turn: &mut Turn) {
        let mut inner = self.inner.lock();
        inner.window.complete(ticket, reason);
        if self.encode_acks(&mut inner, turn.now_us()) {
            self.mark_dirty(&mut inner, turn);
        }
    }

    /// A publish ended, on any other thread: the connection's task writes its acknowledgement together with those that
    /// end meanwhile. False if the connection has told its owner already what it had in flight.
    pub fn complete_elsewhere(&self, ticket: Ticket, reason: ReasonCode) -> bool {
        let mut inner = self.inner.lock();
        if inner.is_told {
            return false;
        }
        inner.window.complete(ticket, reason);
        if self.encode_acks(&mut inner, monotonic_us()) {
            inner.is_left_to_task = true;
            wake(inner);
        } else if inner.closing.is_some() {
            // See `poll_settled`.
            wake(inner);
        }
        true
    }

    /// For the task of a connection that ends: ready when the outcome of each QoS 2 publish is known.
    pub fn poll_settled(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.inner.lock();
        if !inner.window.is_unsettled() {
            return Poll::Ready(());
        }
        inner.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// The client took the next step of an exchange; the answer is queued, and what waited for room follows. What the
    /// owner of the queue must know goes to `done`, for the caller to report.
    ///
    /// # Errors
    ///
    /// [`AckError`]: it fits no exchange. To be counted; [`AckError::OutOfStep`] ends the connection with 0x82.
    pub fn handle_ack(
        self: &Arc<Self>,
        ack: &Ack,
        turn: &mut Turn,
        done: &mut DeliveriesDone,
    ) -> Result<(), AckError> {
        let mut inner = self.inner.lock();
        let packet_id = ack.packet_id;
        match ack.kind {
            AckKind::PubAck => done.finished.extend(inner.outbound.handle_puback(packet_id)?),
            // Until its PUBCOMP a packet id is in use: but for a refusal there is no more room than before.
            AckKind::PubRec => match inner.outbound.handle_pubrec(packet_id, ack.reason.is_failure()) {
                Ok(Received::Release) => {
                    self.answer(&mut inner, &Ack::new(AckKind::PubRel, packet_id, ReasonCode::SUCCESS), turn);
                    return Ok(());
                }
                Ok(Received::Store(offset)) => {
                    done.received.push(offset);
                    return Ok(());
                }
                Ok(Received::Waiting) => return Ok(()),
                Ok(Received::Refused(offset)) => done.finished.extend(offset),
                Err(error @ AckError::Unknown(_)) => {
                    let not_found = ReasonCode::PACKET_IDENTIFIER_NOT_FOUND;
                    self.answer(&mut inner, &Ack::new(AckKind::PubRel, packet_id, not_found), turn);
                    return Err(error);
                }
                Err(error @ AckError::OutOfStep(_)) => return Err(error),
            },
            AckKind::PubComp => {
                inner.outbound.handle_pubcomp(packet_id)?;
                done.completed.extend(inner.outbound.is_stored(packet_id).then_some(packet_id));
            }
            AckKind::PubRel => {
                let is_known = inner.window.release(packet_id);
                let reason =
                    if is_known { ReasonCode::SUCCESS } else { ReasonCode::PACKET_IDENTIFIER_NOT_FOUND };
                self.answer(&mut inner, &Ack::new(AckKind::PubComp, packet_id, reason), turn);
                return if is_known { Ok(()) } else { Err(AckError::Unknown(packet_id)) };
            }
        }
        if deliver::encode_pending(&mut inner, &self.context, turn, done) {
            self.mark_dirty(&mut inner, turn);
        }
        self.note_load(&inner);
        Ok(())
    }

    /// The owner has stored PUBRECs: their PUBRELs leave.
    pub fn release_stored(self: &Arc<Self>, packet_ids: &[PacketId], turn: &mut Turn) {
        let mut inner = self.inner.lock();
        if !inner.takes_messages() {
            return;
        }
        for packet_id in packet_ids {
            if inner.outbound.release_stored(*packet_id) {
                self.answer(&mut inner, &Ack::new(AckKind::PubRel, *packet_id, ReasonCode::SUCCESS), turn);
            }
        }
    }

    /// Whether PUBREL may end a publish: see [`AckWindow::is_releasable`](tidemill_core::session::ack_window::AckWindow::is_releasable).
    #[must_use]
    pub fn is_releasable(&self, packet_id: PacketId) -> bool {
        self.inner.lock().window.is_releasable(packet_id)
    }

    fn answer(self: &Arc<Self>, inner: &mut Inner, ack: &Ack, turn: &mut Turn) {
        encode_ack(inner, ack);
        self.mark_dirty(inner, turn);
    }

    /// Encodes every acknowledgement whose turn it is. True if there was one.
    fn encode_acks(&self, inner: &mut Inner, now_us: u64) -> bool {
        if !inner.takes_messages() {
            return false;
        }
        let mut is_any = false;
        while let Some(ready) = inner.window.poll_ack() {
            if !(self.context.may_acknowledge)() {
                inner.closing = Some(CloseReason::Broker(ReasonCode::SERVER_SHUTTING_DOWN));
                return true;
            }
            is_any = true;
            let ack = Ack {
                reason_string: reason_string(Answer::Publish, ready.reason),
                ..Ack::new(ready.kind, ready.packet_id, ready.reason)
            };
            encode_ack(inner, &ack);
            self.context.metrics.observe_publish(now_us.saturating_sub(ready.opened_at));
        }
        is_any
    }
}

/// An acknowledgement that the client does not accept ends the connection.
pub(super) fn encode_ack(inner: &mut Inner, ack: &Ack) {
    let encoder = inner.encoder;
    if encoder.encode_ack(ack, inner.buffer.back().encode_into(0)).is_err() {
        inner.closing.get_or_insert(CloseReason::Broker(ReasonCode::PACKET_TOO_LARGE));
    }
}

//! One packet of a connected client.

use super::Connection;
use crate::mailbox::{CloseReason, Turn};
use crate::router::PublishDone;
use std::ops::ControlFlow;
use std::sync::Arc;
use tidemill_contract::topics::RECORD_OVERHEAD_BYTES;
use tidemill_core::attach::{Acked, QueueId};
use tidemill_core::message::Message;
use tidemill_core::packet::{Ack, AckKind, Disconnect, Packet, PacketId, PublishPacket, QoS, ReasonCode};
use tidemill_core::partition::QueueKind;
use tidemill_core::session::ack_window::Opened;
use tidemill_core::session::delivery::AckError;
use tidemill_core::session::inbound::PublishRefusal;

/// What a record has beyond its message and its publisher, at most.
const RECORD_FIELDS_BYTES: usize = 1_024;

impl Connection {
    pub(super) fn handle_packet(&mut self, packet: Packet, turn: &mut Turn) -> ControlFlow<CloseReason> {
        match packet {
            Packet::Publish(publish) => self.handle_publish(publish, turn),
            Packet::Ack(ack) => self.handle_ack(&ack, turn),
            Packet::Subscribe(_) | Packet::Unsubscribe(_) => {
                self.begin_work(packet, turn);
                ControlFlow::Continue(())
            }
            Packet::PingReq => {
                self.mailbox.send(&Packet::PingResp, turn);
                ControlFlow::Continue(())
            }
            Packet::Disconnect(disconnect) => ControlFlow::Break(self.handle_disconnect(&disconnect)),
            // Extended authentication was refused at CONNECT; the rest only a broker sends, or only comes first.
            Packet::Auth(_)
            | Packet::Connect(_)
            | Packet::ConnAck(_)
            | Packet::SubAck(_)
            | Packet::UnsubAck(_)
            | Packet::PingResp => ControlFlow::Break(CloseReason::Broker(ReasonCode::PROTOCOL_ERROR)),
        }
    }

    /// The way of a PUBLISH: wait if it must, open its ticket, let the session check it, route it.
    pub(super) fn handle_publish(
        &mut self,
        publish: PublishPacket,
        turn: &mut Turn,
    ) -> ControlFlow<CloseReason> {
        if self.must_wait(&publish) {
            self.held = Some(Box::new(publish));
            return ControlFlow::Continue(());
        }
        turn.count_received(publish.qos, publish.payload.len());
        let packet_id = publish.packet_id;
        let opened = packet_id.map(|id| self.mailbox.open_ticket(id, publish.qos, turn));
        // A repeated PUBLISH sets a topic alias like any other.
        let publisher = &self.registered.request.client_id;
        let message = match self.inbound.handle_publish(publish, publisher, turn.now_ms()) {
            // As a log refuses it; before anybody has it.
            Ok(message) if self.is_too_large(&message) => {
                return ControlFlow::Break(CloseReason::Broker(ReasonCode::QUOTA_EXCEEDED));
            }
            Ok(message) => Ok(Arc::new(message)),
            Err(PublishRefusal::Answer(reason)) => Err(reason),
            Err(PublishRefusal::Close(reason)) => {
                return ControlFlow::Break(CloseReason::Broker(reason));
            }
        };
        match (message, opened) {
            (Ok(message), None) => {
                self.services.router.publish(&message, &mut self.cache, PublishDone::Nobody, turn);
            }
            (Ok(message), Some(Opened::New(ticket))) if self.is_stored_first(&message) => {
                // A packet that has a ticket has a packet id.
                self.publish_stored(packet_id.unwrap_or(PacketId::MIN), ticket, message);
            }
            (Ok(message), Some(Opened::New(ticket))) => {
                let done = PublishDone::Ticket(&self.mailbox, ticket);
                self.services.router.publish(&message, &mut self.cache, done, turn);
            }
            (Ok(message), Some(Opened::Again(ticket, intent))) => {
                self.publish_again((intent, ticket), &message, turn);
            }
            (Err(reason), Some(Opened::New(ticket) | Opened::Again(ticket, _))) => {
                self.mailbox.complete(ticket, reason, turn);
            }
            (_, Some(Opened::InUse(ticket))) => {
                self.mailbox.complete(ticket, ReasonCode::PACKET_IDENTIFIER_IN_USE, turn);
            }
            (_, Some(Opened::Repeated)) => {}
            (_, Some(Opened::Full)) => {
                return ControlFlow::Break(CloseReason::Broker(ReasonCode::RECEIVE_MAXIMUM_EXCEEDED));
            }
            (Err(reason), None) => return ControlFlow::Break(CloseReason::Broker(reason)),
        }
        ControlFlow::Continue(())
    }

    /// Whether the record of a message is larger than a log takes: with a topic by alias and a long client id it can be
    /// much larger than its packet.
    fn is_too_large(&self, message: &Message) -> bool {
        let limits = &self.services.limits;
        let record_bytes = message.bytes() + message.publisher.len() + RECORD_FIELDS_BYTES;
        record_bytes as u64 > u64::from(limits.maximum_packet_bytes) + u64::from(RECORD_OVERHEAD_BYTES)
    }

    /// A 3.x client does not know how much it may send, so it waits; what needs a log or a store that is behind waits for
    /// it, a retained message at any QoS.
    fn must_wait(&mut self, publish: &PublishPacket) -> bool {
        let router = &self.services.router;
        if publish.retain
            && let Some(relief) = router.retained_relief()
        {
            self.relief = Some(relief);
            return true;
        }
        if publish.qos == QoS::AtMostOnce {
            return false;
        }
        if router.log().is_congested()
            && let Ok(topic) = self.inbound.resolve_topic(publish)
            && router.needs_log(&topic, &mut self.cache)
        {
            self.relief = Some(router.log().relieved());
            return true;
        }
        !self.registered.request.version.is_v5() && self.mailbox.is_window_full()
    }

    fn handle_ack(&mut self, ack: &Ack, turn: &mut Turn) -> ControlFlow<CloseReason> {
        if ack.kind == AckKind::PubRel && self.release_stored(ack.packet_id) {
            return ControlFlow::Continue(());
        }
        let Err(error) = self.mailbox.handle_ack(ack, turn, &mut self.done) else {
            return ControlFlow::Continue(());
        };
        self.services.metrics.count_unknown_ack();
        match error {
            AckError::Unknown(_) => ControlFlow::Continue(()),
            AckError::OutOfStep(_) => ControlFlow::Break(CloseReason::Broker(ReasonCode::PROTOCOL_ERROR)),
        }
    }

    fn handle_disconnect(&mut self, disconnect: &Disconnect) -> CloseReason {
        if let Some(expiry_secs) = disconnect.session_expiry_secs {
            if expiry_secs > 0 && self.registered.request.lifetime.expiry_secs() == 0 {
                return CloseReason::Broker(ReasonCode::PROTOCOL_ERROR);
            }
            self.session_expiry_secs = Some(expiry_secs.min(self.services.max_expiry_secs));
        }
        // Any other reason than a normal end asks for the will (MQTT 5.0 section 3.14.4).
        CloseReason::ClientDisconnect(disconnect.reason)
    }

    /// Tells the owner what the client is done with, once for each turn.
    pub(super) fn report_acked(&mut self) {
        if self.done.is_empty() {
            return;
        }
        let name = self.registered.request.client_id.clone();
        let partition = self.services.partitioning.partition_of(QueueKind::Session, &name);
        self.services.owner.acked(Acked {
            queue: QueueId { kind: QueueKind::Session, name, number: self.registered.session },
            partition,
            connection: *self.registered.connection.lock(),
            done: std::mem::take(&mut self.done),
        });
    }
}

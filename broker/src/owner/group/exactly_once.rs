//! QoS 2 of persistent sessions: each step of an exchange is stored before the packet that depends on it leaves
//! (design section 2). Outgoing, the owner gives packet ids; incoming, it keeps the intents of the publisher.

use super::Group;
use super::commit::CommitWaiter;
use super::inbox::Answer;
use super::partition_run::{PartitionRun, Session};
use bytestring::ByteString;
use tidemill_core::attach::{
    ConnectionEpoch, Delivery, ExactlyOnceRequest, OwnerError, QueueId, Release, SessionNumber,
};
use tidemill_core::packet::PacketId;
use tidemill_core::partition::{Offset, Partition};
use tidemill_core::queue::partition::QueueSlot;
use tidemill_core::session::exactly_once::{GivenId, Incoming};
use tidemill_core::session::in_flight::{InFlight, OutgoingInFlight};
use tidemill_core::state::key::StateKey;
use tidemill_core::state::value::{PublisherIn, SessionOut};

/// Deliveries whose packet ids are being stored. Bounded by the window of their receiver.
pub(super) struct HeldDeliveries {
    pub(super) partition: Partition,
    pub(super) slot: QueueSlot,
    pub(super) queue: QueueId,
    /// They are for this connection only: a later one is handed them again.
    pub(super) connection: ConnectionEpoch,
    pub(super) deliveries: Vec<Delivery>,
}

impl Session {
    pub(super) fn out_key(&self, packet_id: PacketId) -> StateKey {
        StateKey::SessionOut { session: self.id.clone(), packet_id }
    }

    pub(super) fn in_key(&self, packet_id: PacketId) -> StateKey {
        StateKey::PublisherIn { session: self.id.clone(), packet_id }
    }

    fn out_value(&self, partition: Partition, offset: Offset, released: bool) -> SessionOut {
        SessionOut { queue: self.id.clone(), partition, offset, released }
    }

    /// What the next connection, named `connection`, goes on with.
    pub(super) fn granted_in_flight(&self, connection: ConnectionEpoch) -> Option<Box<InFlight>> {
        let told = match &self.in_flight {
            Some(told) => InFlight::clone(told),
            // The host died with what it knew. Its packet ids begin elsewhere now: the client may still know some.
            None if self.is_restored => InFlight {
                outgoing: OutgoingInFlight { next_id: fresh_id(connection), ..OutgoingInFlight::default() },
                ..InFlight::default()
            },
            None if self.exactly_once.is_none() => return None,
            None => InFlight::default(),
        };
        Some(Box::new(match &self.exactly_once {
            Some(exactly_once) => exactly_once.complete_in_flight(told),
            None => told,
        }))
    }

    /// All keys that its exchanges have in the state.
    pub(super) fn exactly_once_keys(&self) -> Vec<StateKey> {
        let Some(exactly_once) = &self.exactly_once else { return Vec::new() };
        let (outgoing, incoming) = exactly_once.packet_ids();
        outgoing.map(|id| self.out_key(id)).chain(incoming.map(|id| self.in_key(id))).collect()
    }

    fn forget_exchanges_if_none(&mut self) {
        if self.exactly_once.as_ref().is_some_and(|exactly_once| exactly_once.is_empty()) {
            self.exactly_once = None;
        }
    }
}

/// A packet id below those of the owner that differs from connection to connection.
fn fresh_id(connection: ConnectionEpoch) -> PacketId {
    let spread = connection.owner.0.wrapping_mul(8_191).wrapping_add(connection.counter.wrapping_mul(1_021));
    let number = u16::try_from(spread % 32_767).unwrap_or(0) + 1;
    PacketId::new(number).unwrap_or(PacketId::MIN)
}

impl PartitionRun {
    fn session_of(&mut self, slot: QueueSlot) -> Option<&mut Session> {
        let name = &self.queues.id(slot)?.name;
        self.sessions.get_mut(name).filter(|session| session.slot == slot)
    }

    /// The packet id of a QoS 2 delivery; what to store if it is not stored yet.
    pub(super) fn give_id(
        &mut self,
        slot: QueueSlot,
        offset: Offset,
    ) -> Option<(GivenId, Option<(StateKey, SessionOut)>)> {
        let partition = self.partition;
        let session = self.session_of(slot)?;
        let given = session.exactly_once.get_or_insert_default().give_id(offset)?;
        let stored = (!given.is_stored).then(|| {
            let value = session.out_value(partition, offset, false);
            (session.out_key(given.packet_id), value)
        });
        Some((given, stored))
    }
}

impl Group {
    /// The packet ids of deliveries are stored: they go out, if their connection is there still.
    pub(super) fn hand_over_held(&mut self, held: HeldDeliveries) {
        let HeldDeliveries { partition, slot, queue, connection, deliveries } = held;
        let Some(run) = self.served(partition) else { return };
        let Some(session) = run.session_of(slot).filter(|session| session.id == queue) else { return };
        if let Some(exactly_once) = &mut session.exactly_once {
            for delivery in &deliveries {
                exactly_once.note_stored(delivery.offset);
            }
        }
        let attached = self.registry.attached(&queue.name);
        if attached.is_some_and(|attached| attached.is(connection)) {
            self.send_frames(partition, slot, deliveries);
        }
    }

    /// The client has no exchange of `finished` any more; it has received `received`, whose PUBRELs leave when that is
    /// stored, and has completed `completed`. Call it when the cursor has moved.
    pub(super) fn end_exchanges(
        &mut self,
        (partition, slot): (Partition, QueueSlot),
        finished: &[Offset],
        (received, completed): (&[Offset], &[PacketId]),
    ) {
        let Some(run) = self.served(partition) else { return };
        // What a newer connection has in flight a former one cannot end.
        let is_over = |run: &PartitionRun, offset: &Offset| {
            run.queues.progress(slot).is_some_and(|progress| !progress.is_open(*offset))
        };
        let finished: Vec<_> = finished.iter().filter(|offset| is_over(run, offset)).copied().collect();
        let received: Vec<_> = received.iter().filter(|offset| is_over(run, offset)).copied().collect();
        let Some(session) = run.session_of(slot) else { return };
        let Some(mut exactly_once) = session.exactly_once.take() else { return };
        let mut writes = Vec::new();
        let ended = finished.into_iter().filter_map(|offset| exactly_once.finish(offset));
        writes.extend(ended.map(|packet_id| (session.out_key(packet_id), None)));
        let mut released = Vec::new();
        for offset in received {
            if let Some(packet_id) = exactly_once.receive(offset) {
                let value = session.out_value(partition, offset, true);
                writes.push((session.out_key(packet_id), Some(value.encode())));
                released.push(packet_id);
            }
        }
        let completed = completed.iter().filter(|packet_id| exactly_once.complete(**packet_id));
        writes.extend(completed.map(|packet_id| (session.out_key(*packet_id), None)));
        session.exactly_once = Some(exactly_once);
        session.forget_exchanges_if_none();
        let queue = session.id.clone();
        for (key, value) in writes {
            self.ledger.write(partition, &key, value);
        }
        if !released.is_empty() {
            self.ledger.wait(CommitWaiter::Release { queue, packet_ids: released });
        }
    }

    /// PUBRECs are stored: the host, wherever the client is now, sends PUBREL.
    pub(super) fn release(&mut self, queue: QueueId, packet_ids: Vec<PacketId>) {
        let attached = self.registry.attached(&queue.name);
        if let Some(attached) = attached.filter(|attached| attached.session == queue.number) {
            let release = Release { queue, connection: attached.connection, packet_ids };
            self.parts.hosts.release(&attached.host, release);
        }
    }

    /// A publisher's next steps; answered when they are stored.
    pub(super) fn handle_exactly_once(&mut self, request: ExactlyOnceRequest, answer: Answer<()>) {
        let ExactlyOnceRequest { client_id, connection, intents, releases } = request;
        let partition = self.partition_of(&client_id);
        let now_ms = self.parts.surroundings.now_ms();
        let attached = self.registry.attached(&client_id).filter(|attached| attached.is(connection));
        let number = attached.map(|attached| attached.session);
        let is_away = self.served(partition).is_none();
        let session = self.served(partition).and_then(|run| run.sessions.get_mut(&client_id));
        let Some(session) = session.filter(|session| Some(session.id.number) == number) else {
            // Whoever asked may have given up.
            let error = if is_away { OwnerError::Unavailable } else { OwnerError::TakenOver };
            let _ = answer.send(Err(error));
            return;
        };
        let mut writes = Vec::new();
        let mut exactly_once = session.exactly_once.take().unwrap_or_default();
        for packet_id in releases {
            if exactly_once.release(packet_id).is_some() {
                writes.push((session.in_key(packet_id), None));
            }
        }
        let (known, new): (Vec<_>, Vec<_>) = intents.into_iter().partition(|intent| intent.found != 0);
        for intent in known {
            if let Some(settled) = exactly_once.settle(intent.packet_id) {
                writes.push((session.in_key(intent.packet_id), Some(publisher_in(settled).encode())));
            }
        }
        for intent in new {
            let incoming =
                Incoming { unique_id: intent.unique_id, since_ms: now_ms, is_settled: false, found: 0 };
            exactly_once.set_incoming(intent.packet_id, incoming);
            writes.push((session.in_key(intent.packet_id), Some(publisher_in(incoming).encode())));
        }
        session.exactly_once = Some(exactly_once);
        session.forget_exchanges_if_none();
        for (key, value) in writes {
            self.ledger.write(partition, &key, value);
        }
        self.ledger.wait(CommitWaiter::ExactlyOnce(answer));
    }

    /// The host says which publishes it knows to be in the log, as their connection ends.
    pub(super) fn settle_received(
        &mut self,
        partition: Partition,
        (client_id, number): (&ByteString, SessionNumber),
        received: &[PacketId],
    ) {
        let session = self.served(partition).and_then(|run| run.sessions.get_mut(client_id));
        let Some(session) = session.filter(|session| session.id.number == number) else { return };
        let Some(exactly_once) = &mut session.exactly_once else { return };
        let settled: Vec<_> =
            received.iter().filter_map(|id| Some((*id, exactly_once.settle(*id)?))).collect();
        let writes: Vec<_> =
            settled.into_iter().map(|(id, one)| (session.in_key(id), publisher_in(one).encode())).collect();
        for (key, value) in writes {
            self.ledger.write(partition, &key, Some(value));
        }
    }
}

pub(super) fn publisher_in(incoming: Incoming) -> PublisherIn {
    let Incoming { unique_id, since_ms, is_settled, found } = incoming;
    PublisherIn { unique_id, since_ms, is_settled, found }
}

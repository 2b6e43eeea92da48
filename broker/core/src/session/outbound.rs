//! What a client is sent: packet ids, the client's receive maximum, what waits for it, and which offsets it is done with.

use crate::message::Message;
use crate::packet::{PacketId, QoS};
use crate::partition::Offset;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU16;
use std::sync::Arc;

/// Done offsets remembered for re-attach. Older ones are forgotten: after a change of the owner they may be delivered
/// again, which QoS 1 allows.
pub const DONE_OFFSETS_MAX: usize = 1_024;

/// Where a delivery comes from, which says whom its acknowledgement is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// From memory: dies with the connection.
    Live,
    /// From the session's queue: the owner hears of it.
    Queue(Offset),
}

/// A QoS > 0 delivery that waits for room in the client's receive maximum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingDelivery {
    /// What was published.
    pub message: Arc<Message>,
    /// QoS of this delivery.
    pub qos: QoS,
    /// Retain flag of the PUBLISH.
    pub retain: bool,
    /// The client may have seen it.
    pub dup: bool,
    /// 5.0: the client's subscription identifiers that matched.
    pub identifiers: Option<Arc<[u32]>>,
    /// Where it comes from.
    pub source: Source,
}

/// What to do with a delivery now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Write it, with this packet id if its QoS is above 0.
    Send(Option<PacketId>),
    /// The client's receive maximum is used up: hand it over with [`Outbound::push_pending`].
    Wait,
    /// The client has it in flight already: ignore it.
    InFlight,
    /// The client is done with it: report the offset again and ignore it.
    Done,
}

/// The acknowledgement names no delivery in flight. 5.0 and 3.x tolerate it (MQTT-4.3.2): count it and go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("packet id {} is not in use", .0.get())]
pub struct UnknownPacketId(pub PacketId);

/// The outbound half of a session.
///
/// Invariants: at most `window` packet ids are in use; no id is used twice at the same time; pending deliveries leave in
/// the order in which they came; an offset is in flight or done, never both.
#[derive(Debug)]
pub struct Outbound {
    window: usize,
    next_id: NonZeroU16,
    in_use: BTreeMap<PacketId, Source>,
    pending: VecDeque<PendingDelivery>,
    pending_bytes: usize,
    /// Only persistent sessions have it.
    offsets: Option<Box<Offsets>>,
}

/// Offsets of the session's queue that this host has seen.
#[derive(Debug, Default)]
struct Offsets {
    /// Handed over and not done, pending ones included.
    in_flight: BTreeSet<Offset>,
    done: BTreeSet<Offset>,
    /// The order in which they were done, to forget the oldest.
    done_order: VecDeque<Offset>,
}

impl Outbound {
    /// For a client that accepts `window` unacknowledged deliveries.
    #[must_use]
    pub fn new(window: NonZeroU16) -> Self {
        Self {
            window: usize::from(window.get()),
            next_id: NonZeroU16::MIN,
            in_use: BTreeMap::new(),
            pending: VecDeque::new(),
            pending_bytes: 0,
            offsets: None,
        }
    }

    /// Decides about a delivery at `qos`. QoS 0 never waits here and may overtake what waits: order is promised within
    /// one QoS.
    pub fn admit(&mut self, qos: QoS, source: Source) -> Admission {
        if qos == QoS::AtMostOnce {
            return Admission::Send(None);
        }
        if let Source::Queue(offset) = source {
            let offsets = self.offsets.get_or_insert_default();
            if offsets.done.contains(&offset) {
                return Admission::Done;
            }
            if !offsets.in_flight.insert(offset) {
                return Admission::InFlight;
            }
        }
        if !self.has_room(qos) {
            return Admission::Wait;
        }
        Admission::Send(Some(self.take_id(source)))
    }

    /// Whether [`Outbound::admit`] would answer [`Admission::Send`] to a delivery from memory at `qos`.
    #[must_use]
    pub fn has_room(&self, qos: QoS) -> bool {
        qos == QoS::AtMostOnce || (self.pending.is_empty() && self.in_use.len() < self.window)
    }

    /// Keeps a delivery for which [`Outbound::admit`] answered [`Admission::Wait`]. The caller has checked its bounds.
    pub fn push_pending(&mut self, delivery: PendingDelivery) {
        self.pending_bytes += delivery.message.bytes();
        self.pending.push_back(delivery);
    }

    /// The next pending delivery that fits into the client's receive maximum, with its packet id.
    pub fn poll_pending(&mut self) -> Option<(PacketId, PendingDelivery)> {
        if self.in_use.len() >= self.window {
            return None;
        }
        let delivery = self.pending.pop_front()?;
        self.pending_bytes -= delivery.message.bytes();
        Some((self.take_id(delivery.source), delivery))
    }

    /// The client acknowledged a QoS 1 delivery. Out-of-order acknowledgements are fine.
    ///
    /// # Errors
    ///
    /// [`UnknownPacketId`]: nothing changed.
    pub fn handle_ack(&mut self, packet_id: PacketId) -> Result<Source, UnknownPacketId> {
        let source = self.in_use.remove(&packet_id).ok_or(UnknownPacketId(packet_id))?;
        if let Source::Queue(offset) = source {
            self.offsets.get_or_insert_default().finish(offset);
        }
        Ok(source)
    }

    /// A delivery that was given `packet_id` was not written, because the client does not accept packets of its size:
    /// it counts as delivered and acknowledged (MQTT 5.0 section 3.1.2.11.4).
    pub fn handle_not_written(&mut self, packet_id: PacketId) -> Option<Source> {
        self.handle_ack(packet_id).ok()
    }

    /// Deliveries that wait.
    #[must_use]
    pub fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Bytes of the deliveries that wait.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    /// Deliveries in flight.
    #[must_use]
    pub fn in_use_count(&self) -> usize {
        self.in_use.len()
    }

    /// Offsets at the client or waiting for it, in order.
    #[must_use]
    pub fn in_flight_offsets(&self) -> Vec<Offset> {
        self.offsets.iter().flat_map(|offsets| offsets.in_flight.iter().copied()).collect()
    }

    /// Offsets that the client is done with, in order, as far back as [`DONE_OFFSETS_MAX`].
    #[must_use]
    pub fn done_offsets(&self) -> Vec<Offset> {
        self.offsets.iter().flat_map(|offsets| offsets.done.iter().copied()).collect()
    }

    /// Gives everything back but the count of packet ids: the connection has ended.
    pub fn clear(&mut self) {
        self.in_use = BTreeMap::new();
        self.pending = VecDeque::new();
        self.pending_bytes = 0;
        self.offsets = None;
    }

    fn take_id(&mut self, source: Source) -> PacketId {
        debug_assert!(self.in_use.len() < self.window, "a window of 65535 leaves a free id");
        let mut id = PacketId(self.next_id);
        // Ends: fewer ids are in use than there are.
        while self.in_use.contains_key(&id) {
            id = PacketId(following(id.0));
        }
        self.next_id = following(id.0);
        self.in_use.insert(id, source);
        id
    }
}

fn following(id: NonZeroU16) -> NonZeroU16 {
    id.checked_add(1).unwrap_or(NonZeroU16::MIN)
}

impl Offsets {
    fn finish(&mut self, offset: Offset) {
        self.in_flight.remove(&offset);
        if self.done.insert(offset) {
            self.done_order.push_back(offset);
        }
        if self.done_order.len() > DONE_OFFSETS_MAX
            && let Some(oldest) = self.done_order.pop_front()
        {
            self.done.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topic::TopicName;
    use bytes::Bytes;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn pending(number: u64, source: Source) -> PendingDelivery {
        let message = Message {
            topic: TopicName::parse("t").unwrap(),
            payload: Bytes::copy_from_slice(&number.to_be_bytes()),
            qos: QoS::AtLeastOnce,
            retain: false,
            properties: None,
            publisher: "p".into(),
            publish_time_ms: 0,
        };
        let message = Arc::new(message);
        PendingDelivery {
            message,
            qos: QoS::AtLeastOnce,
            retain: false,
            dup: false,
            identifiers: None,
            source,
        }
    }

    #[test]
    fn a_packet_id_is_not_reused_while_it_is_in_use() {
        let mut outbound = Outbound::new(NonZeroU16::MAX);
        for number in 1..=u16::MAX {
            let expected = Admission::Send(PacketId::new(number));
            assert_eq!(outbound.admit(QoS::AtLeastOnce, Source::Live), expected);
        }
        assert_eq!(outbound.admit(QoS::AtLeastOnce, Source::Live), Admission::Wait);

        let freed = PacketId::new(7).unwrap();
        outbound.handle_ack(freed).unwrap();

        assert_eq!(outbound.admit(QoS::AtLeastOnce, Source::Live), Admission::Send(Some(freed)));
        assert_eq!(outbound.handle_ack(freed), Ok(Source::Live));
        assert_eq!(outbound.handle_ack(freed), Err(UnknownPacketId(freed)));
    }

    #[test]
    fn an_offset_in_flight_or_done_is_not_sent_again() {
        let mut outbound = Outbound::new(NonZeroU16::new(2).unwrap());

        assert_eq!(outbound.admit(QoS::AtLeastOnce, Source::Queue(5)), Admission::Send(PacketId::new(1)));
        assert_eq!(outbound.admit(QoS::AtLeastOnce, Source::Queue(5)), Admission::InFlight);
        assert_eq!(outbound.in_flight_offsets(), [5]);
        outbound.handle_ack(PacketId::MIN).unwrap();
        assert_eq!(outbound.admit(QoS::AtLeastOnce, Source::Queue(5)), Admission::Done);
        assert_eq!((outbound.in_flight_offsets(), outbound.done_offsets()), (vec![], vec![5]));
    }

    #[test]
    fn the_oldest_done_offsets_are_forgotten_at_the_bound() {
        let mut outbound = Outbound::new(NonZeroU16::MIN);
        let count = u64::try_from(DONE_OFFSETS_MAX).unwrap() + 1;
        for offset in 0..count {
            let Admission::Send(Some(id)) = outbound.admit(QoS::AtLeastOnce, Source::Queue(offset)) else {
                panic!("offset {offset} is new")
            };
            outbound.handle_ack(id).unwrap();
        }

        assert_eq!(outbound.done_offsets(), (1..count).collect::<Vec<_>>());
    }

    proptest! {
        /// Model: the numbers in the order of delivery; the client answers any of those it has.
        #[test]
        fn deliveries_leave_in_order_within_the_window_and_ids_are_unique(
            steps in proptest::collection::vec((0_u8..3, any::<proptest::sample::Index>()), 0..300),
            window in 1_u16..8,
        ) {
            let mut outbound = Outbound::new(NonZeroU16::new(window).unwrap());
            let mut at_client: Vec<PacketId> = Vec::new();
            let mut sent: Vec<u64> = Vec::new();
            let mut delivered = 0_u64;
            for (step, pick) in steps {
                if step == 0 && !at_client.is_empty() {
                    let id = at_client.remove(pick.index(at_client.len()));
                    prop_assert!(outbound.handle_ack(id).is_ok());
                } else {
                    match outbound.admit(QoS::AtLeastOnce, Source::Queue(delivered)) {
                        Admission::Send(Some(id)) => { at_client.push(id); sent.push(delivered); }
                        Admission::Wait => outbound.push_pending(pending(delivered, Source::Queue(delivered))),
                        unexpected @ (Admission::Send(None) | Admission::InFlight | Admission::Done) => {
                            prop_assert!(false, "{:?}", unexpected);
                        }
                    }
                    delivered += 1;
                }
                while let Some((id, delivery)) = outbound.poll_pending() {
                    let Source::Queue(number) = delivery.source else { panic!("no live delivery was made") };
                    at_client.push(id);
                    sent.push(number);
                }
                let unique: BTreeSet<_> = at_client.iter().collect();
                prop_assert_eq!(unique.len(), at_client.len());
                prop_assert!(at_client.len() <= usize::from(window));
                prop_assert_eq!(&sent, &(0..sent.len() as u64).collect::<Vec<_>>());
                prop_assert_eq!(outbound.pending_count() as u64, delivered - sent.len() as u64);
                prop_assert!(outbound.pending_count() == 0 || at_client.len() == usize::from(window));
                prop_assert_eq!(outbound.pending_bytes(), outbound.pending_count() * 9);
                let open = outbound.in_flight_offsets().len();
                prop_assert_eq!(open, at_client.len() + outbound.pending_count());
            }
        }
    }
}

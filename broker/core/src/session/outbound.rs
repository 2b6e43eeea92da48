//! What a client is sent: packet ids, the client's receive maximum, what waits for it, and which offsets it is done with.

mod handover;
mod lost;

pub use lost::Lost;

use super::delivery::{AckError, Admission, OutgoingDelivery, Received, Sending, Source};
use super::exactly_once::OWNER_IDS_FROM;
use super::offsets::Offsets;
use crate::message::Message;
use crate::packet::{PacketId, QoS};
use crate::partition::Offset;
use crate::shared::ShareId;
use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU16;
use std::sync::Arc;

/// The outbound half of a session.
///
/// Invariants: at most `window` deliveries are at the client, each from PUBLISH to PUBACK or PUBCOMP, but for PUBRELs
/// that a former connection left; no packet id is used twice at the same time; pending deliveries leave in the order in
/// which they came; an offset is in flight or done, never both.
#[derive(Debug)]
pub struct Outbound {
    window: NonZeroU16,
    next_id: PacketId,
    /// Keeps live deliveries: they are handed over when the connection ends.
    is_persistent: bool,
    in_use: BTreeMap<PacketId, Exchange>,
    /// How many of `in_use` are [`Exchange::Reserved`].
    reserved: u16,
    /// Counts live deliveries that are kept, and releases: the order in which they are handed over.
    order: u64,
    pending: VecDeque<OutgoingDelivery>,
    pending_bytes: usize,
    /// Only sessions with a queue have it.
    offsets: Option<Box<Offsets>>,
}

/// How far the delivery is that a packet id stands for.
#[derive(Debug)]
enum Exchange {
    /// Sent on a former connection, not yet on this one.
    Reserved,
    /// QoS 1: PUBACK is due.
    AtLeastOnce(Held),
    /// QoS 2: PUBREC is due.
    ExactlyOnce(Held),
    /// QoS 2, from the queue: PUBREC came, and the owner is storing that. PUBREL is due then.
    Received,
    /// PUBREL was sent, PUBCOMP is due. In the order of the number.
    Released(u64),
}

/// What is kept of a delivery that was sent.
#[derive(Debug)]
enum Held {
    Live,
    /// Of a persistent session, with its place in the order.
    Kept(Box<(u64, OutgoingDelivery)>),
    /// Of a shared subscription; see [`Outbound::take_lost`].
    Shared {
        order: u64,
        share: ShareId,
        message: Arc<Message>,
    },
    Queue(Offset),
}

impl Outbound {
    /// For a clean session of a client that accepts `window` unacknowledged deliveries.
    #[must_use]
    pub fn new(window: NonZeroU16) -> Self {
        Self {
            window,
            next_id: PacketId::MIN,
            is_persistent: false,
            in_use: BTreeMap::new(),
            reserved: 0,
            order: 0,
            pending: VecDeque::new(),
            pending_bytes: 0,
            offsets: None,
        }
    }

    fn reserve(&mut self, packet_id: PacketId) {
        if self.in_use.insert(packet_id, Exchange::Reserved).is_none() {
            self.reserved += 1;
        }
    }

    /// Decides about a delivery at `qos`, for which its owner has chosen the packet id `given`, or none. QoS 0 never
    /// waits here and may overtake what waits: order is promised within one QoS. `delivery` makes what is kept of it, if
    /// something must be; the caller has checked the bounds of what may wait.
    pub fn admit(
        &mut self,
        (qos, given): (QoS, Option<PacketId>),
        source: Source,
        delivery: impl FnOnce() -> OutgoingDelivery,
    ) -> Admission {
        if qos == QoS::AtMostOnce {
            return Admission::Send(Sending { qos, packet_id: None, dup: false });
        }
        let mut sent = None;
        if let Source::Queue(offset) = source {
            let offsets = self.offsets.get_or_insert_default();
            if offsets.is_done(offset) {
                return Admission::Done;
            }
            if !offsets.begin(offset) {
                return Admission::InFlight;
            }
            sent = offsets.take_expected(offset);
        }
        let qos = sent.map_or(qos, |sent| sent.qos);
        let (sent_as, is_repeated) = (sent.map(|sent| sent.packet_id).or(given), sent.is_some());
        if !self.pending.is_empty() || !self.has_room(sent_as) {
            self.push_pending(OutgoingDelivery { qos, sent_as, is_repeated, ..delivery() });
            return Admission::Wait;
        }
        let packet_id = self.begin(qos, sent_as, source, self.keeps(source).then(delivery));
        Admission::Send(Sending { qos, packet_id: Some(packet_id), dup: is_repeated })
    }

    fn push_pending(&mut self, delivery: OutgoingDelivery) {
        self.pending_bytes += delivery.message.held_bytes();
        self.pending.push_back(delivery);
    }

    /// The next pending delivery that fits into the client's receive maximum, and how to write it.
    pub fn poll_pending(&mut self) -> Option<(Sending, OutgoingDelivery)> {
        let next = self.pending.front()?;
        if !self.has_room(next.sent_as) {
            return None;
        }
        let delivery = self.pending.pop_front()?;
        if self.pending.is_empty() && self.pending.capacity() > 64 {
            self.pending = VecDeque::new();
        }
        self.pending_bytes -= delivery.message.held_bytes();
        let OutgoingDelivery { qos, sent_as, source, is_repeated, .. } = delivery;
        let packet_id = self.begin(qos, sent_as, source, self.keeps(source).then(|| delivery.clone()));
        Some((Sending { qos, packet_id: Some(packet_id), dup: is_repeated }, delivery))
    }

    /// Whether the message is needed after it was sent.
    fn keeps(&self, source: Source) -> bool {
        match source {
            Source::Live => self.is_persistent,
            Source::Queue(_) => false,
            Source::Shared(_) => true,
        }
    }

    /// A delivery goes out: its packet id is in use from now on.
    fn begin(
        &mut self,
        qos: QoS,
        sent_as: Option<PacketId>,
        source: Source,
        kept: Option<OutgoingDelivery>,
    ) -> PacketId {
        let held = match (source, kept) {
            (Source::Queue(offset), _) => Held::Queue(offset),
            (Source::Live | Source::Shared(_), None) => Held::Live,
            // Once it is sent at QoS 2 it belongs to the session, if that goes on.
            (Source::Shared(share), Some(delivery)) if qos != QoS::ExactlyOnce || !self.is_persistent => {
                Held::Shared { order: self.next_order(), share, message: delivery.message }
            }
            (Source::Live | Source::Shared(_), Some(delivery)) => {
                let delivery = OutgoingDelivery { source: Source::Live, ..delivery };
                Held::Kept(Box::new((self.next_order(), delivery)))
            }
        };
        let exchange =
            if qos == QoS::ExactlyOnce { Exchange::ExactlyOnce(held) } else { Exchange::AtLeastOnce(held) };
        let packet_id = sent_as.unwrap_or_else(|| self.free_id());
        if let Some(Exchange::Reserved) = self.in_use.insert(packet_id, exchange) {
            self.reserved -= 1;
        }
        packet_id
    }

    /// The client acknowledged a QoS 1 delivery; the offset to report if it came from a queue. Out-of-order
    /// acknowledgements are fine.
    ///
    /// # Errors
    ///
    /// [`AckError`]: nothing changed.
    pub fn handle_puback(&mut self, packet_id: PacketId) -> Result<Option<Offset>, AckError> {
        match self.in_use.get(&packet_id) {
            Some(Exchange::AtLeastOnce(_)) => Ok(self.end(packet_id)),
            // What was not sent on this connection is not acknowledged on it.
            Some(Exchange::Reserved) | None => Err(AckError::Unknown(packet_id)),
            Some(Exchange::ExactlyOnce(_) | Exchange::Received | Exchange::Released(_)) => {
                Err(AckError::OutOfStep(packet_id))
            }
        }
    }

    /// The client has received a QoS 2 delivery, or refuses it (5.0). A repeated PUBREC is answered like the first.
    ///
    /// # Errors
    ///
    /// [`AckError`]: nothing changed. [`AckError::Unknown`] is answered, too: PUBREL with 0x92.
    pub fn handle_pubrec(&mut self, packet_id: PacketId, is_refused: bool) -> Result<Received, AckError> {
        match self.in_use.get(&packet_id) {
            Some(Exchange::ExactlyOnce(_)) if is_refused => Ok(Received::Refused(self.end(packet_id))),
            Some(Exchange::ExactlyOnce(_)) => Ok(self.receive(packet_id)),
            Some(Exchange::Received) => Ok(Received::Waiting),
            Some(Exchange::Released(_)) => Ok(Received::Release),
            Some(Exchange::Reserved) | None => Err(AckError::Unknown(packet_id)),
            Some(Exchange::AtLeastOnce(_)) => Err(AckError::OutOfStep(packet_id)),
        }
    }

    /// The client has completed a QoS 2 delivery: its packet id is free.
    ///
    /// # Errors
    ///
    /// [`AckError`]: nothing changed.
    pub fn handle_pubcomp(&mut self, packet_id: PacketId) -> Result<(), AckError> {
        match self.in_use.get(&packet_id) {
            Some(Exchange::Released(_)) => {
                self.in_use.remove(&packet_id);
                Ok(())
            }
            Some(Exchange::Reserved) | None => Err(AckError::Unknown(packet_id)),
            Some(Exchange::AtLeastOnce(_) | Exchange::ExactlyOnce(_) | Exchange::Received) => {
                Err(AckError::OutOfStep(packet_id))
            }
        }
    }

    /// The owner has stored that PUBREC came. True if PUBREL is to leave now.
    pub fn release_stored(&mut self, packet_id: PacketId) -> bool {
        let is_due = match self.in_use.get(&packet_id) {
            Some(Exchange::Received | Exchange::Reserved) => true,
            Some(Exchange::AtLeastOnce(_) | Exchange::ExactlyOnce(_) | Exchange::Released(_)) | None => false,
        };
        if is_due {
            let order = self.next_order();
            if let Some(Exchange::Reserved) = self.in_use.insert(packet_id, Exchange::Released(order)) {
                self.reserved -= 1;
            }
        }
        is_due
    }

    /// Whether PUBCOMP of `packet_id` is told to the owner, which has stored the exchange.
    #[must_use]
    pub fn is_stored(&self, packet_id: PacketId) -> bool {
        self.is_persistent && packet_id.get() >= OWNER_IDS_FROM
    }

    /// A PUBLISH was not written, because the client does not accept packets of its size: it counts as delivered and
    /// acknowledged (MQTT 5.0 section 3.1.2.11.4). A QoS 2 delivery of which the client may know (`dup`) is completed
    /// with PUBREL; else its packet id could not be used again.
    pub fn handle_not_written(&mut self, sending: Sending) -> Option<Received> {
        let packet_id = sending.packet_id?;
        Some(if sending.dup && sending.qos == QoS::ExactlyOnce {
            self.receive(packet_id)
        } else {
            Received::Refused(self.end(packet_id))
        })
    }

    fn end(&mut self, packet_id: PacketId) -> Option<Offset> {
        let exchange = self.in_use.remove(&packet_id)?;
        self.finish(&exchange)
    }

    fn receive(&mut self, packet_id: PacketId) -> Received {
        let order = self.next_order();
        let exchange = self.in_use.insert(packet_id, Exchange::Released(order));
        let Some(offset) = exchange.and_then(|exchange| self.finish(&exchange)) else {
            return Received::Release;
        };
        self.in_use.insert(packet_id, Exchange::Received);
        Received::Store(offset)
    }

    /// The message of a delivery is needed no more.
    fn finish(&mut self, exchange: &Exchange) -> Option<Offset> {
        let (Exchange::AtLeastOnce(Held::Queue(offset)) | Exchange::ExactlyOnce(Held::Queue(offset))) =
            exchange
        else {
            return None;
        };
        self.offsets.get_or_insert_default().finish(*offset);
        Some(*offset)
    }

    /// Packet ids that wait for PUBCOMP, in the order of their PUBRECs.
    #[must_use]
    pub fn released(&self) -> Vec<PacketId> {
        let mut released: Vec<_> = self
            .in_use
            .iter()
            .filter_map(|(id, exchange)| match exchange {
                Exchange::Released(order) => Some((*order, *id)),
                Exchange::Reserved
                | Exchange::AtLeastOnce(_)
                | Exchange::ExactlyOnce(_)
                | Exchange::Received => None,
            })
            .collect();
        released.sort_unstable();
        released.into_iter().map(|(_, id)| id).collect()
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

    /// Deliveries that count against the window.
    #[must_use]
    pub fn in_use_count(&self) -> usize {
        self.in_use.len() - usize::from(self.reserved)
    }

    /// Whether [`Outbound::admit`] would answer [`Admission::Send`] to a delivery from memory at `qos`.
    #[must_use]
    pub fn takes_at_once(&self, qos: QoS) -> bool {
        qos == QoS::AtMostOnce || (self.pending.is_empty() && self.has_room(None))
    }

    fn has_room(&self, sent_as: Option<PacketId>) -> bool {
        // With all ids reserved or in use there is none to give.
        let has_id = sent_as.is_some() || self.in_use.len() < usize::from(self.ids_max());
        self.in_use_count() < usize::from(self.window.get()) && has_id
    }

    /// Offsets at the client or waiting for it, in order.
    #[must_use]
    pub fn in_flight_offsets(&self) -> Vec<Offset> {
        self.offsets.iter().flat_map(|offsets| offsets.in_flight()).collect()
    }

    /// Offsets that the client is done with, in order, as far back as [`DONE_OFFSETS_MAX`](super::offsets::DONE_OFFSETS_MAX).
    #[must_use]
    pub fn done_offsets(&self) -> Vec<Offset> {
        self.offsets.iter().flat_map(|offsets| offsets.done()).collect()
    }

    fn free_id(&mut self) -> PacketId {
        debug_assert!(self.in_use.len() < usize::from(self.ids_max()), "there is a free id");
        let following = |id: PacketId| PacketId::new(id.get() % self.ids_max() + 1).unwrap_or(PacketId::MIN);
        let mut id = self.next_id;
        // Ends: fewer ids are in use than there are.
        while self.in_use.contains_key(&id) {
            id = following(id);
        }
        self.next_id = following(id);
        id
    }

    /// The highest packet id that is given here: the owner of a persistent session gives those above.
    fn ids_max(&self) -> u16 {
        if self.is_persistent { OWNER_IDS_FROM - 1 } else { u16::MAX }
    }

    fn next_order(&mut self) -> u64 {
        self.order += 1;
        self.order
    }
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod lost_tests;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;

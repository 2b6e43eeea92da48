//! The QoS > 0 publishes of one connection: their acknowledgements in the order of receipt, the packet ids of QoS 2 that
//! are not released, and the quota.

use super::in_flight::Intent;
use crate::packet::{AckKind, PacketId, QoS, ReasonCode, Version};
use std::collections::{BTreeMap, VecDeque};

/// Names one publish that waits for its acknowledgement. Counts from 0 in each connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What becomes of a PUBLISH.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opened {
    /// Publish it; the ticket says when it is done.
    New(Ticket),
    /// A QoS 2 PUBLISH that was taken before (MQTT-4.3.3-10): it is not published again, and its PUBREC leaves by itself.
    Repeated,
    /// A QoS 2 PUBLISH that a former connection sent and of which no outcome is known: publish it as this intent says,
    /// unless that is still under way; the ticket says when it is done.
    Again(Ticket, Intent),
    /// 5.0: its packet id is that of a QoS 2 publish that is not released. End the ticket with 0x91.
    InUse(Ticket),
    /// 5.0: the client broke its quota. Close with 0x93. A 3.x client is not read any further before that.
    Full,
}

/// An acknowledgement that may leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadyAck {
    /// PUBACK or PUBREC.
    pub kind: AckKind,
    /// Of which PUBLISH.
    pub packet_id: PacketId,
    /// How it ended.
    pub reason: ReasonCode,
    /// When its ticket was opened, in the caller's clock.
    pub opened_at: u64,
}

/// The QoS > 0 publishes of one connection that are not complete: QoS 1 from PUBLISH to PUBACK, QoS 2 from PUBLISH to
/// PUBCOMP, or to a PUBREC that refuses it.
///
/// Outcomes arrive in any order; acknowledgements leave in order (MQTT-4.6.0-2, -3). Invariants: a packet id of QoS 2 has
/// one slot at most; a slot of QoS 2 whose outcome is no failure has its packet id in `received`.
#[derive(Debug)]
pub struct AckWindow {
    is_v5: bool,
    maximum: u16,
    /// Publishes of this connection that count against a 5.0 client's quota. A 3.x client may have one for each packet
    /// id at QoS 2, and others at QoS 1.
    quota_used: u32,
    /// Ticket of the first slot.
    first: u64,
    slots: VecDeque<Slot>,
    /// Packet ids received at QoS 2 and not released. Allocates nothing before the first one.
    received: BTreeMap<PacketId, Receipt>,
}

#[derive(Debug)]
struct Slot {
    packet_id: PacketId,
    qos: QoS,
    outcome: Option<ReasonCode>,
    opened_at: u64,
}

#[derive(Debug, Clone, Copy)]
struct Receipt {
    /// Its PUBREC, the first or a repeated one, is in a slot.
    has_slot: bool,
    /// It came on this connection. The quota is that of a connection (MQTT 5.0 section 4.9).
    is_counted: bool,
    /// Of a publish without a known outcome, until its PUBLISH comes again.
    uncertain: Option<Intent>,
}

impl AckWindow {
    /// Room for `maximum` publishes: the receive maximum. A 5.0 client knows it, and has it from PUBLISH until the
    /// publish is complete. A 3.x client does not: of its publishes, `maximum` may wait for their first acknowledgement,
    /// which depends on nothing that the client may have sent behind them.
    #[must_use]
    pub fn new(version: Version, maximum: u16) -> Self {
        Self {
            is_v5: version.is_v5(),
            maximum,
            quota_used: 0,
            first: 0,
            slots: VecDeque::new(),
            received: BTreeMap::new(),
        }
    }

    /// Goes on with the packet ids that a former connection received at QoS 2 and did not see released, at most 65,535, and
    /// with what is stored of them.
    #[must_use]
    pub fn resume(version: Version, maximum: u16, received: &[PacketId], intents: &[Intent]) -> Self {
        let receipt = |uncertain| Receipt { has_slot: false, is_counted: false, uncertain };
        let uncertain = intents.iter().map(|intent| (intent.packet_id, receipt(Some(*intent))));
        let settled = received.iter().map(|id| (*id, receipt(None)));
        // Of a packet id in both, the outcome is known.
        Self { received: uncertain.chain(settled).collect(), ..Self::new(version, maximum) }
    }

    /// A PUBLISH with `qos` above 0 came.
    pub fn open(&mut self, packet_id: PacketId, qos: QoS, now: u64) -> Opened {
        if let (QoS::ExactlyOnce, Some(receipt)) = (qos, self.received.get_mut(&packet_id)) {
            if let Some(intent) = receipt.uncertain.take() {
                receipt.has_slot = true;
                return Opened::Again(self.push_slot(packet_id, qos, now), intent);
            }
            if !receipt.has_slot {
                receipt.has_slot = true;
                let outcome = Some(ReasonCode::SUCCESS);
                self.slots.push_back(Slot { packet_id, qos, outcome, opened_at: now });
            }
            return Opened::Repeated;
        }
        if self.is_full() {
            return Opened::Full;
        }
        // A 3.x client cannot be told; its QoS 1 publish is none the worse for it.
        let is_in_use = self.is_v5 && self.received.contains_key(&packet_id);
        if qos == QoS::ExactlyOnce {
            let receipt = Receipt { has_slot: true, is_counted: true, uncertain: None };
            self.received.insert(packet_id, receipt);
        }
        self.quota_used += 1;
        let ticket = self.push_slot(packet_id, qos, now);
        if is_in_use { Opened::InUse(ticket) } else { Opened::New(ticket) }
    }

    fn push_slot(&mut self, packet_id: PacketId, qos: QoS, now: u64) -> Ticket {
        let ticket = Ticket(self.first + u64::try_from(self.slots.len()).unwrap_or(u64::MAX));
        self.slots.push_back(Slot { packet_id, qos, outcome: None, opened_at: now });
        ticket
    }

    /// The publish behind `ticket` ended with `reason`. A ticket that ended before changes nothing.
    pub fn complete(&mut self, ticket: Ticket, reason: ReasonCode) {
        let Some(index) = ticket.0.checked_sub(self.first) else { return };
        let Ok(index) = usize::try_from(index) else { return };
        if let Some(slot) = self.slots.get_mut(index)
            && slot.outcome.is_none()
        {
            slot.outcome = Some(reason);
        }
    }

    /// The next acknowledgement in order, if its outcome is there. A PUBREC that refuses its publish frees the packet id.
    pub fn poll_ack(&mut self) -> Option<ReadyAck> {
        let reason = self.slots.front()?.outcome?;
        let Slot { packet_id, qos, opened_at, .. } = self.slots.pop_front()?;
        self.first += 1;
        if self.slots.is_empty() && self.slots.capacity() > 64 {
            self.slots = VecDeque::new();
        }
        if qos != QoS::ExactlyOnce {
            self.quota_used -= 1;
            return Some(ReadyAck { kind: AckKind::PubAck, packet_id, reason, opened_at });
        }
        if reason.is_failure() {
            self.forget(packet_id);
        } else if let Some(receipt) = self.received.get_mut(&packet_id) {
            receipt.has_slot = false;
        }
        Some(ReadyAck { kind: AckKind::PubRec, packet_id, reason, opened_at })
    }

    /// Whether PUBREL may end a publish: it was received, and its PUBREC has left, perhaps on a former connection.
    #[must_use]
    pub fn is_releasable(&self, packet_id: PacketId) -> bool {
        self.received.get(&packet_id).is_some_and(|receipt| !receipt.has_slot)
    }

    /// PUBREL came: the packet id is free. False if it was not received, or if its PUBREC has not left: the answer is
    /// then PUBCOMP with 0x92, all the same.
    pub fn release(&mut self, packet_id: PacketId) -> bool {
        if !self.is_releasable(packet_id) {
            return false;
        }
        self.forget(packet_id);
        true
    }

    fn forget(&mut self, packet_id: PacketId) {
        let receipt = self.received.remove(&packet_id);
        self.quota_used -= u32::from(receipt.is_some_and(|receipt| receipt.is_counted));
    }

    /// Whether a further publish breaks a 5.0 client's quota, or is to wait (3.x).
    #[must_use]
    pub fn is_full(&self) -> bool {
        if self.is_v5 {
            self.quota_used >= u32::from(self.maximum)
        } else {
            self.slots.len() >= usize::from(self.maximum)
        }
    }

    /// Publishes whose first acknowledgement has not left.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether every publish has its first acknowledgement.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Whether the outcome of a QoS 2 publish is not known yet.
    #[must_use]
    pub fn is_unsettled(&self) -> bool {
        self.slots.iter().any(|slot| slot.qos == QoS::ExactlyOnce && slot.outcome.is_none())
    }

    /// The connection has ended: packet ids received at QoS 2 and not released. One whose publish failed, or has no
    /// outcome, is not among them: the client repeats it, and it is then published again rather than lost.
    pub fn take_received(&mut self) -> Vec<PacketId> {
        let mut received = std::mem::take(&mut self.received);
        received.retain(|_, receipt| receipt.uncertain.is_none());
        for slot in self.slots.iter().filter(|slot| slot.qos == QoS::ExactlyOnce) {
            if slot.outcome.is_none_or(ReasonCode::is_failure) {
                received.remove(&slot.packet_id);
            }
        }
        received.into_keys().collect()
    }
}

#[cfg(test)]
mod tests;

//! What a persistent session has under way in both directions when its connection ends. The host hands it to the owner,
//! and gets it back when the client returns, so that both sides go on under the packet ids that the client knows.

use super::delivery::OutgoingDelivery;
use crate::packet::{PacketId, QoS};
use crate::partition::Offset;
use crate::retained::Position;
use crate::topic::TopicFilter;

/// Everything that is under way.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InFlight {
    /// Packet ids that the client published at QoS 2 and has not released, ascending. Each was routed, and nothing that
    /// its PUBREC waits for is open.
    pub received: Vec<PacketId>,
    /// What the owner has stored of QoS 2 publishes that are not released, ascending; only the owner tells it. Those that
    /// are not in `received`, too, have no known outcome.
    pub intents: Vec<Intent>,
    /// What the client was sent.
    pub outgoing: OutgoingInFlight,
    /// Subscriptions that have not got all retained messages, in the order in which they get them.
    pub retained: Vec<RetainedDue>,
}

/// A subscription that has not got all retained messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetainedDue {
    /// What was subscribed to.
    pub filter: TopicFilter,
    /// Where to go on.
    pub from: RetainedFrom,
}

/// How far a subscription is with the retained messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RetainedFrom {
    /// It gets them all.
    Start,
    /// It gets those from here on.
    Position(Position),
    /// All were sent, and are not acknowledged.
    Sent,
}

/// A QoS 2 publish that the owner has stored before it was appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Intent {
    /// Its packet id.
    pub packet_id: PacketId,
    /// The same in each of its records.
    pub unique_id: u128,
    /// Partitions whose log has its record from before a crash, as bits: a repeat goes to the others only.
    pub found: u64,
}

/// What a client was sent, or is to be sent, and is not done with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutgoingInFlight {
    /// The packet id to go on with.
    pub next_id: PacketId,
    /// PUBLISH packets of the session's queue, in offset order. The owner delivers their messages again.
    pub queue: Vec<SentFromQueue>,
    /// QoS > 0 deliveries that did not come from the queue, with their messages: those that were sent, in order, then
    /// those that waited, in order.
    pub live: Vec<OutgoingDelivery>,
    /// Packet ids that wait for PUBCOMP, in the order of their PUBRECs.
    pub released: Vec<PacketId>,
}

/// A PUBLISH that was sent from the session's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentFromQueue {
    /// Where its record is.
    pub offset: Offset,
    /// As what it was sent.
    pub packet_id: PacketId,
    /// At which QoS: a delivery is completed at the QoS at which it was begun.
    pub qos: QoS,
}

impl InFlight {
    /// Whether nothing is under way; the count of packet ids may start anew then.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let OutgoingInFlight { queue, live, released, next_id: _ } = &self.outgoing;
        let incoming = self.received.is_empty() && self.intents.is_empty();
        let outgoing = queue.is_empty() && live.is_empty() && released.is_empty();
        incoming && outgoing && self.retained.is_empty()
    }
}

impl Default for OutgoingInFlight {
    fn default() -> Self {
        Self { next_id: PacketId::MIN, queue: Vec::new(), live: Vec::new(), released: Vec::new() }
    }
}

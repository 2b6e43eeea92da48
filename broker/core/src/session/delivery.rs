//! One delivery to a client: where it comes from, how it goes out, and what its acknowledgements lead to.

use crate::message::Message;
use crate::packet::{PacketId, QoS};
use crate::partition::Offset;
use crate::shared::ShareId;
use std::sync::Arc;

/// Where a delivery comes from, which says whom its acknowledgement is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// From memory. Of a clean session it dies with the connection, a persistent one keeps it until it is acknowledged.
    Live,
    /// From the session's queue: the owner hears of it.
    Queue(Offset),
    /// From memory, for a group of which the client is a member: at QoS 1 another member gets it if the connection ends
    /// before it is acknowledged, at QoS 2 if it ends before it is sent.
    Shared(ShareId),
}

/// A QoS > 0 delivery with all that its PUBLISH needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutgoingDelivery {
    /// What was published.
    pub message: Arc<Message>,
    /// QoS of this delivery.
    pub qos: QoS,
    /// Retain flag of the PUBLISH.
    pub retain: bool,
    /// 5.0: the client's subscription identifiers that matched.
    pub identifiers: Option<Arc<[u32]>>,
    /// Where it comes from.
    pub source: Source,
    /// The packet id as which it was sent on a former connection, or which its owner has given it.
    pub sent_as: Option<PacketId>,
    /// It was sent on a former connection: DUP.
    pub is_repeated: bool,
}

/// How a PUBLISH goes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sending {
    /// Its QoS: that of the first time, if it was sent before.
    pub qos: QoS,
    /// Present exactly when `qos` > 0.
    pub packet_id: Option<PacketId>,
    /// It was sent before with this packet id: DUP (MQTT-3.3.1-1). A message that comes again under another id is not
    /// the same packet.
    pub dup: bool,
}

/// What to do with a delivery now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Write it.
    Send(Sending),
    /// The client's receive maximum is used up: it is kept, and comes out of [`Outbound::poll_pending`](super::outbound::Outbound::poll_pending).
    Wait,
    /// The client has it in flight already: ignore it.
    InFlight,
    /// The client is done with it: report the offset again and ignore it.
    Done,
}

/// What PUBREC led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// Answer PUBREL. The message is never sent again.
    Release,
    /// It came from a queue, and the message is never sent again: report the offset. PUBREL follows when the owner has
    /// stored that, see [`Outbound::release_stored`](super::outbound::Outbound::release_stored).
    Store(Offset),
    /// PUBREL waits for the owner already: do nothing.
    Waiting,
    /// 5.0: the client refused the message, which ends the delivery; the offset to report as above.
    Refused(Option<Offset>),
}

/// An acknowledgement that fits no delivery in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AckError {
    /// The packet id is not in use. 5.0 and 3.x tolerate it (MQTT-4.3.2): count it and go on.
    #[error("packet id {} is not in use", .0.get())]
    Unknown(PacketId),
    /// The delivery is at another step, such as PUBACK for a QoS 2 delivery: the client is out of step, and nothing it
    /// says about this id can be believed. Count it and close with 0x82.
    #[error("acknowledgement does not fit the delivery with packet id {}", .0.get())]
    OutOfStep(PacketId),
}

//! PUBACK, PUBREC, PUBREL, PUBCOMP and DISCONNECT.

use super::{PacketId, ReasonCode, UserProperties};
use bytestring::ByteString;

/// Which of the four packets an [`Ack`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AckKind {
    /// Answer to a QoS 1 PUBLISH.
    PubAck,
    /// First answer to a QoS 2 PUBLISH.
    PubRec,
    /// Answer to PUBREC.
    PubRel,
    /// Answer to PUBREL.
    PubComp,
}

/// One step of the acknowledgement of a PUBLISH.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ack {
    /// Which packet.
    pub kind: AckKind,
    /// Of which PUBLISH.
    pub packet_id: PacketId,
    /// 5.0: the outcome; [`ReasonCode::SUCCESS`] in 3.x.
    pub reason: ReasonCode,
    /// 5.0: why, in words.
    pub reason_string: Option<ByteString>,
}

impl Ack {
    /// An acknowledgement without words.
    #[must_use]
    pub fn new(kind: AckKind, packet_id: PacketId, reason: ReasonCode) -> Self {
        Self { kind, packet_id, reason, reason_string: None }
    }
}

/// DISCONNECT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disconnect {
    /// 5.0: why; [`ReasonCode::SUCCESS`] in 3.x.
    pub reason: ReasonCode,
    /// 5.0, client to broker: a new session expiry.
    pub session_expiry_secs: Option<u32>,
    /// 5.0: why, in words.
    pub reason_string: Option<ByteString>,
    /// 5.0, broker to client: where else to go.
    pub server_reference: Option<ByteString>,
    /// 5.0: user properties.
    pub user_properties: UserProperties,
}

impl Disconnect {
    /// A DISCONNECT that says only why.
    #[must_use]
    pub fn new(reason: ReasonCode) -> Self {
        Self {
            reason,
            session_expiry_secs: None,
            reason_string: None,
            server_reference: None,
            user_properties: Vec::new(),
        }
    }
}

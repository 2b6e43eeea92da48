//! MQTT control packets, the same for all protocol versions. The codec crate translates bytes into these.

mod ack;
mod connect;
mod publish;
mod reason;
mod subscribe;
mod words;

pub use ack::{Ack, AckKind, Disconnect};
pub use connect::{ConnAck, ConnAckProperties, Connect, Will};
pub use publish::{PublishPacket, PublishProperties};
pub use reason::ReasonCode;
pub use subscribe::{
    RetainHandling, SubAck, Subscribe, SubscribeEntry, SubscriptionOptions, UnsubAck, Unsubscribe,
};
pub use words::{Answer, reason_string};

use bytestring::ByteString;
use std::num::NonZeroU16;

/// Protocol version of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// MQTT 3.1 (`MQIsdp`).
    V3_1,
    /// MQTT 3.1.1.
    V3_1_1,
    /// MQTT 5.0.
    V5,
}

impl Version {
    /// Whether packets carry properties and reason codes.
    #[must_use]
    pub fn is_v5(self) -> bool {
        self == Self::V5
    }
}

/// Quality of service. The numbers are on the wire and in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum QoS {
    /// Delivered or lost.
    AtMostOnce = 0,
    /// Delivered, perhaps again.
    AtLeastOnce = 1,
    /// Delivered once.
    ExactlyOnce = 2,
}

impl QoS {
    /// Reads the number on the wire.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::AtMostOnce),
            1 => Some(Self::AtLeastOnce),
            2 => Some(Self::ExactlyOnce),
            _ => None,
        }
    }
}

/// Packet identifier, 1 to 65,535. Never a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PacketId(pub NonZeroU16);

impl PacketId {
    /// Packet identifier 1.
    pub const MIN: Self = Self(NonZeroU16::MIN);

    /// `None` for 0.
    #[must_use]
    pub fn new(number: u16) -> Option<Self> {
        NonZeroU16::new(number).map(Self)
    }

    /// The number on the wire.
    #[must_use]
    pub fn get(self) -> u16 {
        self.0.get()
    }
}

/// User properties in the order they were sent; a name may stand more than once.
pub type UserProperties = Vec<(ByteString, ByteString)>;

/// One control packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Packet {
    /// Client to broker: the first packet.
    Connect(Box<Connect>),
    /// Broker to client: the answer to CONNECT.
    ConnAck(Box<ConnAck>),
    /// Both ways: a message.
    Publish(PublishPacket),
    /// Both ways: PUBACK, PUBREC, PUBREL or PUBCOMP.
    Ack(Ack),
    /// Client to broker.
    Subscribe(Subscribe),
    /// Broker to client.
    SubAck(SubAck),
    /// Client to broker.
    Unsubscribe(Unsubscribe),
    /// Broker to client.
    UnsubAck(UnsubAck),
    /// Client to broker.
    PingReq,
    /// Broker to client.
    PingResp,
    /// Both ways in 5.0, client to broker before.
    Disconnect(Disconnect),
    /// Both ways in 5.0: extended authentication.
    Auth(ReasonCode),
}

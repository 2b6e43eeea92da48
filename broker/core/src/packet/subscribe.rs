//! SUBSCRIBE, SUBACK, UNSUBSCRIBE and UNSUBACK.

use super::{PacketId, QoS, ReasonCode, UserProperties};
use bytestring::ByteString;

/// SUBSCRIBE. The codec has checked that there is at least one entry; the filters are still text, because each has an
/// answer of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscribe {
    /// Repeated in the SUBACK.
    pub packet_id: PacketId,
    /// 5.0: sent with each message that matches, 1 to 268,435,455.
    pub identifier: Option<u32>,
    /// What is subscribed to, in order.
    pub entries: Vec<SubscribeEntry>,
    /// 5.0: user properties.
    pub user_properties: UserProperties,
}

/// One filter of a SUBSCRIBE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscribeEntry {
    /// The filter as sent; see `topic::SubscriptionTarget::parse`.
    pub filter: ByteString,
    /// How to deliver.
    pub options: SubscriptionOptions,
}

/// Subscription options (MQTT 5.0 section 3.8.3.1). 3.x clients have the defaults but for the QoS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriptionOptions {
    /// Highest QoS of a delivery.
    pub qos: QoS,
    /// Not to the client that published it.
    pub no_local: bool,
    /// Keep the publisher's retain flag.
    pub retain_as_published: bool,
    /// When retained messages are sent.
    pub retain_handling: RetainHandling,
}

/// When retained messages are sent to a subscription. The numbers are on the wire and in the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum RetainHandling {
    /// At every SUBSCRIBE.
    Send = 0,
    /// Only when the subscription is new.
    SendIfNew = 1,
    /// Never.
    DoNotSend = 2,
}

impl RetainHandling {
    /// Whether a SUBSCRIBE asks for the retained messages; `is_new`: there was no such subscription (MQTT-3.3.1-9 to -11).
    #[must_use]
    pub fn is_due(self, is_new: bool) -> bool {
        match self {
            Self::Send => true,
            Self::SendIfNew => is_new,
            Self::DoNotSend => false,
        }
    }
}

/// SUBACK: one reason code for each entry, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubAck {
    /// Of the SUBSCRIBE.
    pub packet_id: PacketId,
    /// Granted QoS or failure; written as 0x80 for 3.x when above 2.
    pub reasons: Vec<ReasonCode>,
}

/// UNSUBSCRIBE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsubscribe {
    /// Repeated in the UNSUBACK.
    pub packet_id: PacketId,
    /// The filters as sent, in order; at least one.
    pub filters: Vec<ByteString>,
    /// 5.0: user properties.
    pub user_properties: UserProperties,
}

/// UNSUBACK: one reason code for each filter, in order; 3.x has none on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsubAck {
    /// Of the UNSUBSCRIBE.
    pub packet_id: PacketId,
    /// What happened to each.
    pub reasons: Vec<ReasonCode>,
}

//! CONNECT and CONNACK.

use super::{PublishProperties, QoS, ReasonCode, UserProperties, Version};
use crate::topic::TopicName;
use bytes::Bytes;
use bytestring::ByteString;
use std::num::{NonZeroU16, NonZeroU32};

/// CONNECT. For 3.x the 5.0-only fields have the values that 5.0 gives to absent properties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connect {
    /// Protocol version asked for.
    pub version: Version,
    /// Client id as sent; may be empty.
    pub client_id: ByteString,
    /// 5.0: start without the former session. 3.x: clean session.
    pub clean_start: bool,
    /// Keep alive in seconds; 0 = none.
    pub keep_alive_secs: u16,
    /// User name.
    pub user_name: Option<ByteString>,
    /// Password. Never logged.
    pub password: Option<Bytes>,
    /// What to publish when the connection ends badly.
    pub will: Option<Box<Will>>,
    /// 5.0: seconds the session outlives the connection; absent = 0. `None` for 3.x.
    pub session_expiry_secs: Option<u32>,
    /// 5.0: QoS > 0 publishes the client accepts unacknowledged; absent = 65,535.
    pub receive_maximum: Option<NonZeroU16>,
    /// 5.0: largest packet the client accepts; absent = no limit.
    pub maximum_packet_bytes: Option<NonZeroU32>,
    /// 5.0: topic aliases the client accepts; absent = 0.
    pub topic_alias_maximum: u16,
    /// 5.0: the client asks for response information.
    pub request_response_information: bool,
    /// 5.0: reason strings and user properties are welcome on failures; absent = true.
    pub request_problem_information: bool,
    /// 5.0: extended authentication.
    pub authentication_method: Option<ByteString>,
    /// 5.0: data for it.
    pub authentication_data: Option<Bytes>,
    /// 5.0: user properties.
    pub user_properties: UserProperties,
}

/// The will in a CONNECT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Will {
    /// Where to publish.
    pub topic: TopicName,
    /// What to publish.
    pub payload: Bytes,
    /// At which QoS.
    pub qos: QoS,
    /// Whether to retain it.
    pub retain: bool,
    /// 5.0: seconds between the end of the connection and the publish.
    pub delay_secs: u32,
    /// 5.0: properties of the message.
    pub properties: Option<Box<PublishProperties>>,
}

impl Will {
    /// Bytes it holds while it waits for the end of its connection, or for its delay.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let properties = self.properties.as_ref().map_or(0, |properties| properties.held_bytes());
        self.topic.as_str().len() + self.payload.len() + properties
    }
}

/// CONNACK. The reason code is written as a 3.x return code for 3.x clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnAck {
    /// Whether the broker had the session.
    pub session_present: bool,
    /// Success, or why not.
    pub reason: ReasonCode,
    /// 5.0 properties.
    pub properties: ConnAckProperties,
}

/// Properties of a 5.0 CONNACK; `None` and defaults are not written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConnAckProperties {
    /// Session expiry, when it differs from what the client asked for.
    pub session_expiry_secs: Option<u32>,
    /// QoS > 0 publishes the broker accepts unacknowledged.
    pub receive_maximum: Option<NonZeroU16>,
    /// Highest QoS the broker accepts, when below 2.
    pub maximum_qos: Option<QoS>,
    /// Whether retained messages are served, when not.
    pub retain_available: Option<bool>,
    /// Largest packet the broker accepts.
    pub maximum_packet_bytes: Option<u32>,
    /// Client id given by the broker.
    pub assigned_client_id: Option<ByteString>,
    /// Topic aliases the broker accepts.
    pub topic_alias_maximum: u16,
    /// Why, in words.
    pub reason_string: Option<ByteString>,
    /// Whether wildcard subscriptions are served, when not.
    pub wildcard_subscription_available: Option<bool>,
    /// Whether subscription identifiers are served, when not.
    pub subscription_identifiers_available: Option<bool>,
    /// Whether shared subscriptions are served, when not.
    pub shared_subscription_available: Option<bool>,
    /// Keep alive that the broker uses instead of the client's.
    pub server_keep_alive_secs: Option<u16>,
    /// Where the client may expect answers, if it asked.
    pub response_information: Option<ByteString>,
}

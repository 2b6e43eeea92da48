//! Wills and the properties of messages on the wire.

use super::WireError;
use bytes::Bytes;
use bytestring::ByteString;
use tidemill_core::packet::{self, PublishProperties, QoS};
use tidemill_core::topic::TopicName;

/// A will.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Will {
    /// Topic name.
    #[prost(string, tag = "1")]
    pub topic: String,
    /// Body.
    #[prost(bytes = "bytes", tag = "2")]
    pub payload: Bytes,
    /// QoS.
    #[prost(uint32, tag = "3")]
    pub qos: u32,
    /// Retain flag.
    #[prost(bool, tag = "4")]
    pub retain: bool,
    /// Delay in seconds.
    #[prost(uint32, tag = "5")]
    pub delay_secs: u32,
    /// Properties of the message, if it has any.
    #[prost(message, optional, tag = "6")]
    pub properties: Option<Properties>,
}

/// Properties of a message.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Properties {
    /// Payload format indicator.
    #[prost(bool, optional, tag = "1")]
    pub payload_is_utf8: Option<bool>,
    /// Message expiry.
    #[prost(uint32, optional, tag = "2")]
    pub message_expiry_secs: Option<u32>,
    /// Content type.
    #[prost(string, optional, tag = "3")]
    pub content_type: Option<String>,
    /// Response topic.
    #[prost(string, optional, tag = "4")]
    pub response_topic: Option<String>,
    /// Correlation data.
    #[prost(bytes = "bytes", optional, tag = "5")]
    pub correlation_data: Option<Bytes>,
    /// User properties, in order.
    #[prost(message, repeated, tag = "6")]
    pub user_properties: Vec<UserProperty>,
}

/// One user property.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct UserProperty {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its value.
    #[prost(string, tag = "2")]
    pub value: String,
}

impl From<&packet::Will> for Will {
    fn from(will: &packet::Will) -> Self {
        Self {
            topic: will.topic.as_str().to_owned(),
            payload: will.payload.clone(),
            qos: u32::from(will.qos as u8),
            retain: will.retain,
            delay_secs: will.delay_secs,
            properties: will.properties.as_deref().map(Properties::from),
        }
    }
}

impl TryFrom<Will> for packet::Will {
    type Error = WireError;

    fn try_from(will: Will) -> Result<Self, WireError> {
        Ok(Self {
            topic: TopicName::parse(ByteString::from(will.topic))
                .map_err(|error| WireError::Topic { field: "will topic", error })?,
            payload: will.payload,
            qos: qos(will.qos)?,
            retain: will.retain,
            delay_secs: will.delay_secs,
            properties: will.properties.map(|properties| Box::new(properties.into())),
        })
    }
}

impl From<&PublishProperties> for Properties {
    fn from(properties: &PublishProperties) -> Self {
        let text = |text: &Option<ByteString>| text.as_ref().map(ToString::to_string);
        Self {
            payload_is_utf8: properties.payload_is_utf8,
            message_expiry_secs: properties.message_expiry_secs,
            content_type: text(&properties.content_type),
            response_topic: text(&properties.response_topic),
            correlation_data: properties.correlation_data.clone(),
            user_properties: properties
                .user_properties
                .iter()
                .map(|(name, value)| UserProperty { name: name.to_string(), value: value.to_string() })
                .collect(),
        }
    }
}

impl From<Properties> for PublishProperties {
    fn from(properties: Properties) -> Self {
        Self {
            payload_is_utf8: properties.payload_is_utf8,
            message_expiry_secs: properties.message_expiry_secs,
            content_type: properties.content_type.map(ByteString::from),
            response_topic: properties.response_topic.map(ByteString::from),
            correlation_data: properties.correlation_data,
            subscription_identifiers: Vec::new(),
            user_properties: properties
                .user_properties
                .into_iter()
                .map(|property| (property.name.into(), property.value.into()))
                .collect(),
        }
    }
}

/// Reads a QoS.
pub(super) fn qos(number: u32) -> Result<QoS, WireError> {
    u8::try_from(number)
        .ok()
        .and_then(QoS::from_number)
        .ok_or(WireError::Value { field: "qos", value: number.into() })
}

//! Why bytes are no packet, or a packet no bytes.

use tidemill_core::packet::ReasonCode;

/// The client sent what it may not send. The connection ends; see [`Codec::farewell`](crate::Codec::farewell) for what
/// is still said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are no packet of this version.
    #[error("malformed packet: {0}")]
    Malformed(&'static str),
    /// A packet, but one that may not come now or not like this.
    #[error("protocol error: {0}")]
    Protocol(&'static str),
    /// CONNECT asks for a protocol version that nobody speaks here.
    #[error("unsupported protocol version")]
    UnsupportedVersion,
    /// The client id is empty where it must not be.
    #[error("client identifier not valid")]
    ClientIdNotValid,
    /// A topic name is empty, has a wildcard or U+0000.
    #[error("topic name invalid")]
    TopicNameInvalid,
    /// A topic filter breaks the grammar of section 4.7 or of `$share`.
    #[error("topic filter invalid")]
    TopicFilterInvalid,
    /// Topic alias 0.
    #[error("topic alias invalid")]
    TopicAliasInvalid,
    /// The packet is larger than the limit. It was not read.
    #[error("packet of {bytes} bytes is larger than the limit of {max}")]
    TooLarge {
        /// Size of the packet with its header.
        bytes: u32,
        /// The limit.
        max: u32,
    },
}

impl DecodeError {
    /// The reason code to close with.
    #[must_use]
    pub fn reason(&self) -> ReasonCode {
        match self {
            Self::Malformed(_) => ReasonCode::MALFORMED_PACKET,
            Self::Protocol(_) => ReasonCode::PROTOCOL_ERROR,
            Self::UnsupportedVersion => ReasonCode::UNSUPPORTED_PROTOCOL_VERSION,
            Self::ClientIdNotValid => ReasonCode::CLIENT_IDENTIFIER_NOT_VALID,
            Self::TopicNameInvalid => ReasonCode::TOPIC_NAME_INVALID,
            Self::TopicFilterInvalid => ReasonCode::TOPIC_FILTER_INVALID,
            Self::TopicAliasInvalid => ReasonCode::TOPIC_ALIAS_INVALID,
            Self::TooLarge { .. } => ReasonCode::PACKET_TOO_LARGE,
        }
    }
}

/// The packet was not written; the buffer is as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// Larger than the client accepts: a PUBLISH is dropped as if it had been sent (MQTT 5.0 section 3.1.2.11.4),
    /// anything else ends the connection.
    #[error("packet of {bytes} bytes is larger than the {max} that the client accepts")]
    TooLarge {
        /// Size of the packet with its header.
        bytes: usize,
        /// What the client accepts.
        max: usize,
    },
    /// The packet does not exist in this version, or a field does not fit its place: a fault of the caller.
    #[error("packet cannot be written: {0}")]
    Unrepresentable(&'static str),
}

//! Why a connection ends, and whose doing that is.

use tidemill_core::packet::ReasonCode;

/// Why a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseReason {
    /// The client closed its socket or the socket failed.
    ConnectionLost,
    /// The client sent DISCONNECT; 0x04 asks for the will.
    ClientDisconnect(ReasonCode),
    /// The broker ends it and says why (5.0).
    Broker(ReasonCode),
}

impl CloseReason {
    /// Whether the broker ends the connection for a reason of its own: the client did nothing wrong, and no other
    /// connection took its place.
    #[must_use]
    pub fn is_brokers_own(self) -> bool {
        match self {
            Self::ConnectionLost | Self::ClientDisconnect(_) => false,
            Self::Broker(reason) => matches!(
                reason,
                ReasonCode::SERVER_SHUTTING_DOWN
                    | ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR
                    | ReasonCode::UNSPECIFIED_ERROR
                    | ReasonCode::USE_ANOTHER_SERVER
                    | ReasonCode::SERVER_MOVED
            ),
        }
    }
}

//! Why a link ended, and what that means for what was under way on it.

use crate::cluster::wire::WireError;

/// Why a link ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkEnd {
    /// The connection ended without a word: the peer is gone, or the network cut it.
    #[error("connection ended: {0}")]
    Connection(String),
    /// The peer gave it up.
    #[error("the peer broke the link: {reason}")]
    ByPeer {
        /// Its words.
        reason: String,
        /// Whether it counts as delivered what it could not forward.
        gives_up_forwards: bool,
    },
    /// The peer did not answer pings or take forwards for 2 s.
    #[error("the peer does not answer")]
    NoAnswer,
    /// The peer does not take what it gets.
    #[error("the queue to the peer is full")]
    Overflow,
    /// The peer sent what it must not.
    #[error("protocol error: {0}")]
    Protocol(#[from] WireError),
    /// The peer dialed again.
    #[error("replaced by a newer link")]
    Replaced,
    /// The peer is no member any more, or another incarnation is.
    #[error("the peer is no member any more")]
    NotMember,
    /// This broker stops.
    #[error("this broker stops")]
    Stopping,
}

impl LinkEnd {
    /// Whether this end of the link acknowledges publishers although the other end may not have got their messages
    /// and may be well.
    #[must_use]
    pub fn gives_up_forwards(&self) -> bool {
        match self {
            Self::NoAnswer | Self::Overflow | Self::Protocol(_) => true,
            Self::ByPeer { .. } | Self::Connection(_) | Self::Replaced | Self::NotMember | Self::Stopping => {
                false
            }
        }
    }
}

//! What members say to each other for hold and expiry, on the control lane of the peer links.

use crate::member::Member;
use crate::time::BootTime;

use super::lease::ResourceVersion;
use std::time::Duration;

/// A message of one member to another. The link names the sender; losing, delaying or repeating one is harmless.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerMessage {
    /// "Grant me that I stay valid." Sent every 500 ms to the members of the views named.
    GrantAsk {
        /// When the asker asked, by its own clock; comes back untouched.
        asked_at: BootTime,
    },
    /// "I am valid and grant it." Counts from `asked_at`.
    Grant {
        /// As it was in the ask.
        asked_at: BootTime,
    },
    /// "Do you consent that I expire this incarnation?"
    ConsentAsk {
        /// Who shall be expired.
        victim: Member,
        /// Version of its lease that was seen unchanged.
        version: ResourceVersion,
        /// Duration that this lease names.
        duration: Duration,
    },
    /// "I have given it no grant for one duration and give none while its lease has this version."
    Consent {
        /// Who may be expired.
        victim: Member,
        /// Version of its lease that the consent is bound to.
        version: ResourceVersion,
    },
}

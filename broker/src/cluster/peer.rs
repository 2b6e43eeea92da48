//! Links to the other brokers: mutual TLS, one connection for each of the two lanes, heartbeat, credit, reconnection.
//!
//! Of two members the one with the lower name dials, both lanes; the other accepts. A link is up when both lanes have
//! exchanged `Hello`, and ends with the first that ends. Frames are handed to a [`LinkHandler`] on the reader's task and
//! must not wait there: that is what keeps control apart from data and one slow client apart from a whole peer.

pub mod end;
pub mod handshake;
pub mod lane;
pub mod link;
pub mod mesh;
pub mod table;
pub mod tls;

use super::wire::{Body, WireError};
use end::LinkEnd;
use link::Link;
use std::sync::Arc;

/// What the rest of the broker does with links and their frames. Nothing here may wait.
pub trait LinkHandler: Send + Sync + 'static {
    /// The link is up; no frame of it was handled yet.
    fn link_up(&self, link: &Arc<Link>);

    /// A frame of the control lane, in order.
    ///
    /// # Errors
    ///
    /// [`WireError`] when the peer must not have sent it; the link is broken.
    fn handle_control(&self, link: &Arc<Link>, body: Body) -> Result<(), WireError>;

    /// A frame of the data lane, in order.
    ///
    /// # Errors
    ///
    /// As [`Self::handle_control`].
    fn handle_data(&self, link: &Arc<Link>, body: Body) -> Result<(), WireError>;

    /// All data frames of this link up to `sequence` were handled.
    fn data_processed(&self, link: &Arc<Link>, sequence: u64);

    /// Four times a second while the link is up: deadlines are judged here.
    fn tick(&self, link: &Arc<Link>);

    /// The link is down; no frame of it is handled afterwards.
    fn link_down(&self, link: &Arc<Link>, end: &LinkEnd);
}

/// A random number of the operating system.
#[must_use]
pub fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    let mut filled = 0;
    while filled < bytes.len() {
        // The call is interrupted at most before the pool is first seeded, right after boot.
        filled +=
            rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()).unwrap_or(0);
    }
    u64::from_le_bytes(bytes)
}

//! Messages of shared subscriptions: a mailbox may refuse one, and gives back what its client is not done with.

use super::{Inner, LiveDelivery, Mailbox, MailboxLimits, Turn};
use crate::metrics::DropReason;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidemill_core::session::delivery::Source;
use tidemill_core::session::outbound::Lost;
use tidemill_core::shared::{LostDelivery, ShareId};

/// What a mailbox says to a message that others could take as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// It has it.
    Taken,
    /// As much waits for the client as may.
    Full,
    /// The connection ends.
    Closed,
}

impl Mailbox {
    /// Bounds of what waits for the client.
    #[must_use]
    pub fn limits(&self) -> MailboxLimits {
        self.context.limits
    }

    /// Deliveries above QoS 0 that are in flight or wait. Looked at without the lock.
    #[must_use]
    pub fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }

    /// Whether a small message would be taken.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let inner = self.inner.lock();
        inner.takes_messages() && !self.context.limits.are_reached(&inner, 0)
    }

    /// Delivers one message of the group `share`, unless the bounds are reached or the connection ends.
    pub fn offer(self: &Arc<Self>, delivery: LiveDelivery<'_>, share: ShareId, turn: &mut Turn) -> Offer {
        let mut inner = self.lock_with_room(delivery.message.held_bytes());
        if !inner.takes_messages() {
            return Offer::Closed;
        }
        if self.context.limits.are_reached(&inner, delivery.message.held_bytes()) {
            return Offer::Full;
        }
        self.take(&mut inner, delivery, Source::Shared(share), turn);
        Offer::Taken
    }

    /// For a connection that has ended and is closing, before [`Mailbox::take_in_flight`]: what other members of its
    /// groups shall have, in order. What nobody gets is counted.
    pub fn take_lost(&self) -> Vec<LostDelivery> {
        let mut inner = self.inner.lock();
        debug_assert!(inner.closing.is_some(), "it takes nothing any more");
        let Lost { deliveries, dropped } = inner.outbound.take_lost();
        self.context.metrics.count_drops(DropReason::SharedMemberLost, dropped);
        self.note_load(&inner);
        deliveries
    }

    /// To be called after a delivery was taken, acknowledged or given up.
    pub(super) fn note_load(&self, inner: &Inner) {
        let load = inner.outbound.in_use_count() + inner.outbound.pending_count();
        self.load.store(load, Ordering::Relaxed);
    }
}

impl Inner {
    /// Whether the connection goes on.
    pub(super) fn takes_messages(&self) -> bool {
        self.closing.is_none() && self.flush.is_some()
    }
}

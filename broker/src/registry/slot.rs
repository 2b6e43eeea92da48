//! The place of one client id.

use super::Registered;
use bytestring::ByteString;
use std::collections::HashMap;
use std::sync::Arc;
use tidemill_core::attach::{ConnectionEpoch, Deliver};

/// Batches of deliveries kept for a client whose grant is still on its way; the owner's window bounds what is in them.
const EARLY_BATCHES_MAX: usize = 1_024;

pub(super) type Slots = HashMap<ByteString, Slot>;

/// The connection of a client id, and those that are attaching.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) current: Option<Arc<Registered>>,
    /// Attaches under way.
    pub(super) attaching: usize,
    /// Connections up to this one were taken over while they attached.
    pub(super) revoked: Option<ConnectionEpoch>,
    /// Deliveries that overtook the grant of their connection.
    pub(super) early: Vec<Deliver>,
}

impl Slot {
    /// Keeps a delivery until its connection's grant is here. At the bound it is dropped: the owner delivers again
    /// after the next attach.
    pub(super) fn push_early(&mut self, deliver: Deliver) {
        if self.early.len() < EARLY_BATCHES_MAX {
            self.early.push(deliver);
        }
    }

    /// What came early for `connection`, in order; what is for an older one is dropped.
    pub(super) fn take_early(&mut self, connection: ConnectionEpoch) -> Vec<Deliver> {
        let mut early = std::mem::take(&mut self.early);
        early.retain(|deliver| deliver.connection >= connection);
        let (now, later) = early.into_iter().partition(|deliver| deliver.connection == connection);
        self.early = later;
        now
    }

    /// Removes the slot of `client_id` when nothing is in it.
    pub(super) fn remove_if_idle(slots: &mut Slots, client_id: &ByteString) {
        if slots.get(client_id).is_some_and(|slot| slot.current.is_none() && slot.attaching == 0) {
            slots.remove(client_id);
            // Memory goes back when clients go, at a distance that keeps it cheap.
            if slots.len() < slots.capacity() / 4 {
                slots.shrink_to(slots.len() * 2);
            }
        }
    }
}

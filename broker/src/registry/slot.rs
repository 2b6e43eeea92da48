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
    /// What overtook the grant of an attach. Boxed: an idle connection pays for its place.
    ahead: Option<Box<Ahead>>,
    /// Attaches under way.
    pub(super) attaching: u32,
}

/// What came for a client whose grant is still on its way.
#[derive(Debug, Default)]
struct Ahead {
    /// Connections up to this one were taken over while they attached.
    revoked: Option<ConnectionEpoch>,
    /// Deliveries for them, or for a later one.
    early: Vec<Deliver>,
}

impl Slot {
    /// Keeps a delivery until its connection's grant is here. At the bound it is dropped: the owner delivers again
    /// after the next attach.
    pub(super) fn push_early(&mut self, deliver: Deliver) {
        let early = &mut self.ahead.get_or_insert_default().early;
        if early.len() < EARLY_BATCHES_MAX {
            early.push(deliver);
        }
    }

    /// Connections up to `connection` are taken over; those whose attach is under way find out.
    pub(super) fn revoke(&mut self, connection: ConnectionEpoch) {
        if self.attaching > 0 {
            let revoked = &mut self.ahead.get_or_insert_default().revoked;
            *revoked = (*revoked).max(Some(connection));
        }
    }

    /// Whether `connection` was taken over before its grant was here.
    pub(super) fn is_revoked(&self, connection: ConnectionEpoch) -> bool {
        self.ahead.as_ref().is_some_and(|ahead| ahead.revoked >= Some(connection))
    }

    /// An attach is through, or given up.
    pub(super) fn end_attach(&mut self) {
        self.attaching -= 1;
        if self.attaching == 0 {
            self.ahead = None;
        }
    }

    /// What came early for `connection`, in order; what is for an older one is dropped.
    pub(super) fn take_early(&mut self, connection: ConnectionEpoch) -> Vec<Deliver> {
        let Some(ahead) = &mut self.ahead else { return Vec::new() };
        let mut early = std::mem::take(&mut ahead.early);
        early.retain(|deliver| deliver.connection >= connection);
        let (now, later) = early.into_iter().partition(|deliver| deliver.connection == connection);
        ahead.early = later;
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

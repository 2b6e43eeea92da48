//! All groups of the broker, by what names them.

use super::group::ShareGroup;
use bytestring::ByteString;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidemill_core::shared::ShareId;
use tidemill_core::topic::SharedFilter;

/// The groups. Locks are taken in the order index, group, mailbox.
#[derive(Debug, Default)]
pub(in crate::router) struct Groups {
    pub(super) index: Mutex<Index>,
    /// Groups in which messages wait: each group counts itself.
    pub(super) backlogs: Arc<AtomicUsize>,
}

impl Groups {
    pub(super) fn has_backlog(&self) -> bool {
        self.backlogs.load(Ordering::Relaxed) > 0
    }
}

/// What is known of the groups and of the sessions that are away.
#[derive(Debug, Default)]
pub(in crate::router) struct Index {
    groups: HashMap<SharedFilter, Arc<ShareGroup>>,
    by_id: HashMap<ShareId, Arc<ShareGroup>>,
    away: HashMap<ByteString, Away>,
    next_id: u32,
}

/// A persistent session without connection.
#[derive(Debug)]
struct Away {
    /// Milliseconds of the process's clock.
    expires_at_ms: u64,
    /// What it is a member of; at most as many as it may have subscriptions.
    targets: BTreeSet<SharedFilter>,
}

impl Index {
    pub(super) fn find(&self, target: &SharedFilter) -> Option<&Arc<ShareGroup>> {
        self.groups.get(target)
    }

    pub(super) fn by_id(&self, id: ShareId) -> Option<Arc<ShareGroup>> {
        self.by_id.get(&id).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<ShareGroup>> {
        self.groups.values().cloned().collect()
    }

    /// Adds the group that `make` makes of a new id.
    pub(super) fn add(&mut self, make: impl FnOnce(ShareId) -> ShareGroup) -> Arc<ShareGroup> {
        // Ends: there are fewer groups than numbers.
        while self.by_id.contains_key(&ShareId(self.next_id)) {
            self.next_id = self.next_id.wrapping_add(1);
        }
        let id = ShareId(self.next_id);
        self.next_id = self.next_id.wrapping_add(1);
        let group = Arc::new(make(id));
        self.groups.insert(group.target().clone(), Arc::clone(&group));
        self.by_id.insert(id, Arc::clone(&group));
        group
    }

    pub(super) fn remove(&mut self, group: &Arc<ShareGroup>) {
        self.groups.remove(group.target());
        self.by_id.remove(&group.id());
    }

    /// The session behind `client_id` may come back to `target`.
    pub(super) fn note_away(&mut self, client_id: &ByteString, target: &SharedFilter, expires_at_ms: u64) {
        let new = || Away { expires_at_ms, targets: BTreeSet::new() };
        let away = self.away.entry(client_id.clone()).or_insert_with(new);
        away.expires_at_ms = expires_at_ms;
        away.targets.insert(target.clone());
    }

    /// It has come back to `target`.
    pub(super) fn note_return(&mut self, client_id: &ByteString, target: &SharedFilter) {
        if let Some(away) = self.away.get_mut(client_id) {
            away.targets.remove(target);
            if away.targets.is_empty() {
                self.away.remove(client_id);
            }
        }
    }

    /// What the session of `client_id` was a member of and has not come back to.
    pub(super) fn take_away(&mut self, client_id: &ByteString) -> Option<BTreeSet<SharedFilter>> {
        self.away.remove(client_id).map(|away| away.targets)
    }

    /// Sessions that have not come back in time.
    pub(super) fn take_expired(&mut self, now_ms: u64) -> Vec<(ByteString, BTreeSet<SharedFilter>)> {
        let expired = self.away.extract_if(|_, away| away.expires_at_ms <= now_ms);
        expired.map(|(client_id, away)| (client_id, away.targets)).collect()
    }
}

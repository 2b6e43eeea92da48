//! Shared subscriptions: which groups there are, who is in them, and what of a lost member goes to others.
//!
//! A group is a ShareName and a filter; it is in the tables like any other receiver. Its members are the clients that
//! are connected, and the persistent sessions that may come back. All of it is in memory and of this broker alone.

mod group;
mod index;

pub(super) use group::ShareGroup;
pub(super) use index::Groups;

use super::Router;
use super::tables::Entry;
use crate::mailbox::{Mailbox, Turn, monotonic_us};
use crate::metrics::DropReason;
use bytestring::ByteString;
use group::ConnectedMember;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidemill_core::message::Message;
use tidemill_core::packet::SubscriptionOptions;
use tidemill_core::shared::strategy::Strategy;
use tidemill_core::shared::{LostDelivery, ShareId};
use tidemill_core::topic::SharedFilter;

/// One client's subscription to a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedSubscription {
    /// Which group.
    pub target: SharedFilter,
    /// How it shares, if it is new.
    pub strategy: Strategy,
    /// How to deliver to this member. No local is a protocol error that the codec has refused.
    pub options: SubscriptionOptions,
    /// 5.0 subscription identifier.
    pub identifier: Option<u32>,
}

/// Whether a member that leaves may come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberLeaves {
    /// It has unsubscribed, or its session ends with its connection.
    ForGood,
    /// Its session lives on until this time, in milliseconds of the process's clock.
    UntilReturn {
        /// When the session ends if it does not come back.
        expires_at_ms: u64,
    },
}

impl Router {
    /// Makes a client a member of a group, or replaces its subscription. What waits in the group is handed out by
    /// [`Router::drain_shared`].
    pub fn subscribe_shared(&self, mailbox: &Arc<Mailbox>, subscription: SharedSubscription) {
        let SharedSubscription { target, strategy, options, identifier } = subscription;
        let client_id = mailbox.client_id();
        let mut index = self.shared.index.lock();
        let (group, is_new) = match index.find(&target) {
            Some(group) => (Arc::clone(group), false),
            None => {
                let (metrics, backlogs) = (&self.metrics, &self.shared.backlogs);
                let make =
                    |id| ShareGroup::new((id, target.clone()), strategy, mailbox.limits(), metrics, backlogs);
                (index.add(make), true)
            }
        };
        index.note_return(&client_id, &target);
        if group.join(client_id, ConnectedMember::new(mailbox, options, identifier)) {
            self.metrics.add_subscriptions(1);
        }
        if is_new {
            self.tables.insert(target.filter(), Entry::Shared(group));
        }
    }

    /// A client leaves groups; those that nobody is left in are no more. What the client had in flight is not touched.
    pub fn leave_shared<'a>(
        &self,
        mailbox: &Arc<Mailbox>,
        targets: impl IntoIterator<Item = &'a SharedFilter>,
        leaves: MemberLeaves,
    ) {
        let client_id = mailbox.client_id();
        let mut index = self.shared.index.lock();
        for target in targets {
            let Some(group) = index.find(target).cloned() else { continue };
            // Another connection of the client may have taken its place.
            if !group.leave(&client_id, mailbox.id(), leaves) {
                continue;
            }
            self.metrics.add_subscriptions(-1);
            if let MemberLeaves::UntilReturn { expires_at_ms } = leaves {
                index.note_away(&client_id, target, expires_at_ms);
            }
            self.dissolve_if_deserted(&mut index, &group);
        }
    }

    /// The client is back and has resumed what it was a member of, or has a new session: it is away from nothing.
    pub fn forget_away(&self, client_id: &ByteString) {
        let mut index = self.shared.index.lock();
        let Some(targets) = index.take_away(client_id) else { return };
        self.forget_members(&mut index, client_id, targets);
    }

    /// Whether messages wait in any group.
    #[must_use]
    pub fn has_shared_backlog(&self) -> bool {
        self.shared.has_backlog()
    }

    /// Hands out what waits in groups of which `mailbox` is a member, if it has room.
    pub fn drain_shared<'a>(
        &self,
        mailbox: &Arc<Mailbox>,
        targets: impl IntoIterator<Item = &'a SharedFilter>,
        turn: &mut Turn,
    ) {
        for target in targets {
            if !mailbox.has_room() {
                return;
            }
            let group = self.shared.index.lock().find(target).cloned();
            if let Some(group) = group {
                group.drain(turn);
            }
        }
    }

    /// Gives what a lost member had, and was not done with, to other members, in order. The member has left already.
    pub fn redistribute(&self, lost: Vec<LostDelivery>, turn: &mut Turn) {
        let mut by_group: BTreeMap<ShareId, Vec<Arc<Message>>> = BTreeMap::new();
        for LostDelivery { share, message } in lost {
            by_group.entry(share).or_default().push(message);
        }
        for (share, messages) in by_group {
            let group = self.shared.index.lock().by_id(share);
            match group {
                Some(group) => group.take_back(messages, turn),
                None => self.metrics.count_drops(DropReason::NoSharedMember, messages.len()),
            }
        }
    }

    /// Ends the membership of sessions that have expired, and hands out what waits wherever there is room again. To be
    /// called every second or so.
    pub fn sweep_shared(&self) {
        let mut index = self.shared.index.lock();
        for (client_id, targets) in index.take_expired(monotonic_us() / 1_000) {
            self.forget_members(&mut index, &client_id, targets);
        }
        let groups = if self.shared.has_backlog() { index.all() } else { Vec::new() };
        drop(index);
        if groups.is_empty() {
            return;
        }
        let mut turn = Turn::begin(&self.metrics);
        for group in groups {
            group.drain(&mut turn);
        }
        turn.finish();
    }

    fn forget_members(
        &self,
        index: &mut index::Index,
        client_id: &ByteString,
        targets: impl IntoIterator<Item = SharedFilter>,
    ) {
        for target in targets {
            let Some(group) = index.find(&target).cloned() else { continue };
            group.forget_away(client_id);
            self.dissolve_if_deserted(index, &group);
        }
    }

    /// Under the lock of the index, so that nobody joins meanwhile.
    fn dissolve_if_deserted(&self, index: &mut index::Index, group: &Arc<ShareGroup>) {
        if group.dissolve_if_deserted() {
            index.remove(group);
            self.tables.remove(group.target().filter(), &Entry::Shared(Arc::clone(group)));
        }
    }
}

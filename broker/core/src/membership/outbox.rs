//! What waits to be polled, and which writes and lists have no result yet.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::event::MembershipEvent;
use super::lease::{LeaseContent, LeaseKey, LeaseWrite, ListId, NamedMember, ResourceVersion, WriteId};
use super::message::PeerMessage;
use crate::member::{Incarnation, MemberId, OwnerEpoch};
use crate::partition::PartitionGroup;
use crate::time::BootTime;

/// Pause after a failed list and after a refused write.
pub(super) const RETRY: Duration = Duration::from_millis(500);

/// Why a write was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Purpose {
    Join { named: NamedMember },
    Renew,
    Leave,
    Expire,
    Claim { group: PartitionGroup, epoch: OwnerEpoch },
    Release,
    RaiseEpoch,
    ChangeView,
}

/// A write without a result.
#[derive(Debug, Clone)]
pub(super) struct Outstanding {
    pub(super) key: LeaseKey,
    /// Version that the object must have.
    pub(super) expected: ResourceVersion,
    pub(super) content: LeaseContent,
    pub(super) started: BootTime,
    pub(super) purpose: Purpose,
    /// The incarnation that sent it; its result means nothing to a later one.
    pub(super) by: Option<Incarnation>,
}

/// Bounded by what each `handle_*` call can produce, because the shell polls after each: a few writes and events per
/// lease, one message per member.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    writes: VecDeque<(WriteId, LeaseWrite)>,
    outstanding: BTreeMap<WriteId, Outstanding>,
    events: VecDeque<MembershipEvent>,
    messages: VecDeque<(MemberId, PeerMessage)>,
    /// Objects whose last write failed: not written again before they were read again after this time.
    unread_since: BTreeMap<LeaseKey, BootTime>,
    retry_at: BTreeMap<LeaseKey, BootTime>,
    next_id: u64,
}

impl Outbox {
    pub(super) fn write(&mut self, write: Outstanding) -> WriteId {
        self.next_id += 1;
        let id = WriteId(self.next_id);
        let lease_write =
            LeaseWrite { key: write.key.clone(), expected: write.expected, content: write.content.clone() };
        self.writes.push_back((id, lease_write));
        self.outstanding.insert(id, write);
        id
    }

    pub(super) fn take_outstanding(&mut self, id: WriteId) -> Option<Outstanding> {
        self.outstanding.remove(&id)
    }

    /// Whether `key` may be written: nothing is on its way to it, and it was read since the last failure.
    pub(super) fn may_write(&self, key: &LeaseKey, now: BootTime) -> bool {
        !self.is_outstanding(key) && self.is_settled(key, now)
    }

    /// As [`Self::may_write`], but writes on their way do not count.
    pub(super) fn is_settled(&self, key: &LeaseKey, now: BootTime) -> bool {
        !self.unread_since.contains_key(key) && self.retry_at.get(key).is_none_or(|at| *at <= now)
    }

    pub(super) fn is_outstanding(&self, key: &LeaseKey) -> bool {
        self.outstanding.values().any(|write| write.key == *key)
    }

    pub(super) fn must_read(&mut self, key: LeaseKey, now: BootTime) {
        self.unread_since.insert(key, now);
    }

    pub(super) fn must_pause(&mut self, key: LeaseKey, now: BootTime) {
        self.retry_at.insert(key, now + RETRY);
    }

    /// A consistent list was asked for at `started`.
    pub(super) fn was_listed(&mut self, started: BootTime) {
        self.unread_since.retain(|_, since| *since > started);
    }

    /// The watch showed a newer version of `key`.
    pub(super) fn was_shown(&mut self, key: &LeaseKey) {
        self.unread_since.remove(key);
    }

    /// The time of the oldest failure that was not followed by a read of the object.
    pub(super) fn unread_since(&self) -> Option<BootTime> {
        self.unread_since.values().min().copied()
    }

    /// When the next paused write may be repeated.
    pub(super) fn next_retry(&mut self, now: BootTime) -> Option<BootTime> {
        self.retry_at.retain(|_, at| *at > now);
        self.retry_at.values().min().copied()
    }

    /// Forgets writes that were not polled yet; they are not sent.
    pub(super) fn cancel_unsent(&mut self) {
        for (id, _) in self.writes.drain(..) {
            self.outstanding.remove(&id);
        }
    }

    pub(super) fn emit(&mut self, event: MembershipEvent) {
        if event != MembershipEvent::MembersChanged || !self.events.contains(&event) {
            self.events.push_back(event);
        }
    }

    pub(super) fn send(&mut self, to: MemberId, message: PeerMessage) {
        self.messages.push_back((to, message));
    }

    pub(super) fn poll_write(&mut self) -> Option<(WriteId, LeaseWrite)> {
        self.writes.pop_front()
    }

    pub(super) fn poll_event(&mut self) -> Option<MembershipEvent> {
        self.events.pop_front()
    }

    pub(super) fn poll_message(&mut self) -> Option<(MemberId, PeerMessage)> {
        self.messages.pop_front()
    }
}

/// The consistent lists: at most one is asked for at a time.
#[derive(Debug, Default)]
pub(super) struct Lists {
    asked: Option<(ListId, BootTime)>,
    to_poll: Option<ListId>,
    retry_at: BootTime,
    /// Start of the newest list that was answered.
    pub(super) newest: Option<BootTime>,
    /// When that answer came.
    pub(super) newest_answered: Option<BootTime>,
    next_id: u64,
}

impl Lists {
    /// Asks for a list now unless one is on its way or the pause after a failed one is not over; answers when to come back.
    pub(super) fn ask(&mut self, now: BootTime) -> Option<BootTime> {
        if self.asked.is_some() {
            return None;
        }
        if now < self.retry_at {
            return Some(self.retry_at);
        }
        self.next_id += 1;
        self.asked = Some((ListId(self.next_id), now));
        self.to_poll = Some(ListId(self.next_id));
        None
    }

    /// The start of list `id`, which is answered (or failed) now. `None` if it is not the one asked for.
    pub(super) fn answered(&mut self, id: ListId, failed: bool, now: BootTime) -> Option<BootTime> {
        let (_, started) = self.asked.filter(|(asked, _)| *asked == id)?;
        self.asked = None;
        if failed {
            self.retry_at = now + RETRY;
        } else {
            self.newest = Some(started);
            self.newest_answered = Some(now);
        }
        Some(started)
    }

    /// Whether a list that was asked for at `since` or later was answered.
    pub(super) fn covers(&self, since: BootTime) -> bool {
        self.newest.is_some_and(|newest| newest >= since)
    }

    pub(super) fn poll(&mut self) -> Option<ListId> {
        self.to_poll.take()
    }
}

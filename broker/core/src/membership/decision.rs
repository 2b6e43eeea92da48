//! One pass over everything that may be due: runs after every input.

use std::time::Duration;

use super::config::ViewUse;
use super::event::MembershipEvent;
use super::join::LOOK_AGAIN;
use super::lease::{LeaseContent, LeaseKey, Observed, ResourceVersion, WriteId};
use super::message::PeerMessage;
use super::outbox::{Outstanding, Purpose};
use super::timings::{Mode, Timings};
use super::{Membership, Phase};
use crate::member::MemberId;
use crate::time::BootTime;
use std::collections::BTreeSet;

/// Between two rounds of asking for grants.
const GRANT_ASK: Duration = Duration::from_millis(500);
/// How long the watch may take to show a change that a write collided with, before a list is asked for.
const SHOWN_SOON: Duration = Duration::from_millis(200);

impl Membership {
    pub(super) fn decide(&mut self, now: BootTime) {
        self.wake = BootTime::MAX;
        self.decide_validity(now);
        self.decide_own_lease();
        match &self.phase {
            Phase::Joining { since } => self.decide_join(*since, now),
            Phase::Member(_) => self.decide_as_member(now),
            Phase::Closing | Phase::Left => {}
        }
        self.decide_lists(now);
        self.decide_members_changed(now);
        if let Some(at) = self.outbox.next_retry(now) {
            self.wake_at(at);
        }
        if let Phase::Member(tenancy) = &self.phase {
            let ends = tenancy.own.valid_until(&self.knowledge.views, &self.grants);
            self.wake_at(ends);
        }
    }

    fn decide_as_member(&mut self, now: BootTime) {
        self.decide_joined(now);
        self.decide_serving();
        self.decide_groups(now);
        self.decide_leave(now);
        self.decide_renewal(now);
        self.decide_grants(now);
        let Phase::Member(tenancy) = &self.phase else { return };
        let renewed_until = tenancy.own.lease_until();
        if now < renewed_until && !tenancy.leave_was_sent {
            self.start_consent_round(now);
            self.decide_expiry(now);
            self.decide_view(now);
        }
    }

    /// Asks all members of the views that the own lease may name for grants.
    fn decide_grants(&mut self, now: BootTime) {
        let Phase::Member(tenancy) = &self.phase else { return };
        let holds = tenancy.own.contents().any(|content| content.lease.mode == Mode::Hold);
        if self.config.view == ViewUse::Ignored || !holds || tenancy.leave_was_sent {
            return;
        }
        if now < self.asked_grants_at + GRANT_ASK {
            return self.wake_at(self.asked_grants_at + GRANT_ASK);
        }
        let views =
            tenancy.own.contents().filter_map(|content| self.knowledge.views.get(&content.lease.view_number));
        let asked: BTreeSet<MemberId> = views.flat_map(|view| view.keys().cloned()).collect();
        self.asked_grants_at = now;
        self.wake_at(now + GRANT_ASK);
        for member in asked.into_iter().filter(|member| *member != self.config.member) {
            self.outbox.send(member, PeerMessage::GrantAsk { asked_at: now });
        }
        self.grants.retain(&self.knowledge.views);
        let knowledge = &self.knowledge;
        self.promises.retain(|member| knowledge.last_incarnation(&member.id) == Some(member.incarnation));
    }

    /// Lists after failures, while the watch is not believed, and while there is no own lease that it could show.
    fn decide_lists(&mut self, now: BootTime) {
        let polls_from = match &self.phase {
            Phase::Joining { since } => *since,
            Phase::Member(_) => self.trust.believed_until(self.timings().renew),
            Phase::Closing | Phase::Left => return,
        };
        if let Some(since) = self.outbox.unread_since() {
            // A watch that is believed shows soon what a failed write was not made for.
            let due = if now < polls_from { since + SHOWN_SOON } else { since };
            if due <= now { self.want_list(now) } else { self.wake_at(due) }
        }
        let newest = self.lists.newest.map_or(BootTime::ZERO, |newest| newest + LOOK_AGAIN);
        let due = polls_from.max(newest);
        if due <= now { self.want_list(now) } else { self.wake_at(due) }
    }

    fn decide_members_changed(&mut self, now: BootTime) {
        let mut unrenewed = BTreeSet::new();
        let mut flips_at = BootTime::MAX;
        for (member, known) in &self.knowledge.members {
            if !known.is_renewed(now) {
                unrenewed.insert(member.clone());
            } else {
                flips_at = flips_at.min(known.since + known.content.timings.duration);
            }
        }
        self.wake_at(flips_at);
        if self.knowledge.take_changed() || unrenewed != self.unrenewed {
            self.unrenewed = unrenewed;
            self.outbox.emit(MembershipEvent::MembersChanged);
        }
    }

    pub(super) fn learn(&mut self, observed: Observed, now: BootTime) {
        if let LeaseKey::Member(member) = &observed.key {
            self.promises.saw_version(member, observed.version);
        }
        let key = observed.key.clone();
        if self.knowledge.learn(observed, now) {
            self.outbox.was_shown(&key);
        }
    }

    /// A write was stored: what it says is known, and what it was for is done.
    pub(super) fn take_written(
        &mut self,
        id: WriteId,
        version: ResourceVersion,
        write: Outstanding,
        now: BootTime,
    ) {
        let observed = Observed { key: write.key.clone(), version, content: write.content.clone() };
        self.learn(observed, now);
        let is_own = write.by == self.own().map(|own| own.member.incarnation);
        match &write.purpose {
            Purpose::Join { named } if matches!(self.phase, Phase::Joining { .. }) => {
                self.become_member(&write, named.clone(), now);
                self.trust.wrote(version, write.started);
            }
            Purpose::Renew if is_own => {
                if let Phase::Member(tenancy) = &mut self.phase {
                    tenancy.own.confirm(id);
                }
                self.trust.wrote(version, write.started);
            }
            Purpose::Claim { group, epoch } if is_own => self.ownership.claimed(*group, *epoch, now),
            Purpose::Expire => {
                if let LeaseKey::Member(member) = write.key {
                    self.expired.insert(member);
                }
            }
            Purpose::Join { .. }
            | Purpose::Renew
            | Purpose::Claim { .. }
            | Purpose::Leave
            | Purpose::Release
            | Purpose::RaiseEpoch
            | Purpose::ChangeView => {}
        }
    }

    /// The object of a write that failed must be read again, unless a newer version than the write was made for is known.
    pub(super) fn must_read(&mut self, write: &Outstanding, now: BootTime) {
        if self.knowledge.version(&write.key).is_none_or(|known| known <= write.expected) {
            self.outbox.must_read(write.key.clone(), now);
        }
    }

    /// A write was not stored and will not be.
    pub(super) fn disprove(&mut self, id: WriteId) {
        if let Phase::Member(tenancy) = &mut self.phase {
            tenancy.own.disprove(id);
        }
    }

    pub(super) fn write(
        &mut self,
        key: LeaseKey,
        expected: ResourceVersion,
        content: LeaseContent,
        purpose: Purpose,
        now: BootTime,
    ) -> WriteId {
        let by = self.own().map(|own| own.member.incarnation);
        self.outbox.write(Outstanding { key, expected, content, started: now, purpose, by })
    }

    pub(super) fn want_list(&mut self, now: BootTime) {
        if let Some(at) = self.lists.ask(now) {
            self.wake_at(at);
        }
    }

    pub(super) fn wake_at(&mut self, at: BootTime) {
        self.wake = self.wake.min(at);
    }

    /// The timings that the next write of the own lease announces.
    pub(super) fn timings(&self) -> Timings {
        self.config.timings.unwrap_or_else(|| Timings::for_members(self.knowledge.members.len()))
    }
}

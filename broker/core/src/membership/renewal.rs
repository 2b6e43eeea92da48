//! Keeping the own lease: renewing it, noticing that it is lost, and ending with it.

use std::time::Duration;

use super::config::ViewUse;
use super::event::{InvalidReason, MembershipEvent};
use super::lease::{LeaseContent, LeaseKey, MemberLease, MemberState, NamedMember};
use super::outbox::Purpose;
use super::validity::Announced;
use super::{Desired, Membership, Phase, Tenancy};
use crate::member::MemberEpoch;
use crate::time::BootTime;

/// What the peer links say changes often at once; it goes out early, but not each change alone.
const REACHABLE_SETTLES: Duration = Duration::from_secs(1);

impl Membership {
    /// Ends the incarnation if its validity has ended. Comes before everything else: a late answer revives nobody.
    pub(super) fn decide_validity(&mut self, now: BootTime) {
        if let Phase::Member(tenancy) = &self.phase
            && now >= tenancy.own.valid_until(&self.knowledge.views, &self.grants)
        {
            self.end_or_leave(InvalidReason::ValidityEnded);
        }
    }

    /// Looks whether the own lease still names this incarnation.
    pub(super) fn decide_own_lease(&mut self) {
        let Phase::Member(tenancy) = &self.phase else { return };
        let own = &tenancy.own.named;
        let Some(known) = self.knowledge.members.get(&self.config.member) else { return };
        let lease = &known.content;
        let is_held_by_other = lease.incarnation().is_some_and(|holder| holder != own.member.incarnation);
        if self.knowledge.is_dead(&own.member.id, own.epoch) || is_held_by_other {
            self.end_or_leave(InvalidReason::Expired);
        } else if lease.declared_dead.as_ref() == Some(&self.config.pod_uid) {
            self.end_or_leave(InvalidReason::DeclaredDead);
        } else if self.was_dropped(tenancy) {
            self.end_or_leave(InvalidReason::Dropped);
        }
    }

    /// A newer view than the own lease names, or the same, does not list this incarnation any more.
    fn was_dropped(&self, tenancy: &Tenancy) -> bool {
        let own = &tenancy.own;
        let number = own.view_number_max();
        self.config.view == ViewUse::Obeyed
            && number > 0
            && self.knowledge.view.as_ref().is_some_and(|view| {
                view.content.number >= number
                    && view.content.members.get(&own.named.member.id) != Some(&own.named)
            })
    }

    /// Renews when it is time, or when the lease should say something else.
    pub(super) fn decide_renewal(&mut self, now: BootTime) {
        let Phase::Member(tenancy) = &self.phase else { return };
        let key = LeaseKey::Member(self.config.member.clone());
        let Some(known) = self.knowledge.members.get(&self.config.member) else { return };
        if tenancy.leave_was_sent || !self.outbox.is_settled(&key, now) || self.is_blind(tenancy, now) {
            return;
        }
        let version = known.version;
        let Some(newest) = tenancy.own.contents().last() else { return };
        let renewal = newest.lease.renewal + 1;
        let (state, view_number) = (self.desired_state(tenancy), self.view_to_name(tenancy));
        let lease = self.announcement(&tenancy.own.named, state, view_number, renewal);
        let mut due = newest.started + lease.timings.renew;
        if !self.outbox.is_outstanding(&key) {
            due = due.min(early(newest, &lease));
        }
        if now < due {
            self.wake_at(due);
            return;
        }
        self.wake_at(now + lease.timings.renew);
        let id = self.write(key, version, LeaseContent::Member(lease.clone()), Purpose::Renew, now);
        if let Phase::Member(tenancy) = &mut self.phase {
            tenancy.own.unanswered.push((id, Announced { started: now, lease }));
        }
    }

    /// Whether nothing was read for so long that a changed group lease or view may have gone unseen. Such a member does
    /// not renew: others rely on it that who renews has read.
    fn is_blind(&self, tenancy: &Tenancy, now: BootTime) -> bool {
        let read = self.trust.shown.max(self.lists.newest.unwrap_or(BootTime::ZERO));
        now >= read.max(tenancy.joined_at) + self.timings().duration
    }

    /// The view number to announce: the newest view that lists this incarnation, never a lower one than before.
    fn view_to_name(&self, tenancy: &Tenancy) -> u64 {
        let own = &tenancy.own;
        let listed = match (self.config.view, &self.knowledge.view) {
            (ViewUse::Obeyed, Some(view))
                if view.content.members.get(&own.named.member.id) == Some(&own.named) =>
            {
                view.content.number
            }
            (ViewUse::Obeyed | ViewUse::Ignored, _) => 0,
        };
        listed.max(own.view_number_max())
    }

    /// Whether the view lists `own`, or none is obeyed.
    pub(super) fn is_in_view(&self, own: &NamedMember) -> bool {
        match self.config.view {
            ViewUse::Ignored => true,
            ViewUse::Obeyed => self
                .knowledge
                .view
                .as_ref()
                .is_some_and(|view| view.content.members.get(&own.member.id) == Some(own)),
        }
    }

    /// Tells once that the lease says `Serving`.
    pub(super) fn decide_serving(&mut self) {
        if let Phase::Member(tenancy) = &mut self.phase
            && tenancy.own.state() == MemberState::Serving
            && !tenancy.serving_was_announced
        {
            tenancy.serving_was_announced = true;
            self.outbox.emit(MembershipEvent::Serving);
        }
    }

    /// Gives the lease up once no group is left.
    pub(super) fn decide_leave(&mut self, now: BootTime) {
        let Phase::Member(tenancy) = &self.phase else { return };
        let key = LeaseKey::Member(self.config.member.clone());
        let named = &tenancy.own.named;
        let owns = self.ownership.holds_any()
            || self.knowledge.groups.values().any(|known| known.content.holder.as_ref() == Some(named));
        if self.desired != Desired::Leave || owns || !self.outbox.may_write(&key, now) {
            return;
        }
        let Some(known) = self.knowledge.members.get(&self.config.member) else { return };
        let version = known.version;
        let epoch = MemberEpoch(self.knowledge.epoch_max(&named.member.id).0 + 1);
        self.write(key, version, LeaseContent::Member(MemberLease::vacant(epoch)), Purpose::Leave, now);
        if let Phase::Member(tenancy) = &mut self.phase {
            tenancy.leave_was_sent = true;
        }
    }

    /// The incarnation is over. Nothing that it has not sent yet is sent.
    fn end_or_leave(&mut self, reason: InvalidReason) {
        let left = matches!(&self.phase, Phase::Member(tenancy) if tenancy.leave_was_sent);
        self.outbox.cancel_unsent();
        self.ownership.clear();
        self.ready = false;
        if left {
            self.phase = Phase::Left;
            self.outbox.emit(MembershipEvent::Left);
        } else {
            self.phase = Phase::Closing;
            self.outbox.emit(MembershipEvent::Invalid { reason });
        }
    }
}

/// When the lease should be renewed before its time, because it says something else than it should.
fn early(newest: &Announced, wanted: &MemberLease) -> BootTime {
    let said = &newest.lease;
    let waits_for_nobody = said.state != wanted.state
        || said.view_number != wanted.view_number
        || said.mode != wanted.mode
        || said.timings != wanted.timings
        || said.holder != wanted.holder;
    if waits_for_nobody {
        BootTime::ZERO
    } else if said.reachable != wanted.reachable {
        newest.started + REACHABLE_SETTLES
    } else {
        BootTime::MAX
    }
}

//! Changes of the view: joining it, taking the dead out, refilling a re-created one, and the verdict on a split.

use std::collections::BTreeMap;
use std::time::Duration;

use super::config::ViewUse;
use super::lease::{LeaseContent, LeaseKey, MemberState, NamedMember, Verdict, View};
use super::outbox::Purpose;
use super::{Membership, Phase};
use crate::member::MemberId;
use crate::time::BootTime;

/// Who expires a member takes it out of the view; if it does not, the others do after this time.
const OTHERS_BURY: Duration = Duration::from_secs(2);

impl Membership {
    /// Writes the next view if this broker has a reason to. Only called while the own lease is valid by renewals.
    pub(super) fn decide_view(&mut self, now: BootTime) {
        let Phase::Member(tenancy) = &self.phase else { return };
        if self.config.view == ViewUse::Ignored || !self.outbox.may_write(&LeaseKey::View, now) {
            return;
        }
        let Some(known) = &self.knowledge.view else { return };
        let own = tenancy.own.named.clone();
        let may_join = tenancy.was_announced && tenancy.own.state() == MemberState::Joining;
        let named_max = self.knowledge.view_number_max().max(tenancy.own.view_number_max());
        if known.content.number < named_max {
            self.refill(named_max, now);
            return;
        }
        if !self.is_in_view(&own) {
            if may_join && self.reaches_all(now) {
                let mut members = self.view_without_dead();
                members.insert(own.member.id.clone(), own);
                self.change_view(members, None, now);
            }
            return;
        }
        if self.buries_at().is_some_and(|at| at <= now) {
            let members = self.view_without_dead();
            self.change_view(members, None, now);
            return;
        }
        if let Some(at) = self.buries_at() {
            self.wake_at(at);
        }
        if let Some(stay) = self.decide_split(&own, now) {
            let mut members = self.view_without_dead();
            let dropped =
                members.values().filter(|named| !stay(named)).map(|named| named.member.clone()).collect();
            members.retain(|_, named| stay(named));
            self.change_view(members, Some(dropped), now);
        }
    }

    /// The view object is older than a view that a lease names: it was re-created or restored. Its content is rebuilt from
    /// memory; whoever knows the view that was named last can do it.
    fn refill(&mut self, named_max: u64, now: BootTime) {
        let Some(remembered) = self.knowledge.views.get(&named_max).cloned() else { return };
        let mut members = self.view_without_dead();
        for (member, named) in remembered {
            let known = members.get(&member).map_or(named.epoch, |listed| listed.epoch.max(named.epoch));
            if known == named.epoch && !self.knowledge.is_dead(&member, named.epoch) {
                members.insert(member, named);
            }
        }
        self.change_view(members, None, now);
    }

    fn view_without_dead(&self) -> BTreeMap<MemberId, NamedMember> {
        let view = self.knowledge.view.as_ref();
        let mut members = view.map(|view| view.content.members.clone()).unwrap_or_default();
        members.retain(|member, named| !self.knowledge.is_dead(member, named.epoch));
        members
    }

    /// When this broker takes the dead out of the view, if there are any.
    fn buries_at(&self) -> Option<BootTime> {
        let view = self.knowledge.view.as_ref()?;
        let dead = view
            .content
            .members
            .values()
            .filter(|named| self.knowledge.is_dead(&named.member.id, named.epoch));
        dead.map(|named| {
            let since = self.knowledge.dead_since(named).unwrap_or(BootTime::ZERO);
            if self.expired.contains(&named.member.id) { since } else { since + OTHERS_BURY }
        })
        .min()
    }

    /// Whether this broker has a link to all of the view that are not dead; with those that still renew in both directions.
    fn reaches_all(&self, now: BootTime) -> bool {
        let own = &self.config.member;
        self.view_without_dead().keys().filter(|member| *member != own).all(|member| {
            let they_reach = self
                .knowledge
                .members
                .get(member)
                .is_none_or(|known| !known.is_renewed(now) || known.content.reachable.contains(own));
            self.reachable.contains(member) && they_reach
        })
    }

    fn change_view(
        &mut self,
        members: BTreeMap<MemberId, NamedMember>,
        dropped: Option<Vec<crate::member::Member>>,
        now: BootTime,
    ) {
        let Some(known) = &self.knowledge.view else { return };
        let own_max = match &self.phase {
            Phase::Member(tenancy) => tenancy.own.view_number_max(),
            Phase::Joining { .. } | Phase::Closing | Phase::Left => 0,
        };
        let mut number = self.knowledge.view_number_max().max(own_max) + 1;
        if known.content.number == 0 {
            // A new object: its version is above every number given before, because each of them took a write.
            number = number.max(known.version.0);
        }
        let by = self.config.member.clone();
        let verdict = match dropped {
            Some(dropped) => Some(Verdict { number, by, dropped }),
            None => known.content.verdict.clone(),
        };
        let view = View { number, members, verdict, history: self.knowledge.view_history() };
        let version = known.version;
        self.write(LeaseKey::View, version, LeaseContent::View(view), Purpose::ChangeView, now);
    }
}

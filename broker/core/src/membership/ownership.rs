//! Which partition groups this broker owns: claims, handovers and releases by compare-and-swap on the group leases.
//!
//! A group runs only after an **answered** claim, and only once per claim: whatever becomes of a release, the group is
//! served again only after a new claim under a higher epoch.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::event::{MembershipEvent, StopUrgency};
use super::lease::{GroupLease, LeaseContent, LeaseKey, MemberState, NamedMember, ResourceVersion};
use super::outbox::Purpose;
use super::{Desired, Membership, Phase};
use crate::assignment;
use crate::member::{Member, MemberId, OwnerEpoch};
use crate::partition::PartitionGroup;
use crate::time::BootTime;

/// How long the members must have been the same before groups move for balance.
const STABLE: Duration = Duration::from_secs(10);
/// How long this broker does not claim a group again that it gave back because it could not serve it.
const GIVEN_BACK: Duration = Duration::from_secs(10);

/// What this broker does with a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tenure {
    /// The claim was stored; a list that was asked for since then is needed before it runs.
    Claimed { epoch: OwnerEpoch, at: BootTime },
    /// The owner runs under `epoch`; the lease may still carry the lower one of the claim.
    Running { epoch: OwnerEpoch },
    /// The owner was told to stop.
    Stopping,
}

/// The groups of this broker.
#[derive(Debug, Default)]
pub(super) struct Ownership {
    tenures: BTreeMap<PartitionGroup, Tenure>,
    given_back_until: BTreeMap<PartitionGroup, BootTime>,
    /// Groups that were lost because their lease was re-created, with its version: nobody else can have owned them.
    recreated: BTreeMap<PartitionGroup, ResourceVersion>,
    /// Who serves, and since when it has been the same.
    serving: BTreeSet<Member>,
    serving_since: BootTime,
    /// Who shall own which group: follows from `serving`.
    target: BTreeMap<PartitionGroup, MemberId>,
}

impl Ownership {
    pub(super) fn clear(&mut self) {
        self.tenures.clear();
        self.recreated.clear();
    }

    pub(super) fn holds_any(&self) -> bool {
        !self.tenures.is_empty()
    }

    pub(super) fn claimed(&mut self, group: PartitionGroup, epoch: OwnerEpoch, now: BootTime) {
        self.recreated.remove(&group);
        self.tenures.insert(group, Tenure::Claimed { epoch, at: now });
    }

    /// The owner goes by a higher epoch from now on.
    pub(super) fn raise(&mut self, group: PartitionGroup, raised: OwnerEpoch) {
        if let Some(Tenure::Running { epoch }) = self.tenures.get_mut(&group) {
            *epoch = raised.max(*epoch);
        }
    }

    /// The owner has stopped; if nobody told it to, it cannot serve the group for a while.
    pub(super) fn stopped(&mut self, group: PartitionGroup, now: BootTime) {
        match self.tenures.remove(&group) {
            Some(Tenure::Running { .. } | Tenure::Claimed { .. }) => {
                self.given_back_until.insert(group, now + GIVEN_BACK);
            }
            Some(Tenure::Stopping) | None => {}
        }
    }
}

impl Membership {
    pub(super) fn decide_groups(&mut self, now: BootTime) {
        let Phase::Member(tenancy) = &self.phase else { return };
        let own = tenancy.own.named.clone();
        let can_write = now < tenancy.own.lease_until();
        self.decide_target(now);
        for group in (0..self.config.group_count).map(PartitionGroup) {
            match self.ownership.tenures.get(&group).copied() {
                Some(tenure) if self.is_lost(group, tenure, &own) => self.lose(group, tenure, now),
                Some(Tenure::Claimed { epoch, at }) => self.start_claimed(group, epoch, at, now),
                Some(Tenure::Running { epoch }) => self.keep(group, epoch, can_write, now),
                Some(Tenure::Stopping) => {}
                None if can_write => self.take_or_release(group, &own, now),
                None => {}
            }
        }
    }

    /// Who shall own which group. Members that are not renewed get nothing new, but nobody takes anything from them.
    fn decide_target(&mut self, now: BootTime) {
        let serving: BTreeSet<Member> = self
            .knowledge
            .members
            .values()
            .filter(|known| known.content.state == MemberState::Serving && known.is_renewed(now))
            .filter_map(|known| known.content.holder.as_ref().map(|holder| holder.member.clone()))
            .collect();
        if serving != self.ownership.serving {
            let members: Vec<MemberId> = serving.iter().map(|member| member.id.clone()).collect();
            let groups: Vec<PartitionGroup> = (0..self.config.group_count).map(PartitionGroup).collect();
            self.ownership.target = assignment::target(&members, &groups);
            self.ownership.serving = serving;
            self.ownership.serving_since = now;
        }
    }

    /// The lease exists and does not name this owner. A deleted lease names nobody else either: nobody can claim it.
    fn is_lost(&self, group: PartitionGroup, tenure: Tenure, own: &NamedMember) -> bool {
        let epoch = match tenure {
            Tenure::Claimed { epoch, .. } | Tenure::Running { epoch } => epoch,
            Tenure::Stopping => return false,
        };
        self.knowledge
            .groups
            .get(&group)
            .is_some_and(|known| known.content.holder.as_ref() != Some(own) || known.content.epoch > epoch)
    }

    fn lose(&mut self, group: PartitionGroup, tenure: Tenure, now: BootTime) {
        if let Some(known) = self.knowledge.groups.get(&group)
            && is_new(&known.content)
        {
            self.ownership.recreated.insert(group, known.version);
        }
        match tenure {
            Tenure::Running { .. } => self.stop(group, StopUrgency::Lost),
            Tenure::Claimed { .. } | Tenure::Stopping => {
                self.ownership.tenures.remove(&group);
                self.wake_at(now);
            }
        }
    }

    fn stop(&mut self, group: PartitionGroup, urgency: StopUrgency) {
        self.ownership.tenures.insert(group, Tenure::Stopping);
        self.outbox.emit(MembershipEvent::StopGroup { group, urgency });
    }

    fn start_claimed(&mut self, group: PartitionGroup, epoch: OwnerEpoch, at: BootTime, now: BootTime) {
        if self.lists.covers(at) {
            self.ownership.tenures.insert(group, Tenure::Running { epoch });
            self.outbox.emit(MembershipEvent::StartGroup { group, epoch });
        } else {
            self.want_list(now);
        }
    }

    /// Goes on owning, hands over to another target, or writes a raised epoch into the lease.
    fn keep(&mut self, group: PartitionGroup, epoch: OwnerEpoch, can_write: bool, now: BootTime) {
        let target = self.ownership.target.get(&group);
        let is_for_other = target.is_some_and(|target| *target != self.config.member);
        let hands_over_at = match self.desired {
            Desired::Leave => now,
            Desired::Drain if is_for_other && can_write => now,
            Desired::Serve if is_for_other && can_write => self.ownership.serving_since + STABLE,
            Desired::Drain | Desired::Serve => BootTime::MAX,
        };
        if hands_over_at <= now {
            self.stop(group, StopUrgency::Handover);
            return;
        }
        self.wake_at(hands_over_at);
        let key = LeaseKey::Group(group);
        let Some(known) = self.knowledge.groups.get(&group) else { return };
        if known.content.epoch < epoch && self.outbox.may_write(&key, now) {
            let lease = GroupLease { epoch, ..known.content.clone() };
            let version = known.version;
            self.write(key, version, LeaseContent::Group(lease), Purpose::RaiseEpoch, now);
        }
    }

    /// A group that this broker does not run: release it if the lease names this broker, or claim it if it shall own it.
    fn take_or_release(&mut self, group: PartitionGroup, own: &NamedMember, now: BootTime) {
        let Some(known) = self.knowledge.groups.get(&group) else { return };
        let (version, lease) = (known.version, known.content.clone());
        let names_own = lease.holder.as_ref() == Some(own);
        let given_back = self.ownership.given_back_until.get(&group).copied().filter(|until| now < *until);
        let is_target = self.ownership.target.get(&group) == Some(&self.config.member)
            && self.may_claim()
            && given_back.is_none();
        if let Some(until) = given_back {
            self.wake_at(until);
        }
        let key = LeaseKey::Group(group);
        if !self.outbox.may_write(&key, now) {
            return;
        }
        if is_target && (names_own || self.is_free(group, now)) {
            let epoch = OwnerEpoch(self.knowledge.owner_epoch_max(group).0.saturating_add(1));
            let claim = GroupLease { holder: Some(own.clone()), epoch };
            self.write(key, version, LeaseContent::Group(claim), Purpose::Claim { group, epoch }, now);
        } else if names_own {
            let released = GroupLease { holder: None, epoch: lease.epoch };
            self.write(key, version, LeaseContent::Group(released), Purpose::Release, now);
        }
    }

    /// New groups are for members that are known to serve and do not hold.
    fn may_claim(&self) -> bool {
        let Phase::Member(tenancy) = &self.phase else { return false };
        let own = &tenancy.own;
        own.state() == MemberState::Serving
            && self.desired == Desired::Serve
            && self.is_in_view(&own.named)
            && tenancy.was_announced
    }

    /// Whether the group has no owner who may still be valid.
    fn is_free(&mut self, group: PartitionGroup, now: BootTime) -> bool {
        let Some(known) = self.knowledge.groups.get(&group) else { return false };
        if let Some(holder) = &known.content.holder {
            return self.knowledge.is_dead(&holder.member.id, holder.epoch);
        }
        if !is_new(&known.content) || self.ownership.recreated.get(&group) == Some(&known.version) {
            return true;
        }
        self.is_unowned_for_sure(known.since, now)
    }

    /// A new object says nothing about an owner of the object before it. Nobody renews for more than one duration without
    /// reading; so an owner has stopped when two durations have passed and his lease was renewed in the second one, or when
    /// he is dead.
    fn is_unowned_for_sure(&mut self, seen_since: BootTime, now: BootTime) -> bool {
        let durations = self.knowledge.members.values().map(|known| known.content.timings.duration);
        let duration = durations.max().unwrap_or_default().max(self.timings().duration);
        let (second, end) = (seen_since + duration, seen_since + duration * 2);
        if now < end {
            self.wake_at(end);
            return false;
        }
        let own = self.own();
        let in_view = self.knowledge.view.iter().flat_map(|view| view.content.members.values().cloned());
        let holders = self.knowledge.members.keys().filter_map(|member| {
            let lease = self.lease_to_judge(member)?;
            lease
                .holder
                .as_ref()
                .map(|holder| NamedMember { member: holder.member.clone(), epoch: lease.epoch })
        });
        in_view.chain(holders).all(|named| {
            let renewed = self.knowledge.members.get(&named.member.id).is_some_and(|known| {
                known.since >= second && known.content.incarnation() == Some(named.member.incarnation)
            });
            own.as_ref() == Some(&named) || renewed || self.knowledge.is_dead(&named.member.id, named.epoch)
        })
    }
}

/// An object that was never claimed since it was created.
fn is_new(lease: &GroupLease) -> bool {
    lease.holder.is_none() && lease.epoch == OwnerEpoch(0)
}

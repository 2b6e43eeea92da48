//! How a broker becomes a member: one write of its own lease under a boot id that is used for no other join.

use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::config::StatefulSetIdentity;
use super::event::MembershipEvent;
use super::expiry::Judgement;
use super::lease::{Holder, LeaseContent, LeaseKey, MemberLease, MemberState, NamedMember, ResourceVersion};
use super::outbox::{Outstanding, Purpose};
use super::validity::{Announced, Grants, OwnLease};
use super::{Desired, Membership, Phase, Tenancy};
use crate::member::{Incarnation, Member, MemberEpoch};
use crate::time::BootTime;

/// Between two looks at a lease that may not be taken yet.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(2);

impl Membership {
    pub(super) fn decide_join(&mut self, since: BootTime, now: BootTime) {
        let key = LeaseKey::Member(self.config.member.clone());
        if !self.lists.covers(since) {
            self.want_list(now);
            return;
        }
        if self.outbox.is_outstanding(&key) || !self.outbox.may_write(&key, now) {
            return;
        }
        let Some(known) = self.knowledge.members.get(&self.config.member) else { return };
        let (version, stored_epoch) = (known.version, known.content.epoch);
        match self.may_join(now) {
            Judgement::MayExpire => {}
            Judgement::NotBefore(at) => return self.wake_at(at),
            Judgement::NeedsConsent(at) => return self.wake_at(at),
            Judgement::NoHolder => return,
        }
        let named = NamedMember {
            member: Member { id: self.config.member.clone(), incarnation: self.next_incarnation() },
            epoch: self.next_epoch(version, stored_epoch),
        };
        let lease = self.announcement(&named, MemberState::Joining, 0, 1);
        self.write(key, version, LeaseContent::Member(lease), Purpose::Join { named }, now);
    }

    /// Whether the own lease may be taken from whoever holds it. A container of the own pod runs only after the one before
    /// it has ended.
    fn may_join(&self, now: BootTime) -> Judgement {
        let member = &self.config.member;
        let Some(known) = self.knowledge.members.get(member) else { return Judgement::NoHolder };
        if known.content.declared_dead.as_ref() == Some(&self.config.pod_uid) {
            return Judgement::NoHolder;
        }
        let predecessor = self.lease_to_judge(member).and_then(|lease| lease.holder.clone());
        if predecessor.as_ref().is_some_and(|holder| holder.pod_uid == self.config.pod_uid) {
            return Judgement::MayExpire;
        }
        match self.config.identity {
            // This pod exists, so the pod of the predecessor does not.
            StatefulSetIdentity::Trusted => Judgement::MayExpire,
            StatefulSetIdentity::Doubted if predecessor.is_some() => self.judge(member, now),
            StatefulSetIdentity::Doubted if known.content.epoch > MemberEpoch(0) => Judgement::MayExpire,
            StatefulSetIdentity::Doubted => {
                // A new object: somebody may not know yet that it was re-created under him.
                let at = known.since + self.timings().duration;
                if now < at { Judgement::NotBefore(at) } else { Judgement::MayExpire }
            }
        }
    }

    /// Above every epoch that the lease of this member ever had. A new object does not know them, but each of them took a
    /// write, and the object's version is above those of all earlier writes.
    fn next_epoch(&self, version: ResourceVersion, stored: MemberEpoch) -> MemberEpoch {
        let known = self.knowledge.epoch_max(&self.config.member).0 + 1;
        MemberEpoch(if stored == MemberEpoch(0) { known.max(version.0) } else { known })
    }

    /// The next boot id: as random as the seed.
    fn next_incarnation(&mut self) -> Incarnation {
        self.boots += 1;
        Incarnation(xxh3_64_with_seed(&self.boots.to_le_bytes(), self.config.seed))
    }

    /// The join was stored: the incarnation lives from the moment the write was started.
    pub(super) fn become_member(&mut self, write: &Outstanding, named: NamedMember, now: BootTime) {
        let LeaseContent::Member(lease) = &write.content else { return };
        let confirmed = Announced { started: write.started, lease: lease.clone() };
        let own = OwnLease { named, confirmed, unanswered: Vec::new() };
        if own.lease_until() <= now {
            // The answer came too late: this boot id is over before it began.
            self.phase = Phase::Joining { since: now };
            return;
        }
        self.grants = Grants::default();
        self.phase = Phase::Member(Box::new(Tenancy {
            own,
            joined_at: now,
            was_announced: false,
            serving_was_announced: false,
            leave_was_sent: false,
        }));
        self.trust.reset(write.started);
    }

    /// Tells of the join once the owners were listed after it.
    pub(super) fn decide_joined(&mut self, now: BootTime) {
        let Phase::Member(tenancy) = &mut self.phase else { return };
        if tenancy.was_announced {
            return;
        }
        if !self.lists.covers(tenancy.joined_at) {
            self.want_list(now);
            return;
        }
        tenancy.was_announced = true;
        let NamedMember { member, epoch } = tenancy.own.named.clone();
        self.outbox.emit(MembershipEvent::Joined { member, epoch });
    }

    /// What the own lease shall say.
    pub(super) fn announcement(
        &self,
        named: &NamedMember,
        state: MemberState,
        view_number: u64,
        renewal: u64,
    ) -> MemberLease {
        MemberLease {
            holder: Some(Holder {
                member: named.member.clone(),
                pod_uid: self.config.pod_uid.clone(),
                container_id: self.container_id.clone(),
            }),
            epoch: named.epoch,
            renewal,
            endpoint: self.config.endpoint.clone(),
            state,
            protocol: self.config.protocol,
            reachable: self.reachable.clone(),
            route_digest: self.route_digest,
            view_number,
            mode: self.config.mode,
            timings: self.timings(),
            declared_dead: None,
        }
    }

    /// The state that the own lease shall announce next.
    pub(super) fn desired_state(&self, tenancy: &Tenancy) -> MemberState {
        match self.desired {
            Desired::Leave => MemberState::Leaving,
            Desired::Drain => MemberState::Draining,
            Desired::Serve if tenancy.own.state() == MemberState::Serving => MemberState::Serving,
            Desired::Serve if self.ready && tenancy.was_announced && self.is_in_view(&tenancy.own.named) => {
                MemberState::Serving
            }
            Desired::Serve => MemberState::Joining,
        }
    }
}

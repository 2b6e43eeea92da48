//! When a holder may be declared dead: by proof, by a lease that nobody renewed, and against a hold by consent.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Membership;
use super::config::StatefulSetIdentity;
use super::lease::{Holder, LeaseContent, LeaseKey, MemberLease, NamedMember, ResourceVersion};
use super::message::PeerMessage;
use super::outbox::Purpose;
use super::timings::{Mode, Timings};
use crate::member::{Member, MemberEpoch, MemberId};
use crate::time::BootTime;

/// After a hold limit and this long no hold can last, whatever the views and grants were.
const HOLD_MARGIN: Duration = Duration::from_secs(60);
/// Between two questions for consent to the same members.
const CONSENT_ASK: Duration = Duration::from_millis(500);
/// The longest default: stands in for timings that are not known.
const MEMBERS_MANY: usize = 65;
/// A view that nobody knows: a hold in it can only be waited out.
const VIEW_UNKNOWN: u64 = u64::MAX;

/// Whether a lease may be taken from its holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judgement {
    /// Now.
    MayExpire,
    /// Not before this moment.
    NotBefore(BootTime),
    /// When half of its view consents, or at this moment.
    NeedsConsent(BootTime),
    /// There is nobody to expire.
    NoHolder,
}

/// Grants given, promises to give none, and consents of others.
#[derive(Debug, Default)]
pub(super) struct Promises {
    /// When this incarnation last granted each member that it is valid.
    granted_at: BTreeMap<Member, BootTime>,
    /// "None while its lease has this version."
    withheld: BTreeMap<Member, ResourceVersion>,
    /// Who consented to the expiry of a member at a version of its lease.
    consents: BTreeMap<Member, (ResourceVersion, BTreeSet<Member>)>,
    asked_at: BootTime,
}

impl Promises {
    /// Whether the incarnation may be granted; if so it is noted.
    pub(super) fn grant(&mut self, to: &Member, now: BootTime) -> bool {
        let may = !self.withheld.contains_key(to);
        if may {
            self.granted_at.insert(to.clone(), now);
        }
        may
    }

    /// Promises no grant to `victim` while its lease has `version`, if the last one is `duration` old.
    pub(super) fn withhold(
        &mut self,
        victim: &Member,
        version: ResourceVersion,
        duration: Duration,
        now: BootTime,
    ) -> bool {
        let may = self.granted_at.get(victim).is_none_or(|granted_at| *granted_at + duration <= now);
        if may {
            let promised = self.withheld.entry(victim.clone()).or_insert(version);
            *promised = version.max(*promised);
        }
        may
    }

    pub(super) fn take_consent(&mut self, from: &Member, victim: &Member, version: ResourceVersion) {
        let (known, givers) = self.consents.entry(victim.clone()).or_insert((version, BTreeSet::new()));
        if *known < version {
            *known = version;
            givers.clear();
        }
        if *known == version {
            givers.insert(from.clone());
        }
    }

    fn has_consent(&self, from: &Member, victim: &Member, version: ResourceVersion) -> bool {
        self.consents.get(victim).is_some_and(|(known, givers)| *known == version && givers.contains(from))
    }

    /// The lease of `member` was seen at `version`: promises and consents bound to an earlier one are over.
    pub(super) fn saw_version(&mut self, member: &MemberId, version: ResourceVersion) {
        self.withheld.retain(|victim, promised| victim.id != *member || *promised >= version);
        self.consents.retain(|victim, (known, _)| victim.id != *member || *known >= version);
    }

    /// Drops what concerns incarnations that are over. A promise is kept until a newer version of the lease is seen: its
    /// member may be one that this broker has not heard of yet.
    pub(super) fn retain(&mut self, lives: impl Fn(&Member) -> bool) {
        self.granted_at.retain(|member, _| lives(member));
        self.consents.retain(|member, _| lives(member));
    }
}

impl Membership {
    /// Expires every member that may be expired. Only called while the own lease is valid by renewals.
    pub(super) fn decide_expiry(&mut self, now: BootTime) {
        let others: Vec<MemberId> =
            self.knowledge.members.keys().filter(|member| **member != self.config.member).cloned().collect();
        for member in others {
            match self.judge(&member, now) {
                Judgement::MayExpire => self.expire(&member, now),
                Judgement::NotBefore(at) => self.wake_at(at),
                Judgement::NeedsConsent(at) => {
                    self.wake_at(at);
                    self.ask_consent(&member, now);
                }
                Judgement::NoHolder => {}
            }
        }
    }

    /// Whether the lease of `member` may be replaced by an empty one, or by the one of the next incarnation.
    pub(super) fn judge(&self, member: &MemberId, now: BootTime) -> Judgement {
        let Some(known) = self.knowledge.members.get(member) else { return Judgement::NoHolder };
        let Some(lease) = self.lease_to_judge(member) else { return Judgement::NoHolder };
        if self.is_proved_dead(member, &lease) {
            return Judgement::MayExpire;
        }
        let unrenewed_at = known.since + lease.timings.duration;
        if now < unrenewed_at {
            return Judgement::NotBefore(unrenewed_at);
        }
        match lease.mode {
            Mode::Disconnect => Judgement::MayExpire,
            Mode::Hold => {
                let held_until = known.since + lease.timings.hold_limit + HOLD_MARGIN;
                if now >= held_until || self.has_consents(&lease, known.version, now) {
                    Judgement::MayExpire
                } else {
                    Judgement::NeedsConsent(held_until)
                }
            }
        }
    }

    /// The lease as it stands if somebody holds it. If it is empty, but an incarnation is known that never got a higher
    /// epoch, the object was re-created under it: then what is known of that incarnation.
    pub(super) fn lease_to_judge(&self, member: &MemberId) -> Option<Cow<'_, MemberLease>> {
        let lease = &self.knowledge.members.get(member)?.content;
        if lease.holder.is_some() {
            return Some(Cow::Borrowed(lease));
        }
        let remembered = self.knowledge.last_held.get(member).map(Cow::Borrowed);
        let named = self.knowledge.named(member).map(|named| {
            Cow::Owned(MemberLease {
                holder: Some(Holder {
                    member: named.member.clone(),
                    pod_uid: String::new(),
                    container_id: None,
                }),
                epoch: named.epoch,
                view_number: VIEW_UNKNOWN,
                mode: Mode::Hold,
                timings: Timings::for_members(MEMBERS_MANY),
                ..MemberLease::vacant(named.epoch)
            })
        });
        [remembered, named].into_iter().flatten().find(|lost| !self.knowledge.is_dead(member, lost.epoch))
    }

    fn is_proved_dead(&self, member: &MemberId, lease: &MemberLease) -> bool {
        let Some(holder) = &lease.holder else { return false };
        if lease.declared_dead.as_ref() == Some(&holder.pod_uid) {
            return true;
        }
        let Some(pod) = self.knowledge.pods.get(member) else { return false };
        if pod.pod_uid == holder.pod_uid {
            return holder.container_id.as_ref().is_some_and(|container| pod.terminated.contains(container));
        }
        // What was read of the pod must be newer than the holder: else it is the predecessor's pod.
        let newer = self.knowledge.holder_first_seen(member).is_some_and(|(incarnation, version)| {
            incarnation == holder.member.incarnation && version < pod.version
        });
        self.config.identity == StatefulSetIdentity::Trusted && newer
    }

    /// Whether at least half of the view that `lease` names will not let its holder hold.
    fn has_consents(&self, lease: &MemberLease, version: ResourceVersion, now: BootTime) -> bool {
        let Some(holder) = &lease.holder else { return false };
        if lease.view_number == 0 {
            // Nobody can hold in a view of nobody.
            return true;
        }
        let Some(view) = self.knowledge.views.get(&lease.view_number) else { return false };
        let own = self.own();
        let duration = lease.timings.duration;
        let consents = |named: &NamedMember| {
            let itself = named.member == holder.member;
            let is_own = own.as_ref() == Some(named);
            let buried = self.knowledge.dead_since(named).is_some_and(|since| since + duration <= now);
            let promised = is_own && self.promises.withheld.contains_key(&holder.member);
            !itself
                && (buried || promised || self.promises.has_consent(&named.member, &holder.member, version))
        };
        2 * view.values().filter(|named| consents(named)).count() >= view.len()
    }

    fn ask_consent(&mut self, member: &MemberId, now: BootTime) {
        let Some(version) = self.knowledge.members.get(member).map(|known| known.version) else { return };
        let Some(lease) = self.lease_to_judge(member) else { return };
        let Some(victim) = lease.holder.as_ref().map(|holder| holder.member.clone()) else { return };
        let (duration, view_number) = (lease.timings.duration, lease.view_number);
        if self.promises.withhold(&victim, version, duration, now)
            && self.judge(member, now) == Judgement::MayExpire
        {
            self.expire(member, now);
            return;
        }
        if let Some(view) = self.knowledge.views.get(&view_number)
            && self.consent_round
        {
            let own = &self.config.member;
            for asked in view.keys().filter(|asked| *asked != own && **asked != victim.id) {
                let message = PeerMessage::ConsentAsk { victim: victim.clone(), version, duration };
                self.outbox.send(asked.clone(), message);
            }
        }
        self.wake_at(self.promises.asked_at + CONSENT_ASK);
    }

    /// Whether it is time again to ask for consents; called once per decision.
    pub(super) fn start_consent_round(&mut self, now: BootTime) {
        self.consent_round = now >= self.promises.asked_at + CONSENT_ASK;
        if self.consent_round {
            self.promises.asked_at = now;
        }
    }

    fn expire(&mut self, member: &MemberId, now: BootTime) {
        let key = LeaseKey::Member(member.clone());
        if !self.outbox.may_write(&key, now) {
            return;
        }
        let Some(version) = self.knowledge.members.get(member).map(|known| known.version) else { return };
        let epoch = MemberEpoch(self.knowledge.epoch_max(member).0 + 1);
        self.write(key, version, LeaseContent::Member(MemberLease::vacant(epoch)), Purpose::Expire, now);
    }

    /// Answers another member that wants to expire `victim`.
    pub(super) fn handle_consent_ask(
        &mut self,
        from: &Member,
        ask: (&Member, ResourceVersion, Duration),
        now: BootTime,
    ) {
        let (victim, version, duration) = ask;
        let known = self.knowledge.members.get(&victim.id);
        if known.is_some_and(|known| known.version > version) {
            return;
        }
        if self.promises.withhold(victim, version, duration, now) {
            self.outbox.send(from.id.clone(), PeerMessage::Consent { victim: victim.clone(), version });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::Incarnation;

    const DURATION: Duration = Duration::from_secs(9);

    fn victim() -> Member {
        Member { id: MemberId::new("a"), incarnation: Incarnation(1) }
    }

    fn secs(secs: u64) -> BootTime {
        BootTime(secs * 1_000_000_000)
    }

    #[test]
    fn consent_is_given_only_one_duration_after_the_last_grant() {
        let mut promises = Promises::default();
        assert!(promises.grant(&victim(), secs(10)));

        assert!(!promises.withhold(&victim(), ResourceVersion(5), DURATION, secs(18)));
        assert!(promises.withhold(&victim(), ResourceVersion(5), DURATION, secs(19)));
    }

    #[test]
    fn who_consented_grants_nothing_until_a_newer_version_of_the_lease_is_seen() {
        let mut promises = Promises::default();
        promises.withhold(&victim(), ResourceVersion(5), DURATION, secs(1));

        promises.saw_version(&victim().id, ResourceVersion(5));
        assert!(!promises.grant(&victim(), secs(2)));
        promises.saw_version(&victim().id, ResourceVersion(6));

        assert!(promises.grant(&victim(), secs(3)));
    }

    #[test]
    fn a_promise_about_an_incarnation_that_is_not_known_yet_is_kept() {
        let mut promises = Promises::default();
        promises.withhold(&victim(), ResourceVersion(5), DURATION, secs(1));

        promises.retain(|_| false);

        assert!(!promises.grant(&victim(), secs(2)));
    }

    #[test]
    fn a_consent_is_bound_to_the_version_of_the_lease() {
        let mut promises = Promises::default();
        let from = Member { id: MemberId::new("b"), incarnation: Incarnation(2) };
        promises.take_consent(&from, &victim(), ResourceVersion(5));

        assert!(promises.has_consent(&from, &victim(), ResourceVersion(5)));
        assert!(!promises.has_consent(&from, &victim(), ResourceVersion(6)));
    }
}

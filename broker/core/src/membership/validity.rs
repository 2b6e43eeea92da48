//! Until when an incarnation is valid: by its renewals, and in hold mode by grants.
//!
//! A renewal without an answer may have been done or may still be done. Until a later write of the lease succeeds the
//! member is bound by the confirmed content **and** by every unanswered one, whichever is stricter.

use std::collections::BTreeMap;
use std::time::Duration;

use super::lease::{MemberLease, MemberState, NamedMember, WriteId};
use super::timings::{Mode, Timings};
use crate::member::{Member, MemberId};
use crate::time::BootTime;

/// What one write of the own lease announced.
#[derive(Debug, Clone)]
pub(super) struct Announced {
    /// When the write was started: its effect is not earlier.
    pub(super) started: BootTime,
    pub(super) lease: MemberLease,
}

impl Announced {
    fn timings(&self) -> Timings {
        self.lease.timings
    }

    fn stops_at(&self) -> BootTime {
        self.started + self.timings().stop_after
    }
}

/// The lease that this incarnation holds.
#[derive(Debug)]
pub(super) struct OwnLease {
    pub(super) named: NamedMember,
    /// The newest content that is known to have been stored.
    pub(super) confirmed: Announced,
    /// Later writes whose result is not known, oldest first. At most one per renewal interval, so `stop_after / renew` of
    /// them while valid by the lease, and as many per hold limit.
    pub(super) unanswered: Vec<(WriteId, Announced)>,
}

impl OwnLease {
    /// The write `id` was stored: nothing that was sent before it can still come.
    pub(super) fn confirm(&mut self, id: WriteId) {
        if let Some(index) = self.unanswered.iter().position(|(unanswered, _)| *unanswered == id) {
            let (_, announced) = self.unanswered.swap_remove(index);
            self.unanswered.retain(|(unanswered, _)| *unanswered > id);
            self.confirmed = announced;
        }
    }

    /// The write `id` was not stored and will not be.
    pub(super) fn disprove(&mut self, id: WriteId) {
        self.unanswered.retain(|(unanswered, _)| *unanswered != id);
    }

    /// State that observers are known to see.
    pub(super) fn state(&self) -> MemberState {
        self.confirmed.lease.state
    }

    /// Until when the lease alone makes this incarnation valid.
    pub(super) fn lease_until(&self) -> BootTime {
        self.contents().map(Announced::stops_at).min().unwrap_or(BootTime::ZERO)
    }

    /// Until when this incarnation is valid: every content that may be stored must allow it.
    pub(super) fn valid_until(&self, views: &Views, grants: &Grants) -> BootTime {
        let of = |content| self.content_until(content, views, grants);
        self.contents().map(of).min().unwrap_or(BootTime::ZERO)
    }

    /// Highest view number that observers may find in the lease.
    pub(super) fn view_number_max(&self) -> u64 {
        self.contents().map(|content| content.lease.view_number).max().unwrap_or(0)
    }

    /// All contents that observers may find in the lease.
    pub(super) fn contents(&self) -> impl Iterator<Item = &Announced> {
        std::iter::once(&self.confirmed).chain(self.unanswered.iter().map(|(_, announced)| announced))
    }

    fn content_until(&self, content: &Announced, views: &Views, grants: &Grants) -> BootTime {
        match content.lease.mode {
            Mode::Disconnect => content.stops_at(),
            Mode::Hold => {
                let granted = views.get(&content.lease.view_number).map_or(BootTime::ZERO, |view| {
                    grants.majority_until(view, &self.named, content.timings().stop_after)
                });
                let limit = self.confirmed.started + content.timings().hold_limit;
                content.stops_at().max(granted.min(limit))
            }
        }
    }
}

/// Views by number.
pub(super) type Views = BTreeMap<u64, BTreeMap<MemberId, NamedMember>>;

/// The grants that this incarnation has got: when the newest one of each member was asked for.
#[derive(Debug, Default)]
pub(super) struct Grants {
    asked_at: BTreeMap<Member, BootTime>,
}

impl Grants {
    /// Takes a grant that was asked for at `asked_at`. Counted from there, because the granter may expire this member one
    /// duration after it answered.
    pub(super) fn take(&mut self, from: &Member, asked_at: BootTime) {
        let newest = self.asked_at.entry(from.clone()).or_default();
        *newest = asked_at.max(*newest);
    }

    /// Keeps only grants of members of a view that is still in use.
    pub(super) fn retain(&mut self, views: &Views) {
        self.asked_at.retain(|member, _| {
            views.values().any(|view| view.get(&member.id).is_some_and(|named| named.member == *member))
        });
    }

    /// Until when more than half of `view` has granted, if each grant counts for `counts_for`. The member itself counts if it
    /// is listed.
    fn majority_until(
        &self,
        view: &BTreeMap<MemberId, NamedMember>,
        own: &NamedMember,
        counts_for: Duration,
    ) -> BootTime {
        let mut asked: Vec<BootTime> = view
            .values()
            .filter_map(|named| {
                if named == own { Some(BootTime::MAX) } else { self.asked_at.get(&named.member).copied() }
            })
            .collect();
        asked.sort_unstable_by(|a, b| b.cmp(a));
        // More than half of the view: the weakest of the strongest `len / 2 + 1` grants decides.
        asked.get(view.len() / 2).map_or(BootTime::ZERO, |asked_at| *asked_at + counts_for)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::{Incarnation, MemberEpoch};

    const SECOND: u64 = 1_000_000_000;

    fn named(name: &str, incarnation: u64) -> NamedMember {
        let member = Member { id: MemberId::new(name), incarnation: Incarnation(incarnation) };
        NamedMember { member, epoch: MemberEpoch(1) }
    }

    fn view(members: &[NamedMember]) -> BTreeMap<MemberId, NamedMember> {
        members.iter().map(|named| (named.member.id.clone(), named.clone())).collect()
    }

    fn announced(started_secs: u64, mode: Mode, view_number: u64, members: usize) -> Announced {
        let lease = MemberLease {
            mode,
            view_number,
            timings: Timings::for_members(members),
            ..MemberLease::vacant(MemberEpoch(1))
        };
        Announced { started: BootTime(started_secs * SECOND), lease }
    }

    fn own(confirmed: Announced) -> OwnLease {
        OwnLease { named: named("a", 1), confirmed, unanswered: Vec::new() }
    }

    fn secs(secs: u64) -> BootTime {
        BootTime(secs * SECOND)
    }

    #[test]
    fn without_grants_validity_ends_the_self_stop_time_after_the_start_of_the_last_renewal() {
        let own = own(announced(10, Mode::Hold, 1, 3));

        let views = Views::from([(1, view(&[named("a", 1), named("b", 2)]))]);

        assert_eq!(own.valid_until(&views, &Grants::default()), secs(16));
    }

    #[test]
    fn grants_count_from_the_ask_and_only_from_more_than_half_of_the_view() {
        let own = own(announced(10, Mode::Hold, 1, 3));
        let views = Views::from([(1, view(&[named("a", 1), named("b", 2), named("c", 3), named("d", 4)]))]);
        let mut grants = Grants::default();

        grants.take(&named("b", 2).member, secs(20));
        assert_eq!(own.valid_until(&views, &grants), secs(16));
        grants.take(&named("c", 3).member, secs(18));

        assert_eq!(own.valid_until(&views, &grants), secs(24));
    }

    #[test]
    fn a_grant_of_another_incarnation_than_the_view_lists_does_not_count() {
        let own = own(announced(10, Mode::Hold, 1, 3));
        let views = Views::from([(1, view(&[named("a", 1), named("b", 2)]))]);
        let mut grants = Grants::default();

        grants.take(&named("b", 9).member, secs(20));

        assert_eq!(own.valid_until(&views, &grants), secs(16));
    }

    #[test]
    fn a_member_that_its_view_does_not_list_does_not_count_itself() {
        let own = own(announced(10, Mode::Hold, 1, 3));
        let views = Views::from([(1, view(&[named("b", 2)]))]);
        let mut grants = Grants::default();
        assert_eq!(own.valid_until(&views, &grants), secs(16));

        grants.take(&named("b", 2).member, secs(20));

        assert_eq!(own.valid_until(&views, &grants), secs(26));
    }

    #[test]
    fn no_hold_lasts_longer_than_the_hold_limit_after_the_last_renewal() {
        let own = own(announced(10, Mode::Hold, 1, 3));
        let views = Views::from([(1, view(&[named("a", 1), named("b", 2)]))]);
        let mut grants = Grants::default();

        grants.take(&named("b", 2).member, secs(9_000));

        assert_eq!(own.valid_until(&views, &grants), secs(310));
    }

    #[test]
    fn an_unanswered_renewal_binds_by_its_mode_its_view_and_its_timings() {
        let views = Views::from([
            (1, view(&[named("a", 1), named("b", 2)])),
            (2, view(&[named("a", 1), named("b", 2), named("c", 3), named("d", 4)])),
        ]);
        let mut grants = Grants::default();
        grants.take(&named("b", 2).member, secs(30));
        let with = |unanswered| {
            let mut own = own(announced(10, Mode::Hold, 1, 20));
            own.unanswered.push((WriteId(1), unanswered));
            own.valid_until(&views, &grants)
        };

        assert_eq!(with(announced(12, Mode::Disconnect, 1, 20)), secs(27));
        assert_eq!(with(announced(12, Mode::Hold, 2, 20)), secs(27));
        assert_eq!(with(announced(12, Mode::Hold, 1, 3)), secs(36));
        assert_eq!(with(announced(12, Mode::Hold, 1, 20)), secs(45));
    }

    #[test]
    fn a_later_answer_frees_from_earlier_unanswered_renewals_and_from_no_later_ones() {
        let mut own = own(announced(10, Mode::Disconnect, 0, 20));
        own.unanswered = vec![
            (WriteId(1), announced(11, Mode::Disconnect, 0, 3)),
            (WriteId(2), announced(12, Mode::Disconnect, 0, 20)),
            (WriteId(3), announced(14, Mode::Disconnect, 0, 3)),
        ];

        own.confirm(WriteId(2));

        assert_eq!(own.confirmed.started, secs(12));
        assert_eq!(own.unanswered.len(), 1);
        assert_eq!(own.lease_until(), secs(20));
    }
}

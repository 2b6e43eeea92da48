//! Questions that tests ask a world afterwards.

use std::collections::BTreeMap;
use std::time::Duration;

use tidemill_core::assignment;
use tidemill_core::member::{Incarnation, Member, MemberEpoch, OwnerEpoch};
use tidemill_core::membership::event::InvalidReason;
use tidemill_core::membership::lease::{
    GroupLease, LeaseContent, LeaseKey, MemberLease, Observed, View, WatchEvent,
};
use tidemill_core::partition::PartitionGroup;

use super::faults::Action;
use super::world::{GROUPS, Setup, World, member};

/// Runs a schedule in several worlds whose phases of renewals, delays and clocks differ.
pub(crate) fn each_seed(setup: &Setup, schedule: impl Fn(&mut World)) {
    let seeds = if std::env::var_os("TIDEMILL_SOAK").is_some() { 300 } else { 4 };
    for seed in 0..seeds {
        let mut world = World::running(setup.clone(), 7_000 + seed);
        // By then groups have moved to their targets.
        world.run_safely(14);
        schedule(&mut world);
        world.expect_safe();
    }
}

/// Nothing that one side sends reaches the other, both ways.
pub(crate) fn cut_between(world: &mut World, side: &[usize], other: &[usize]) {
    for a in side {
        for b in other {
            world.act(Action::Link(*a, *b, false));
            world.act(Action::Link(*b, *a, false));
        }
    }
}

impl World {
    /// Runs, and fails on the first invariant that does not hold.
    pub(crate) fn run_safely(&mut self, seconds: u64) {
        self.run(Duration::from_secs(seconds));
        self.expect_safe();
    }

    pub(crate) fn expect_safe(&self) {
        assert_eq!(self.checker.violation, None, "{}", self.describe());
    }

    /// Settles within `seconds`; fails otherwise.
    pub(crate) fn expect_settled_within(&mut self, seconds: u64) -> Duration {
        self.settle(Duration::from_secs(seconds)).unwrap()
    }

    /// Runs until every group has a valid owner, whoever else is gone; fails after `seconds`.
    pub(crate) fn expect_owned_within(&mut self, seconds: u64) -> Duration {
        let start = self.at;
        while !(0..GROUPS).all(|group| self.owner(PartitionGroup(group)).is_some()) {
            assert!(self.at - start <= Duration::from_secs(seconds), "{}", self.describe());
            self.run(Duration::from_millis(50));
            self.expect_safe();
        }
        self.at - start
    }

    /// Every group is owned by the member that shall own it.
    pub(crate) fn expect_balance(&self) -> Result<(), String> {
        let members: Vec<_> = (0..self.setup.members).map(member).collect();
        let groups: Vec<_> = (0..GROUPS).map(PartitionGroup).collect();
        let target = assignment::target(&members, &groups);
        let owners: BTreeMap<_, _> =
            groups.iter().filter_map(|group| Some((*group, member(self.owner(*group)?)))).collect();
        if owners == target {
            Ok(())
        } else {
            Err(format!("{owners:?} is not {target:?}: {}", self.describe()))
        }
    }

    /// Groups that `slot` validly owns.
    pub(crate) fn owned_by(&self, slot: usize) -> Vec<PartitionGroup> {
        (0..GROUPS).map(PartitionGroup).filter(|group| self.owner(*group) == Some(slot)).collect()
    }

    pub(crate) fn is_valid(&self, slot: usize) -> bool {
        self.process(slot).is_valid(self.at)
    }

    /// Why incarnations of the newest process of `slot` have ended.
    pub(crate) fn ends(&self, slot: usize) -> &[InvalidReason] {
        &self.process(slot).ends
    }

    pub(crate) fn member_lease(&self, slot: usize) -> &MemberLease {
        match self.api.get(&LeaseKey::Member(member(slot))) {
            Some(LeaseContent::Member(lease)) => lease,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn group_lease(&self, group: u16) -> &GroupLease {
        match self.api.get(&LeaseKey::Group(PartitionGroup(group))) {
            Some(LeaseContent::Group(lease)) => lease,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn view(&self) -> &View {
        match self.api.get(&LeaseKey::View) {
            Some(LeaseContent::View(view)) => view,
            other => panic!("{other:?}"),
        }
    }

    /// Names of the members of the view.
    pub(crate) fn in_view(&self) -> Vec<&str> {
        self.view().members.keys().map(|member| member.as_str()).collect()
    }

    /// All changes of objects so far, in order.
    pub(crate) fn changes(&self) -> impl Iterator<Item = &Observed> {
        self.api.log.iter().filter_map(|event| match event {
            WatchEvent::Changed(observed) => Some(observed),
            WatchEvent::Deleted(..) => None,
        })
    }

    /// At each change of a group's holder the one before was dead by its member lease, or had released.
    pub(crate) fn expect_expiry_before_claims(&self) {
        let mut epochs: BTreeMap<_, MemberEpoch> = BTreeMap::new();
        let mut holders: BTreeMap<PartitionGroup, Option<(Member, MemberEpoch)>> = BTreeMap::new();
        for change in self.changes() {
            match (&change.key, &change.content) {
                (LeaseKey::Member(name), LeaseContent::Member(lease)) => {
                    epochs.insert(name.clone(), lease.epoch);
                }
                (LeaseKey::Group(group), LeaseContent::Group(lease)) => {
                    let holder = lease.holder.as_ref().map(|named| (named.member.clone(), named.epoch));
                    if let Some(Some((before, epoch))) = holders.insert(*group, holder.clone())
                        && holder.as_ref().is_some_and(|(after, _)| *after != before)
                    {
                        assert!(
                            epochs[&before.id] > epoch,
                            "{group:?} was taken from {before:?} who was not dead"
                        );
                    }
                }
                _ => {}
            }
        }
    }

    /// Every boot id came to hold its lease once.
    pub(crate) fn expect_one_join_per_boot_id(&self) {
        let mut joined: BTreeMap<Incarnation, usize> = BTreeMap::new();
        let mut holders = BTreeMap::new();
        for change in self.changes() {
            if let (LeaseKey::Member(name), LeaseContent::Member(lease)) = (&change.key, &change.content) {
                let before = holders.insert(name.clone(), lease.incarnation()).flatten();
                if let Some(incarnation) =
                    lease.incarnation().filter(|incarnation| before != Some(*incarnation))
                {
                    *joined.entry(incarnation).or_default() += 1;
                }
            }
        }
        assert!(joined.values().all(|count| *count == 1), "{joined:?}");
    }

    /// No process started a group twice under one claim.
    pub(crate) fn expect_one_start_per_claim(&self) {
        for process in &self.processes {
            let mut highest: BTreeMap<PartitionGroup, OwnerEpoch> = BTreeMap::new();
            for (group, epoch) in &process.starts {
                let before = highest.insert(*group, *epoch);
                assert!(before.is_none_or(|before| before < *epoch), "{group:?} {:?}", process.starts);
            }
        }
    }
}

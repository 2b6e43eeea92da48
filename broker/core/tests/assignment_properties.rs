//! Properties of the target assignment.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tidemill_core::assignment::target;
use tidemill_core::member::MemberId;
use tidemill_core::partition::PartitionGroup;

fn members(names: &[u16]) -> Vec<MemberId> {
    names.iter().map(|name| MemberId::new(&format!("broker-{name}"))).collect()
}

fn groups(count: u16) -> Vec<PartitionGroup> {
    (0..count).map(PartitionGroup).collect()
}

proptest! {
    #[test]
    fn every_group_has_an_owner_and_nobody_has_two_more_than_another(
        names in proptest::collection::btree_set(0u16..200, 1..40),
        count in 1u16..=64,
    ) {
        let names: Vec<_> = names.into_iter().collect();
        let target = target(&members(&names), &groups(count));

        prop_assert_eq!(target.len(), usize::from(count));
        let mut owned: BTreeMap<MemberId, usize> = members(&names).into_iter().map(|member| (member, 0)).collect();
        for member in target.values() {
            *owned.get_mut(member).unwrap() += 1;
        }
        prop_assert!(owned.values().max().unwrap() - owned.values().min().unwrap() <= 1);
    }

    #[test]
    fn neither_the_order_of_members_nor_of_groups_matters(
        names in proptest::collection::vec(0u16..200, 1..20),
        count in 1u16..=64,
        seed in any::<u64>(),
    ) {
        let (mut shuffled, mut shuffled_groups) = (members(&names), groups(count));
        let by = |index: usize, len: usize| usize::try_from(seed.rotate_left(u32::try_from(index).unwrap()) % len as u64).unwrap();
        for index in 0..shuffled.len() {
            let other = by(index, shuffled.len());
            shuffled.swap(index, other);
        }
        for index in 0..shuffled_groups.len() {
            let other = by(index, shuffled_groups.len());
            shuffled_groups.swap(index, other);
        }

        prop_assert_eq!(target(&shuffled, &shuffled_groups), target(&members(&names), &groups(count)));
    }

    /// The groups of the member that goes must move. The quotas make some others move, too: fewer than one more member's
    /// share and half of the number of members.
    #[test]
    fn a_member_that_goes_or_comes_moves_little_more_than_its_own_groups(
        names in proptest::collection::btree_set(0u16..200, 2..17),
        count in 1u16..=64,
    ) {
        let names: Vec<_> = names.into_iter().collect();
        let (must, more) = moves_of_first(&names, count);

        let share = usize::from(count).div_ceil(names.len());
        prop_assert!(more <= share + names.len() / 2 + 2, "{} must move, {} more do", must, more);
    }
}

/// How many groups must move when the first member goes, and how many more do.
fn moves_of_first(names: &[u16], count: u16) -> (usize, usize) {
    let with = target(&members(names), &groups(count));
    let without = target(&members(&names[1..]), &groups(count));
    let must = with.values().filter(|member| **member == members(names)[0]).count();
    let moved = with.iter().filter(|(group, member)| without.get(group) != Some(member)).count();
    (must, moved.saturating_sub(must))
}

#[test]
fn in_clusters_of_the_default_size_hardly_anything_moves_that_need_not() {
    let more: usize = (0..200).map(|first| moves_of_first(&[first, first + 300, first + 600], 16).1).sum();

    // Less than one of sixteen groups on the average.
    assert!(more < 200, "{more}");
}

#[test]
fn without_members_nobody_owns_anything() {
    assert!(target(&[], &groups(16)).is_empty());
}

#[test]
fn the_assignment_never_changes_golden_vector() {
    let owners: Vec<String> = target(&members(&[0, 1, 2]), &groups(16))
        .values()
        .map(|member| member.as_str()[7..].to_owned())
        .collect();

    // Brokers of two releases must agree on it during a rolling upgrade.
    assert_eq!(owners.join(""), GOLDEN);
}

const GOLDEN: &str = "1020102200221011";

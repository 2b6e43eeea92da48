//! Which member shall own which partition group: a pure function that every member computes alike.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::Xxh3;

use crate::member::MemberId;
use crate::partition::PartitionGroup;

/// Assigns every group of `groups` to one of `members`; empty if there are no members.
///
/// A rendezvous hash with quotas: the pairs (group, member) are taken in the order of their hash, and a pair counts if the
/// group is still free and the member's quota not used up. Every member gets `groups / members` groups or one more. The
/// result depends on neither the order of the arguments nor on history, so all members agree as soon as they know the same
/// members; duplicates count once.
#[must_use]
pub fn target(members: &[MemberId], groups: &[PartitionGroup]) -> BTreeMap<PartitionGroup, MemberId> {
    let mut members: Vec<&MemberId> = members.iter().collect();
    members.sort();
    members.dedup();
    let mut groups = groups.to_vec();
    groups.sort();
    groups.dedup();
    let mut assigned = BTreeMap::new();
    if members.is_empty() {
        return assigned;
    }

    let least = groups.len() / members.len();
    // So many members own one group more than the others.
    let mut larger_left = groups.len() % members.len();
    let mut owned = vec![0usize; members.len()];
    for (_, group, member) in ranked_pairs(&members, &groups) {
        let takes_extra = owned[member] == least && larger_left > 0;
        if assigned.contains_key(&group) || (owned[member] >= least && !takes_extra) {
            continue;
        }
        larger_left -= usize::from(takes_extra);
        owned[member] += 1;
        assigned.insert(group, members[member].clone());
    }
    debug_assert_eq!(assigned.len(), groups.len());
    assigned
}

/// All pairs, best first; the rest of the key makes the order total.
fn ranked_pairs(
    members: &[&MemberId],
    groups: &[PartitionGroup],
) -> Vec<(std::cmp::Reverse<u64>, PartitionGroup, usize)> {
    let mut pairs = Vec::with_capacity(members.len() * groups.len());
    for (index, member) in members.iter().enumerate() {
        for group in groups {
            pairs.push((std::cmp::Reverse(weight(member, *group)), *group, index));
        }
    }
    pairs.sort_unstable();
    pairs
}

fn weight(member: &MemberId, group: PartitionGroup) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&group.0.to_le_bytes());
    hash.update(member.as_str().as_bytes());
    hash.digest()
}

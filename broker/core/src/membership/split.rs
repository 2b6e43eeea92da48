//! The network split verdict: who stays when members that all reach the API cannot reach each other.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Membership;
use super::lease::{NamedMember, ResourceVersion};
use crate::member::{Member, MemberId};
use crate::time::BootTime;

/// How long a split must have been the same before it is judged.
const UNCHANGED: Duration = Duration::from_secs(10);

/// Who publishes whom as reachable.
pub type Links = BTreeMap<MemberId, BTreeSet<MemberId>>;

/// Who stays: of the largest group of members that are connected (tie: the one with the lowest name), members with the
/// fewest links leave (tie: the highest name first) until all that are left reach each other.
///
/// A link exists only if both publish each other; members that are not keys of `links` are not judged and do not count.
#[must_use]
pub fn verdict(links: &Links) -> BTreeSet<MemberId> {
    let mut stay = BTreeSet::new();
    let mut left: BTreeSet<&MemberId> = links.keys().collect();
    while let Some(first) = left.first().copied() {
        let mut component = BTreeSet::from([first.clone()]);
        let mut open = vec![first];
        left.remove(first);
        while let Some(member) = open.pop() {
            for peer in links.keys().filter(|peer| are_linked(links, member, peer)) {
                if left.remove(peer) {
                    component.insert(peer.clone());
                    open.push(peer);
                }
            }
        }
        // Components come in the order of their lowest names, so the first of the largest wins.
        if component.len() > stay.len() {
            stay = component;
        }
    }
    while let Some(worst) = weakest(links, &stay) {
        stay.remove(&worst);
    }
    stay
}

/// The member with the fewest links within `members`, if not all of them are linked to each other.
fn weakest(links: &Links, members: &BTreeSet<MemberId>) -> Option<MemberId> {
    let count = |member: &MemberId| members.iter().filter(|peer| are_linked(links, member, peer)).count();
    let all = members.len().saturating_sub(1);
    let weakest = members.iter().map(|member| (count(member), std::cmp::Reverse(member))).min()?;
    (weakest.0 < all).then(|| weakest.1.0.clone())
}

fn are_linked(links: &Links, one: &MemberId, other: &MemberId) -> bool {
    let publishes =
        |from: &MemberId, to: &MemberId| links.get(from).is_some_and(|reached| reached.contains(to));
    one != other && publishes(one, other) && publishes(other, one)
}

/// What one member's lease said when a split was first seen.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Published {
    member: Member,
    version: ResourceVersion,
    reachable: BTreeSet<MemberId>,
}

/// A split that is being watched.
#[derive(Debug)]
struct Suspicion {
    /// When the list that showed it was answered.
    since: BootTime,
    view_number: u64,
    published: BTreeMap<MemberId, Published>,
}

/// Watches for a split that lasts.
#[derive(Debug, Default)]
pub(super) struct SplitWatch {
    suspicion: Option<Suspicion>,
}

/// Decides who stays in the view.
pub(super) type Stays = Box<dyn Fn(&NamedMember) -> bool>;

impl Membership {
    /// Who shall stay in the view, once the same split has been in two consistent lists 10 s apart and in all that was read
    /// between them. Judged are only members of the view whose lease was renewed in between. `None`: no verdict, or not by
    /// this member, because it would not stay.
    pub(super) fn decide_split(&mut self, own: &NamedMember, now: BootTime) -> Option<Stays> {
        let (number, published) = self.published(now)?;
        let links = published.iter().map(|(member, said)| (member.clone(), said.reachable.clone())).collect();
        if verdict(&links).len() == links.len() {
            self.split.suspicion = None;
            return None;
        }
        let is_same = self.split.suspicion.as_ref().is_some_and(|suspicion| {
            suspicion.view_number == number
                && suspicion.published.iter().all(|(member, said)| is_said(&published, member, said))
        });
        if !is_same {
            // The first end must be a consistent list, too.
            if self.lists.newest_answered == Some(now) {
                self.split.suspicion = Some(Suspicion { since: now, view_number: number, published });
            } else {
                self.split.suspicion = None;
                self.want_list(now);
            }
            return None;
        }
        let suspicion = self.split.suspicion.as_ref()?;
        let slowest = self
            .knowledge
            .members
            .values()
            .map(|known| known.content.timings.renew)
            .max()
            .unwrap_or_default();
        let ends = suspicion.since + UNCHANGED.max(slowest * 3 / 2);
        if now < ends {
            self.wake_at(ends);
            return None;
        }
        if !self.lists.covers(ends) {
            self.want_list(now);
            return None;
        }
        let judged: Links = published
            .iter()
            .filter(|(member, said)| {
                suspicion.published.get(*member).is_some_and(|first| first.version < said.version)
            })
            .map(|(member, said)| (member.clone(), said.reachable.clone()))
            .collect();
        let stay = verdict(&judged);
        let members: BTreeMap<MemberId, Member> =
            published.into_iter().map(|(member, said)| (member, said.member)).collect();
        self.split.suspicion = None;
        if !stay.contains(&own.member.id) || stay.len() == judged.len() {
            return None;
        }
        Some(Box::new(move |named: &NamedMember| {
            let was_judged =
                judged.contains_key(&named.member.id) && members.get(&named.member.id) == Some(&named.member);
            !was_judged || stay.contains(&named.member.id)
        }))
    }

    /// What the members of the view publish whose lease was renewed lately.
    fn published(&self, now: BootTime) -> Option<(u64, BTreeMap<MemberId, Published>)> {
        let view = &self.knowledge.view.as_ref()?.content;
        let mut published = BTreeMap::new();
        for (member, named) in &view.members {
            let Some(known) = self.knowledge.members.get(member) else { continue };
            if known.content.incarnation() == Some(named.member.incarnation) && known.is_renewed(now) {
                let said = Published {
                    member: named.member.clone(),
                    version: known.version,
                    reachable: known.content.reachable.clone(),
                };
                published.insert(member.clone(), said);
            }
        }
        Some((view.number, published))
    }
}

/// Whether `member` still publishes what it did, or is not renewed any more.
fn is_said(published: &BTreeMap<MemberId, Published>, member: &MemberId, said: &Published) -> bool {
    published.get(member).is_none_or(|now| now.member == said.member && now.reachable == said.reachable)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `links`: who publishes whom, as pairs of letters; `both` adds both directions.
    fn links(members: &str, both: &[&str], one_way: &[&str]) -> Links {
        let id = |letter: char| MemberId::new(&letter.to_string());
        let mut links: Links = members.chars().map(|letter| (id(letter), BTreeSet::new())).collect();
        for (pair, is_both) in
            both.iter().map(|pair| (pair, true)).chain(one_way.iter().map(|pair| (pair, false)))
        {
            let (from, to) = (pair.chars().next().unwrap(), pair.chars().nth(1).unwrap());
            links.get_mut(&id(from)).unwrap().insert(id(to));
            if is_both {
                links.get_mut(&id(to)).unwrap().insert(id(from));
            }
        }
        links
    }

    fn stay(links: &Links) -> String {
        verdict(links).iter().map(MemberId::as_str).collect()
    }

    #[test]
    fn the_largest_of_three_components_stays() {
        assert_eq!(stay(&links("abcdef", &["bc", "bd", "cd", "ef"], &[])), "bcd");
    }

    #[test]
    fn of_components_of_one_size_the_one_with_the_lowest_name_stays() {
        assert_eq!(stay(&links("abc", &[], &[])), "a");
        assert_eq!(stay(&links("abcd", &["ad", "bc"], &[])), "ad");
    }

    #[test]
    fn of_a_chain_the_end_with_the_highest_name_leaves() {
        assert_eq!(stay(&links("abc", &["ab", "bc"], &[])), "ab");
    }

    #[test]
    fn members_with_the_fewest_links_leave_first() {
        assert_eq!(stay(&links("abcd", &["ab", "bc", "cd", "bd"], &[])), "bcd");
    }

    #[test]
    fn a_link_that_only_one_side_publishes_is_none() {
        assert_eq!(stay(&links("abc", &["bc"], &["ab", "ac"])), "bc");
    }

    #[test]
    fn who_is_not_judged_does_not_count() {
        let mut known = links("ab", &["ab"], &[]);
        known.get_mut(&MemberId::new("a")).unwrap().insert(MemberId::new("z"));

        assert_eq!(stay(&known), "ab");
    }

    #[test]
    fn whoever_stays_reaches_everybody_who_stays() {
        // All graphs of five members.
        let pairs = ["ab", "ac", "ad", "ae", "bc", "bd", "be", "cd", "ce", "de"];
        for graph in 0u32..1 << pairs.len() {
            let there: Vec<&str> = pairs
                .iter()
                .enumerate()
                .filter(|(index, _)| graph & (1 << index) != 0)
                .map(|(_, pair)| *pair)
                .collect();
            let links = links("abcde", &there, &[]);
            let stay = verdict(&links);
            assert!(!stay.is_empty());
            for one in &stay {
                assert!(stay.iter().all(|other| one == other || are_linked(&links, one, other)), "{there:?}");
            }
        }
    }
}

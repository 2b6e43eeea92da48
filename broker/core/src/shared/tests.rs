use super::*;
use proptest::prelude::{
    any, prop, prop_assert, prop_assert_eq, prop_assert_ne, prop_assume, prop_oneof, proptest,
};
use proptest::strategy::Strategy as Sampled;
use std::collections::{BTreeMap, BTreeSet};

const ALL: [Strategy; 6] = [
    Strategy::Random,
    Strategy::RoundRobin,
    Strategy::Sticky,
    Strategy::LeastInFlight,
    Strategy::HashPublisher,
    Strategy::HashTopic,
];

fn keys(key: &str) -> PublishKeys<'_> {
    PublishKeys { publisher: key, topic: key, random: 0 }
}

fn members(strategy: Strategy, names: &BTreeSet<u8>) -> Members<u8> {
    let mut members = Members::new(strategy);
    for name in names {
        members.insert(name.to_string().into(), *name);
    }
    members
}

fn chosen(members: &Members<u8>, keys: PublishKeys<'_>) -> Option<u8> {
    let place = members.choose(keys, |_| 0).next()?;
    members.at(place).copied()
}

fn names(most: usize) -> impl Sampled<Value = BTreeSet<u8>> {
    prop::collection::btree_set(any::<u8>(), 1..most)
}

#[derive(Debug, Clone)]
enum Step {
    Join(u8),
    Leave(u8),
    Publish(String, u64),
}

fn step() -> impl Sampled<Value = Step> {
    prop_oneof![
        2 => (0..12_u8).prop_map(Step::Join),
        2 => (0..12_u8).prop_map(Step::Leave),
        6 => ("[a-e]", any::<u64>()).prop_map(|(key, random)| Step::Publish(key, random)),
    ]
}

proptest! {
    /// Model: the set of those who are there.
    #[test]
    fn whoever_is_chosen_is_there_and_every_member_is_tried_once(
        strategy in prop::sample::select(&ALL[..]),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut members = Members::new(strategy);
        let mut there = BTreeSet::new();
        for step in steps {
            match step {
                Step::Join(name) => {
                    let known = members.insert(name.to_string().into(), name);
                    prop_assert_eq!(known.is_none(), there.insert(name));
                }
                Step::Leave(name) => {
                    let known = members.remove(&name.to_string());
                    prop_assert_eq!(known.is_some(), there.remove(&name));
                }
                Step::Publish(key, random) => {
                    let keys = PublishKeys { publisher: &key, topic: &key, random };
                    let tried: Vec<u8> =
                        members.choose(keys, |_| 0).map(|place| *members.at(place).unwrap()).collect();
                    prop_assert_eq!(tried.len(), there.len());
                    prop_assert_eq!(&tried.iter().copied().collect::<BTreeSet<_>>(), &there);
                    if let Some(place) = members.choose(keys, |_| 0).next() {
                        members.handle_taken(place);
                    }
                }
            }
            prop_assert_eq!(members.len(), there.len());
        }
    }

    #[test]
    fn round_robin_gives_everybody_one_before_anybody_gets_another(
        names in names(20), joins in any::<u8>(), leaves in any::<prop::sample::Index>(), rounds in 1..5_usize,
    ) {
        let mut members = members(Strategy::RoundRobin, &names);
        let mut names = names;
        for turn in 0..usize::from(joins) % 7 {
            members.handle_taken(turn % members.len());
        }
        members.insert(joins.to_string().into(), joins);
        names.insert(joins);
        let gone = *leaves.get(&names.iter().copied().collect::<Vec<_>>());
        if names.len() > 1 {
            members.remove(&gone.to_string());
            names.remove(&gone);
        }

        let mut counts: BTreeMap<u8, usize> = BTreeMap::new();
        for _ in 0..rounds * names.len() {
            let place = members.choose(keys(""), |_| 0).next().unwrap();
            *counts.entry(*members.at(place).unwrap()).or_default() += 1;
            members.handle_taken(place);
        }

        prop_assert_eq!(counts, names.iter().map(|name| (*name, rounds)).collect::<BTreeMap<_, _>>());
    }

    #[test]
    fn a_member_that_comes_or_goes_does_not_change_whose_turn_it_is(
        names in names(20), taken in 0..20_usize, other in any::<u8>(),
    ) {
        let mut members = members(Strategy::RoundRobin, &names);
        members.handle_taken(taken % members.len());
        let due = chosen(&members, keys("")).unwrap();
        prop_assume!(other != due);

        if names.contains(&other) {
            members.remove(&other.to_string());
        } else {
            members.insert(other.to_string().into(), other);
        }

        prop_assert_eq!(chosen(&members, keys("")), Some(due));
    }

    #[test]
    fn sticky_stays_with_one_member_until_it_goes(
        names in names(20), others in prop::collection::vec(any::<u8>(), 0..20), helper in 0..20_usize,
    ) {
        let mut members = members(Strategy::Sticky, &names);
        let stick = chosen(&members, keys("a")).unwrap();

        for other in others.into_iter().filter(|other| *other != stick) {
            if members.remove(&other.to_string()).is_none() {
                members.insert(other.to_string().into(), other);
            }
            members.handle_taken(helper % members.len());
            prop_assert_eq!(chosen(&members, keys("b")), Some(stick));
        }

        members.remove(&stick.to_string());
        prop_assert_ne!(chosen(&members, keys("b")), Some(stick));
    }

    #[test]
    fn hashes_move_only_the_keys_of_the_member_that_comes_or_goes(names in names(20), other in any::<u8>()) {
        for strategy in [Strategy::HashPublisher, Strategy::HashTopic] {
            let mut without = names.clone();
            without.remove(&other);
            let mut with = names.clone();
            with.insert(other);
            let (before, after) = (members(strategy, &without), members(strategy, &with));
            for key in 0..200_u32 {
                let key = format!("sensor/{key}");
                let chosen_after = chosen(&after, keys(&key));
                prop_assert!(chosen_after == Some(other) || chosen_after == chosen(&before, keys(&key)));
            }
        }
    }

    #[test]
    fn the_order_of_joining_decides_nothing(names in names(20), key in "[a-z]{1,4}", random in any::<u64>()) {
        let keys = PublishKeys { publisher: &key, topic: &key, random };
        for strategy in [Strategy::Random, Strategy::HashPublisher, Strategy::HashTopic] {
            let mut backward = Members::new(strategy);
            for name in names.iter().rev() {
                backward.insert(name.to_string().into(), *name);
            }
            prop_assert_eq!(chosen(&members(strategy, &names), keys), chosen(&backward, keys));
        }
    }
}

#[test]
fn keys_are_spread_over_all_members() {
    let names: BTreeSet<u8> = (0..10).collect();
    let members = members(Strategy::HashTopic, &names);
    let mut counts = [0_usize; 10];

    for key in 0..10_000 {
        let name = chosen(&members, keys(&format!("sensor/{key}"))).unwrap();
        counts[usize::from(name)] += 1;
    }

    assert!(counts.iter().all(|count| (800..1_200).contains(count)), "{counts:?}");
}

#[test]
fn a_hash_by_publisher_does_not_look_at_the_topic_and_the_other_way_round() {
    let names: BTreeSet<u8> = (0..10).collect();
    for (strategy, is_by_publisher) in [(Strategy::HashPublisher, true), (Strategy::HashTopic, false)] {
        let members = members(strategy, &names);
        for number in 0..100 {
            let other = number.to_string();
            let keys = |publisher, topic| PublishKeys { publisher, topic, random: 0 };
            let varied = if is_by_publisher { keys("same", &other) } else { keys(&other, "same") };
            assert_eq!(chosen(&members, varied), chosen(&members, keys("same", "same")));
        }
    }
}

#[test]
fn random_numbers_reach_every_member_evenly() {
    let names: BTreeSet<u8> = (0..4).collect();
    let members = members(Strategy::Random, &names);
    let mut counts = [0_usize; 4];

    for number in 0..=u8::MAX {
        let random = u64::from(number) << 56;
        let name = chosen(&members, PublishKeys { publisher: "", topic: "", random }).unwrap();
        counts[usize::from(name)] += 1;
    }

    assert_eq!(counts, [64; 4]);
}

#[test]
fn the_least_loaded_member_is_chosen_and_equals_take_turns() {
    let mut members = Members::new(Strategy::LeastInFlight);
    for (name, load) in [("a", 5), ("b", 2), ("c", 9), ("d", 2)] {
        members.insert(name.into(), load);
    }
    let mut order = Vec::new();

    for _ in 0..4 {
        let place = members.choose(keys(""), |load| *load).next().unwrap();
        order.push(place);
        members.handle_taken(place);
    }

    assert_eq!(order, [1, 3, 1, 3]);
}

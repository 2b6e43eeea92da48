//! Which filters match a topic, for up to a million filters.

mod keys;
mod node;

use crate::topic::{TopicFilter, TopicName};
use keys::{Insertion, Keys, Removal};
use node::Node;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, Hash};

/// A set of pairs of topic filter and key that finds the keys of all filters that match a topic.
///
/// Filters without wildcards are in a hash map, so that they cost one look-up however many there are; filters with
/// wildcards are in a trie of levels. Memory is given back when filters go. The hasher comes from the caller, seeded
/// where clients choose the filters; no order depends on it.
pub struct FilterTrie<K, S> {
    exact: HashMap<TopicFilter, Keys<K>, S>,
    wildcard: Node<K, S>,
    pairs: usize,
    filters: usize,
}

impl<K: Ord, S: BuildHasher + Clone> FilterTrie<K, S> {
    /// An empty set whose maps hash with `hasher`.
    #[must_use]
    pub fn with_hasher(hasher: S) -> Self {
        Self { exact: HashMap::with_hasher(hasher), wildcard: Node::default(), pairs: 0, filters: 0 }
    }

    /// Number of pairs of filter and key.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pairs
    }

    /// Whether there is no pair.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs == 0
    }

    /// Number of different filters.
    #[must_use]
    pub fn filter_count(&self) -> usize {
        self.filters
    }

    /// Whether `filter` has a key.
    #[must_use]
    pub fn contains_filter(&self, filter: &TopicFilter) -> bool {
        if filter.has_wildcard() { self.wildcard.contains(filter) } else { self.exact.contains_key(filter) }
    }

    /// Adds `key` to `filter`; false if it was there.
    pub fn insert(&mut self, filter: &TopicFilter, key: K) -> bool {
        let insertion = if filter.has_wildcard() {
            self.wildcard.insert(filter, key, self.exact.hasher())
        } else if let Some(keys) = self.exact.get_mut(filter) {
            keys.insert(key)
        } else {
            self.exact.insert(filter.clone(), Keys::One(key));
            Insertion::First
        };
        match insertion {
            Insertion::Present => return false,
            Insertion::Added => {}
            Insertion::First => self.filters += 1,
        }
        self.pairs += 1;
        true
    }

    /// Takes `key` from `filter`; false if it was not there.
    pub fn remove(&mut self, filter: &TopicFilter, key: &K) -> bool {
        let removal = if filter.has_wildcard() {
            self.wildcard.remove(filter.as_str(), key)
        } else {
            self.remove_exact(filter, key)
        };
        match removal {
            Removal::Absent => return false,
            Removal::Removed => {}
            Removal::WasLast => self.filters -= 1,
        }
        self.pairs -= 1;
        true
    }

    /// Calls `visit` with the keys of every filter that matches `topic`. A key that several of these filters have
    /// comes once for each.
    ///
    /// The order is fixed: first the filter equal to the topic, then those with wildcards from the first level on, `#`
    /// before the level's name before `+`; the keys of one filter ascend.
    ///
    /// Besides one look-up it visits the beginnings of filters with wildcards that match the topic's beginning: at most
    /// all there are, and at most `2^n` at level `n`, where every level is forked by `+`.
    pub fn for_each_match(&self, topic: &TopicName, mut visit: impl FnMut(&K)) {
        if let Some(keys) = self.exact.get(topic.as_str()) {
            keys.for_each(&mut visit);
        }
        self.wildcard.for_each_match(topic, &mut visit);
    }

    fn remove_exact(&mut self, filter: &TopicFilter, key: &K) -> Removal {
        let Some(keys) = self.exact.get_mut(filter) else { return Removal::Absent };
        let removal = keys.remove(key);
        if removal == Removal::WasLast {
            self.exact.remove(filter);
            shrink(&mut self.exact);
        }
        removal
    }
}

impl<K, S> fmt::Debug for FilterTrie<K, S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "FilterTrie({} pairs, {} filters)", self.pairs, self.filters)
    }
}

/// Gives memory back once three quarters of a map are unused; the distance to the half that is left keeps it cheap.
fn shrink<N: Eq + Hash, V, S: BuildHasher>(map: &mut HashMap<N, V, S>) {
    if map.len() < map.capacity() / 4 {
        map.shrink_to(map.len() * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::hash::{BuildHasherDefault, DefaultHasher, RandomState};

    type Trie = FilterTrie<u32, RandomState>;

    fn filter(text: &str) -> TopicFilter {
        TopicFilter::parse(text).unwrap()
    }

    fn matches<S: BuildHasher + Clone>(trie: &FilterTrie<u32, S>, topic: &str) -> Vec<u32> {
        let mut keys = Vec::new();
        trie.for_each_match(&TopicName::parse(topic).unwrap(), |key| keys.push(*key));
        keys
    }

    #[test]
    fn a_filter_has_many_keys_and_each_once() {
        let mut trie = Trie::with_hasher(RandomState::new());
        for text in ["a/b", "a/+"] {
            for key in (0..100).rev() {
                assert!(trie.insert(&filter(text), key));
                assert!(!trie.insert(&filter(text), key));
            }
        }
        assert_eq!((trie.len(), trie.filter_count()), (200, 2));

        for key in (0..100).filter(|key| key % 10 != 0) {
            assert!(trie.remove(&filter("a/b"), &key));
            assert!(!trie.remove(&filter("a/b"), &key));
        }

        let left = (0..100).step_by(10).chain(0..100).collect::<Vec<u32>>();
        assert_eq!(matches(&trie, "a/b"), left);
        assert_eq!((trie.len(), trie.filter_count()), (110, 2));
    }

    #[test]
    fn matches_come_in_an_order_that_neither_hasher_nor_insertion_decides() {
        let texts = ["#", "a/#", "a/b/#", "a/b", "a/+", "+/b", "+/+", "+/#", "+/b/#"];
        let mut forward = Trie::with_hasher(RandomState::new());
        let mut backward = FilterTrie::with_hasher(BuildHasherDefault::<DefaultHasher>::default());
        for (key, text) in (0..).zip(texts) {
            forward.insert(&filter(text), key);
        }
        for (key, text) in (0..).zip(texts).collect::<Vec<_>>().into_iter().rev() {
            backward.insert(&filter(text), key);
        }

        let order: Vec<_> =
            matches(&forward, "a/b").iter().map(|key| texts[usize::try_from(*key).unwrap()]).collect();

        assert_eq!(order, ["a/b", "#", "a/#", "a/b/#", "a/+", "+/#", "+/b/#", "+/b", "+/+"]);
        assert_eq!(matches(&backward, "a/b"), matches(&forward, "a/b"));
    }

    #[test]
    fn filters_are_told_apart_from_their_beginnings() {
        let mut trie = Trie::with_hasher(RandomState::new());
        trie.insert(&filter("a/+/c"), 1);

        assert!(!trie.contains_filter(&filter("a/+")));
        assert!(!trie.contains_filter(&filter("a/+/c/#")));
        assert!(!trie.remove(&filter("a/+"), &1));
        assert!(!trie.remove(&filter("a/+/c/#"), &1));
        assert!(trie.contains_filter(&filter("a/+/c")));
        assert_eq!(matches(&trie, "a/b/c"), [1]);
    }

    #[test]
    fn a_level_with_many_names_shrinks_back_to_few() {
        let mut trie = Trie::with_hasher(RandomState::new());
        let text = |number: u32| filter(&format!("{}/+", number * 37 % 100));
        for number in 0..100 {
            trie.insert(&text(number), number);
        }

        for left in (0..100).rev() {
            let topic = format!("{}/x", left * 37 % 100);
            assert_eq!(matches(&trie, &topic), [left]);
            assert!(trie.remove(&text(left), &left));
            assert!(!trie.remove(&text(left), &left));
            assert!(matches(&trie, &topic).is_empty());
            assert_eq!(matches(&trie, "0/x").len(), usize::from(left > 0));
        }

        assert!(trie.wildcard.is_empty());
    }

    #[test]
    fn a_million_filters_come_and_go_without_a_trace() {
        let mut trie = Trie::with_hasher(RandomState::new());
        let filters: Vec<_> = (0..1_000_000_u32)
            .map(|number| {
                let last = if number % 10 == 0 { "+" } else { "state" };
                filter(&format!("site/{}/device/{number}/{last}", number % 100))
            })
            .collect();

        for (number, filter) in (0..).zip(&filters) {
            assert!(trie.insert(filter, number));
        }
        assert_eq!((trie.len(), trie.filter_count()), (1_000_000, 1_000_000));
        assert_eq!(matches(&trie, "site/30/device/123430/state"), [123_430]);
        assert_eq!(matches(&trie, "site/31/device/123431/state"), [123_431]);
        for (number, filter) in (0..).zip(&filters) {
            assert!(trie.remove(filter, &number));
        }

        assert!(trie.is_empty());
        assert_eq!(trie.filter_count(), 0);
        assert!(trie.wildcard.is_empty());
        assert_eq!(trie.exact.capacity(), 0);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert(String, u32),
        Remove(String, u32),
        Match(String),
    }

    /// Few levels and few names, so that filters meet each other and the topics.
    fn step() -> impl Strategy<Value = Step> {
        let few =
            || prop_oneof![Just(""), Just("a"), Just("b"), Just("ä"), Just("$s")].prop_map(str::to_owned);
        let name = || prop_oneof![4 => few(), 2 => (0..20_u8).prop_map(|number| number.to_string())];
        let level = prop_oneof![4 => name(), 2 => Just("+".to_owned())];
        let filter = (prop::collection::vec(level, 0..4), any::<bool>())
            .prop_map(|(mut levels, is_tree)| {
                levels.extend(is_tree.then(|| "#".to_owned()));
                levels.join("/")
            })
            .prop_filter("a filter has a character", |filter| !filter.is_empty());
        let topic = prop::collection::vec(name(), 1..5)
            .prop_map(|levels| levels.join("/"))
            .prop_filter("a topic has a character", |topic| !topic.is_empty());
        let key = 0..40_u32;
        prop_oneof![
            4 => (filter.clone(), key.clone()).prop_map(|(filter, key)| Step::Insert(filter, key)),
            2 => (filter, key).prop_map(|(filter, key)| Step::Remove(filter, key)),
            2 => topic.prop_map(Step::Match),
        ]
    }

    proptest! {
        #[test]
        fn it_matches_as_every_filter_by_itself_would(steps in prop::collection::vec(step(), 1..200)) {
            let mut trie = Trie::with_hasher(RandomState::new());
            let mut oracle = BTreeSet::new();

            for step in steps {
                match step {
                    Step::Insert(text, key) => {
                        let filter = filter(&text);
                        prop_assert_eq!(trie.insert(&filter, key), oracle.insert((filter, key)));
                    }
                    Step::Remove(text, key) => {
                        let filter = filter(&text);
                        prop_assert_eq!(trie.remove(&filter, &key), oracle.remove(&(filter, key)));
                    }
                    Step::Match(topic) => {
                        let name = TopicName::parse(topic.clone()).unwrap();
                        let mut expected: Vec<_> =
                            oracle.iter().filter(|(filter, _)| filter.matches(&name)).map(|(_, key)| *key).collect();
                        let mut found = matches(&trie, &topic);
                        expected.sort_unstable();
                        found.sort_unstable();
                        prop_assert_eq!(found, expected, "{}", topic);
                    }
                }
                prop_assert_eq!(trie.len(), oracle.len());
            }
            let filters: BTreeSet<_> = oracle.iter().map(|(filter, _)| filter).collect();
            prop_assert_eq!(trie.filter_count(), filters.len());
            for (filter, key) in &oracle {
                prop_assert!(trie.contains_filter(filter));
                prop_assert!(trie.remove(filter, key));
            }
            prop_assert!(trie.is_empty() && trie.wildcard.is_empty() && trie.exact.is_empty());
        }
    }
}

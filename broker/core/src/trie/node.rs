//! The trie of filters with wildcards, one node for each beginning of a filter.

use super::keys::{Insertion, Keys, Removal};
use super::shrink;
use crate::topic::{TopicFilter, TopicName};
use std::collections::HashMap;
use std::hash::BuildHasher;
use std::mem;

/// Up to here children are a sorted list, which is smaller and faster than a map.
const FEW_MAX: usize = 8;

/// At this size a map becomes a list again; below [`FEW_MAX`], so that one child at the edge does not convert each time.
const FEW_AGAIN: usize = 4;

/// What follows one beginning of a filter. Except for the root no node is empty.
///
/// A node's depth is at most `LEVELS_MAX`, so the recursions below are bounded.
#[derive(Debug)]
pub(super) struct Node<K, S> {
    /// Keys of the filter that ends here.
    here: Option<Box<Keys<K>>>,
    /// Keys of the filter that goes on with `#`: it matches this beginning too.
    tree: Option<Box<Keys<K>>>,
    /// Filters that go on with `+`.
    plus: Option<Box<Node<K, S>>>,
    /// Filters that go on with a name.
    named: Children<K, S>,
}

/// Children by their name.
#[derive(Debug)]
#[allow(clippy::box_collection, reason = "a map in line would double the size of every node that has a list")]
enum Children<K, S> {
    /// Up to [`FEW_MAX`], sorted by name.
    Few(Vec<(Box<str>, Node<K, S>)>),
    /// More. Never iterated but to become a list again, which is sorted.
    Many(Box<HashMap<Box<str>, Node<K, S>, S>>),
}

impl<K, S> Default for Node<K, S> {
    fn default() -> Self {
        Self { here: None, tree: None, plus: None, named: Children::Few(Vec::new()) }
    }
}

impl<K: Ord, S: BuildHasher + Clone> Node<K, S> {
    pub(super) fn is_empty(&self) -> bool {
        self.here.is_none() && self.tree.is_none() && self.plus.is_none() && self.named.is_empty()
    }

    /// Whether `filter` ends in this trie.
    pub(super) fn contains(&self, filter: &TopicFilter) -> bool {
        let mut node = self;
        for level in filter.as_str().split('/') {
            let next = match level {
                "#" => return node.tree.is_some(),
                "+" => node.plus.as_deref(),
                name => node.named.get(name),
            };
            let Some(next) = next else { return false };
            node = next;
        }
        node.here.is_some()
    }

    /// Adds `key` to `filter`.
    pub(super) fn insert(&mut self, filter: &TopicFilter, key: K, hasher: &S) -> Insertion {
        let mut node = self;
        for level in filter.as_str().split('/') {
            node = match level {
                "#" => return add(&mut node.tree, key),
                "+" => node.plus.get_or_insert_default(),
                name => node.named.get_or_insert(name, hasher),
            };
        }
        add(&mut node.here, key)
    }

    /// Takes `key` from the filter that goes on with `levels`, and every node that is empty then.
    pub(super) fn remove(&mut self, levels: &str, key: &K) -> Removal {
        let (level, next) = split_level(levels);
        match level {
            "#" => take(&mut self.tree, key),
            "+" => {
                let Some(child) = &mut self.plus else { return Removal::Absent };
                let removal = child.remove_next(next, key);
                if child.is_empty() {
                    self.plus = None;
                }
                removal
            }
            name => {
                let Some(child) = self.named.get_mut(name) else { return Removal::Absent };
                let removal = child.remove_next(next, key);
                if child.is_empty() {
                    self.named.remove(name);
                }
                removal
            }
        }
    }

    fn remove_next(&mut self, levels: Option<&str>, key: &K) -> Removal {
        match levels {
            Some(levels) => self.remove(levels, key),
            None => take(&mut self.here, key),
        }
    }

    /// Visits the keys of all filters that match `topic`; `self` is the root.
    pub(super) fn for_each_match(&self, topic: &TopicName, visit: &mut impl FnMut(&K)) {
        if !topic.is_reserved() {
            return self.visit(Some(topic.as_str()), visit);
        }
        // MQTT-4.7.2-1: no wildcard at the first level.
        let (level, next) = split_level(topic.as_str());
        if let Some(child) = self.named.get(level) {
            child.visit(next, visit);
        }
    }

    /// `levels` is what is left of the topic behind this node's beginning.
    fn visit(&self, levels: Option<&str>, visit: &mut impl FnMut(&K)) {
        if let Some(keys) = &self.tree {
            keys.for_each(visit);
        }
        let Some(levels) = levels else {
            if let Some(keys) = &self.here {
                keys.for_each(visit);
            }
            return;
        };
        let (level, next) = split_level(levels);
        if let Some(child) = self.named.get(level) {
            child.visit(next, visit);
        }
        if let Some(child) = &self.plus {
            child.visit(next, visit);
        }
    }
}

fn split_level(levels: &str) -> (&str, Option<&str>) {
    levels.split_once('/').map_or((levels, None), |(level, next)| (level, Some(next)))
}

fn add<K: Ord>(place: &mut Option<Box<Keys<K>>>, key: K) -> Insertion {
    match place {
        Some(keys) => keys.insert(key),
        None => {
            *place = Some(Box::new(Keys::One(key)));
            Insertion::First
        }
    }
}

fn take<K: Ord>(place: &mut Option<Box<Keys<K>>>, key: &K) -> Removal {
    let removal = place.as_mut().map_or(Removal::Absent, |keys| keys.remove(key));
    if removal == Removal::WasLast {
        *place = None;
    }
    removal
}

impl<K: Ord, S: BuildHasher + Clone> Children<K, S> {
    fn is_empty(&self) -> bool {
        match self {
            Self::Few(few) => few.is_empty(),
            Self::Many(many) => many.is_empty(),
        }
    }

    fn get(&self, name: &str) -> Option<&Node<K, S>> {
        match self {
            Self::Few(few) => few.iter().find(|(of, _)| **of == *name).map(|(_, child)| child),
            Self::Many(many) => many.get(name),
        }
    }

    fn get_mut(&mut self, name: &str) -> Option<&mut Node<K, S>> {
        match self {
            Self::Few(few) => few.iter_mut().find(|(of, _)| **of == *name).map(|(_, child)| child),
            Self::Many(many) => many.get_mut(name),
        }
    }

    fn get_or_insert(&mut self, name: &str, hasher: &S) -> &mut Node<K, S> {
        if let Self::Few(few) = self
            && few.len() == FEW_MAX
            && search(few, name).is_err()
        {
            let mut many = HashMap::with_capacity_and_hasher(FEW_MAX + 1, hasher.clone());
            many.extend(mem::take(few));
            *self = Self::Many(Box::new(many));
        }
        match self {
            Self::Few(few) => {
                let place = search(few, name).unwrap_or_else(|place| {
                    // One at a time: most nodes have one child and keep it.
                    few.reserve_exact(1);
                    few.insert(place, (name.into(), Node::default()));
                    place
                });
                &mut few[place].1
            }
            Self::Many(many) => many.entry(name.into()).or_default(),
        }
    }

    fn remove(&mut self, name: &str) {
        match self {
            Self::Few(few) => {
                if let Ok(place) = search(few, name) {
                    few.remove(place);
                    few.shrink_to_fit();
                }
            }
            Self::Many(many) => {
                many.remove(name);
                if many.len() > FEW_AGAIN {
                    return shrink(many);
                }
                let mut few: Vec<_> = many.drain().collect();
                few.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
                *self = Self::Few(few);
            }
        }
    }
}

/// Where `name` is in a sorted list, or where it would be.
fn search<T>(few: &[(Box<str>, T)], name: &str) -> Result<usize, usize> {
    few.binary_search_by(|(of, _)| (**of).cmp(name))
}

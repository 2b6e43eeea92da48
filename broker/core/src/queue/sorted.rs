//! A map of few entries that many have: a B-tree's first node has room for eleven.

/// A map in key order, as an array. Inserting and removing moves what comes after: for up to some ten thousand entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SortedMap<K, V> {
    entries: Vec<(K, V)>,
}

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        Self { entries: Vec::new() }
    }
}

impl<K: Ord, V> SortedMap<K, V> {
    fn place(&self, key: &K) -> Result<usize, usize> {
        self.entries.binary_search_by(|(own, _)| own.cmp(key))
    }

    /// Adds or replaces a value; returns what was replaced.
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.place(&key) {
            Ok(place) => self.entries.get_mut(place).map(|(_, own)| std::mem::replace(own, value)),
            Err(place) => {
                if self.entries.len() < 4 {
                    // Most have one or two for all their life.
                    self.entries.reserve_exact(1);
                }
                self.entries.insert(place, (key, value));
                None
            }
        }
    }

    /// Takes a value out.
    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let place = self.place(key).ok()?;
        Some(self.entries.remove(place).1)
    }

    /// The value of a key.
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        let place = self.place(key).ok()?;
        self.entries.get(place).map(|(_, value)| value)
    }

    /// All entries in key order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, value)| (key, value))
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Takes out, in key order, the entries of which `is_out` says so.
    pub(super) fn extract(&mut self, is_out: impl Fn(&V) -> bool) -> Vec<(K, V)> {
        self.entries.extract_if(.., |(_, value)| is_out(value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn it_is_a_map_in_key_order(steps in proptest::collection::vec((any::<bool>(), 0_u8..12, any::<u8>()), 0..60)) {
            let (mut map, mut model) = (SortedMap::default(), BTreeMap::new());
            for (is_insert, key, value) in steps {
                if is_insert {
                    prop_assert_eq!(map.insert(key, value), model.insert(key, value));
                } else {
                    prop_assert_eq!(map.remove(&key), model.remove(&key));
                }
                prop_assert_eq!(map.get(&key), model.get(&key));
                prop_assert!(map.iter().eq(model.iter()));
                prop_assert_eq!(map.len(), model.len());
            }
            let extracted = map.extract(|value| *value > 100);
            prop_assert!(extracted.into_iter().eq(model.extract_if(.., |_, value| *value > 100)));
            prop_assert!(map.iter().eq(model.iter()));
        }
    }
}

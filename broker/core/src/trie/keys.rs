//! The keys of one filter.

use std::collections::BTreeSet;
use std::mem;

/// From here on keys are in a tree: inserting into a longer list would move too much.
const FEW_MAX: usize = 32;

/// At this size a tree becomes a list again; below [`FEW_MAX`], so that one key at the edge does not convert each time.
const FEW_AGAIN: usize = 16;

/// At least one key, ascending. As large as one key, if that is a pointer and something: most filters have one receiver.
#[derive(Debug)]
#[allow(clippy::box_collection, reason = "in line they would make the keys of every filter larger")]
pub(super) enum Keys<K> {
    One(K),
    /// Up to [`FEW_MAX`], sorted.
    Few(Box<Vec<K>>),
    /// More.
    Many(Box<BTreeSet<K>>),
}

/// What an insertion did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Insertion {
    /// The key was there.
    Present,
    /// The key is new; the filter had others.
    Added,
    /// The filter is new as well.
    First,
}

/// What a removal did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Removal {
    /// The key was not there.
    Absent,
    /// The key is gone; others are left.
    Removed,
    /// It was the last one: the holder drops these keys.
    WasLast,
}

impl<K: Ord> Keys<K> {
    pub(super) fn insert(&mut self, key: K) -> Insertion {
        match self {
            Self::One(one) if *one == key => return Insertion::Present,
            Self::One(_) => {
                let both = Self::Few(Box::new(Vec::with_capacity(2)));
                if let (Self::One(one), Self::Few(few)) = (mem::replace(self, both), self) {
                    few.extend([one, key]);
                    few.sort_unstable();
                }
            }
            Self::Few(few) => {
                let Err(place) = few.binary_search(&key) else { return Insertion::Present };
                few.insert(place, key);
                if few.len() > FEW_MAX {
                    *self = Self::Many(Box::new(mem::take(&mut **few).into_iter().collect()));
                }
            }
            Self::Many(many) => {
                if !many.insert(key) {
                    return Insertion::Present;
                }
            }
        }
        Insertion::Added
    }

    pub(super) fn remove(&mut self, key: &K) -> Removal {
        match self {
            Self::One(one) if one == key => return Removal::WasLast,
            Self::One(_) => return Removal::Absent,
            Self::Few(few) => {
                let Ok(place) = few.binary_search(key) else { return Removal::Absent };
                few.remove(place);
                if few.len() < few.capacity() / 2 {
                    few.shrink_to_fit();
                }
            }
            Self::Many(many) => {
                if !many.remove(key) {
                    return Removal::Absent;
                }
                if many.len() <= FEW_AGAIN {
                    *self = Self::Few(Box::new(mem::take(&mut **many).into_iter().collect()));
                }
            }
        }
        self.single_out();
        Removal::Removed
    }

    pub(super) fn for_each(&self, visit: &mut impl FnMut(&K)) {
        match self {
            Self::One(one) => visit(one),
            Self::Few(few) => few.iter().for_each(visit),
            Self::Many(many) => many.iter().for_each(visit),
        }
    }

    /// A list of one is no list.
    fn single_out(&mut self) {
        if let Self::Few(few) = self
            && few.len() == 1
            && let Some(one) = few.pop()
        {
            *self = Self::One(one);
        }
    }
}

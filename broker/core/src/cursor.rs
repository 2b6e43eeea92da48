//! The progress of one queue in its partition.

use crate::partition::Offset;
use std::collections::BTreeSet;

/// `head` (everything below was handed out) and the **open** offsets below it (handed out, not done).
///
/// Invariant: every open offset is below `head`. The number of open offsets is bounded by what the receiver may have
/// in flight; the cursor does not check that bound, the queue does before it hands out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    head: Offset,
    open: BTreeSet<Offset>,
}

impl Cursor {
    /// Nothing handed out; the first record is at `head` or after it.
    #[must_use]
    pub fn at(head: Offset) -> Self {
        Self { head, open: BTreeSet::new() }
    }

    /// A stored cursor. Open offsets at or above `head` are dropped: they were never handed out.
    #[must_use]
    pub fn restore(head: Offset, open: impl IntoIterator<Item = Offset>) -> Self {
        Self { head, open: open.into_iter().filter(|offset| *offset < head).collect() }
    }

    /// Everything below was handed out.
    #[must_use]
    pub fn head(&self) -> Offset {
        self.head
    }

    /// The lowest offset that is still needed: the lowest open one, else head. The log may be trimmed below it.
    #[must_use]
    pub fn floor(&self) -> Offset {
        self.open.first().copied().unwrap_or(self.head)
    }

    /// Handed out and not done, in order.
    pub fn open(&self) -> impl Iterator<Item = Offset> + '_ {
        self.open.iter().copied()
    }

    /// Whether `offset` is open.
    #[must_use]
    pub fn is_open(&self, offset: Offset) -> bool {
        self.open.contains(&offset)
    }

    /// How many are open.
    #[must_use]
    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    /// Hands out the record at `offset`. Returns false, and changes nothing, when it is below head: it was handed out
    /// before.
    pub fn hand_out(&mut self, offset: Offset) -> bool {
        if offset < self.head {
            return false;
        }
        self.head = offset + 1;
        self.open.insert(offset);
        true
    }

    /// Passes over everything below `head` that was not for this queue. Never goes back.
    pub fn advance(&mut self, head: Offset) {
        self.head = self.head.max(head);
    }

    /// The receiver is done with `offset`. Returns whether it was open; a repeated or unknown one changes nothing.
    pub fn finish(&mut self, offset: Offset) -> bool {
        self.open.remove(&offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn acknowledgements_out_of_order_move_the_floor_only_to_the_lowest_open_offset() {
        let mut cursor = Cursor::at(10);
        for offset in [10, 12, 13] {
            assert!(cursor.hand_out(offset));
        }

        assert!(cursor.finish(12));
        assert_eq!(cursor.floor(), 10);
        assert!(cursor.finish(10));
        assert_eq!(cursor.floor(), 13);
        assert!(cursor.finish(13));
        assert_eq!(cursor.floor(), 14);
        assert!(!cursor.finish(13), "a repeated acknowledgement changes nothing");
    }

    proptest! {
        /// Model: the set of all offsets handed out and the set of all done.
        #[test]
        fn the_floor_never_passes_an_offset_that_is_not_done(
            steps in proptest::collection::vec((0_u64..3, any::<proptest::sample::Index>()), 0..200),
        ) {
            let mut cursor = Cursor::at(5);
            let mut open = BTreeSet::new();
            let mut next = 5;
            for (gap, pick) in steps {
                if gap == 2 && !open.is_empty() {
                    let offset = *open.iter().nth(pick.index(open.len())).unwrap();
                    prop_assert!(cursor.finish(offset));
                    open.remove(&offset);
                } else {
                    next += gap;
                    prop_assert!(cursor.hand_out(next));
                    open.insert(next);
                    next += 1;
                }
                prop_assert_eq!(cursor.floor(), open.first().copied().unwrap_or(next));
                prop_assert_eq!(cursor.head(), next);
                prop_assert!(!cursor.hand_out(next - 1), "nothing is handed out twice");
                prop_assert_eq!(&Cursor::restore(cursor.head(), cursor.open()), &cursor);
            }
        }
    }
}

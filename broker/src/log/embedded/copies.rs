//! Where the copied records of one partition are: runs of offsets, each in one segment.

use std::collections::BTreeMap;
use tidemill_core::partition::Offset;

/// Which segment has which copied offsets of one partition. Of two copies the later one counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Copies {
    /// By first offset, without overlap.
    runs: BTreeMap<Offset, CopiedRun>,
}

/// Copied offsets that follow each other in one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CopiedRun {
    /// How many; at least one.
    pub(super) count: u64,
    /// Bytes of their frames. An estimate for a part of a run.
    pub(super) bytes: u64,
    /// Number of the segment.
    pub(super) segment: u64,
}

impl CopiedRun {
    /// The part with `count` of the records.
    fn part(self, count: u64) -> Self {
        Self { count, bytes: share(self.bytes, count, self.count), ..self }
    }
}

/// `part / whole` of `bytes`.
pub(super) fn share(bytes: u64, part: u64, whole: u64) -> u64 {
    let share = u128::from(bytes) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

impl Copies {
    /// Notes that the `run` begins at `first`, whatever was there before.
    pub(super) fn insert(&mut self, first: Offset, run: CopiedRun) {
        if run.count == 0 {
            return;
        }
        let end = first + run.count;
        let mut overlapped = Vec::new();
        for (begin, earlier) in self.runs.range(..end).rev() {
            if begin + earlier.count <= first {
                break;
            }
            overlapped.push((*begin, *earlier));
        }
        for (begin, earlier) in overlapped {
            self.runs.remove(&begin);
            if begin < first {
                self.runs.insert(begin, earlier.part(first - begin));
            }
            let rest = (begin + earlier.count).saturating_sub(end);
            if rest > 0 {
                self.runs.insert(end, earlier.part(rest));
            }
        }
        match self.runs.range_mut(..first).next_back() {
            Some((begin, before)) if begin + before.count == first && before.segment == run.segment => {
                before.count += run.count;
                before.bytes += run.bytes;
            }
            Some(_) | None => drop(self.runs.insert(first, run)),
        }
    }

    /// The segment that has `offset`.
    pub(super) fn segment_of(&self, offset: Offset) -> Option<u64> {
        let (first, run) = self.runs.range(..=offset).next_back()?;
        (offset < first + run.count).then_some(run.segment)
    }

    /// The first copied offset above `offset`.
    pub(super) fn next_above(&self, offset: Offset) -> Option<Offset> {
        self.runs.range(offset + 1..).next().map(|(first, _)| *first)
    }

    /// Forgets runs that are wholly below `floor`.
    pub(super) fn trim(&mut self, floor: Offset) {
        while let Some(first) = self.runs.first_entry()
            && first.key() + first.get().count <= floor
        {
            first.remove();
        }
    }

    /// The runs of `segment` at or above `floor` and below `below`, cut to that.
    pub(super) fn within(
        &self,
        floor: Offset,
        below: Offset,
    ) -> impl Iterator<Item = (Offset, CopiedRun)> + '_ {
        self.runs.range(..below).filter_map(move |(first, run)| {
            let begin = (*first).max(floor);
            let end = (first + run.count).min(below);
            (begin < end).then(|| (begin, run.part(end - begin)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_later_of_two_copies_counts(
            copies in proptest::collection::vec((0_u64..40, 1_u64..12, 1_u64..5), 0..30),
            floor in 0_u64..50,
        ) {
            let mut model = BTreeMap::new();
            let mut tested = Copies::default();
            for (first, count, segment) in copies {
                tested.insert(first, CopiedRun { count, bytes: count * 10, segment });
                model.extend((first..first + count).map(|offset| (offset, segment)));
            }

            for offset in 0..60 {
                prop_assert_eq!(tested.segment_of(offset), model.get(&offset).copied());
                if model.contains_key(&(offset + 1)) && !model.contains_key(&offset) {
                    prop_assert_eq!(tested.next_above(offset), Some(offset + 1));
                }
            }
            let live = model.range(floor.min(45)..45).count() as u64;
            let runs: Vec<_> = tested.within(floor, 45).collect();
            prop_assert_eq!(runs.iter().map(|(_, run)| run.count).sum::<u64>(), live);
            prop_assert_eq!(runs.iter().map(|(_, run)| run.bytes).sum::<u64>(), live * 10);
            tested.trim(floor);
            for offset in floor..60 {
                prop_assert_eq!(tested.segment_of(offset), model.get(&offset).copied());
            }
        }
    }
}

//! What was acknowledged and what arrived.

use std::collections::{BTreeMap, BTreeSet};

/// What one audit knows.
#[derive(Debug, Default)]
pub struct Ledger {
    acknowledged: BTreeMap<u32, BTreeSet<u64>>,
    received: BTreeMap<u32, Vec<u64>>,
}

/// The comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Publishes that were acknowledged.
    pub acknowledged: usize,
    /// Acknowledged publishes that never arrived, as `(publisher, sequence)`: losses.
    pub lost: Vec<(u32, u64)>,
    /// First arrivals that came after a later one of the same publisher.
    pub reordered: Vec<(u32, u64)>,
    /// Arrivals beyond the first: legal at QoS 1, reported.
    pub repeated: usize,
}

impl Ledger {
    /// A PUBACK came for `sequence`.
    pub fn record_acknowledged(&mut self, publisher: u32, sequence: u64) {
        self.acknowledged.entry(publisher).or_default().insert(sequence);
    }

    /// A message arrived.
    pub fn record_received(&mut self, publisher: u32, sequence: u64) {
        self.received.entry(publisher).or_default().push(sequence);
    }

    /// How many publishes were acknowledged.
    #[must_use]
    pub fn acknowledged(&self) -> usize {
        self.acknowledged.values().map(BTreeSet::len).sum()
    }

    /// How many messages arrived, repeats included.
    #[must_use]
    pub fn received(&self) -> usize {
        self.received.values().map(Vec::len).sum()
    }

    /// Whether everything acknowledged has arrived.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.verdict().lost.is_empty()
    }

    /// Compares.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let mut verdict = Verdict {
            acknowledged: self.acknowledged(),
            lost: Vec::new(),
            reordered: Vec::new(),
            repeated: 0,
        };
        for (publisher, acknowledged) in &self.acknowledged {
            let arrivals = self.received.get(publisher).map_or(&[][..], Vec::as_slice);
            let mut seen = BTreeSet::new();
            for sequence in arrivals {
                if !seen.insert(*sequence) {
                    verdict.repeated += 1;
                } else if seen.last() != Some(sequence) {
                    verdict.reordered.push((*publisher, *sequence));
                }
            }
            verdict.lost.extend(acknowledged.difference(&seen).map(|sequence| (*publisher, *sequence)));
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_auditor_finds_what_is_lost_repeated_and_reordered() {
        let mut ledger = Ledger::default();
        for sequence in 0..5 {
            ledger.record_acknowledged(7, sequence);
        }
        for sequence in [0, 2, 1, 1, 4] {
            ledger.record_received(7, sequence);
        }

        let verdict = ledger.verdict();

        assert_eq!(verdict.lost, [(7, 3)]);
        assert_eq!(verdict.reordered, [(7, 1)]);
        assert_eq!(verdict.repeated, 1);
        assert!(!ledger.is_complete());
    }
}

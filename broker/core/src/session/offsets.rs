//! Offsets of a session's queue that its host has seen.

use super::in_flight::SentFromQueue;
use crate::partition::Offset;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Done offsets remembered for re-attach. Older ones are forgotten: after a change of the owner they may be delivered
/// again.
pub const DONE_OFFSETS_MAX: usize = 1_024;

/// What became of each offset. An offset is in one of the three sets at most.
#[derive(Debug, Default)]
pub(super) struct Offsets {
    /// Handed over on this connection and not done, those that wait for room included.
    in_flight: BTreeSet<Offset>,
    /// Sent on a former connection; the owner is to deliver them again.
    expected: BTreeMap<Offset, SentFromQueue>,
    done: BTreeSet<Offset>,
    /// The order in which they were done, to forget the oldest.
    done_order: VecDeque<Offset>,
}

impl Offsets {
    pub(super) fn is_done(&self, offset: Offset) -> bool {
        self.done.contains(&offset)
    }

    /// False if it is in flight already.
    pub(super) fn begin(&mut self, offset: Offset) -> bool {
        self.in_flight.insert(offset)
    }

    pub(super) fn expect_again(&mut self, sent: SentFromQueue) {
        self.expected.insert(sent.offset, sent);
    }

    /// How it was sent on a former connection.
    pub(super) fn take_expected(&mut self, offset: Offset) -> Option<SentFromQueue> {
        self.expected.remove(&offset)
    }

    pub(super) fn finish(&mut self, offset: Offset) {
        self.in_flight.remove(&offset);
        if self.done.insert(offset) {
            self.done_order.push_back(offset);
        }
        if self.done_order.len() > DONE_OFFSETS_MAX
            && let Some(oldest) = self.done_order.pop_front()
        {
            self.done.remove(&oldest);
        }
    }

    pub(super) fn in_flight(&self) -> impl Iterator<Item = Offset> + '_ {
        self.in_flight.iter().copied()
    }

    pub(super) fn done(&self) -> impl Iterator<Item = Offset> + '_ {
        self.done.iter().copied()
    }

    /// What the owner has not delivered again.
    pub(super) fn into_expected(self) -> impl Iterator<Item = SentFromQueue> {
        self.expected.into_values()
    }
}

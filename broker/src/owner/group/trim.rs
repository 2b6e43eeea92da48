//! Letting the log forget what no queue needs, and only what the state says so durably.

use super::job::Job;
use super::partition_run::PartitionRun;
use super::{Group, Queues};
use crate::log::ReadError;
use std::time::Duration;
use tidemill_core::partition::{Offset, Partition};
use tokio::time::Instant;
use tracing::{debug, warn};

/// Records after which a partition is looked at.
const RECORDS: Offset = 10_000;

/// What is younger than an interval is not trimmed: an intent whose outcome is not stored yet is younger.
pub(super) struct TrimLag {
    /// The head an interval ago, or longer.
    settled: Offset,
    /// The head later, and when.
    next: (Instant, Offset),
}

impl TrimLag {
    pub(super) fn new(floor: Offset, head: Offset) -> Self {
        Self { settled: floor, next: (Instant::now(), head) }
    }

    fn pass(&mut self, head: Offset, interval: Duration) {
        let (at, next) = self.next;
        if at.elapsed() >= interval {
            self.settled = next;
            self.next = (Instant::now(), head);
        }
    }
}

impl PartitionRun {
    /// The trim floor to store with this commit, when the partition is due and the floor has moved. All cursors of the
    /// commit are at or above it: with it stored, it is their lower bound, so that idle queues need not be written.
    pub(super) fn take_trim_floor(&mut self) -> Option<Offset> {
        if !std::mem::take(&mut self.is_trim_due) {
            return None;
        }
        let floor = self.floor();
        (floor > self.owner.trim_floor).then(|| {
            self.owner.trim_floor = floor;
            floor
        })
    }

    /// Nothing below is needed: by no queue, and not to find out whether a QoS 2 publish that was under way when its
    /// host died is in the log.
    fn floor(&self) -> Offset {
        self.queues.floor().min(self.trim_lag.settled)
    }

    /// Looks at the floor from time to time; it costs a look at every queue. Also when nothing new is read:
    /// acknowledgements alone move it.
    fn is_trim_worth_it(&mut self, interval: Duration) -> bool {
        let (at, head) = self.trim_seen;
        if self.queues.head() - head >= RECORDS || at.elapsed() >= interval {
            self.trim_seen = (Instant::now(), self.queues.head());
            self.trim_lag.pass(self.queues.head(), interval);
            self.is_trim_due = self.floor() > self.owner.trim_floor;
        }
        self.is_trim_due
    }

    /// When that is next worth it; now or before, if it is.
    pub(super) fn next_trim_look(&self, interval: Duration) -> Instant {
        let (at, head) = self.trim_seen;
        let is_now = self.is_trim_due || self.queues.head() - head >= RECORDS;
        if is_now { at } else { at + interval }
    }
}

impl Group {
    /// Makes a commit due when a partition is to be trimmed.
    pub(super) fn plan_trims(&mut self) {
        let Queues::Loaded(partitions) = &mut self.queues else { return };
        for run in partitions.values_mut() {
            if !run.is_refused() && run.is_trim_worth_it(self.parts.trim_interval) {
                self.ledger.store_soon();
            }
        }
    }

    /// The floor is stored.
    pub(super) fn start_trim(&mut self, partition: Partition, floor: Offset) {
        let trimmed = self.parts.log.trim(partition, floor);
        self.jobs.push(async move { Job::Trimmed { partition, result: trimmed.await } });
    }

    /// The log was trimmed, or keeps more than it must until the next time.
    pub(super) fn handle_trimmed(&mut self, partition: Partition, result: Result<(), ReadError>) {
        match result {
            Ok(()) => debug!(partition = partition.0, "log trimmed"),
            Err(error) => warn!(partition = partition.0, %error, "log was not trimmed"),
        }
    }
}

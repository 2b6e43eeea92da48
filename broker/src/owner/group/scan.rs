//! Looking at all queues from time to time: what has waited too long, what receivers have too long, which are longest.

use super::partition_run::PartitionRun;
use super::{Group, Queues};
use crate::owner::metrics::{OwnerMetrics, TOP};
use tokio::time::Instant;
use tracing::warn;

impl PartitionRun {
    /// Tells the metrics, and the log of the broker, what became of messages since the last call.
    pub(super) fn tell(&mut self, metrics: &OwnerMetrics) {
        metrics.records_lost.inc_by(self.queues.take_lost());
        let drops = self.queues.take_drops();
        if !drops.is_empty() {
            metrics.count_drops(&drops);
        }
        let near_limit = i64::try_from(self.queues.near_limit_count()).unwrap_or(i64::MAX);
        if near_limit != self.near_limit {
            metrics.queues_near_limit.add(near_limit - self.near_limit);
            self.near_limit = near_limit;
        }
        let stopped = i64::try_from(self.catch_ups.stopped_count()).unwrap_or(i64::MAX);
        if stopped != self.stopped {
            metrics.queues_stopped.add(stopped - self.stopped);
            self.stopped = stopped;
        }
        for (queue, waiting) in self.queues.take_near_limit() {
            warn!(
                client_id = %queue.name,
                messages = waiting.messages,
                bytes = waiting.bytes,
                "queue has passed 4/5 of its limit"
            );
        }
        for (queue, reason) in self.queues.take_at_limit() {
            warn!(client_id = %queue.name, limit = reason.name(), "queue is at its limit; messages are given up");
        }
    }
}

impl Group {
    /// Looks at all queues of the partitions that were not looked at for a while.
    pub(super) fn scan_queues(&mut self) {
        let now_ms = self.parts.surroundings.now_ms();
        let rules = &self.parts.queues;
        let Queues::Loaded(partitions) = &mut self.queues else { return };
        let mut overdue = Vec::new();
        for run in partitions.values_mut().filter(|run| !run.is_refused()) {
            if run.scanned.elapsed() < self.parts.trim_interval {
                continue;
            }
            run.scanned = Instant::now();
            run.queues.give_up_old(now_ms);
            self.parts.metrics.set_largest(run.partition, run.queues.largest(TOP));
            overdue.push((run.partition, run.take_overdue(now_ms, rules.park_after)));
        }
        for (partition, overdue) in overdue {
            if !overdue.is_empty() {
                self.read_to_park(partition, overdue);
            }
        }
    }
}

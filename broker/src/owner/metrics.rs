//! What the owner counts.

use parking_lot::Mutex;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use std::collections::BTreeMap;
use std::sync::Arc;
use tidemill_core::partition::Partition;
use tidemill_core::queue::limits::{DropReason, Drops};

/// Queues that are shown by how much waits in them.
pub const TOP: usize = 10;

/// Counters and gauges of all groups of this broker. Cheap to clone.
#[derive(Debug, Clone)]
pub struct OwnerMetrics {
    /// Groups being served, loaded or not.
    pub groups: IntGauge,
    /// Partitions that are refused: their log or state does not fit, or is damaged.
    pub partitions_refused: IntGauge,
    /// Persistent sessions of the loaded groups.
    pub sessions: IntGauge,
    /// Clients attached, clean ones too.
    pub attached: IntGauge,
    /// Of these, those with persistent sessions.
    pub attached_sessions: IntGauge,
    /// Records read at the head of a partition.
    pub records_read: IntCounter,
    /// Records read behind the head, for single queues.
    pub records_read_behind: IntCounter,
    /// Messages handed to hosts.
    pub deliveries: IntCounter,
    /// Of these, those handed out again.
    pub redeliveries: IntCounter,
    /// Acknowledged messages that were not there when they had to be handed out, or that never came.
    pub records_lost: IntCounter,
    /// Records missing in the sequence of an origin, or out of it.
    pub sequence_faults: IntCounter,
    /// Messages that expired before they were handed out.
    pub expired_messages: IntCounter,
    /// Sessions that expired.
    pub expired_sessions: IntCounter,
    /// Commits of the state.
    pub commits: IntCounter,
    /// Commits with an unknown outcome, repeated.
    pub commits_unknown: IntCounter,
    /// Groups that ended because another owner has opened them.
    pub fenced: IntCounter,
    /// Connections that were replaced by newer ones.
    pub taken_over: IntCounter,
    /// Durable subscriptions refused because their gate was not passed.
    pub gates_closed: IntCounter,
    /// Messages that queues gave up, by reason.
    queue_drops: IntCounterVec,
    /// Queues beyond 4/5 of a bound.
    pub queues_near_limit: IntGauge,
    /// Queues that cannot go on because a record that they need is damaged.
    pub queues_stopped: IntGauge,
    /// Messages kept outside the log for silent receivers.
    pub parked_messages: IntCounter,
    /// Dead letters published.
    pub dead_letters: IntCounter,
    /// Messages that wait in the longest queues, by rank.
    top: IntGaugeVec,
    largest: Arc<Mutex<BTreeMap<Partition, Vec<u64>>>>,
}

impl OwnerMetrics {
    /// Makes the metrics and registers them.
    ///
    /// # Errors
    ///
    /// [`prometheus::Error`] when `registry` has one of them already: a mistake of the caller.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(format!("tidemill_owner_{name}_total"), help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(format!("tidemill_owner_{name}"), help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let plain = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let of_queues = |name: &str, help: &str| {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        Ok(Self {
            queue_drops: register_drops(registry)?,
            queues_near_limit: of_queues(
                "tidemill_queues_near_limit",
                "Queues beyond 4/5 of one of their bounds",
            )?,
            queues_stopped: of_queues(
                "tidemill_queues_stopped",
                "Queues that cannot go on because a record that they need is damaged",
            )?,
            parked_messages: plain(
                "tidemill_queue_parked_messages_total",
                "Messages kept outside the log for silent receivers",
            )?,
            dead_letters: plain("tidemill_queue_dead_letters_total", "Dead letters published")?,
            top: register_top(registry)?,
            largest: Arc::default(),
            groups: gauge("groups", "Partition groups being served")?,
            partitions_refused: gauge("refused_partitions", "Partitions whose log or state is refused")?,
            sessions: gauge("sessions", "Persistent sessions")?,
            attached: gauge("attached_clients", "Clients attached at this owner")?,
            attached_sessions: gauge(
                "attached_sessions",
                "Clients with persistent sessions attached at this owner",
            )?,
            records_read: counter("records_read", "Records read at the head of a partition")?,
            records_read_behind: counter(
                "records_read_behind",
                "Records read behind the head of a partition, for single queues",
            )?,
            deliveries: counter("deliveries", "Messages handed to hosts")?,
            redeliveries: counter("redeliveries", "Messages handed to hosts again")?,
            records_lost: counter("records_lost", "Messages that were not there when they were due")?,
            sequence_faults: counter(
                "sequence_faults",
                "Records missing in or out of their origin's sequence",
            )?,
            expired_messages: counter(
                "expired_messages",
                "Messages that expired before they were handed out",
            )?,
            expired_sessions: counter("expired_sessions", "Sessions that expired")?,
            commits: counter("commits", "Commits of the state")?,
            commits_unknown: counter("commits_unknown", "Commits with an unknown outcome, repeated")?,
            fenced: counter("fenced", "Groups that another owner has opened")?,
            taken_over: counter("taken_over", "Connections replaced by newer ones")?,
            gates_closed: counter("gates_closed", "Durable subscriptions whose routes were not confirmed")?,
        })
    }

    /// Counts what queues gave up.
    pub fn count_drops(&self, drops: &Drops) {
        for (reason, messages) in drops.iter().filter(|(_, messages)| *messages > 0) {
            if reason == DropReason::Expired {
                self.expired_messages.inc_by(messages);
            }
            self.queue_drops.with_label_values(&[reason.name()]).inc_by(messages);
        }
    }

    /// Messages that queues gave up for `reason`.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.queue_drops.with_label_values(&[reason.name()]).get()
    }

    /// The longest queues of a partition, at most [`TOP`] of them; none when it is not served here any more.
    pub fn set_largest(&self, partition: Partition, largest: Vec<u64>) {
        let mut all = self.largest.lock();
        if largest.is_empty() {
            all.remove(&partition);
        } else {
            all.insert(partition, largest);
        }
        let mut ranked: Vec<u64> = all.values().flatten().copied().collect();
        drop(all);
        ranked.sort_unstable_by(|one, other| other.cmp(one));
        ranked.resize(TOP, 0);
        for (index, messages) in ranked.into_iter().enumerate() {
            let rank = (index + 1).to_string();
            self.top.with_label_values(&[&rank]).set(i64::try_from(messages).unwrap_or(i64::MAX));
        }
    }
}

fn register_drops(registry: &Registry) -> Result<IntCounterVec, prometheus::Error> {
    let options = Opts::new("tidemill_queue_dropped_messages_total", "Messages that queues gave up");
    let drops = IntCounterVec::new(options, &["reason"])?;
    registry.register(Box::new(drops.clone()))?;
    for reason in DropReason::ALL {
        // There from the start: an alert sees the first one.
        drops.with_label_values(&[reason.name()]);
    }
    Ok(drops)
}

fn register_top(registry: &Registry) -> Result<IntGaugeVec, prometheus::Error> {
    let options = Opts::new("tidemill_queue_lag_messages_top", "Messages that wait in the longest queues");
    let top = IntGaugeVec::new(options, &["rank"])?;
    registry.register(Box::new(top.clone()))?;
    Ok(top)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_queues_of_all_partitions_are_ranked_and_those_of_one_that_is_gone_are_not() {
        let metrics = OwnerMetrics::register(&Registry::new()).unwrap();
        let top = || [1, 2, 3].map(|rank: u32| metrics.top.with_label_values(&[&rank.to_string()]).get());

        metrics.set_largest(Partition(0), vec![70, 10]);
        metrics.set_largest(Partition(1), vec![50]);
        assert_eq!(top(), [70, 50, 10]);

        metrics.set_largest(Partition(0), Vec::new());
        assert_eq!(top(), [50, 0, 0]);
    }
}

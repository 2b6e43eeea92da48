//! What the owner counts.

use prometheus::{IntCounter, IntGauge, Registry};

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
        Ok(Self {
            groups: gauge("groups", "Partition groups being served")?,
            partitions_refused: gauge("refused_partitions", "Partitions whose log or state is refused")?,
            sessions: gauge("sessions", "Persistent sessions")?,
            attached: gauge("attached_clients", "Clients attached at this owner")?,
            attached_sessions: gauge(
                "attached_sessions",
                "Clients with persistent sessions attached at this owner",
            )?,
            records_read: counter("records_read", "Records read at the head of a partition")?,
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
}

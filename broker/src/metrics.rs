//! What this broker counts, in the names that `/metrics` shows. Cheap to clone.

mod totals;

pub use totals::{SessionTotals, Totals};

use prometheus::{
    Encoder as _, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry, TextEncoder,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why a message did not reach a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropReason {
    /// A QoS 0 message for a client that is too slow.
    MailboxFull,
    /// A QoS > 0 message for a client that is too slow; the client was closed with 0x97.
    SlowClientClosed,
    /// Its message expiry had passed.
    Expired,
    /// Larger than the client accepts.
    LargerThanClientAccepts,
    /// Cannot be written in the client's version.
    Unrepresentable,
    /// From a queue, for a connection that is not there (any more).
    NoConnection,
    /// Not retained, because retained messages have reached their bound.
    RetainedFull,
    /// The oldest of what waited for the members of a shared subscription, to make room for newer ones.
    SharedBacklogFull,
    /// Of a shared subscription that has lost its last member.
    NoSharedMember,
    /// A QoS 2 message of a shared subscription, sent to a clean session whose connection ended before it was complete.
    SharedMemberLost,
}

impl DropReason {
    const ALL: [Self; 10] = [
        Self::MailboxFull,
        Self::SlowClientClosed,
        Self::Expired,
        Self::LargerThanClientAccepts,
        Self::Unrepresentable,
        Self::NoConnection,
        Self::RetainedFull,
        Self::SharedBacklogFull,
        Self::NoSharedMember,
        Self::SharedMemberLost,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::MailboxFull => "mailbox_full",
            Self::SlowClientClosed => "slow_client_closed",
            Self::Expired => "expired",
            Self::LargerThanClientAccepts => "larger_than_client_accepts",
            Self::Unrepresentable => "unrepresentable",
            Self::NoConnection => "no_connection",
            Self::RetainedFull => "retained_full",
            Self::SharedBacklogFull => "shared_backlog_full",
            Self::NoSharedMember => "no_shared_member",
            Self::SharedMemberLost => "shared_member_lost",
        }
    }
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClosedBy {
    /// DISCONNECT.
    Client,
    /// The socket failed or was closed.
    Network,
    /// The broker ended it.
    Broker,
}

/// All instruments and the registry they are in.
#[derive(Debug, Clone)]
pub struct Metrics(Arc<Instruments>);

#[derive(Debug)]
struct Instruments {
    registry: Registry,
    connections: IntGauge,
    /// Most connections at the same time.
    connections_peak: AtomicU64,
    connections_opened: IntCounter,
    connections_refused: IntCounter,
    connections_closed: [IntCounter; 3],
    received: [IntCounter; 3],
    received_bytes: IntCounter,
    sent: [IntCounter; 3],
    sent_bytes: IntCounter,
    packets_received: IntCounter,
    packets_sent: IntCounter,
    bytes_received: IntCounter,
    bytes_sent: IntCounter,
    drops: [IntCounter; DropReason::ALL.len()],
    publish_seconds: Histogram,
    appends: IntCounter,
    appends_failed: IntCounter,
    append_seconds: Histogram,
    forwards: IntCounter,
    forwarded_in: IntCounter,
    subscriptions: IntGauge,
    unknown_acks: IntCounter,
    retained: IntGauge,
    retained_bytes: IntGauge,
    retained_damaged: IntGauge,
    retained_no_room: IntGauge,
    retained_stores: IntCounter,
    redistributed: IntCounter,
}

/// 10 µs to 10 s.
const LATENCY_BUCKETS: [f64; 13] =
    [0.000_01, 0.000_03, 0.000_1, 0.000_3, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0];

impl Metrics {
    /// Registers every instrument.
    ///
    /// # Errors
    ///
    /// [`prometheus::Error`] if a name is taken twice: a fault of this module.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let by_qos = |name: &str, help: &str| -> Result<[IntCounter; 3], prometheus::Error> {
            let counters = counter_vec(&registry, name, help, "qos")?;
            Ok(["0", "1", "2"].map(|qos| counters.with_label_values(&[qos])))
        };
        let closed = counter_vec(&registry, "connections_closed_total", "Connections that ended", "by")?;
        let drops = counter_vec(
            &registry,
            "messages_dropped_total",
            "Messages that did not reach a receiver",
            "reason",
        )?;
        let instruments = Instruments {
            connections: gauge(&registry, "connections", "Connected clients")?,
            connections_peak: AtomicU64::new(0),
            connections_opened: counter(&registry, "connections_opened_total", "Connections accepted")?,
            connections_refused: counter(&registry, "connections_refused_total", "Connections refused")?,
            connections_closed: ["client", "network", "broker"].map(|by| closed.with_label_values(&[by])),
            received: by_qos("messages_received_total", "PUBLISH packets from clients")?,
            received_bytes: counter(&registry, "received_payload_bytes_total", "Payload from clients")?,
            sent: by_qos("messages_sent_total", "PUBLISH packets to clients")?,
            sent_bytes: counter(&registry, "sent_payload_bytes_total", "Payload to clients")?,
            packets_received: counter(&registry, "packets_received_total", "MQTT packets from clients")?,
            packets_sent: counter(&registry, "packets_sent_total", "MQTT packets to clients")?,
            bytes_received: counter(&registry, "bytes_received_total", "Bytes read from clients")?,
            bytes_sent: counter(&registry, "bytes_sent_total", "Bytes written to clients")?,
            drops: DropReason::ALL.map(|reason| drops.with_label_values(&[reason.label()])),
            publish_seconds: histogram(
                &registry,
                "publish_acknowledge_seconds",
                "From a QoS > 0 PUBLISH to its acknowledgement",
            )?,
            appends: counter(&registry, "log_appends_total", "Records handed to the log")?,
            appends_failed: counter(&registry, "log_appends_failed_total", "Records the log did not take")?,
            append_seconds: histogram(&registry, "log_append_seconds", "From an append to its commit")?,
            forwards: counter(&registry, "peer_forwards_total", "Messages forwarded to peers")?,
            forwarded_in: counter(&registry, "peer_forwards_received_total", "Messages forwarded by peers")?,
            subscriptions: gauge(&registry, "live_subscriptions", "Subscriptions served from memory")?,
            unknown_acks: counter(
                &registry,
                "unknown_acknowledgements_total",
                "Acknowledgements of packet ids that are not in use",
            )?,
            retained: gauge(&registry, "retained_messages", "Retained messages")?,
            retained_bytes: gauge(&registry, "retained_bytes", "Memory of retained messages")?,
            retained_damaged: gauge(&registry, "retained_damaged", "Stored, found damaged at start")?,
            retained_no_room: gauge(&registry, "retained_not_loaded", "Stored, no room for them at start")?,
            retained_stores: counter(
                &registry,
                "retained_stores_total",
                "Retained messages handed to the store",
            )?,
            redistributed: counter(
                &registry,
                "shared_redistributed_total",
                "Messages of shared subscriptions taken back from lost members for others",
            )?,
            registry,
        };
        Ok(Self(Arc::new(instruments)))
    }

    /// The registry, for other parts of the broker to add to.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.0.registry
    }

    /// The text that `/metrics` answers, with the process's own figures.
    ///
    /// # Errors
    ///
    /// [`prometheus::Error`] if an instrument is inconsistent.
    pub fn render(&self) -> Result<Vec<u8>, prometheus::Error> {
        let mut text = Vec::new();
        let mut families = self.0.registry.gather();
        families.extend(prometheus::gather());
        TextEncoder::new().encode(&families, &mut text)?;
        Ok(text)
    }

    /// A client connected.
    pub fn connection_opened(&self) {
        self.0.connections.inc();
        self.0.connections_peak.fetch_max(self.connections(), Ordering::Relaxed);
        self.0.connections_opened.inc();
    }

    /// A connection was refused: limit reached, bad CONNECT, no owner.
    pub fn connection_refused(&self) {
        self.0.connections_refused.inc();
    }

    /// A client's connection ended.
    pub fn connection_closed(&self, by: ClosedBy) {
        self.0.connections.dec();
        self.0.connections_closed[by as usize].inc();
    }

    #[cfg(test)]
    pub(crate) fn drops(&self, reason: DropReason) -> u64 {
        self.0.drops[reason as usize].get()
    }

    /// Clients connected now.
    #[must_use]
    pub fn connections(&self) -> u64 {
        u64::try_from(self.0.connections.get()).unwrap_or(0)
    }

    pub(crate) fn add_received(&self, by_qos: [u64; 3], bytes: u64) {
        add(&self.0.received, by_qos, &self.0.received_bytes, bytes);
    }

    pub(crate) fn add_sent(&self, by_qos: [u64; 3], bytes: u64) {
        add(&self.0.sent, by_qos, &self.0.sent_bytes, bytes);
    }

    /// So many messages did not reach a receiver.
    pub fn count_drops(&self, reason: DropReason, count: usize) {
        self.0.drops[reason as usize].inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }

    /// A member of a shared subscription was lost, and so many of its messages go to others.
    pub fn count_redistributed(&self, count: usize) {
        self.0.redistributed.inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }

    /// Packets and bytes came from a client.
    pub(crate) fn add_read(&self, packets: u64, bytes: usize) {
        self.0.packets_received.inc_by(packets);
        self.0.bytes_received.inc_by(u64::try_from(bytes).unwrap_or(u64::MAX));
    }

    /// Packets and bytes went to a client.
    pub(crate) fn add_written(&self, packets: u64, bytes: usize) {
        self.0.packets_sent.inc_by(packets);
        self.0.bytes_sent.inc_by(u64::try_from(bytes).unwrap_or(u64::MAX));
    }

    /// A message did not reach a receiver.
    pub fn count_drop(&self, reason: DropReason) {
        self.count_drops(reason, 1);
    }

    /// A publish was acknowledged after `micros`.
    pub fn observe_publish(&self, micros: u64) {
        self.0.publish_seconds.observe(seconds(micros));
    }

    /// A record was handed to the log.
    pub fn count_append(&self) {
        self.0.appends.inc();
    }

    /// An append ended after `micros`.
    pub fn observe_append(&self, is_committed: bool, micros: u64) {
        if is_committed {
            self.0.append_seconds.observe(seconds(micros));
        } else {
            self.0.appends_failed.inc();
        }
    }

    /// A message was forwarded to a peer.
    pub fn count_forward(&self) {
        self.0.forwards.inc();
    }

    /// A message came from a peer.
    pub fn count_forwarded_in(&self) {
        self.0.forwarded_in.inc();
    }

    /// Live subscriptions came (`+`) or went (`-`).
    pub fn add_subscriptions(&self, change: i64) {
        self.0.subscriptions.add(change);
    }

    /// How many stored messages are not served since the start: damaged ones, and those for which there was no room.
    pub fn set_retained_left(&self, damaged: u64, no_room: u64) {
        self.0.retained_damaged.set(i64::try_from(damaged).unwrap_or(i64::MAX));
        self.0.retained_no_room.set(i64::try_from(no_room).unwrap_or(i64::MAX));
    }

    /// A retained message, or that there is none any more, was handed to the store.
    pub fn count_retained_store(&self) {
        self.0.retained_stores.inc();
    }

    /// How many retained messages there are now, and their bytes.
    pub fn set_retained(&self, messages: usize, bytes: usize) {
        self.0.retained.set(i64::try_from(messages).unwrap_or(i64::MAX));
        self.0.retained_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// A client acknowledged a packet id that is not in use.
    pub fn count_unknown_ack(&self) {
        self.0.unknown_acks.inc();
    }
}

fn seconds(micros: u64) -> f64 {
    std::time::Duration::from_micros(micros).as_secs_f64()
}

fn add(counters: &[IntCounter; 3], by_qos: [u64; 3], byte_counter: &IntCounter, bytes: u64) {
    for (counter, count) in counters.iter().zip(by_qos) {
        if count > 0 {
            counter.inc_by(count);
        }
    }
    if bytes > 0 {
        byte_counter.inc_by(bytes);
    }
}

fn full_name(name: &str) -> String {
    format!("tidemill_{name}")
}

fn counter(registry: &Registry, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
    let counter = IntCounter::new(full_name(name), help)?;
    registry.register(Box::new(counter.clone()))?;
    Ok(counter)
}

fn counter_vec(
    registry: &Registry,
    name: &str,
    help: &str,
    label: &str,
) -> Result<IntCounterVec, prometheus::Error> {
    let counters = IntCounterVec::new(Opts::new(full_name(name), help), &[label])?;
    registry.register(Box::new(counters.clone()))?;
    Ok(counters)
}

fn gauge(registry: &Registry, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
    let gauge = IntGauge::new(full_name(name), help)?;
    registry.register(Box::new(gauge.clone()))?;
    Ok(gauge)
}

fn histogram(registry: &Registry, name: &str, help: &str) -> Result<Histogram, prometheus::Error> {
    let options = HistogramOpts::new(full_name(name), help).buckets(LATENCY_BUCKETS.to_vec());
    let histogram = Histogram::with_opts(options)?;
    registry.register(Box::new(histogram.clone()))?;
    Ok(histogram)
}

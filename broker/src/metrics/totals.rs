//! The figures of a broker at one moment, for those who publish them as messages.

use super::{DropReason, Metrics};
use prometheus::IntCounter;
use prometheus::proto::MetricFamily;
use std::sync::atomic::Ordering;

/// What was counted since the start of the broker, and what there is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Clients connected now.
    pub connections: u64,
    /// Most clients connected at the same time.
    pub connections_peak: u64,
    /// Clients let in.
    pub connections_opened: u64,
    /// MQTT packets from clients.
    pub packets_received: u64,
    /// MQTT packets to clients.
    pub packets_sent: u64,
    /// Bytes read from clients.
    pub bytes_received: u64,
    /// Bytes written to clients.
    pub bytes_sent: u64,
    /// PUBLISH packets from clients.
    pub messages_received: u64,
    /// PUBLISH packets to clients.
    pub messages_sent: u64,
    /// Messages not delivered because a client was too slow.
    pub messages_dropped: u64,
    /// Payload from clients.
    pub payload_bytes_received: u64,
    /// Payload to clients.
    pub payload_bytes_sent: u64,
    /// Subscriptions of connected clients.
    pub subscriptions: u64,
    /// Retained messages.
    pub retained: u64,
    /// Sessions that this broker owns; `None` while no owner counts them.
    pub sessions: Option<SessionTotals>,
}

/// The persistent sessions that one broker owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SessionTotals {
    /// All of them.
    pub all: u64,
    /// Those whose client is connected, here or elsewhere.
    pub attached: u64,
    /// Those that have expired since the start.
    pub expired: u64,
}

impl Metrics {
    /// Reads all of it. Not one moment for all figures; each is right by itself.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let instruments = &self.0;
        let sum = |counters: &[IntCounter]| counters.iter().map(IntCounter::get).sum();
        let dropped = |reason: DropReason| instruments.drops[reason as usize].get();
        Totals {
            connections: self.connections(),
            connections_peak: instruments.connections_peak.load(Ordering::Relaxed),
            connections_opened: instruments.connections_opened.get(),
            packets_received: instruments.packets_received.get(),
            packets_sent: instruments.packets_sent.get(),
            bytes_received: instruments.bytes_received.get(),
            bytes_sent: instruments.bytes_sent.get(),
            messages_received: sum(&instruments.received),
            messages_sent: sum(&instruments.sent),
            messages_dropped: dropped(DropReason::MailboxFull) + dropped(DropReason::SlowClientClosed),
            payload_bytes_received: instruments.received_bytes.get(),
            payload_bytes_sent: instruments.sent_bytes.get(),
            subscriptions: u64::try_from(instruments.subscriptions.get()).unwrap_or(0),
            retained: u64::try_from(instruments.retained.get()).unwrap_or(0),
            sessions: self.session_totals(),
        }
    }

    /// What the owner has added to the registry.
    fn session_totals(&self) -> Option<SessionTotals> {
        let families = self.0.registry.gather();
        Some(SessionTotals {
            all: value_of(&families, "tidemill_owner_sessions")?,
            attached: value_of(&families, "tidemill_owner_attached_sessions")?,
            expired: value_of(&families, "tidemill_owner_expired_sessions_total")?,
        })
    }
}

fn value_of(families: &[MetricFamily], name: &str) -> Option<u64> {
    let family = families.iter().find(|family| family.name() == name)?;
    let metric = family.get_metric().first()?;
    let value = metric.get_gauge().get_value().max(metric.get_counter().get_value());
    // A count is far below 2^53, so it is whole; a gauge may be below 0 for a moment.
    format!("{:.0}", value.max(0.0)).parse().ok()
}

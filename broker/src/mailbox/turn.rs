//! One turn: all packets of one read, one batch of deliveries, one completion. What it touched is written at its end.

use super::Mailbox;
use crate::metrics::Metrics;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tidemill_core::packet::QoS;

/// Mailboxes to write at the end, what to count, and the time when it began. Not `Send`: it belongs to one thread.
#[derive(Debug)]
pub struct Turn {
    dirty: Vec<Arc<Mailbox>>,
    metrics: Metrics,
    now_us: u64,
    now_ms: u64,
    received: [u64; 3],
    received_bytes: u64,
    packets: u64,
    read_bytes: usize,
    sent: [u64; 3],
    sent_bytes: u64,
    not_send: std::marker::PhantomData<*const ()>,
}

thread_local! {
    static SPARE: Cell<Vec<Arc<Mailbox>>> = const { Cell::new(Vec::new()) };
}

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Microseconds of a monotonic clock that began with the process.
pub(crate) fn monotonic_us() -> u64 {
    u64::try_from(START.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Milliseconds since the Unix epoch, for message expiry only.
pub(crate) fn unix_ms() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
}

impl Turn {
    /// Begins a turn now.
    #[must_use]
    pub fn begin(metrics: &Metrics) -> Self {
        Self {
            dirty: SPARE.take(),
            metrics: metrics.clone(),
            now_us: monotonic_us(),
            now_ms: unix_ms(),
            received: [0; 3],
            received_bytes: 0,
            packets: 0,
            read_bytes: 0,
            sent: [0; 3],
            sent_bytes: 0,
            not_send: std::marker::PhantomData,
        }
    }

    /// When it began, in microseconds of the process's monotonic clock.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        self.now_us
    }

    /// When it began, in milliseconds since the Unix epoch.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    pub(super) fn remember(&mut self, mailbox: Arc<Mailbox>) {
        self.dirty.push(mailbox);
    }

    /// Counts a PUBLISH that came in.
    pub fn count_received(&mut self, qos: QoS, bytes: usize) {
        self.received[usize::from(qos as u8)] += 1;
        self.received_bytes += u64::try_from(bytes).unwrap_or(u64::MAX);
    }

    /// Counts bytes that were read from a client.
    pub fn count_read(&mut self, bytes: usize) {
        self.read_bytes += bytes;
    }

    /// Counts a packet that came in.
    pub fn count_packet(&mut self) {
        self.packets += 1;
    }

    pub(super) fn count_sent(&mut self, qos: QoS, bytes: usize) {
        self.sent[usize::from(qos as u8)] += 1;
        self.sent_bytes += u64::try_from(bytes).unwrap_or(u64::MAX);
    }

    /// Writes every mailbox that was touched, once.
    pub fn finish(mut self) {
        for mailbox in self.dirty.drain(..) {
            mailbox.flush();
        }
        self.metrics.add_received(self.received, self.received_bytes);
        if self.read_bytes > 0 || self.packets > 0 {
            self.metrics.add_read(self.packets, self.read_bytes);
        }
        self.metrics.add_sent(self.sent, self.sent_bytes);
        if self.dirty.capacity() <= 4_096 {
            SPARE.set(std::mem::take(&mut self.dirty));
        }
    }
}

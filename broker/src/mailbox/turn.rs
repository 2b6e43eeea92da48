//! One turn: all packets of one read, one batch of deliveries, one completion. What it touched is written at its end, or
//! at the end of the round: when the thread has served every connection that had something to read. A subscriber of many
//! publishers is then written to once for all of them.

use super::Mailbox;
use crate::metrics::Metrics;
use std::cell::{Cell, OnceCell, RefCell};
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
    /// Only once it is asked for.
    now_ms: OnceCell<u64>,
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
    /// What the turns of this round touched; `None` on threads that have no rounds.
    static ROUND: RefCell<Option<Round>> = const { RefCell::new(None) };
}

/// A thread that never rests writes after so many turns,
const ROUND_TURNS_MAX: usize = 16;
/// and after so many payload bytes: what waits in one mailbox stays far below its bound.
const ROUND_BYTES_MAX: u64 = 32 * 1024;

#[derive(Debug, Default)]
struct Round {
    dirty: Vec<Arc<Mailbox>>,
    turns: usize,
    sent_bytes: u64,
}

/// This thread has rounds: it calls [`finish_round`] before it rests.
pub fn begin_rounds() {
    ROUND.set(Some(Round::default()));
}

/// Writes every mailbox that the turns of this round touched, once. Without rounds it does nothing.
pub fn finish_round() {
    // Not borrowed while it writes.
    let dirty = ROUND.with_borrow_mut(|round| {
        round.as_mut().map(|round| {
            (round.turns, round.sent_bytes) = (0, 0);
            std::mem::take(&mut round.dirty)
        })
    });
    let Some(mut dirty) = dirty else { return };
    for mailbox in dirty.drain(..) {
        mailbox.flush();
    }
    ROUND.with_borrow_mut(|round| {
        if let Some(round) = round
            && dirty.capacity() <= SPARE_CAPACITY_MAX
        {
            round.dirty = dirty;
        }
    });
}

/// Longer lists of mailboxes are not kept for the next turn.
const SPARE_CAPACITY_MAX: usize = 4_096;

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
            now_ms: OnceCell::new(),
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

    /// When it began, in milliseconds since the Unix epoch; the same at every call.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        *self.now_ms.get_or_init(unix_ms)
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

    /// Leaves what was touched to the end of the round; where there are no rounds, as [`Turn::finish`].
    pub fn finish_with_round(mut self) {
        let is_over = ROUND.with_borrow_mut(|round| {
            let round = round.as_mut()?;
            round.dirty.append(&mut self.dirty);
            round.turns += 1;
            round.sent_bytes += self.sent_bytes;
            Some(round.turns >= ROUND_TURNS_MAX || round.sent_bytes >= ROUND_BYTES_MAX)
        });
        if is_over == Some(true) {
            finish_round();
        }
        self.finish();
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
        if self.dirty.capacity() <= SPARE_CAPACITY_MAX {
            SPARE.set(std::mem::take(&mut self.dirty));
        }
    }
}

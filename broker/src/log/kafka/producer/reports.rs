//! What Kafka says about appends, and the signals that follow for the pump.

use crate::log::congestion::Congestion;
use crate::log::kafka::clients::Context;
use crate::log::{AppendDone, AppendError};
use parking_lot::{Condvar, Mutex};
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message;
use rdkafka::producer::{DeliveryResult, ProducerContext};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tidemill_core::partition::Partition;

/// Pause before the pump tries again what the client did not take.
const PUMP_PAUSE: Duration = Duration::from_millis(10);

/// What is known of an append while Kafka has it.
pub(super) struct Pending {
    pub(super) partition: Partition,
    pub(super) bytes: usize,
    pub(super) done: AppendDone,
}

/// Whether appends are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Open,
    /// No; what was taken may still be committed.
    Closing,
    /// All handles are gone.
    Ended,
}

/// What callers and delivery reports tell the pump. Apart from the lanes, so that a producer does not own itself.
pub(super) struct Reports {
    pub(super) congestion: Congestion,
    overflowing: AtomicUsize,
    signals: Mutex<Signals>,
    wake: Condvar,
}

struct Signals {
    phase: Phase,
    failure: Option<Failure>,
    /// The newest producer that failed.
    failed: u32,
    answers: Vec<(AppendDone, AppendError)>,
}

/// A producer must be replaced.
pub(super) struct Failure {
    pub(super) number: u32,
    pub(super) reason: String,
}

/// What the pump does next.
pub(super) struct Work {
    pub(super) phase: Phase,
    pub(super) failure: Option<Failure>,
    pub(super) answers: Vec<(AppendDone, AppendError)>,
}

impl Reports {
    pub(super) fn new() -> Self {
        let signals = Signals { phase: Phase::Open, failure: None, failed: 0, answers: Vec::new() };
        Self {
            congestion: Congestion::new(),
            overflowing: AtomicUsize::new(0),
            signals: Mutex::new(signals),
            wake: Condvar::new(),
        }
    }

    pub(super) fn phase(&self) -> Phase {
        self.signals.lock().phase
    }

    pub(super) fn advance(&self, phase: Phase) {
        let mut signals = self.signals.lock();
        signals.phase = signals.phase.max(phase);
        self.wake.notify_one();
    }

    /// Has the pump call `done`.
    pub(super) fn answer(&self, done: AppendDone, error: AppendError) {
        self.signals.lock().answers.push((done, error));
        self.wake.notify_one();
    }

    /// One more record waits for room in the client.
    pub(super) fn overflowed(&self) {
        let _signals = self.signals.lock();
        self.overflowing.fetch_add(1, Ordering::Relaxed);
        self.wake.notify_one();
    }

    /// `records` were taken from the overflow.
    pub(super) fn drained(&self, records: usize) {
        self.overflowing.fetch_sub(records, Ordering::Relaxed);
    }

    /// Has the producer `number` replaced. Only its first failure counts.
    pub(super) fn fail(&self, number: u32, reason: &str) {
        let mut signals = self.signals.lock();
        if signals.failed < number {
            tracing::error!(producer = number, reason, "producer of the log failed; starting the next one");
            signals.failed = number;
            signals.failure = Some(Failure { number, reason: reason.to_owned() });
            self.wake.notify_one();
        }
    }

    /// Waits for work. While records wait for room it looks after them now and then; `seen` is the phase that the pump
    /// has already dealt with.
    pub(super) fn next_work(&self, seen: Phase) -> Work {
        let mut signals = self.signals.lock();
        let idle = |signals: &Signals| {
            signals.answers.is_empty() && signals.failure.is_none() && signals.phase == seen
        };
        if idle(&signals) && self.overflowing.load(Ordering::Relaxed) > 0 {
            self.wake.wait_for(&mut signals, PUMP_PAUSE);
        } else {
            while idle(&signals) && self.overflowing.load(Ordering::Relaxed) == 0 {
                self.wake.wait(&mut signals);
            }
        }
        Work {
            phase: signals.phase,
            failure: signals.failure.take(),
            answers: std::mem::take(&mut signals.answers),
        }
    }
}

/// The context of one producer: gets its delivery reports, on its polling thread.
pub(super) struct Deliveries {
    number: u32,
    reports: Arc<Reports>,
}

impl Deliveries {
    pub(super) fn new(number: u32, reports: Arc<Reports>) -> Self {
        Self { number, reports }
    }

    fn judge(&self, error: &KafkaError, pending: &Pending) -> AppendError {
        let reason = error.to_string();
        if self.reports.phase() != Phase::Open {
            AppendError::Closed
        } else if error.rdkafka_error_code() == Some(RDKafkaErrorCode::MessageSizeTooLarge) {
            AppendError::Refused { partition: pending.partition.0, bytes: pending.bytes, reason }
        } else {
            // A later record may be stored although this one is not, so this producer must not go on.
            self.reports.fail(self.number, &reason);
            AppendError::ProducerFailed { reason }
        }
    }
}

impl ClientContext for Deliveries {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        Context.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::Fatal) {
            self.reports.fail(self.number, reason);
        } else {
            Context.error(error, reason);
        }
    }
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = Box<Mutex<Pending>>;

    fn delivery(&self, result: &DeliveryResult<'_>, pending: Box<Mutex<Pending>>) {
        let pending = pending.into_inner();
        let answer = match result {
            Ok(message) => u64::try_from(message.offset()).map_err(|_| AppendError::ProducerFailed {
                reason: "the record was stored, but Kafka does not say where".to_owned(),
            }),
            Err((error, _)) => Err(self.judge(error, &pending)),
        };
        self.reports.congestion.remove(1, pending.bytes);
        (pending.done)(answer);
    }
}

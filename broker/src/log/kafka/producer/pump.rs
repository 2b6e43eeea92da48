//! The thread that moves what waits and replaces producers.

use super::reports::{Failure, Phase};
use super::{Generation, Shared};
use crate::log::AppendError;
use rdkafka::producer::{Producer as _, PurgeConfig};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a closing log waits for what was taken.
const CLOSE_MAX: Duration = Duration::from_secs(10);
/// Pause between two looks at what is in flight while closing.
const FLUSH_PAUSE: Duration = Duration::from_millis(5);
/// Pause before another try to make a producer.
const REPLACE_PAUSE: Duration = Duration::from_secs(1);

impl Shared {
    /// Runs until the handle is gone.
    pub(super) fn run_pump(&self) {
        let mut seen = Phase::Open;
        while seen != Phase::Ended {
            let work = self.reports.next_work(seen);
            for (done, error) in work.answers {
                done(Err(error));
            }
            if let Some(failure) = work.failure {
                self.replace_producer(&failure);
            }
            self.pump_overflow();
            if work.phase != seen {
                if seen == Phase::Open {
                    self.flush(if work.phase == Phase::Ended { Duration::ZERO } else { CLOSE_MAX });
                    self.closed.send_replace(true);
                }
                seen = work.phase;
            }
        }
    }

    /// Hands the client what it takes, in order.
    fn pump_overflow(&self) {
        for lane in &self.lanes {
            let mut lane = lane.lock();
            while let Some(waiting) = lane.overflow.pop_front() {
                if let Some(waiting) = self.send(&lane.generation, waiting) {
                    lane.overflow.push_front(waiting);
                    break;
                }
                self.reports.drained(1);
            }
        }
    }

    /// Starts the next producer number and answers everything that the failed one was given.
    fn replace_producer(&self, failure: &Failure) {
        let Some(next) = self.next_generation(failure.number + 1) else { return };
        let mut lanes: Vec<_> = self.lanes.iter().map(parking_lot::Mutex::lock).collect();
        let mut waiting = Vec::new();
        let mut failed = None;
        for lane in &mut lanes {
            lane.sequence = 0;
            failed = Some(std::mem::replace(&mut lane.generation, Arc::clone(&next)));
            waiting.extend(lane.overflow.drain(..));
        }
        drop(lanes);
        self.reports.drained(waiting.len());
        for waiting in waiting {
            self.reports.congestion.remove(1, waiting.pending.bytes);
            let error = AppendError::ProducerFailed { reason: failure.reason.clone() };
            (waiting.pending.done)(Err(error));
        }
        if let Some(failed) = failed {
            // Dropping it waits for the reports that the purge brings.
            failed.producer.purge(PurgeConfig::default().queue().inflight());
        }
    }

    /// Makes a producer, again and again until the log is closed: without one nothing can be answered better.
    fn next_generation(&self, number: u32) -> Option<Arc<Generation>> {
        loop {
            match Generation::start(&self.settings, number, &self.reports) {
                Ok(generation) => return Some(Arc::new(generation)),
                Err(error) => tracing::error!(%error, "no new producer of the log"),
            }
            if self.reports.phase() != Phase::Open {
                return None;
            }
            std::thread::sleep(REPLACE_PAUSE);
        }
    }

    /// Waits until everything is answered, at most for `limit`; the rest is given up.
    fn flush(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        while !self.reports.congestion.is_empty() && Instant::now() < deadline {
            self.pump_overflow();
            std::thread::sleep(FLUSH_PAUSE);
        }
        for lane in &self.lanes {
            let mut lane = lane.lock();
            let waiting: Vec<_> = lane.overflow.drain(..).collect();
            let generation = Arc::clone(&lane.generation);
            drop(lane);
            self.reports.drained(waiting.len());
            for waiting in waiting {
                self.reports.congestion.remove(1, waiting.pending.bytes);
                (waiting.pending.done)(Err(AppendError::Closed));
            }
            generation.producer.purge(PurgeConfig::default().queue().inflight());
        }
    }
}

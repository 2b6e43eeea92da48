//! When a group looks at its deadlines. One that has none soon sleeps: an idle broker has many groups.

use super::partition_run::PartitionRun;
use super::{Group, Queues};
use std::pin::Pin;
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// How often deadlines are looked at, at most, and while something may be due at any moment.
const TICK: Duration = Duration::from_millis(250);
/// How often they are looked at without any.
const IDLE: Duration = Duration::from_secs(60);

/// Wakes the task of a group for its next look.
pub(super) struct Alarm {
    last: Option<Instant>,
    sleep: Pin<Box<Sleep>>,
}

impl Alarm {
    /// Rings at once for the first time.
    pub(super) fn new() -> Self {
        Self { last: None, sleep: Box::pin(sleep_until(Instant::now())) }
    }

    /// Completes when it is time to look. Cancel-safe.
    pub(super) async fn ring(&mut self) {
        self.sleep.as_mut().await;
        let now = Instant::now();
        self.last = Some(now);
        self.sleep.as_mut().reset(now + IDLE);
    }

    /// Rings at `at`, or [`TICK`] after it rang last if that is later. It never rings later than it was set to before: a
    /// look for nothing is cheaper than setting the timer for every message.
    pub(super) fn set(&mut self, at: Instant) {
        let at = self.last.map_or(at, |last| at.max(last + TICK));
        if at < self.sleep.deadline() {
            self.sleep.as_mut().reset(at);
        }
    }
}

impl PartitionRun {
    /// When [`Group::handle_tick`] next has something to do for the partition; past or now, if it may at any moment.
    fn next_look(&mut self, (now, now_ms): (Instant, u64), interval: Duration) -> Instant {
        // Queues behind the head may have to wait until they may have more.
        if self.queues.next_lagging(None).is_some() {
            return now;
        }
        let next = self.next_trim_look(interval).min(self.scanned + interval);
        let expiry = self.deadlines.first().map(|(at, _)| Duration::from_millis(at.saturating_sub(now_ms)));
        // By the clock of the system, which may jump: then the next scan finds it.
        expiry.map_or(next, |left| next.min(now + left.min(interval)))
    }
}

impl Group {
    /// When the deadlines of the group must be looked at again.
    pub(super) fn next_look(&mut self) -> Instant {
        let now = Instant::now();
        // A broker that is valid for good has no other beside it. Else validity may end, and with it another host.
        let is_alone = self.parts.validity.is_for_good();
        if !is_alone || self.reattachment.is_open() || !self.waiting.is_empty() {
            return now;
        }
        let Queues::Loaded(partitions) = &mut self.queues else { return now + IDLE };
        let now_ms = self.parts.surroundings.now_ms();
        let mut next = self.ledger.due_at().unwrap_or(now + IDLE);
        for run in partitions.values_mut().filter(|run| !run.is_refused()) {
            next = next.min(run.next_look((now, now_ms), self.parts.trim_interval));
        }
        next
    }
}

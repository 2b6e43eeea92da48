//! When a log has more waiting than it likes.

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::watch;

/// Waiting appends above which a log is congested.
pub(super) const RECORDS_HIGH: usize = 16_384;
/// Waiting bytes above which a log is congested.
pub(super) const BYTES_HIGH: usize = 32 << 20;

/// Counts what is waiting. Congested above a high mark or while stalled, relieved below half of it.
pub(super) struct Congestion {
    load: Mutex<Load>,
    congested: watch::Sender<bool>,
}

#[derive(Default)]
struct Load {
    records: usize,
    bytes: usize,
    stalled: bool,
    congested: bool,
}

impl Load {
    /// Applies the marks; tells whether the answer changed.
    fn judge(&mut self) -> bool {
        let above = |share: usize| {
            self.records > RECORDS_HIGH / share || self.bytes > BYTES_HIGH / share || self.stalled
        };
        let congested = if self.congested { above(2) } else { above(1) };
        let changed = congested != self.congested;
        self.congested = congested;
        changed
    }
}

impl Congestion {
    pub(super) fn new() -> Self {
        Self { load: Mutex::default(), congested: watch::Sender::new(false) }
    }

    /// One more append of `bytes` waits.
    pub(super) fn add(&self, bytes: usize) {
        self.change(|load| {
            load.records += 1;
            load.bytes += bytes;
        });
    }

    /// `records` appends of `bytes` together were answered.
    pub(super) fn remove(&self, records: usize, bytes: usize) {
        self.change(|load| {
            debug_assert!(load.records >= records && load.bytes >= bytes, "nothing is answered twice");
            load.records = load.records.saturating_sub(records);
            load.bytes = load.bytes.saturating_sub(bytes);
        });
    }

    /// The storage takes nothing for now (disk full): congested whatever the load.
    pub(super) fn stall(&self) {
        self.change(|load| load.stalled = true);
    }

    /// The storage takes records again.
    pub(super) fn unstall(&self) {
        self.change(|load| load.stalled = false);
    }

    pub(super) fn is_congested(&self) -> bool {
        self.load.lock().congested
    }

    /// Whether every append was answered.
    pub(super) fn is_empty(&self) -> bool {
        self.load.lock().records == 0
    }

    /// Completes when nothing is congested, also when the log has ended.
    pub(super) fn relieved(&self) -> BoxFuture<'static, ()> {
        let mut congested = self.congested.subscribe();
        Box::pin(async move {
            // An error means that the log is gone: whoever waits must go on and meet its answer.
            let _ = congested.wait_for(|congested| !congested).await;
        })
    }

    fn change(&self, change: impl FnOnce(&mut Load)) {
        let mut load = self.load.lock();
        change(&mut load);
        if load.judge() {
            // Under the lock, so that two changes are told in their order.
            self.congested.send_replace(load.congested);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn a_log_is_congested_above_the_high_mark_until_half_of_it() {
        let congestion = Congestion::new();
        for _ in 0..RECORDS_HIGH {
            congestion.add(1);
        }
        assert!(!congestion.is_congested());

        congestion.add(1);
        assert!(congestion.is_congested());
        let relieved = congestion.relieved();
        congestion.remove(RECORDS_HIGH / 2, RECORDS_HIGH / 2);
        assert!(congestion.is_congested(), "half a mark of distance");
        congestion.remove(1, 1);

        assert!(!congestion.is_congested());
        assert!(relieved.now_or_never().is_some());
    }

    #[test]
    fn a_stalled_log_is_congested_without_load() {
        let congestion = Congestion::new();

        congestion.stall();
        assert!(congestion.is_congested());
        congestion.unstall();

        assert!(!congestion.is_congested());
    }
}

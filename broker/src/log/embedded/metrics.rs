//! What the embedded log counts.

use prometheus::core::Collector;
use prometheus::{IntCounter, IntGauge, Registry};

/// Gauges and counters of one embedded log. Cheap to clone. They count before they are registered.
#[derive(Debug, Clone)]
pub struct EmbeddedMetrics {
    /// Bytes of all segments.
    pub(super) bytes: IntGauge,
    /// Of these, bytes of records at or above the floors of their partitions.
    pub(super) live_bytes: IntGauge,
    /// 1 while appends wait for space.
    pub(super) waits_for_space: IntGauge,
    /// 1 while the state waits for space.
    pub(super) state_waits_for_space: IntGauge,
    /// 1 while changes of retained messages wait for space.
    pub(super) retained_waits_for_space: IntGauge,
    /// Bytes of the records that were appended.
    pub(super) record_bytes: IntCounter,
    /// Bytes that were written for them: segments with copies and headers, and indexes.
    pub(super) written_bytes: IntCounter,
    /// Of these, bytes of records that were copied so that old segments could go.
    pub(super) copied_bytes: IntCounter,
    /// Syncs of segments.
    pub(super) syncs: IntCounter,
    /// Offsets that were given up because their records were lost with the power.
    pub(super) lost_offsets: IntCounter,
}

impl EmbeddedMetrics {
    pub(super) fn new() -> Self {
        let gauge = |name: &str, help: &str| {
            IntGauge::new(format!("tidemill_{name}"), help).expect("the name is a metric's")
        };
        let counter = |name: &str, help: &str| {
            IntCounter::new(format!("tidemill_{name}_total"), help).expect("the name is a metric's")
        };
        Self {
            bytes: gauge("log_bytes", "Bytes of the embedded log"),
            live_bytes: gauge("log_live_bytes", "Bytes of the embedded log that some queue may still need"),
            waits_for_space: gauge("log_waits_for_space", "1 while appends wait for space on the disk"),
            state_waits_for_space: gauge(
                "state_waits_for_space",
                "1 while the state waits for space on the disk",
            ),
            retained_waits_for_space: gauge(
                "retained_waits_for_space",
                "1 while changes of retained messages wait for space on the disk",
            ),
            record_bytes: counter("log_record_bytes", "Bytes of the records that were appended"),
            written_bytes: counter("log_written_bytes", "Bytes written to the embedded log"),
            copied_bytes: counter(
                "log_copied_bytes",
                "Bytes of records copied within the embedded log so that old segments could go",
            ),
            syncs: counter("log_syncs", "Syncs of the embedded log"),
            lost_offsets: counter(
                "log_lost_offsets",
                "Offsets given up because the log ended below what its state knows",
            ),
        }
    }

    /// Shows them in `registry`.
    ///
    /// # Errors
    ///
    /// [`prometheus::Error`] when `registry` has one of them already: a mistake of the caller.
    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        let collectors: [Box<dyn Collector>; 10] = [
            Box::new(self.bytes.clone()),
            Box::new(self.live_bytes.clone()),
            Box::new(self.waits_for_space.clone()),
            Box::new(self.state_waits_for_space.clone()),
            Box::new(self.retained_waits_for_space.clone()),
            Box::new(self.record_bytes.clone()),
            Box::new(self.written_bytes.clone()),
            Box::new(self.copied_bytes.clone()),
            Box::new(self.syncs.clone()),
            Box::new(self.lost_offsets.clone()),
        ];
        collectors.into_iter().try_for_each(|collector| registry.register(collector))
    }
}

/// As a gauge shows it.
pub(super) fn gauged(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

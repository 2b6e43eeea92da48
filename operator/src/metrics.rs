//! What the operator counts. One registry per process.

use prometheus::{
    Encoder, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder,
    process_collector::ProcessCollector,
};

/// How a pass ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All of it was done.
    Done,
    /// The spec was refused.
    Refused,
    /// Something failed; the pass is repeated.
    Failed,
    /// It took too long and was given up; the pass is repeated.
    TimedOut,
    /// The resource could not be read as an `MqttCluster`.
    Unreadable,
}

impl Outcome {
    fn label(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Unreadable => "unreadable",
        }
    }
}

/// The operator's metrics.
pub struct Metrics {
    registry: Registry,
    passes: IntCounterVec,
    pass_seconds: HistogramVec,
    ready: IntGaugeVec,
    certificate_expiry: IntGaugeVec,
    watch_errors: IntCounterVec,
}

impl Metrics {
    /// Registers everything, and the figures of the process.
    ///
    /// # Errors
    ///
    /// [`prometheus::Error`] when two metrics have one name; a defect.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let passes = IntCounterVec::new(
            Opts::new("tidemill_operator_reconciles_total", "Passes over clusters by outcome."),
            &["outcome"],
        )?;
        let pass_seconds = HistogramVec::new(
            HistogramOpts::new("tidemill_operator_reconcile_seconds", "Time of one pass over a cluster."),
            &["outcome"],
        )?;
        let cluster = ["namespace", "cluster"];
        let ready = IntGaugeVec::new(
            Opts::new("tidemill_operator_cluster_ready", "1 when the cluster's condition Ready is true."),
            &cluster,
        )?;
        let certificate_expiry = IntGaugeVec::new(
            Opts::new(
                "tidemill_operator_peer_certificate_expiry_timestamp_seconds",
                "When the first peer certificate of the cluster ends.",
            ),
            &cluster,
        )?;
        let watch_errors = IntCounterVec::new(
            Opts::new("tidemill_operator_watch_errors_total", "Errors of watches, which are then repeated."),
            &["kind"],
        )?;
        registry.register(Box::new(passes.clone()))?;
        registry.register(Box::new(pass_seconds.clone()))?;
        registry.register(Box::new(ready.clone()))?;
        registry.register(Box::new(certificate_expiry.clone()))?;
        registry.register(Box::new(watch_errors.clone()))?;
        registry.register(Box::new(ProcessCollector::for_self()))?;
        Ok(Self { registry, passes, pass_seconds, ready, certificate_expiry, watch_errors })
    }

    /// Counts one pass.
    pub fn count_pass(&self, outcome: Outcome, seconds: f64) {
        self.passes.with_label_values(&[outcome.label()]).inc();
        self.pass_seconds.with_label_values(&[outcome.label()]).observe(seconds);
    }

    /// Tells whether a cluster is ready.
    pub fn set_ready(&self, namespace: &str, cluster: &str, ready: bool) {
        self.ready.with_label_values(&[namespace, cluster]).set(i64::from(ready));
    }

    /// Tells when the first peer certificate of a cluster ends, in seconds since 1970.
    pub fn set_certificate_expiry(&self, namespace: &str, cluster: &str, seconds: i64) {
        self.certificate_expiry.with_label_values(&[namespace, cluster]).set(seconds);
    }

    /// Counts one error of the watch on `kind`.
    pub fn count_watch_error(&self, kind: &str) {
        self.watch_errors.with_label_values(&[kind]).inc();
    }

    /// Forgets a cluster that is gone.
    pub fn forget(&self, namespace: &str, cluster: &str) {
        // An error means that it was never told, which is as good.
        let _ = self.ready.remove_label_values(&[namespace, cluster]);
        let _ = self.certificate_expiry.remove_label_values(&[namespace, cluster]);
    }

    /// Everything in the text format.
    ///
    /// # Errors
    ///
    /// [`prometheus::Error`] when a metric cannot be written; a defect.
    pub fn text(&self) -> Result<String, prometheus::Error> {
        let mut bytes = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_are_counted_by_outcome_and_forgotten_clusters_vanish() {
        let metrics = Metrics::new().unwrap();
        metrics.count_pass(Outcome::Done, 0.1);
        metrics.set_ready("messaging", "demo", true);
        assert!(metrics.text().unwrap().contains("cluster=\"demo\""));

        metrics.forget("messaging", "demo");

        let text = metrics.text().unwrap();
        assert!(text.contains("tidemill_operator_reconciles_total{outcome=\"done\"} 1"), "{text}");
        assert!(!text.contains("cluster=\"demo\""), "{text}");
    }
}

//! What the cluster has counted, as metrics.

use crate::cluster::node::ClusterNode;
use prometheus::Registry;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, Metric, MetricFamily, MetricType};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Reads one of the node's counts.
type Read = fn(&ClusterNode) -> &AtomicU64;

/// Name, meaning and place of each count. The registry adds its prefix only to its own kinds of metrics.
const COUNTS: [(&str, &str, Read); 6] = [
    (
        "tidemill_live_gate_timeouts_total",
        "Live SUBACKs that did not wait for a slow peer any longer.",
        |node| &node.exchange().counts().live_timeouts,
    ),
    (
        "tidemill_durable_gates_closed_total",
        "Durable SUBACKs that failed because a member did not confirm.",
        |node| &node.exchange().counts().durable_closed,
    ),
    (
        "tidemill_route_divergences_total",
        "Snapshots of routes asked for because a digest did not fit.",
        |node| &node.exchange().counts().divergences,
    ),
    ("tidemill_forwards_shed_total", "QoS 0 messages dropped because a link was crowded or down.", |node| {
        &node.forwards().counts().shed
    }),
    (
        "tidemill_forwards_given_up_total",
        "QoS > 0 messages acknowledged although a peer did not take them.",
        |node| &node.forwards().counts().given_up,
    ),
    ("tidemill_forward_gaps_total", "Gaps found in what peers forwarded.", |node| {
        &node.forwards().counts().gaps
    }),
];

struct Counts {
    node: Arc<ClusterNode>,
    descriptions: Vec<Desc>,
}

/// Shows the counts of `node` in `registry`.
pub(super) fn register(registry: &Registry, node: &Arc<ClusterNode>) -> Result<(), prometheus::Error> {
    let describe = |(name, help, _): &(&str, &str, Read)| {
        Desc::new((*name).to_owned(), (*help).to_owned(), Vec::new(), HashMap::new())
    };
    let descriptions = COUNTS.iter().map(describe).collect::<Result<_, _>>()?;
    registry.register(Box::new(Counts { node: Arc::clone(node), descriptions }))
}

impl Collector for Counts {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let family = |(name, help, read): &(&str, &str, Read)| {
            let mut counter = Counter::default();
            counter.set_value(to_float(read(&self.node).load(Ordering::Relaxed)));
            let mut metric = Metric::default();
            metric.set_counter(counter);
            let mut family = MetricFamily::default();
            family.set_name((*name).to_owned());
            family.set_help((*help).to_owned());
            family.set_field_type(MetricType::COUNTER);
            family.set_metric(vec![metric]);
            family
        };
        COUNTS.iter().map(family).collect()
    }
}

/// Exact up to 2^53, as all counters of the text format are.
fn to_float(count: u64) -> f64 {
    let half = |bits: u64| f64::from(u32::try_from(bits & u64::from(u32::MAX)).unwrap_or(u32::MAX));
    half(count >> 32) * 4_294_967_296.0 + half(count)
}

//! `$SYS/broker/...`: what this broker says about itself, in the names that users of mosquitto know. Every broker of a
//! cluster speaks of itself, to its own clients only.

mod load;
mod values;

use crate::metrics::Metrics;
use crate::router::Router;
use load::Loads;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_core::topic::TopicName;
use tokio::time::MissedTickBehavior;

/// Publishes the figures of one broker.
#[derive(Debug)]
pub struct SysPublisher {
    router: Arc<Router>,
    metrics: Metrics,
    interval: Duration,
    started: Instant,
    last: Option<Instant>,
    loads: Loads,
    /// What a new subscriber finds already; `None` when nothing is retained.
    retained: Option<BTreeMap<String, String>>,
}

/// Whether a figure that has not changed is published again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unchanged {
    /// No: it is retained, so whoever subscribes gets it.
    IsRetained,
    /// Yes: nothing is retained.
    IsRepeated,
}

impl SysPublisher {
    /// For the broker that `router` belongs to.
    #[must_use]
    pub fn new(router: Arc<Router>, interval: Duration, unchanged: Unchanged) -> Self {
        let metrics = router.metrics().clone();
        let retained = match unchanged {
            Unchanged::IsRetained => Some(BTreeMap::new()),
            Unchanged::IsRepeated => None,
        };
        let loads = Loads::default();
        Self { router, metrics, interval, started: Instant::now(), last: None, loads, retained }
    }

    /// Publishes at once and then in every interval, until it is dropped.
    pub async fn run(mut self) {
        let mut every = tokio::time::interval(self.interval);
        every.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            every.tick().await;
            self.publish_all();
        }
    }

    fn publish_all(&mut self) {
        let now = Instant::now();
        let totals = self.metrics.totals();
        let elapsed = self.last.replace(now).map(|last| now.duration_since(last));
        self.loads.handle_totals(&totals, elapsed);
        let uptime_secs = now.duration_since(self.started).as_secs();
        let mut values = values::build(&totals, &self.loads, uptime_secs);
        if self.retained.is_some() {
            values.push(values::retained(&totals));
        }
        for (name, text) in values {
            if let Some(retained) = &mut self.retained
                && retained.insert(name.clone(), text.clone()).as_ref() == Some(&text)
            {
                continue;
            }
            match TopicName::parse(name) {
                Ok(topic) => self.router.publish_own(topic, text.into()),
                Err(error) => debug_assert!(false, "every name is a topic: {error}"),
            }
        }
    }
}

//! `$SYS/broker/...`: what this broker says about itself, in the names that users of mosquitto know. Every broker of a
//! cluster speaks of itself, to its own clients only.

mod load;
mod values;

use crate::mailbox::Turn;
use crate::metrics::Metrics;
use crate::router::{Publisher, RouteCache, Router};
use load::Loads;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tidemill_core::message::Message;
use tidemill_core::packet::QoS;
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
    cache: RouteCache,
}

impl SysPublisher {
    /// For the broker that `router` belongs to.
    #[must_use]
    pub fn new(router: Arc<Router>, interval: Duration) -> Self {
        let metrics = router.metrics().clone();
        let loads = Loads::default();
        let cache = RouteCache::new(Publisher::Other);
        Self { router, metrics, interval, started: Instant::now(), last: None, loads, cache }
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
        let publish_time_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let publish_time_ms = u64::try_from(publish_time_ms).unwrap_or(u64::MAX);
        let mut turn = Turn::begin(&self.metrics);
        for (topic, text) in values::build(&totals, &self.loads, uptime_secs) {
            let Ok(topic) = TopicName::parse(topic) else {
                debug_assert!(false, "every name is a topic");
                continue;
            };
            let message = Message {
                topic,
                payload: text.into(),
                qos: QoS::AtMostOnce,
                retain: true,
                properties: None,
                publisher: "$SYS".into(),
                publish_time_ms,
            };
            self.router.publish_here(&Arc::new(message), &mut self.cache, &mut turn);
        }
        turn.finish();
    }
}

//! The look-up of a publisher that uses its topics again and again, without a broker around it.

use super::many::{filter, topic};
use anyhow::{Context, Result, ensure};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;
use tidemill_broker::log::memory::{MemoryLog, Offsets};
use tidemill_broker::metrics::Metrics;
use tidemill_broker::router::{Publisher, RouteCache, Router};
use tidemill_core::member::{Incarnation, Member, MemberId};
use tidemill_core::partition::Partitioning;
use tidemill_core::topic::{TopicFilter, TopicName};

/// Wall time of one look-up of a topic that was looked up before, in ns.
#[derive(Debug, Clone, Copy)]
pub struct RepeatCost {
    /// Always the same topic.
    pub one_nanos: f64,
    /// A hundred topics in turn.
    pub hundred_nanos: f64,
}

/// Routes of `count` filters, every tenth with a wildcard, and `lookups` look-ups of topics that match one each.
///
/// # Errors
///
/// When a look-up finds anything else.
pub fn run(count: u32, lookups: u32) -> Result<RepeatCost> {
    let partitioning = Partitioning::new(1, 1)?;
    let log = Arc::new(MemoryLog::new(partitioning, Offsets::Contiguous));
    let own = Member { id: MemberId::new("bench"), incarnation: Incarnation(1) };
    let router = Router::new(own, partitioning, log, Metrics::new()?);
    let filters = (0..count).map(|number| TopicFilter::parse(filter(number)));
    let partition = partitioning.partitions().next().context("a partition")?;
    router.set_partition_routes(partition, filters.collect::<Result<_, _>>()?);

    let timed = |topics: u32| -> Result<f64> {
        let name = |number: u32| TopicName::parse(format!("{}/temperature", topic(number % count)));
        let topics = (0..topics).map(|number| name(number * 7_919)).collect::<Result<Vec<_>, _>>()?;
        let mut cache = RouteCache::new(Publisher::Other);
        // The first round fills the cache.
        let is_found = topics.iter().all(|topic| router.needs_log(topic, &mut cache));
        let mut found = u32::from(is_found);
        let started = Instant::now();
        for topic in topics.iter().cycle().zip(0..lookups).map(|(topic, _)| topic) {
            found += u32::from(router.needs_log(black_box(topic), &mut cache));
        }
        let took = started.elapsed();
        ensure!(found == lookups + 1, "{found} of {lookups} look-ups found the route");
        Ok(took.as_secs_f64() * 1e9 / f64::from(lookups))
    };
    Ok(RepeatCost { one_nanos: timed(1)?, hundred_nanos: timed(100)? })
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_topic_is_found_each_time() {
        super::run(2_000, 1_000).expect("each topic has one filter");
    }
}

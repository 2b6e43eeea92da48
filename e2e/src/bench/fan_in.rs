//! Many publishers, one persistent session that is online.

use super::backlog::{Plan, Reader, topic_name};
use super::pairs::Latencies;
use super::subject::Subject;
use crate::connection::Connection;
use anyhow::Result;
use std::time::{Duration, Instant};

/// Enough that a publisher is idle most of the time.
const PUBLISHERS: u32 = 50;

/// What one session saw.
pub struct FanIn {
    /// Messages delivered per second, until the last one was there.
    pub per_second: f64,
    /// CPU µs of the broker per message.
    pub cpu_micros: f64,
    /// From publisher to subscriber.
    pub latencies: Latencies,
}

/// Publishes `per_second` messages per second for `duration` to one topic, at QoS 1.
///
/// # Errors
///
/// When a message is missing, repeated or out of order.
pub async fn run(subject: &Subject, per_second: u32, duration: Duration) -> Result<FanIn> {
    let interval = Duration::from_secs(PUBLISHERS.into()) / per_second;
    let each = u64::try_from(duration.as_micros() / interval.as_micros())?.max(1);
    let plan = Plan {
        endpoint: subject.endpoint().clone(),
        publishers: PUBLISHERS,
        topics: 1,
        messages: each * u64::from(PUBLISHERS),
        payload_bytes: 64,
        interval: Some(interval),
        epoch: Instant::now(),
    };
    let mut connection = Connection::open(&plan.endpoint, "bench-in", false).await?;
    connection.subscribe(&[&topic_name(0)], 1).await?;
    let mut reader = Reader::new(connection, &plan);
    let (before, started) = (subject.cpu_micros()?, Instant::now());
    let (filled, read) = tokio::join!(super::backlog::fill(&plan), reader.read_until(plan.messages));
    filled?;
    read?;
    let took = started.elapsed();
    let messages = plan.messages as f64;
    Ok(FanIn {
        per_second: messages / took.as_secs_f64(),
        cpu_micros: (subject.cpu_micros()? - before) / messages,
        latencies: Latencies::new(reader.latencies_micros),
    })
}

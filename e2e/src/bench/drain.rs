//! A session that returns to a long backlog while others go on.

use super::backlog::{Plan, Reader, fill, leave_sessions, session_id};
use super::pair;
use super::pairs::{self, Latencies};
use super::subject::Subject;
use crate::connection::Connection;
use anyhow::Result;
use std::time::{Duration, Instant};

/// Live messages per second beside the drain.
const LIVE_PER_SECOND: u32 = 1_000;
const PUBLISHERS: u32 = 10;

/// What a drain costs.
pub struct Drain {
    /// Messages per second from CONNECT until the last one was there.
    pub per_second: f64,
    /// CPU µs of the broker per message of the backlog, with the live messages of that time.
    pub cpu_micros: f64,
    /// Latency of live pairs before.
    pub before: Latencies,
    /// The same while the backlog is drained, from its beginning on.
    pub meanwhile: Latencies,
}

/// Lets one session miss `messages` messages, then lets it return.
///
/// # Errors
///
/// When a message is missing, repeated or out of order.
pub async fn run(subject: &Subject, messages: u64, duration: Duration) -> Result<Drain> {
    let plan = Plan {
        endpoint: subject.endpoint().clone(),
        publishers: PUBLISHERS,
        topics: 1,
        messages,
        payload_bytes: 64,
        interval: None,
        epoch: Instant::now(),
    };
    let live = pair::Plan {
        endpoint: subject.endpoint().clone(),
        qos: 1,
        persistent: false,
        pace: pairs::pace(LIVE_PER_SECOND),
        payload_bytes: 64,
        duration,
    };
    leave_sessions(&plan.endpoint, 1).await?;
    fill(&plan).await?;
    let before = pairs::run(subject, live.clone()).await?.latencies;

    let (cpu_before, started) = (subject.cpu_micros()?, Instant::now());
    let drain = async {
        let connection = Connection::open(&plan.endpoint, &session_id(0), false).await?;
        let mut reader = Reader::new(connection, &plan);
        reader.read_until(plan.messages).await?;
        anyhow::Ok((started.elapsed(), subject.cpu_micros()? - cpu_before))
    };
    let (drained, meanwhile) = tokio::join!(drain, pairs::run(subject, live));
    let (took, cpu) = drained?;
    Ok(Drain {
        per_second: messages as f64 / took.as_secs_f64(),
        cpu_micros: cpu / messages as f64,
        before,
        meanwhile: meanwhile?.latencies,
    })
}

//! Many pairs at once, and what they cost the broker.

use super::pair::{self, Pace, Plan};
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use std::time::Duration;
use tokio::task::JoinSet;

/// Pairs of a row.
pub const PAIRS: u32 = 50;

/// What all pairs saw together.
pub struct Outcome {
    /// Messages received; all that were sent.
    pub received: f64,
    /// CPU µs of the broker per message.
    pub cpu_micros: f64,
    /// From publisher to subscriber.
    pub latencies: Latencies,
    /// From publisher to its acknowledgement.
    pub acks: Latencies,
}

/// Latencies in µs, sorted.
#[derive(Debug, Default)]
pub struct Latencies(Vec<u32>);

impl Latencies {
    /// Of latencies in any order.
    #[must_use]
    pub fn new(mut micros: Vec<u32>) -> Self {
        micros.sort_unstable();
        Self(micros)
    }

    /// What `percent` of the messages had at most.
    #[must_use]
    pub fn micros(&self, percent: usize) -> f64 {
        let last = self.0.len().saturating_sub(1);
        self.0.get(last * percent / 100).copied().map_or(f64::NAN, f64::from)
    }
}

/// The pace of each pair at which all of them send `per_second` messages together.
#[must_use]
pub fn pace(per_second: u32) -> Pace {
    Pace::Every(Duration::from_secs(PAIRS.into()) / per_second)
}

/// Runs [`PAIRS`] pairs as `plan` says.
///
/// # Errors
///
/// When a message is missing, repeated or out of order.
pub async fn run(subject: &Subject, plan: Plan) -> Result<Outcome> {
    let before = subject.cpu_micros()?;
    let mut running = JoinSet::new();
    for number in 0..PAIRS {
        running.spawn(pair::run(plan.clone(), number));
    }
    let (mut received, mut latencies, mut acks) = (0, Vec::new(), Vec::new());
    while let Some(tally) = running.join_next().await {
        let mut tally = tally??;
        received += tally.received;
        latencies.append(&mut tally.latencies_micros);
        acks.append(&mut tally.ack_micros);
    }
    let used = subject.cpu_micros()? - before;
    ensure!(received > 0, "nothing was sent");
    let received = f64::from(u32::try_from(received).context("fewer messages than that in seconds")?);
    let (latencies, acks) = (Latencies::new(latencies), Latencies::new(acks));
    Ok(Outcome { received, cpu_micros: used / received, latencies, acks })
}

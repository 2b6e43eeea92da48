//! Waiting for a condition with a deadline; the only place where a test sleeps, and only between two looks.

use anyhow::{Result, bail};
use std::future::Future;
use std::time::{Duration, Instant};

/// Looks at `condition` every 50 ms until it answers `Ok(Some(value))`.
///
/// # Errors
///
/// After `limit`, naming `what` and the last thing `condition` said.
pub async fn until<T, F, Fut>(what: &str, limit: Duration, mut condition: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<Option<T>>>,
{
    let started = Instant::now();
    let mut last = String::from("never looked");
    while started.elapsed() < limit {
        match condition().await {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => last = "not yet".into(),
            Err(error) => last = format!("{error:#}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("{what}: not within {limit:?}; last: {last}")
}

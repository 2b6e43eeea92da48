//! Sessions whose clients are away.

use super::backlog::leave_sessions;
use super::subject::Subject;
use anyhow::Result;
use std::time::Duration;

/// Resident bytes of one of `count` sessions with one subscription each, whose clients have left.
///
/// # Errors
///
/// When one is refused.
pub async fn run(subject: &Subject, count: u32) -> Result<f64> {
    let before = subject.resident_bytes()?;
    leave_sessions(subject.endpoint(), count).await?;
    // Allocators give memory of connections back when they like; there is no event to wait for.
    tokio::time::sleep(Duration::from_secs(3)).await;
    Ok((subject.resident_bytes()? - before) / f64::from(count))
}

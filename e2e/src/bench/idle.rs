//! Connections that do nothing.

use super::subject::Subject;
use crate::connection::Connection;
use anyhow::Result;
use std::time::Duration;
use tokio::task::JoinSet;

/// Connects so many at a time.
const CONCURRENT: usize = 50;

/// Bytes of resident memory per connection.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// While they are there.
    pub held_bytes: f64,
    /// What is left of it some seconds after all have gone.
    pub left_bytes: f64,
}

/// Opens `count` clean connections and closes them.
///
/// # Errors
///
/// When one is refused.
pub async fn run(subject: &Subject, count: u32) -> Result<Cost> {
    let before = subject.resident_bytes()?;
    let mut held = Vec::new();
    let mut opening = JoinSet::new();
    for number in 0..count {
        if opening.len() >= CONCURRENT
            && let Some(opened) = opening.join_next().await
        {
            held.push(opened??);
        }
        let endpoint = subject.endpoint().clone();
        opening.spawn(async move { Connection::open(&endpoint, &format!("bench-i{number}"), true).await });
    }
    while let Some(opened) = opening.join_next().await {
        held.push(opened??);
    }
    let during = subject.resident_bytes()?;
    drop(held);
    // Allocators give memory back when they like; there is no event to wait for.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let after = subject.resident_bytes()?;
    let count = f64::from(count);
    Ok(Cost { held_bytes: (during - before) / count, left_bytes: (after - before) / count })
}

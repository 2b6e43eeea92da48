//! The start of a broker that was killed, with many messages waiting for sessions that are away.

use super::backlog::{Plan, fill, leave_sessions, session_id};
use super::subject::Subject;
use crate::connection::Connection;
use crate::wire::kind;
use anyhow::{Context, Result, ensure};
use std::time::{Duration, Instant};

/// Sessions among which the messages are divided.
const SESSIONS: u32 = 100;
const PUBLISHERS: u32 = 20;
const PAYLOAD_BYTES: usize = 64;
/// A broker that lets nobody in for so long does not start any more.
const BOOT_LIMIT: Duration = Duration::from_secs(120);
/// Between the last message and the kill. The owner stores how far it is within a second; what it has not stored is read
/// once more at the start, however long the backlog is.
const REST: Duration = Duration::from_secs(2);
/// Between two attempts to connect.
const LOOK: Duration = Duration::from_millis(1);

/// What a backlog costs on disk, and at the start.
pub struct Boot {
    /// From the start of the process until the first CONNACK, in ms.
    pub connack_millis: f64,
    /// From the CONNECT of a session that returns until its first message, in ms, right after that.
    pub first_message_millis: f64,
    /// Length of all files for one message, without its topic, payload and publisher.
    pub bytes_beyond_message: f64,
    /// Bytes written to disk while the messages came, for each byte in the files.
    pub written_per_stored: f64,
    /// Messages per second while they came.
    pub fill_per_second: f64,
}

/// Stores `messages` messages, kills the broker and starts it again.
///
/// # Errors
///
/// When a message is not acknowledged, or the broker does not start.
pub async fn run(subject: &mut Subject, messages: u64) -> Result<Boot> {
    let plan = Plan {
        endpoint: subject.endpoint().clone(),
        publishers: PUBLISHERS,
        topics: SESSIONS,
        messages,
        payload_bytes: PAYLOAD_BYTES,
        interval: None,
        epoch: Instant::now(),
    };
    leave_sessions(&plan.endpoint, SESSIONS).await?;
    let (stored_before, written_before) = (subject.stored_bytes()?, subject.written_bytes()?);
    let started = Instant::now();
    fill(&plan).await?;
    let fill_per_second = messages as f64 / started.elapsed().as_secs_f64();
    let stored = (subject.stored_bytes()? - stored_before) as f64;
    let written = subject.written_bytes()? - written_before;

    tokio::time::sleep(REST).await;
    subject.crash().await?;
    let started = Instant::now();
    let witness = loop {
        match Connection::open(&plan.endpoint, "bench-witness", true).await {
            Ok(witness) => break witness,
            Err(error) => ensure!(started.elapsed() < BOOT_LIMIT, "no CONNACK in time: {error:#}"),
        }
        tokio::time::sleep(LOOK).await;
    };
    let connack_millis = started.elapsed().as_secs_f64() * 1e3;
    drop(witness);

    let started = Instant::now();
    let mut session = Connection::open(&plan.endpoint, &session_id(0), false).await?;
    let first = session.next_packet().await.context("a message of the backlog")?;
    ensure!(first.kind() == kind::PUBLISH, "a session got {first:?}");
    let first_message_millis = started.elapsed().as_secs_f64() * 1e3;
    Ok(Boot {
        connack_millis,
        first_message_millis,
        bytes_beyond_message: (stored - plan.message_bytes() as f64) / messages as f64,
        written_per_stored: written / stored,
        fill_per_second,
    })
}

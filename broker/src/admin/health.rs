//! Whether the data path is alive: on every thread of connections a message is published and must arrive.

use crate::router::RouterProbe;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// How long one thread has to publish and deliver.
const DEADLINE: Duration = Duration::from_secs(2);

/// The data path does not work.
#[derive(Debug, thiserror::Error)]
#[error("thread {thread} of connections did not deliver a message within {} s", DEADLINE.as_secs())]
pub(super) struct Stuck {
    /// Number of the thread.
    thread: usize,
}

/// Publishes to itself on each thread of connections.
pub(super) struct Health {
    probe: Arc<RouterProbe>,
    threads: Vec<Handle>,
    /// One check at a time, so that an arrival belongs to its check.
    turn: tokio::sync::Mutex<()>,
}

impl Health {
    pub(super) fn new(probe: RouterProbe, threads: Vec<Handle>) -> Self {
        Self { probe: Arc::new(probe), threads, turn: tokio::sync::Mutex::new(()) }
    }

    pub(super) async fn check(&self) -> Result<(), Stuck> {
        let _turn = self.turn.lock().await;
        for (thread, handle) in self.threads.iter().enumerate() {
            let before = self.probe.arrived();
            let probe = Arc::clone(&self.probe);
            let publish = handle.spawn(async move { probe.publish() });
            if tokio::time::timeout(DEADLINE, self.probe.beyond(before)).await.is_err() {
                publish.abort();
                return Err(Stuck { thread });
            }
        }
        Ok(())
    }
}

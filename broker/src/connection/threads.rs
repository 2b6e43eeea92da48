//! The threads that serve connections: one single-threaded runtime each. A connection stays on its thread.

use super::Services;
use super::sweep::{sweep_thread, time_sweeps};
use crate::mailbox::{begin_rounds, finish_round};
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The threads of connections.
#[derive(Debug)]
pub struct ConnectionThreads {
    handles: Vec<Handle>,
    joins: parking_lot::Mutex<Vec<JoinHandle<()>>>,
    next: AtomicUsize,
    connections: TaskTracker,
    /// Each change is one sweep of all threads.
    rounds: watch::Sender<()>,
    stop: CancellationToken,
}

/// Threads when nothing is said: one up to two cores, else one less than cores.
#[must_use]
pub fn default_count() -> usize {
    thread::available_parallelism().map_or(1, usize::from).saturating_sub(1).max(1)
}

impl ConnectionThreads {
    /// Starts `count` threads. They sweep while [`Self::time_sweeps`] runs.
    ///
    /// # Errors
    ///
    /// [`io::Error`] if the system gives no thread or no reactor.
    pub fn start(count: usize, services: &Arc<Services>) -> io::Result<Self> {
        let stop = CancellationToken::new();
        let rounds = watch::Sender::default();
        let (mut handles, mut joins) = (Vec::new(), Vec::new());
        for number in 0..count {
            let runtime = Builder::new_current_thread().enable_all().on_thread_park(finish_round).build()?;
            handles.push(runtime.handle().clone());
            let (stop, services, rounds) = (stop.clone(), Arc::clone(services), rounds.subscribe());
            joins.push(thread::Builder::new().name(format!("connections-{number}")).spawn(move || {
                begin_rounds();
                runtime.block_on(async {
                    tokio::select! {
                        () = stop.cancelled() => {}
                        () = sweep_thread(services, rounds) => {}
                    }
                });
            })?);
        }
        let (next, connections) = (AtomicUsize::new(0), TaskTracker::new());
        Ok(Self { handles, joins: parking_lot::Mutex::new(joins), next, connections, rounds, stop })
    }

    /// Lets all threads look after keep alives and validity, again and again, until it is dropped.
    pub async fn time_sweeps(&self, services: &Services) {
        time_sweeps(services, &self.rounds).await;
    }

    /// Serves one connection on the next thread.
    pub fn spawn(&self, connection: impl Future<Output = ()> + Send + 'static) {
        let number = self.next.fetch_add(1, Ordering::Relaxed) % self.handles.len();
        self.connections.spawn_on(connection, &self.handles[number]);
    }

    /// One handle for each thread.
    #[must_use]
    pub fn handles(&self) -> &[Handle] {
        &self.handles
    }

    /// Waits until every connection has ended, at most `wait`; then stops the threads, with what is left.
    pub async fn stop(&self, wait: Duration) {
        self.connections.close();
        if tokio::time::timeout(wait, self.connections.wait()).await.is_err() {
            tracing::warn!(connections = self.connections.len(), "connections did not end in time");
        }
        self.stop.cancel();
        let joins = std::mem::take(&mut *self.joins.lock());
        let joined = tokio::task::spawn_blocking(move || {
            for join in joins {
                if join.join().is_err() {
                    tracing::error!("a thread of connections panicked");
                }
            }
        });
        if joined.await.is_err() {
            tracing::error!("threads of connections could not be joined");
        }
    }
}

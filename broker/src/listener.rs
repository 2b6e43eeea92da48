//! Where clients come in. An accept loop never waits for a client: it hands the socket to a thread of connections and
//! takes the next one.

use crate::connection::{ConnectionThreads, Services, serve};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tidemill_contract::config;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Pause after a failed accept (no file descriptors left), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listener cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("listener '{name}' cannot listen on {address}")]
pub struct BindError {
    /// Name of the listener.
    pub name: String,
    /// Where it should listen.
    pub address: String,
    /// Why not; often another process has the port.
    #[source]
    pub source: io::Error,
}

/// One bound listener.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    name: String,
}

/// Counts connections of all listeners, including those before CONNECT.
#[derive(Debug)]
pub struct ConnectionCount {
    count: AtomicUsize,
    maximum: usize,
}

impl ConnectionCount {
    /// Room for `maximum` connections.
    #[must_use]
    pub fn new(maximum: u32) -> Arc<Self> {
        Arc::new(Self { count: AtomicUsize::new(0), maximum: usize::try_from(maximum).unwrap_or(usize::MAX) })
    }

    /// Connections now.
    #[must_use]
    pub fn now(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    fn take(self: &Arc<Self>) -> Option<Place> {
        if self.count.fetch_add(1, Ordering::AcqRel) >= self.maximum {
            self.count.fetch_sub(1, Ordering::AcqRel);
            return None;
        }
        Some(Place(Arc::clone(self)))
    }
}

/// One place among the connections, given back when dropped.
#[derive(Debug)]
struct Place(Arc<ConnectionCount>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Listener {
    /// Binds a listener.
    ///
    /// # Errors
    ///
    /// [`BindError`]: the broker must not start without it.
    pub async fn bind(listener: &config::Listener) -> Result<Self, BindError> {
        let failed =
            |source| BindError { name: listener.name.clone(), address: listener.address.clone(), source };
        let socket = TcpListener::bind(&listener.address).await.map_err(failed)?;
        let address = socket.local_addr().map_err(failed)?;
        Ok(Self { socket, address, name: listener.name.clone() })
    }

    /// Where it listens, with the port that it got.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts clients until `stop`. A connection beyond the limit is closed at once and counted.
    pub async fn accept(
        self,
        services: Arc<Services>,
        threads: Arc<ConnectionThreads>,
        count: Arc<ConnectionCount>,
        stop: CancellationToken,
    ) {
        let mut is_failing = false;
        loop {
            let accepted = tokio::select! {
                accepted = self.socket.accept() => accepted,
                () = stop.cancelled() => return,
            };
            let socket = match accepted {
                Ok((socket, _)) => {
                    is_failing = false;
                    socket
                }
                Err(error) => {
                    // Once for each time that it begins to fail.
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!(listener = %self.name, %error, "accept failed");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some(place) = count.take() else {
                tracing::debug!(listener = %self.name, "connection limit reached");
                services.metrics.connection_refused();
                continue;
            };
            // The socket moves to the reactor of the thread that serves it.
            let socket = match socket.into_std() {
                Ok(socket) => socket,
                Err(error) => {
                    tracing::warn!(listener = %self.name, %error, "socket cannot be handed over");
                    continue;
                }
            };
            let services = Arc::clone(&services);
            threads.spawn(async move {
                serve(services, socket).await;
                drop(place);
            });
        }
    }
}

//! The whole broker: puts the parts together in the order `log -> router, registry -> retained messages -> owner, peers
//! -> listeners -> admin`, and takes them down in the other direction.

mod data_path;
mod descriptors;

pub use data_path::{DataPath, Foundation, PeerWiring, Wiring};

use crate::admin::{Admin, AdminError, AdminParts};
use crate::connection::{ConnectionThreads, Services, default_count};
use crate::listener::{BindError, ConnectionCount, Listener};
use crate::log::retained::LoadError;
use crate::router::Router;
use crate::sys::{SysPublisher, Unchanged};
use futures::future::BoxFuture;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidemill_contract::config::{Config, ConfigError};
use tidemill_core::packet::ReasonCode;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// Clients have this long to be told and closed when the broker stops.
const CLIENTS_WAIT: Duration = Duration::from_secs(5);
/// The log has this long to commit what it took.
const LOG_WAIT: Duration = Duration::from_secs(10);

/// The broker does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The config contradicts itself.
    #[error("config is not valid")]
    Config(#[from] ConfigError),
    /// A listener cannot be opened.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// What was retained before cannot be read.
    #[error(transparent)]
    Retained(#[from] LoadError),
    /// The admin port cannot be opened.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The system gives no threads, or no random bytes.
    #[error("the system does not give what the broker needs")]
    Threads(#[source] io::Error),
    /// The metrics contradict each other: a fault of the program.
    #[error("metrics cannot be registered")]
    Metrics(#[from] prometheus::Error),
}

/// How late the end of a session is noticed by the groups that it was a member of, at most.
const SHARED_SWEEP_EVERY: Duration = Duration::from_secs(1);

/// A running broker.
pub struct Running {
    data_path: DataPath,
    services: Arc<Services>,
    threads: Arc<ConnectionThreads>,
    addresses: Vec<SocketAddr>,
    admin_address: SocketAddr,
    connections: Arc<ConnectionCount>,
    accepting: CancellationToken,
    tasks: JoinSet<()>,
    leave: Option<BoxFuture<'static, ()>>,
    failed: BoxFuture<'static, String>,
}

/// Starts a broker on `foundation`: `wire` builds its owner and its peers around the router and the registry.
///
/// # Errors
///
/// [`StartError`] says what to change; nothing is left running.
pub async fn start(
    config: &Config,
    foundation: Foundation,
    wire: impl FnOnce(&DataPath) -> Result<Wiring, StartError>,
) -> Result<Running, StartError> {
    config.check()?;
    let mut listeners = Vec::new();
    for listener in &config.listeners.0 {
        listeners.push(Listener::bind(listener).await?);
    }
    let addresses = listeners.iter().map(Listener::address).collect();
    let retained = foundation.retained.clone();
    let data_path = DataPath::new(foundation)?;
    data_path.load_retained(config, retained).await?;
    let wiring = wire(&data_path)?;
    let services = data_path.connect(config, &wiring);
    let count = config.threads.map_or_else(default_count, usize::from);
    let threads = Arc::new(ConnectionThreads::start(count, &services).map_err(StartError::Threads)?);

    let mut tasks = JoinSet::new();
    tasks.spawn({
        let (threads, services) = (Arc::clone(&threads), Arc::clone(&services));
        async move { threads.time_sweeps(&services).await }
    });
    let accepting = CancellationToken::new();
    let parts = AdminParts {
        partitioning: data_path.partitioning,
        validity: Arc::clone(&data_path.validity),
        router: Arc::clone(&data_path.router),
        metrics: data_path.metrics.clone(),
        view: wiring.view.clone(),
        waiting_for: Arc::clone(&wiring.waiting_for),
        is_reachable: Arc::clone(&wiring.is_reachable),
        sessions: Arc::clone(&wiring.sessions),
        threads: threads.handles().to_vec(),
    };
    let admin = Admin::bind(&config.admin, parts).await?;
    let admin_address = admin.address();
    tasks.spawn(admin.serve());
    let wills = Arc::clone(&services.wills);
    tasks.spawn(async move { wills.run().await });
    tasks.spawn(sweep_shared(Arc::clone(&data_path.router)));
    if config.mqtt.sys_interval_secs > 0 {
        let interval = Duration::from_secs(u64::from(config.mqtt.sys_interval_secs));
        let unchanged =
            if services.features.retained { Unchanged::IsRetained } else { Unchanged::IsRepeated };
        tasks.spawn(SysPublisher::new(Arc::clone(&data_path.router), interval, unchanged).run());
    }
    let connections = ConnectionCount::new(descriptors::make_room_for_clients(config.limits.connections));
    for listener in listeners {
        let (services, threads) = (Arc::clone(&services), Arc::clone(&threads));
        tasks.spawn(listener.accept(services, threads, Arc::clone(&connections), accepting.clone()));
    }
    tracing::info!(?addresses, admin = %admin_address, "broker started");
    Ok(Running {
        data_path,
        services,
        threads,
        addresses,
        admin_address,
        connections,
        accepting,
        tasks,
        leave: Some(wiring.leave),
        failed: wiring.failed,
    })
}

/// Looks after the groups of shared subscriptions. Runs until it is dropped.
async fn sweep_shared(router: Arc<Router>) {
    let mut every = tokio::time::interval(SHARED_SWEEP_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        router.sweep_shared();
    }
}

impl Running {
    /// Where clients connect, in the order of the config, with the ports that they got.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Sockets of clients that are open, also those before CONNECT.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.connections.now()
    }

    /// Where the admin port is.
    #[must_use]
    pub fn admin_address(&self) -> SocketAddr {
        self.admin_address
    }

    /// The parts around which owner and peers are built.
    #[must_use]
    pub fn data_path(&self) -> &DataPath {
        &self.data_path
    }

    /// Completes with the reason when the process must exit: the log failed, the membership ended, or a task that all
    /// share came to an end.
    pub async fn failed(&mut self) -> String {
        let log = self.data_path.router.log().failed();
        tokio::select! {
            reason = log => reason,
            reason = &mut self.failed => reason,
            Some(ended) = self.tasks.join_next() => match ended {
                Ok(()) => "a task of the broker ended".to_owned(),
                Err(error) => format!("a task of the broker failed: {error}"),
            },
        }
    }

    /// Stops: no new client, 0x8B to 5.0 clients, what is queued is written, groups and membership are given back, the
    /// log commits what it took. Takes at most about 30 s.
    pub async fn stop(mut self) {
        self.services.stopping.store(true, Ordering::Release);
        self.accepting.cancel();
        self.data_path.registry.close_all(ReasonCode::SERVER_SHUTTING_DOWN);
        self.threads.stop(CLIENTS_WAIT).await;
        self.services.wills.publish_unstored();
        if let Some(leave) = self.leave.take() {
            leave.await;
        }
        if tokio::time::timeout(LOG_WAIT, self.data_path.router.log().close()).await.is_err() {
            tracing::warn!("log did not close in time");
        }
        self.tasks.shutdown().await;
        tracing::info!("broker stopped");
    }
}

impl std::fmt::Debug for Running {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Running").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

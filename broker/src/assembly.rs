//! A broker as its config says: which log, which coordination, with peers or alone. The order is `data directory ->
//! log and state -> membership -> data path -> owner, peers`; nothing is served before all of it stands.

mod bridges;
mod counts;
mod membership;
mod queues;
mod sessions;
mod storage;

use crate::app::{self, DataPath, Foundation, PeerWiring, Running, StartError, Wiring};
use crate::cluster::Coordination;
use crate::cluster::node::{ClusterNode, LocalParts};
use crate::cluster::peer::handshake::LinkTerms;
use crate::config_file::Environment;
use crate::log::embedded::{DataDirectory, LockError};
use crate::owner::metrics::OwnerMetrics;
use crate::owner::parts::{OwnerParts, Surroundings};
use crate::owner::service::OwnerService;
use bridges::{BrokerSurroundings, RegistryAttachments, RouterForwards, RouterRoutes};
use futures::future::BoxFuture;
use membership::{Joined, MembershipError};
use queues::RouterDeadLetters;
use sessions::OwnedSessions;
use std::sync::Arc;
use std::time::Duration;
use storage::{Storage, StorageError};
use tidemill_contract::config::Config;
use tidemill_core::partition::{Partitioning, PartitioningError};
use tidemill_core::queue::index::BLOCK_OFFSETS;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How often an owner looks whether the log may forget something, when little is read.
const TRIM_INTERVAL: Duration = Duration::from_secs(30);

/// The broker does not start.
#[derive(Debug, thiserror::Error)]
pub enum AssemblyError {
    /// The data directory belongs to another process or cannot be used.
    #[error(transparent)]
    DataDirectory(#[from] LockError),
    /// The partitioning is none. The config's check refuses it before.
    #[error(transparent)]
    Partitioning(#[from] PartitioningError),
    /// The broker cannot become a member.
    #[error(transparent)]
    Membership(#[from] MembershipError),
    /// The log or the state cannot be used.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A part of the data path does not start.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Starts the broker of `config`. Completes when it listens; with leases that is after it has joined.
///
/// # Errors
///
/// [`AssemblyError`] says what to change; nothing is left running.
pub async fn start(config: &Config, environment: &Environment) -> Result<Running, AssemblyError> {
    let (partitions, groups) = config.partitioning();
    let partitioning = Partitioning::new(partitions, groups)?;
    let directory = DataDirectory::lock(&config.data.directory)?;
    // Before the membership: a member that waits for Kafka without links would hold up the others' durable SUBACKs.
    let storage = storage::open(config, environment, directory, partitioning).await?;
    let joined = membership::join(config, environment, &storage.directory, partitioning).await?;
    let coordination = Arc::clone(&joined.coordination);
    let foundation = Foundation {
        own: coordination.view().borrow().own.clone(),
        partitioning,
        validity: coordination.validity(),
        log: Arc::clone(&storage.log),
        retained: storage.retained.clone(),
    };
    let running =
        app::start(config, foundation, |data_path| wire(config, data_path, storage, joined)).await?;
    Ok(running)
}

/// Builds the owner and the peers around the data path and sets them to work.
fn wire(
    config: &Config,
    data_path: &DataPath,
    storage: Storage,
    joined: Joined,
) -> Result<Wiring, StartError> {
    let Joined { coordination, durable_gate, peers, link_membership, mut tasks } = joined;
    let Storage { log, state, retained: _, directory, embedded } = storage;
    if let Some(embedded) = embedded {
        embedded.register(data_path.metrics.registry())?;
    }

    let terms = LinkTerms {
        cluster: config.cluster.0.clone(),
        partitioning: data_path.partitioning,
        packet_bytes_max: usize::try_from(config.limits.maximum_packet_bytes).unwrap_or(usize::MAX),
    };
    let has_peers = peers.is_some();
    let node = ClusterNode::new(terms, Arc::clone(&coordination), durable_gate);
    link_membership(&node);
    let view = coordination.view();
    let surroundings = Arc::new(BrokerSurroundings::new(Arc::clone(&coordination), data_path.clone()));
    let owner = OwnerService::new(OwnerParts {
        partitioning: data_path.partitioning,
        trim_interval: TRIM_INTERVAL,
        subscriptions_max: usize::try_from(config.limits.subscriptions).unwrap_or(usize::MAX),
        queues: queues::rules(&config.sessions, surroundings.now_ms()),
        index_block_offsets: BLOCK_OFFSETS,
        log,
        state,
        hosts: Arc::new(node.directory().clone()),
        route_exchange: Arc::new(node.exchange().clone()),
        dead_letters: Arc::new(RouterDeadLetters::new(data_path)),
        surroundings,
        validity: coordination.validity(),
        metrics: OwnerMetrics::register(data_path.metrics.registry())?,
    });
    node.start(LocalParts {
        owner: Arc::clone(&owner) as _,
        host: Arc::clone(&data_path.registry) as _,
        attachments: Arc::new(RegistryAttachments::new(&data_path.registry)),
        routes: Arc::new(RouterRoutes::new(&data_path.router)),
        forwards: Arc::new(RouterForwards::new(data_path)),
    });
    counts::register(data_path.metrics.registry(), &node)?;

    let stop = CancellationToken::new();
    if let Some(commands) = coordination.take_group_commands() {
        tasks.spawn(Arc::clone(&owner).run(commands));
    }
    tasks.spawn(Arc::clone(&node).run(peers, stop.clone()));
    let has_all_routes = node.exchange().has_all_routes();
    tasks.spawn(serve_when_ready(Arc::clone(&coordination), has_all_routes.clone(), stop.clone()));
    let waiting_for = waiting_for(Arc::clone(&coordination), has_all_routes);
    let links = Arc::clone(node.links());
    Ok(Wiring {
        owner: Arc::new(node.directory().clone()),
        peers: has_peers.then(|| PeerWiring {
            exchange: Arc::new(node.exchange().clone()),
            forwarder: Arc::clone(node.forwards()) as _,
        }),
        view,
        waiting_for,
        sessions: Arc::new(OwnedSessions::new(data_path, &owner)),
        is_reachable: Arc::new(move |member| links.to(member).is_some()),
        leave: Box::pin(leave(Arc::clone(&coordination), stop)),
        failed: failed(coordination, tasks, directory),
    })
}

/// `Joining` becomes `Serving` when the routes of all serving members are known.
async fn serve_when_ready(
    coordination: Arc<dyn Coordination>,
    mut has_all_routes: watch::Receiver<bool>,
    stop: CancellationToken,
) {
    tokio::select! {
        known = has_all_routes.wait_for(|known| *known) => if known.is_ok() {
            coordination.ready_to_serve();
        },
        () = stop.cancelled() => {}
    }
    // Tasks of the broker end only with it.
    stop.cancelled().await;
}

fn waiting_for(
    coordination: Arc<dyn Coordination>,
    has_all_routes: watch::Receiver<bool>,
) -> Arc<crate::admin::WaitingFor> {
    let view = coordination.view();
    Arc::new(move || {
        let mut waiting_for = Vec::new();
        if !*has_all_routes.borrow() {
            waiting_for.push("routes of peers".to_owned());
        }
        let view = view.borrow();
        if !view.members.get(&view.own.id).is_some_and(|own| own.serving && own.member == view.own) {
            waiting_for.push("serving state in the member lease".to_owned());
        }
        waiting_for
    })
}

async fn leave(coordination: Arc<dyn Coordination>, stop: CancellationToken) {
    coordination.leave().await;
    stop.cancel();
}

/// Completes when the process must exit. A task that panicked takes the process with it; one that ended while the
/// broker runs leaves half a broker behind.
fn failed(
    coordination: Arc<dyn Coordination>,
    mut tasks: JoinSet<()>,
    directory: DataDirectory,
) -> BoxFuture<'static, String> {
    Box::pin(async move {
        // Locked as long as the broker runs.
        let _directory = directory;
        tokio::select! {
            reason = coordination.ended() => reason,
            Some(ended) = tasks.join_next() => match ended {
                Ok(()) => "a task of the cluster ended".to_owned(),
                Err(error) => format!("a task of the cluster failed: {error}"),
            },
        }
    })
}

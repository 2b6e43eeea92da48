//! Becoming a member: alone, or through leases.

use crate::cluster::lease::api::LeaseApi;
use crate::cluster::lease::identity::Place;
use crate::cluster::lease::{LeaseConfig, LeaseCoordination, LeaseError, durable_gate, timings_of};
use crate::cluster::local::LocalCoordination;
use crate::cluster::node::{ClusterNode, PeerAccess};
use crate::cluster::peer::tls::{PeerTls, TlsError};
use crate::cluster::{Coordination, DurableGate};
use crate::config_file::Environment;
use crate::log::embedded::DataDirectory;
use std::io;
use std::sync::Arc;
use tidemill_contract::config::{Config, Coordination as CoordinationKind, Peers};
use tidemill_core::member::{MemberEpoch, MemberId};
use tidemill_core::partition::Partitioning;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The broker cannot become a member.
#[derive(Debug, thiserror::Error)]
pub enum MembershipError {
    /// The leases cannot be used.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The certificates of the links cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The port of the links cannot be opened.
    #[error("peers cannot connect on {address}")]
    Bind {
        /// Where it should listen.
        address: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// A key that leases need is missing. The config's check refuses it before.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// The membership ended before it began.
    #[error("cannot join: {0}")]
    Ended(String),
}

/// Gives the lease protocol its way over a node's links.
pub(super) type LinkMembership = Box<dyn FnOnce(&Arc<ClusterNode>) + Send>;

/// A member, and what belongs to it.
pub(super) struct Joined {
    /// Membership and ownership.
    pub(super) coordination: Arc<dyn Coordination>,
    /// The longest wait of a durable SUBACK for its gate.
    pub(super) durable_gate: DurableGate,
    /// The links to the peers, if there are any.
    pub(super) peers: Option<PeerAccess>,
    /// Gives the lease protocol its way over the links.
    pub(super) link_membership: LinkMembership,
    /// What keeps the membership.
    pub(super) tasks: JoinSet<()>,
}

/// Becomes a member. With leases this waits until the member lease is this broker's.
pub(super) async fn join(
    config: &Config,
    environment: &Environment,
    directory: &DataDirectory,
    partitioning: Partitioning,
) -> Result<Joined, MembershipError> {
    let name = config.member.as_deref().ok_or(MembershipError::Missing("member"))?;
    match config.coordination {
        CoordinationKind::Local => Ok(alone(name, partitioning)),
        CoordinationKind::Kubernetes => by_leases(name, config, environment, directory).await,
    }
}

fn alone(name: &str, partitioning: Partitioning) -> Joined {
    Joined {
        coordination: LocalCoordination::new(MemberId::new(name), partitioning),
        durable_gate: Arc::new(|_| durable_gate(None, 1)),
        peers: None,
        link_membership: Box::new(|_| {}),
        tasks: JoinSet::new(),
    }
}

async fn by_leases(
    name: &str,
    config: &Config,
    environment: &Environment,
    directory: &DataDirectory,
) -> Result<Joined, MembershipError> {
    let peers = config.peers.as_ref().ok_or(MembershipError::Missing("peers"))?;
    let tls = Arc::new(PeerTls::new(peers.tls.clone()));
    tls.configs().await?;
    let listener = bind(peers).await?;
    let timings = timings_of(&config.membership);
    let lease_config = LeaseConfig {
        member: MemberId::new(name),
        place: Place::find(environment.pod_uid.clone(), directory.path())?,
        endpoint: endpoint(peers, &listener)?,
        group_count: config.partitioning().1,
        timings,
        strict_identity: config.membership.strict_identity,
    };
    let api = LeaseApi::connect(&config.cluster.0, config.membership.namespace.as_deref()).await?;
    let (leases, driver) = LeaseCoordination::new(lease_config, api);
    let mut tasks = JoinSet::new();
    tasks.spawn(driver.run(CancellationToken::new()));
    wait_until_joined(&leases).await?;
    let talking = Arc::clone(&leases);
    Ok(Joined {
        coordination: Arc::clone(&leases) as _,
        durable_gate: Arc::new(move |view| durable_gate(timings, view.members.len())),
        peers: Some(PeerAccess { tls, listener, membership: Some(Arc::clone(&leases) as _) }),
        link_membership: Box::new(move |node| {
            let node = Arc::downgrade(node);
            talking.set_message_sender(Arc::new(move |to, message| {
                if let Some(node) = node.upgrade() {
                    node.send_message(to, message);
                }
            }));
        }),
        tasks,
    })
}

async fn wait_until_joined(leases: &LeaseCoordination) -> Result<(), MembershipError> {
    let mut views = leases.view();
    tokio::select! {
        joined = views.wait_for(|view| view.own_epoch > MemberEpoch(0)) => match joined {
            Ok(_) => Ok(()),
            Err(_) => Err(MembershipError::Ended("the lease driver ended".to_owned())),
        },
        reason = leases.ended() => Err(MembershipError::Ended(reason)),
    }
}

async fn bind(peers: &Peers) -> Result<TcpListener, MembershipError> {
    let failed = |source| MembershipError::Bind { address: peers.address.clone(), source };
    TcpListener::bind(&peers.address).await.map_err(failed)
}

/// What peers dial: as configured, else where this broker listens.
fn endpoint(peers: &Peers, listener: &TcpListener) -> Result<String, MembershipError> {
    let failed = |source| MembershipError::Bind { address: peers.address.clone(), source };
    match &peers.advertised {
        Some(advertised) => Ok(advertised.clone()),
        None => {
            let address = listener.local_addr().map_err(failed)?;
            if address.ip().is_unspecified() {
                return Err(MembershipError::Missing("peers.advertised (peers cannot dial 0.0.0.0)"));
            }
            Ok(address.to_string())
        }
    }
}

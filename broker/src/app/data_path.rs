//! The parts between a client's socket and the log, and what is built around them.

use crate::admin::sessions::SessionDirectory;
use crate::admin::{IsReachable, WaitingFor};
use crate::cluster::{ClusterView, Forwarder, RouteExchange, Validity};
use crate::connection::{ServiceParts, Services, Wills};
use crate::log::Log;
use crate::log::retained::{LoadError, RetainedLog};
use crate::metrics::Metrics;
use crate::owner::OwnerSide;
use crate::owner::parts::RestoredWill;
use crate::registry::Registry;
use crate::router::Router;
use futures::future::BoxFuture;
use std::fmt;
use std::sync::Arc;
use tidemill_contract::config::Config;
use tidemill_core::member::Member;
use tidemill_core::partition::Partitioning;
use tokio::sync::watch;

/// What there is before any part of the broker.
#[derive(Clone)]
pub struct Foundation {
    /// This broker.
    pub own: Member,
    /// Partitions and groups of the log.
    pub partitioning: Partitioning,
    /// Whether this broker may act.
    pub validity: Arc<Validity>,
    /// The log.
    pub log: Arc<dyn Log>,
    /// Where retained messages outlive the broker; `None` where they do not.
    pub retained: Option<Arc<dyn RetainedLog>>,
}

/// The parts that owner and peers work with.
#[derive(Clone, Debug)]
pub struct DataPath {
    /// This broker.
    pub own: Member,
    /// Whether this broker may act.
    pub validity: Arc<Validity>,
    /// Placement of queues.
    pub partitioning: Partitioning,
    /// Where messages go.
    pub router: Arc<Router>,
    /// Who is connected; the [`HostSide`](crate::owner::HostSide) of this broker.
    pub registry: Arc<Registry>,
    /// Wills that wait for their delay.
    pub wills: Arc<Wills>,
    /// Where everything is counted.
    pub metrics: Metrics,
}

/// What is built around the data path.
pub struct Wiring {
    /// The owners of all sessions.
    pub owner: Arc<dyn OwnerSide>,
    /// The other brokers; `None` where there cannot be any.
    pub peers: Option<PeerWiring>,
    /// The cluster as this broker sees it.
    pub view: watch::Receiver<Arc<ClusterView>>,
    /// What readiness still waits for, beside listeners, validity and routes of partitions. Called at each `/readyz`.
    pub waiting_for: Arc<WaitingFor>,
    /// Whether a link to a member is up.
    pub is_reachable: Arc<IsReachable>,
    /// The persistent sessions that this broker owns, for the admin API.
    pub sessions: Arc<dyn SessionDirectory>,
    /// Gives back groups and membership when the broker stops. Bounded by itself.
    pub leave: BoxFuture<'static, ()>,
    /// Completes with the reason when the process must exit: the membership ended, an owner or a link panicked.
    pub failed: BoxFuture<'static, String>,
}

/// How the router reaches the other brokers.
pub struct PeerWiring {
    /// Tells them about routes.
    pub exchange: Arc<dyn RouteExchange>,
    /// Sends them messages.
    pub forwarder: Arc<dyn Forwarder>,
}

impl DataPath {
    /// Router and registry on `foundation`.
    ///
    /// # Errors
    ///
    /// [`prometheus::Error`] if a metric has two meanings: a fault of the program.
    pub fn new(foundation: Foundation) -> Result<Self, prometheus::Error> {
        let Foundation { own, partitioning, validity, log, retained: _ } = foundation;
        let metrics = Metrics::new()?;
        let router = Arc::new(Router::new(own.clone(), partitioning, log, metrics.clone()));
        let registry = Arc::new(Registry::new(own.clone(), partitioning, metrics.clone()));
        let wills = Arc::new(Wills::new(Arc::clone(&router)));
        Ok(Self { own, validity, partitioning, router, registry, wills, metrics })
    }

    /// The broker of a connection died with its will: it is published when it is due, unless its client comes back.
    pub fn restore_will(&self, will: RestoredWill) {
        self.wills.restore(will);
    }

    /// Loads what was retained before, if a broker of `config` retains. Before anything is published.
    pub(super) async fn load_retained(
        &self,
        config: &Config,
        log: Option<Arc<dyn RetainedLog>>,
    ) -> Result<(), LoadError> {
        if Services::features_of(config).retained {
            self.router.serve_retained(config.limits.retained_bytes, log).await?;
        }
        Ok(())
    }

    /// Connects router and registry with what was built around them: connections may begin.
    pub(super) fn connect(&self, config: &Config, wiring: &Wiring) -> Arc<Services> {
        if let Some(PeerWiring { exchange, forwarder }) = &wiring.peers {
            self.router.connect(Arc::clone(exchange), Arc::clone(forwarder));
        }
        self.registry.connect(Arc::clone(&wiring.owner));
        Services::new(
            config,
            ServiceParts {
                own: self.own.clone(),
                partitioning: self.partitioning,
                validity: Arc::clone(&self.validity),
                router: Arc::clone(&self.router),
                registry: Arc::clone(&self.registry),
                wills: Arc::clone(&self.wills),
                owner: Arc::clone(&wiring.owner),
            },
        )
    }
}

impl fmt::Debug for Foundation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Foundation").field("own", &self.own).finish_non_exhaustive()
    }
}

impl fmt::Debug for Wiring {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Wiring").finish_non_exhaustive()
    }
}

//! The admin port: `/healthz`, `/readyz`, `/metrics`, and `/v1` on loopback.

mod connections;
mod health;
pub mod moment;
mod openapi;
mod retained;
pub mod sessions;

use crate::cluster::{ClusterView, MemberInfo, Validity};
use crate::metrics::Metrics;
use crate::router::{Router, RouterProbe};
use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use connections::AdminListener;
use health::Health;
use sessions::SessionDirectory;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tidemill_contract::admin::{BrokerStatus, MemberStatus, OwnedGroup, Problem};
use tidemill_contract::config;
use tidemill_core::member::Member;
use tidemill_core::partition::Partitioning;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;

/// The admin port cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("admin port cannot listen on {address}")]
pub struct AdminError {
    /// Where it should listen.
    pub address: String,
    /// Why not; often another process has the port.
    #[source]
    pub source: io::Error,
}

/// The bound admin port.
#[derive(Debug)]
pub struct Admin {
    socket: TcpListener,
    address: SocketAddr,
    routes: axum::Router,
}

/// Names what readiness waits for; empty when it waits for nothing.
pub type WaitingFor = dyn Fn() -> Vec<String> + Send + Sync;

/// Whether a link to a member is up.
pub type IsReachable = dyn Fn(&Member) -> bool + Send + Sync;

/// What the admin port tells about.
pub struct AdminParts {
    /// Placement of queues.
    pub partitioning: Partitioning,
    /// Whether this broker may act.
    pub validity: Arc<Validity>,
    /// Whose partitions must have routes.
    pub router: Arc<Router>,
    /// What `/metrics` shows.
    pub metrics: Metrics,
    /// The cluster as this broker sees it.
    pub view: watch::Receiver<Arc<ClusterView>>,
    /// What else readiness waits for; asked each time.
    pub waiting_for: Arc<WaitingFor>,
    /// Whether a link to a member is up; asked each time.
    pub is_reachable: Arc<IsReachable>,
    /// The persistent sessions that this broker owns.
    pub sessions: Arc<dyn SessionDirectory>,
    /// The threads of connections, for the health check.
    pub threads: Vec<Handle>,
}

struct Shared {
    parts: AdminParts,
    health: Health,
}

impl Admin {
    /// Binds the admin port.
    ///
    /// # Errors
    ///
    /// [`AdminError`]: the broker must not start without it.
    pub async fn bind(config: &config::Admin, parts: AdminParts) -> Result<Self, AdminError> {
        let failed = |source| AdminError { address: config.address.clone(), source };
        let probe = RouterProbe::new(&parts.router).map_err(|error| failed(io::Error::other(error)))?;
        let socket = TcpListener::bind(&config.address).await.map_err(failed)?;
        let address = socket.local_addr().map_err(failed)?;
        let health = Health::new(probe, parts.threads.clone());
        let shared = Arc::new(Shared { parts, health });
        let mut routes = axum::Router::new()
            .route("/healthz", get(healthz))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics));
        if address.ip().is_loopback() {
            routes = routes
                .route("/v1/status", get(status))
                .merge(retained::routes())
                .merge(sessions::routes())
                .merge(openapi::routes());
        }
        let routes = routes.fallback(not_found).method_not_allowed_fallback(wrong_method).with_state(shared);
        Ok(Self { socket, address, routes })
    }

    /// Where it listens, with the port that it got.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until it is dropped.
    pub async fn serve(self) {
        if let Err(error) = axum::serve(AdminListener::new(self.socket), self.routes).await {
            tracing::error!(%error, "admin port failed");
        }
    }
}

/// Alive means that a message published on each thread of connections reaches a receiver.
async fn healthz(State(shared): State<Arc<Shared>>) -> Response {
    match shared.health.check().await {
        Ok(()) => (StatusCode::OK, "ok\n").into_response(),
        Err(error) => problem(StatusCode::SERVICE_UNAVAILABLE, "not alive", error.to_string()),
    }
}

async fn readyz(State(shared): State<Arc<Shared>>) -> Response {
    let waiting_for = shared.waiting_for();
    if waiting_for.is_empty() {
        return (StatusCode::OK, "ready\n").into_response();
    }
    problem(StatusCode::SERVICE_UNAVAILABLE, "not ready", format!("waiting for {}", waiting_for.join(", ")))
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    match shared.parts.metrics.render() {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response(),
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, "metrics", error.to_string()),
    }
}

async fn status(State(shared): State<Arc<Shared>>) -> Json<BrokerStatus> {
    let view = shared.parts.view.borrow().clone();
    let waiting_for = shared.waiting_for();
    Json(BrokerStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        member: view.own.id.to_string(),
        incarnation: view.own.incarnation.to_string(),
        epoch: view.own_epoch.0,
        ready: waiting_for.is_empty(),
        waiting_for,
        partition_groups: shared.owned_groups(&view),
        members: view
            .members
            .values()
            .map(|info| member_status(info, &view, &*shared.parts.is_reachable))
            .collect(),
        connections: shared.parts.metrics.connections(),
    })
}

async fn not_found(request: axum::extract::Request) -> Response {
    let detail = format!("there is nothing at {}", request.uri().path());
    problem(StatusCode::NOT_FOUND, "not found", detail)
}

async fn wrong_method(request: axum::extract::Request) -> Response {
    let detail = format!("{} does not take {}", request.uri().path(), request.method());
    problem(StatusCode::METHOD_NOT_ALLOWED, "method not allowed", detail)
}

impl Shared {
    fn waiting_for(&self) -> Vec<String> {
        let mut waiting_for = (self.parts.waiting_for)();
        if !self.parts.validity.is_valid() {
            waiting_for.push("membership".to_owned());
        }
        let unknown = self.parts.router.unknown_partitions();
        if !unknown.is_empty() {
            waiting_for.push(format!("routes of {} partitions", unknown.len()));
        }
        waiting_for
    }

    fn owned_groups(&self, view: &ClusterView) -> Vec<OwnedGroup> {
        let unknown = self.parts.router.unknown_partitions();
        let partitioning = self.parts.partitioning;
        let groups = partitioning.groups().zip(&view.owners);
        let owned = groups.filter_map(|(group, owner)| Some((group, owner.as_ref()?)));
        owned
            .filter(|(_, owner)| owner.member == view.own)
            .map(|(group, owner)| OwnedGroup {
                group: group.0,
                epoch: owner.epoch.0,
                serving: partitioning.partitions_of(group).all(|partition| !unknown.contains(&partition)),
            })
            .collect()
    }
}

fn member_status(info: &MemberInfo, view: &ClusterView, is_reachable: &IsReachable) -> MemberStatus {
    let state = match (info.leaving, info.serving) {
        (true, _) => "Leaving",
        (false, true) => "Serving",
        (false, false) => "Joining",
    };
    MemberStatus {
        member: info.member.id.to_string(),
        epoch: info.epoch.0,
        state: state.to_owned(),
        reachable: info.member == view.own || is_reachable(&info.member),
    }
}

/// An error answer as RFC 9457 asks.
fn problem(status: StatusCode, title: &str, detail: String) -> Response {
    let problem = Problem { title: title.to_owned(), status: status.as_u16(), detail };
    (status, [(header::CONTENT_TYPE, "application/problem+json")], Json(problem)).into_response()
}

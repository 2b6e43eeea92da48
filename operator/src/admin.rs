//! The admin port: `/healthz`, `/readyz`, `/metrics`.

use crate::metrics::Metrics;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many watches have not shown their first complete list yet. Zero is ready.
#[derive(Debug, Default)]
pub struct Readiness {
    waiting: AtomicUsize,
}

impl Readiness {
    /// Not ready before [`Self::arrive`] was called `count` times.
    #[must_use]
    pub fn waiting_for(count: usize) -> Self {
        Self { waiting: AtomicUsize::new(count) }
    }

    /// One of the watches is complete. To be called once for each.
    pub fn arrive(&self) {
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether all have arrived.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.waiting.load(Ordering::Acquire) == 0
    }
}

/// The routes. `/healthz` answers 200 as long as the process does: when a watch ends for good, the process ends too.
pub fn router(metrics: Arc<Metrics>, readiness: Arc<Readiness>) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok"))
        .route(
            "/readyz",
            get(async move || match readiness.is_ready() {
                true => (StatusCode::OK, "ready"),
                false => (StatusCode::SERVICE_UNAVAILABLE, "waiting for the first list of clusters"),
            }),
        )
        .route("/metrics", get(show_metrics))
        .with_state(metrics)
}

async fn show_metrics(State(metrics): State<Arc<Metrics>>) -> Result<String, (StatusCode, String)> {
    metrics.text().map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_is_said_only_when_every_watch_has_arrived() {
        let readiness = Readiness::waiting_for(2);

        readiness.arrive();
        assert!(!readiness.is_ready());
        readiness.arrive();
        assert!(readiness.is_ready());
    }
}

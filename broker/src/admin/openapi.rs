//! `/v1/openapi.json`: what `/v1` serves, as an OpenAPI document.

use super::Shared;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use std::sync::Arc;

/// OpenAPI 3.1.
const DOCUMENT: &str = include_str!("openapi.json");

/// The route below `/v1`.
pub(super) fn routes() -> axum::Router<Arc<Shared>> {
    axum::Router::new().route("/v1/openapi.json", get(document))
}

async fn document() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT)
}

//! `/v1/sessions`: persistent sessions, listed, shown and ended.

use super::{Shared, problem};
use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::future::BoxFuture;
use serde::Deserialize;
use std::sync::Arc;
use tidemill_contract::admin::sessions::{Session, SessionPage, SessionSummary};

const LIMIT_DEFAULT: usize = 100;
const LIMIT_MAX: usize = 1_000;
/// In front of a cursor's client id.
const CURSOR_VERSION: u8 = b'1';

/// What stands against a question about sessions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// There is no such session here. Answer 404.
    #[error("client id {client_id:?} has no persistent session at this broker")]
    NotFound {
        /// The client id.
        client_id: String,
    },
    /// The owner does not answer now. Answer 503; asking again can succeed.
    #[error("the sessions are not served now: {reason}")]
    Unavailable {
        /// Why.
        reason: String,
    },
}

/// The sessions that this broker owns.
pub trait SessionDirectory: Send + Sync + 'static {
    /// At most `limit` sessions whose client ids begin with `prefix` and come after `after`, in the order of client ids.
    fn list(
        &self,
        prefix: String,
        after: Option<String>,
        limit: usize,
    ) -> BoxFuture<'static, Result<Vec<SessionSummary>, SessionError>>;

    /// One session.
    fn show(&self, client_id: String) -> BoxFuture<'static, Result<Session, SessionError>>;

    /// Ends a session, durably; its connection is closed with 0x98 (at another broker with 0x8E).
    fn end(&self, client_id: String) -> BoxFuture<'static, Result<(), SessionError>>;
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    prefix: Option<String>,
    limit: Option<usize>,
    after: Option<String>,
}

/// What is wrong with a request, or stands against it.
enum Refusal {
    BadRequest(String),
    Sessions(SessionError),
}

/// The routes below `/v1`.
pub(super) fn routes() -> axum::Router<Arc<Shared>> {
    axum::Router::new()
        .route("/v1/sessions", get(list))
        // The rest of the path: a client id may have a `/` in it.
        .route("/v1/sessions/{*client_id}", get(show).delete(end))
}

async fn list(
    State(shared): State<Arc<Shared>>,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Json<SessionPage>, Refusal> {
    let Query(query) = query.map_err(|error| Refusal::BadRequest(error.body_text()))?;
    let limit = query.limit.unwrap_or(LIMIT_DEFAULT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(Refusal::BadRequest(format!("limit {limit} is not within 1 to {LIMIT_MAX}")));
    }
    let after = query.after.as_deref().map(decode_cursor).transpose()?;
    // One more than asked for tells whether there is another page.
    let listed = shared.parts.sessions.list(query.prefix.unwrap_or_default(), after, limit + 1);
    let mut sessions = listed.await.map_err(Refusal::Sessions)?;
    let has_more = sessions.len() > limit;
    sessions.truncate(limit);
    let next = sessions.last().filter(|_| has_more).map(|last| encode_cursor(&last.client_id));
    Ok(Json(SessionPage { sessions, next }))
}

async fn show(
    State(shared): State<Arc<Shared>>,
    client_id: Result<Path<String>, PathRejection>,
) -> Result<Json<Session>, Refusal> {
    let Path(client_id) = client_id.map_err(|error| Refusal::BadRequest(error.body_text()))?;
    shared.parts.sessions.show(client_id).await.map(Json).map_err(Refusal::Sessions)
}

async fn end(
    State(shared): State<Arc<Shared>>,
    client_id: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, Refusal> {
    let Path(client_id) = client_id.map_err(|error| Refusal::BadRequest(error.body_text()))?;
    shared.parts.sessions.end(client_id.clone()).await.map_err(Refusal::Sessions)?;
    tracing::info!(%client_id, "session ended by an administrator");
    Ok(StatusCode::NO_CONTENT)
}

fn encode_cursor(client_id: &str) -> String {
    URL_SAFE_NO_PAD.encode([&[CURSOR_VERSION], client_id.as_bytes()].concat())
}

fn decode_cursor(cursor: &str) -> Result<String, Refusal> {
    let decode = || {
        let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
        let (version, client_id) = bytes.split_first()?;
        let text = std::str::from_utf8(client_id).ok()?;
        (*version == CURSOR_VERSION).then(|| text.to_owned())
    };
    decode().ok_or_else(|| Refusal::BadRequest(format!("after {cursor:?} is not what a page gave as next")))
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::BadRequest(detail) => problem(StatusCode::BAD_REQUEST, "bad request", detail),
            Self::Sessions(error @ SessionError::NotFound { .. }) => {
                problem(StatusCode::NOT_FOUND, "no session", error.to_string())
            }
            Self::Sessions(error @ SessionError::Unavailable { .. }) => {
                problem(StatusCode::SERVICE_UNAVAILABLE, "sessions unavailable", error.to_string())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_again_and_nothing_else_is() {
        assert!(decode_cursor(&encode_cursor("a/b c/ü")).is_ok_and(|read| read == "a/b c/ü"));

        for other in ["", "a/b", "MQ==", "Mg", &URL_SAFE_NO_PAD.encode(b"1\xFF")] {
            assert!(decode_cursor(other).is_err(), "{other}");
        }
    }
}

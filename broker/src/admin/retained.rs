//! `/v1/retained`: retained messages, listed, shown and cleared.

use super::moment::rfc_3339;
use super::{Shared, problem};
use crate::router::Router;
use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bytestring::ByteString;
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;
use tidemill_contract::admin::{
    MessageProperties, RetainedMessage, RetainedPage, RetainedSummary, UserProperty,
};
use tidemill_core::message::Message;
use tidemill_core::packet::PublishProperties;
use tidemill_core::retained::Position;
use tidemill_core::topic::{TopicFilter, TopicName};

const LIMIT_DEFAULT: usize = 100;
const LIMIT_MAX: usize = 1_000;
/// How long a clear may wait for the store, whose disk may be full.
const CLEAR_DEADLINE: Duration = Duration::from_secs(10);
/// In front of a cursor's position.
const CURSOR_VERSION: u8 = b'1';

/// What is wrong with a request, or stands against it.
enum Refusal {
    BadRequest(String),
    OfBroker(TopicName),
    NotFound(TopicName),
    NotRetaining,
    Unavailable(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    filter: Option<String>,
    limit: Option<usize>,
    after: Option<String>,
}

/// The routes below `/v1`.
pub(super) fn routes() -> axum::Router<Arc<Shared>> {
    axum::Router::new()
        .route("/v1/retained", get(list))
        // The rest of the path, so that levels may be separated by `/` as well as by `%2F`.
        .route("/v1/retained/{*topic}", get(show).delete(clear))
}

async fn list(
    State(shared): State<Arc<Shared>>,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Json<RetainedPage>, Refusal> {
    let Query(query) = query.map_err(|error| Refusal::BadRequest(error.body_text()))?;
    let filter = query.filter.as_deref().unwrap_or("#");
    let filter = TopicFilter::parse(filter)
        .map_err(|error| Refusal::BadRequest(format!("filter {filter:?}: {error}")))?;
    let limit = query.limit.unwrap_or(LIMIT_DEFAULT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(Refusal::BadRequest(format!("limit {limit} is not within 1 to {LIMIT_MAX}")));
    }
    let from = query.after.as_deref().map(decode_cursor).transpose()?;
    let page = shared.parts.router.list_retained(&filter, from, limit).ok_or(Refusal::NotRetaining)?;
    Ok(Json(RetainedPage {
        messages: page.messages.iter().map(|message| build_summary(message)).collect(),
        next: page.next.as_ref().map(encode_cursor),
    }))
}

async fn show(
    State(shared): State<Arc<Shared>>,
    topic: Result<Path<String>, PathRejection>,
) -> Result<Json<RetainedMessage>, Refusal> {
    let topic = parse_topic(topic)?;
    match shared.parts.router.find_retained(&topic) {
        Some(message) => Ok(Json(build_message(&message))),
        None => Err(missing(&shared.parts.router, topic)),
    }
}

async fn clear(
    State(shared): State<Arc<Shared>>,
    topic: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, Refusal> {
    let topic = parse_topic(topic)?;
    if topic.is_of_broker() {
        return Err(Refusal::OfBroker(topic));
    }
    let router = &shared.parts.router;
    match tokio::time::timeout(CLEAR_DEADLINE, router.clear_retained(&topic)).await {
        Ok(Ok(true)) => {
            tracing::info!(%topic, "retained message cleared by an administrator");
            Ok(StatusCode::NO_CONTENT)
        }
        Ok(Ok(false)) => Err(missing(router, topic)),
        Ok(Err(error)) => {
            Err(Refusal::Unavailable(format!("topic {topic:?} is cleared in memory only: {error}")))
        }
        Err(_) => {
            let detail = format!(
                "topic {topic:?} is cleared, but not on disk within {} s; it will be",
                CLEAR_DEADLINE.as_secs()
            );
            Err(Refusal::Unavailable(detail))
        }
    }
}

fn parse_topic(topic: Result<Path<String>, PathRejection>) -> Result<TopicName, Refusal> {
    let Path(topic) = topic.map_err(|error| Refusal::BadRequest(error.body_text()))?;
    TopicName::parse(topic.as_str()).map_err(|error| Refusal::BadRequest(format!("topic {topic:?}: {error}")))
}

fn missing(router: &Router, topic: TopicName) -> Refusal {
    if router.is_retaining() { Refusal::NotFound(topic) } else { Refusal::NotRetaining }
}

fn encode_cursor(position: &Position) -> String {
    URL_SAFE_NO_PAD.encode([&[CURSOR_VERSION], position.as_str().as_bytes()].concat())
}

fn decode_cursor(cursor: &str) -> Result<Position, Refusal> {
    let decode = || {
        let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
        let (version, position) = bytes.split_first()?;
        let text = std::str::from_utf8(position).ok()?;
        (*version == CURSOR_VERSION).then(|| Position::from_text(text))
    };
    decode().ok_or_else(|| Refusal::BadRequest(format!("after {cursor:?} is not what a page gave as next")))
}

fn build_summary(message: &Message) -> RetainedSummary {
    RetainedSummary {
        topic: message.topic.to_string(),
        qos: message.qos as u8,
        payload_bytes: message.payload.len() as u64,
        publish_time: rfc_3339(message.publish_time_ms),
        expiry_time: message.expires_ms().map(rfc_3339),
        publisher: message.publisher.to_string(),
    }
}

fn build_message(message: &Message) -> RetainedMessage {
    RetainedMessage {
        summary: build_summary(message),
        payload_base64: STANDARD.encode(&message.payload),
        payload_text: std::str::from_utf8(&message.payload).ok().map(str::to_owned),
        properties: message.properties.as_deref().and_then(build_properties),
    }
}

fn build_properties(properties: &PublishProperties) -> Option<MessageProperties> {
    let user_property = |(name, value): &(ByteString, ByteString)| UserProperty {
        name: name.to_string(),
        value: value.to_string(),
    };
    let built = MessageProperties {
        payload_is_utf8: properties.payload_is_utf8,
        content_type: properties.content_type.as_ref().map(ToString::to_string),
        response_topic: properties.response_topic.as_ref().map(ToString::to_string),
        correlation_data_base64: properties.correlation_data.as_ref().map(|data| STANDARD.encode(data)),
        user_properties: properties.user_properties.iter().map(user_property).collect(),
    };
    (built != MessageProperties::default()).then_some(built)
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::BadRequest(detail) => problem(StatusCode::BAD_REQUEST, "bad request", detail),
            Self::OfBroker(topic) => {
                let detail = format!("topic {topic:?} is published by the broker itself");
                problem(StatusCode::FORBIDDEN, "topic of the broker", detail)
            }
            Self::NotFound(topic) => {
                let detail = format!("topic {topic:?} has no retained message");
                problem(StatusCode::NOT_FOUND, "no retained message", detail)
            }
            Self::NotRetaining => {
                let detail = "this broker does not retain messages".to_owned();
                problem(StatusCode::NOT_FOUND, "nothing is retained", detail)
            }
            Self::Unavailable(detail) => {
                problem(StatusCode::SERVICE_UNAVAILABLE, "store unavailable", detail)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_again_and_nothing_else_is() {
        let position = Position::from_text("a/b c/ü");
        assert!(decode_cursor(&encode_cursor(&position)).is_ok_and(|read| read == position));

        for other in ["", "a/b", "MQ==", "Mg", &URL_SAFE_NO_PAD.encode(b"1\xFF")] {
            assert!(decode_cursor(other).is_err(), "{other}");
        }
    }
}

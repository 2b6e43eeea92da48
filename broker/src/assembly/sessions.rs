//! The sessions of the own owner, as the admin API tells of them.

use crate::admin::moment::rfc_3339;
use crate::admin::sessions::{SessionDirectory, SessionError};
use crate::app::DataPath;
use crate::mailbox::CloseReason;
use crate::owner::OwnerSide;
use crate::owner::service::OwnerService;
use crate::owner::sessions::{SessionDetail, SessionQuery, SessionStanding};
use crate::registry::Registry;
use bytestring::ByteString;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;
use tidemill_contract::admin::sessions::{Session, SessionLag, SessionSubscription, SessionSummary};
use tidemill_core::attach::{
    AttachRequest, Detach, OwnerError, SessionLifetime, StoredSubscription, WillOutcome,
};
use tidemill_core::member::Member;
use tidemill_core::packet::{ReasonCode, Version};
use tidemill_core::topic::SubscriptionTarget;
use tokio::time::timeout;

/// How long a connection may take to close when its session is ended. After it the owner takes it over.
const CLOSE_WAIT: Duration = Duration::from_secs(5);

/// The persistent sessions of the groups that this broker owns.
#[derive(Clone)]
pub(super) struct OwnedSessions {
    own: Member,
    owner: Arc<OwnerService>,
    registry: Arc<Registry>,
}

impl OwnedSessions {
    pub(super) fn new(data_path: &DataPath, owner: &Arc<OwnerService>) -> Self {
        Self {
            own: data_path.own.clone(),
            owner: Arc::clone(owner),
            registry: Arc::clone(&data_path.registry),
        }
    }

    async fn find(&self, client_id: &str) -> Result<SessionDetail, SessionError> {
        let found = self.owner.show_session(client_id).await.map_err(unavailable)?;
        found.ok_or_else(|| SessionError::NotFound { client_id: client_id.to_owned() })
    }

    /// Takes the place of the session's connection as a client would that starts anew, without a session, and leaves: the
    /// owner answers when what was stored is deleted.
    async fn discard(&self, client_id: String) -> Result<(), SessionError> {
        let (session, _) = self.find(&client_id).await?;
        if let Some(registered) = self.registry.find(&client_id) {
            registered.mailbox.close(CloseReason::Broker(ReasonCode::ADMINISTRATIVE_ACTION));
            // One that is slow to close is taken over.
            drop(timeout(CLOSE_WAIT, registered.closed.wait()).await);
        }
        let client_id = ByteString::from(client_id);
        let request = AttachRequest {
            client_id: client_id.clone(),
            host: self.own.clone(),
            version: Version::V5,
            clean_start: true,
            lifetime: SessionLifetime::Clean,
            window: 1,
            user: session.user,
            will: None,
        };
        let grant = self.owner.attach(request).await.map_err(unavailable)?;
        let connection = grant.connection;
        self.owner.detach(Detach {
            client_id,
            connection,
            session_expiry_secs: None,
            in_flight: None,
            will: WillOutcome::Over,
        });
        Ok(())
    }
}

impl SessionDirectory for OwnedSessions {
    fn list(
        &self,
        prefix: String,
        after: Option<String>,
        limit: usize,
    ) -> BoxFuture<'static, Result<Vec<SessionSummary>, SessionError>> {
        let owner = Arc::clone(&self.owner);
        async move {
            let listed = owner.list_sessions(SessionQuery { prefix, after, limit }).await;
            Ok(listed.map_err(unavailable)?.iter().map(build_summary).collect())
        }
        .boxed()
    }

    fn show(&self, client_id: String) -> BoxFuture<'static, Result<Session, SessionError>> {
        let sessions = self.clone();
        async move {
            let (session, subscriptions) = sessions.find(&client_id).await?;
            let subscriptions = subscriptions.iter().map(build_subscription).collect();
            Ok(Session { summary: build_summary(&session), subscriptions })
        }
        .boxed()
    }

    fn end(&self, client_id: String) -> BoxFuture<'static, Result<(), SessionError>> {
        let sessions = self.clone();
        async move { sessions.discard(client_id).await }.boxed()
    }
}

fn unavailable(error: OwnerError) -> SessionError {
    SessionError::Unavailable { reason: error.to_string() }
}

fn build_summary(session: &SessionStanding) -> SessionSummary {
    let queue = &session.queue;
    SessionSummary {
        client_id: session.client_id.to_string(),
        connected: session.host.is_some(),
        host: session.host.as_ref().map(|host| host.id.to_string()),
        protocol_version: match session.version {
            Version::V3_1 => "3.1",
            Version::V3_1_1 => "3.1.1",
            Version::V5 => "5.0",
        }
        .to_owned(),
        expiry_secs: (session.expiry_secs != u32::MAX).then_some(session.expiry_secs),
        created_time: rfc_3339(session.created_at_ms),
        disconnected_time: session.disconnected_at_ms.map(rfc_3339),
        subscription_count: session.subscription_count as u64,
        lag: SessionLag {
            messages: queue.waiting.messages,
            bytes: queue.waiting.bytes,
            age_secs: queue.oldest_ms.map(|oldest_ms| session.now_ms.saturating_sub(oldest_ms) / 1_000),
        },
        in_flight: queue.in_flight as u64,
        unacknowledged: queue.open as u64,
        parked: queue.parked as u64,
        last_acknowledgement_time: queue.acked_ms.map(rfc_3339),
        redeliveries: queue.redelivered,
        dropped: queue.drops.iter().map(|(reason, count)| (reason.name().to_owned(), count)).collect(),
    }
}

fn build_subscription(subscription: &StoredSubscription) -> SessionSubscription {
    SessionSubscription {
        filter: match &subscription.target {
            SubscriptionTarget::Filter(filter) => filter.as_str().to_owned(),
            SubscriptionTarget::Shared(shared) => shared.to_string(),
        },
        qos: subscription.options.qos as u8,
        no_local: subscription.options.no_local,
        retain_as_published: subscription.options.retain_as_published,
        identifier: subscription.identifier,
    }
}

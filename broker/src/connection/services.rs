//! What all connections of a broker share.

use super::will::Wills;
use crate::cluster::Validity;
use crate::mailbox::{MailboxContext, MailboxLimits};
use crate::metrics::Metrics;
use crate::owner::OwnerSide;
use crate::registry::Registry;
use crate::router::Router;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidemill_contract::config::{Config, Coordination, Limits, Mqtt, SharedSubscriptions};
use tidemill_core::member::Member;
use tidemill_core::partition::Partitioning;
use tidemill_core::session::features::Features;
use tidemill_core::session::inbound::PayloadFormat;

/// What all connections of a broker work with.
#[derive(Debug)]
pub struct Services {
    /// This broker.
    pub own: Member,
    /// What is served.
    pub features: Features,
    /// Bounds.
    pub limits: Limits,
    /// How groups share their messages.
    pub shared_subscriptions: SharedSubscriptions,
    /// What MQTT leaves to the broker.
    pub mqtt: Mqtt,
    /// Whether payloads are looked at.
    pub payload_format: PayloadFormat,
    /// Longest session expiry in seconds.
    pub max_expiry_secs: u32,
    /// Placement of sessions.
    pub partitioning: Partitioning,
    /// Whether this broker may act.
    pub validity: Arc<Validity>,
    /// Where messages go.
    pub router: Arc<Router>,
    /// Who is connected.
    pub registry: Arc<Registry>,
    /// The owners of sessions.
    pub owner: OwnerHandle,
    /// Wills that wait for their delay.
    pub wills: Arc<Wills>,
    /// What mailboxes share.
    pub mailboxes: Arc<MailboxContext>,
    /// Where connections are counted.
    pub metrics: Metrics,
    /// Set once, when the broker stops.
    pub stopping: AtomicBool,
}

/// The owners of all sessions, as this broker reaches them.
#[derive(Clone)]
pub struct OwnerHandle(pub Arc<dyn OwnerSide>);

impl fmt::Debug for OwnerHandle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("OwnerHandle")
    }
}

impl std::ops::Deref for OwnerHandle {
    type Target = dyn OwnerSide;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

/// What the services of connections are made of.
pub struct ServiceParts {
    /// This broker.
    pub own: Member,
    /// Placement of sessions.
    pub partitioning: Partitioning,
    /// Whether this broker may act.
    pub validity: Arc<Validity>,
    /// Where messages go.
    pub router: Arc<Router>,
    /// Who is connected.
    pub registry: Arc<Registry>,
    /// Wills that wait for their delay.
    pub wills: Arc<Wills>,
    /// The owners of sessions.
    pub owner: Arc<dyn OwnerSide>,
}

impl Services {
    /// Services with the bounds of `config`.
    #[must_use]
    pub fn new(config: &Config, parts: ServiceParts) -> Arc<Self> {
        let ServiceParts { own, partitioning, validity, router, registry, wills, owner } = parts;
        wills.connect(OwnerHandle(Arc::clone(&owner)));
        let limits = MailboxLimits {
            messages: usize::try_from(config.limits.mailbox_messages).unwrap_or(usize::MAX),
            bytes: usize::try_from(config.limits.mailbox_bytes).unwrap_or(usize::MAX),
        };
        let metrics = router.metrics().clone();
        let membership = Arc::clone(&validity);
        let may_acknowledge = Box::new(move || membership.is_valid());
        Arc::new(Self {
            own,
            features: Self::features_of(config),
            limits: config.limits.clone(),
            shared_subscriptions: config.shared_subscriptions.clone(),
            mqtt: config.mqtt.clone(),
            payload_format: if config.mqtt.check_payload_format {
                PayloadFormat::Checked
            } else {
                PayloadFormat::Trusted
            },
            max_expiry_secs: config.sessions.max_expiry_secs,
            partitioning,
            validity,
            wills,
            router,
            registry,
            owner: OwnerHandle(owner),
            mailboxes: Arc::new(MailboxContext { limits, metrics: metrics.clone(), may_acknowledge }),
            metrics,
            stopping: AtomicBool::new(false),
        })
    }

    /// What a broker of `config` serves.
    #[must_use]
    pub fn features_of(config: &Config) -> Features {
        match config.coordination {
            Coordination::Local => Features::STANDALONE,
            Coordination::Kubernetes => Features::CLUSTER,
        }
    }

    /// Whether the broker stops: no client is let in any more.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

//! A message of the broker to itself, which shows that the data path is alive.

use super::{PublishDone, Publisher, RouteCache, Router};
use crate::mailbox::{Flush, Mailbox, MailboxContext, MailboxLimits, Probe, Turn};
use bytes::Bytes;
use std::sync::Arc;
use tidemill_core::message::Message;
use tidemill_core::packet::{QoS, RetainHandling, SubscriptionOptions};
use tidemill_core::topic::{TopicError, TopicFilter, TopicName};

/// Clients cannot publish to it, and no wildcard at the first level matches it.
const TOPIC: &str = "$SYS/health";

/// Publishes to a subscription of its own.
#[derive(Debug)]
pub struct RouterProbe {
    router: Arc<Router>,
    topic: TopicName,
    arrivals: Arc<Probe>,
}

impl RouterProbe {
    /// Subscribes in `router`; peers do not hear of it.
    ///
    /// # Errors
    ///
    /// [`TopicError`] if its topic is none: a fault of the program.
    pub fn new(router: &Arc<Router>) -> Result<Self, TopicError> {
        let arrivals = Arc::new(Probe::default());
        let context = MailboxContext {
            limits: MailboxLimits { messages: 16, bytes: 4_096 },
            metrics: router.metrics().clone(),
            may_acknowledge: Box::new(|| true),
        };
        let mailbox = Mailbox::new(Arc::new(context), Flush::Probe(Arc::clone(&arrivals)));
        let options = SubscriptionOptions {
            qos: QoS::AtMostOnce,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::DoNotSend,
        };
        router.subscribe_internal(&mailbox, &TopicFilter::parse(TOPIC)?, options);
        Ok(Self { router: Arc::clone(router), topic: TopicName::parse(TOPIC)?, arrivals })
    }

    /// What has arrived so far.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        self.arrivals.arrived()
    }

    /// Completes when more than `count` have arrived. Cancel-safe.
    pub async fn beyond(&self, count: u64) {
        self.arrivals.beyond(count).await;
    }

    /// Publishes one message, on the thread that calls.
    pub fn publish(&self) {
        let message = Message {
            topic: self.topic.clone(),
            payload: Bytes::new(),
            qos: QoS::AtMostOnce,
            retain: false,
            properties: None,
            publisher: "health".into(),
            publish_time_ms: 0,
        };
        let mut turn = Turn::begin(self.router.metrics());
        let mut cache = RouteCache::new(Publisher::Other);
        self.router.publish(&Arc::new(message), &mut cache, PublishDone::Nobody, &mut turn);
        turn.finish();
    }
}

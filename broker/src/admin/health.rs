//! Whether the data path is alive: on every thread of connections a message is published and must arrive.

use crate::app::{ConnectionThreads, DataPath};
use crate::mailbox::{Flush, Mailbox, MailboxContext, MailboxLimits, Probe, Turn};
use crate::router::{PublishDone, Publisher, RouteCache, Router};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tidemill_core::message::Message;
use tidemill_core::packet::{QoS, RetainHandling, SubscriptionOptions};
use tidemill_core::topic::{TopicFilter, TopicName};

/// How long one thread has to publish and deliver.
const DEADLINE: Duration = Duration::from_secs(2);
/// Begins with `$`, so that no client's wildcard matches it.
const TOPIC: &str = "$SYS/health";

/// The data path does not work.
#[derive(Debug, thiserror::Error)]
pub(super) enum HealthError {
    /// A thread did not deliver in time.
    #[error("thread {thread} of connections did not deliver a message within {} s", DEADLINE.as_secs())]
    Stuck {
        /// Number of the thread.
        thread: usize,
    },
    /// The topic of the health check is not one: a fault of this module.
    #[error("health check has no topic")]
    NoTopic,
}

/// Publishes to itself.
pub(super) struct Health {
    router: Arc<Router>,
    threads: Arc<ConnectionThreads>,
    probe: Arc<Probe>,
    /// One check at a time, so that an arrival belongs to its check.
    turn: tokio::sync::Mutex<()>,
}

impl Health {
    pub(super) fn new(data_path: &DataPath, threads: Arc<ConnectionThreads>) -> Self {
        let probe = Arc::new(Probe::default());
        let context = MailboxContext {
            limits: MailboxLimits { messages: 16, bytes: 4_096 },
            metrics: data_path.metrics.clone(),
            validity: Arc::clone(&data_path.validity),
        };
        let mailbox = Mailbox::new(Arc::new(context), Flush::Probe(Arc::clone(&probe)));
        if let Ok(filter) = TopicFilter::parse(TOPIC) {
            let options = SubscriptionOptions {
                qos: QoS::AtMostOnce,
                no_local: false,
                retain_as_published: false,
                retain_handling: RetainHandling::DoNotSend,
            };
            data_path.router.subscribe_internal(&mailbox, &filter, options);
        }
        Self { router: Arc::clone(&data_path.router), threads, probe, turn: tokio::sync::Mutex::new(()) }
    }

    pub(super) async fn check(&self) -> Result<(), HealthError> {
        let _turn = self.turn.lock().await;
        let topic = TopicName::parse(TOPIC).map_err(|_| HealthError::NoTopic)?;
        for (number, thread) in self.threads.handles().iter().enumerate() {
            let before = self.probe.arrived();
            let (router, topic) = (Arc::clone(&self.router), topic.clone());
            let publish = thread.spawn(async move { publish(&router, topic) });
            let arrived = tokio::time::timeout(DEADLINE, self.probe.beyond(before)).await;
            if arrived.is_err() {
                publish.abort();
                return Err(HealthError::Stuck { thread: number });
            }
        }
        Ok(())
    }
}

fn publish(router: &Router, topic: TopicName) {
    let message = Message {
        topic,
        payload: Bytes::new(),
        qos: QoS::AtMostOnce,
        retain: false,
        properties: None,
        publisher: "health".into(),
        publish_time_ms: 0,
    };
    let mut turn = Turn::begin(router.metrics());
    let mut cache = RouteCache::new(Publisher::Other);
    router.publish(&Arc::new(message), &mut cache, PublishDone::Nobody, &mut turn);
    turn.finish();
}

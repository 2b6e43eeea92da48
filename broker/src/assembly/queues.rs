//! What the config says of queues, and how owners publish dead letters.

use crate::app::DataPath;
use crate::log::AppendError;
use crate::mailbox::Turn;
use crate::owner::parts::QueueRules;
use crate::owner::{DeadLetterError, DeadLetters};
use crate::router::{PublishDone, PublishEnd, Publisher, RouteCache, Router};
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tidemill_contract::config::{self, Sessions};
use tidemill_core::message::Message;
use tidemill_core::queue::limits::{QueueLimits, QueuePolicy};
use tidemill_core::queue::pace::TokenBucket;
use tokio::sync::oneshot;

/// The rules of queues as the config has them. The budget of the broker is full at `now_ms`.
pub(super) fn rules(sessions: &Sessions, now_ms: u64) -> QueueRules {
    let queue = &sessions.queue;
    QueueRules {
        limits: QueueLimits {
            messages: queue.messages,
            bytes: queue.bytes,
            age_ms: queue.age_secs.map(|secs| u64::from(secs) * 1_000),
            policy: match queue.policy {
                config::QueuePolicy::DropOldest => QueuePolicy::DropOldest,
                config::QueuePolicy::DropNewest => QueuePolicy::DropNewest,
                config::QueuePolicy::DeadLetter => QueuePolicy::DeadLetter,
            },
            deliveries_max: sessions.max_deliveries,
        },
        dead_letter_topic: queue.dead_letter_topic.as_str().into(),
        park_after: Duration::from_secs(sessions.park_after_secs.into()),
        replay_per_queue: sessions.replay_per_session,
        replay_total: sessions
            .replay_total
            .map(|per_second| Arc::new(Mutex::new(TokenBucket::new(per_second, now_ms)))),
    }
}

/// Dead letters go the way of every message.
pub(super) struct RouterDeadLetters {
    router: Arc<Router>,
    /// Topics repeat: a queue that is full drops many.
    cache: Mutex<RouteCache>,
}

impl RouterDeadLetters {
    pub(super) fn new(data_path: &DataPath) -> Self {
        Self { router: Arc::clone(&data_path.router), cache: Mutex::new(RouteCache::new(Publisher::Other)) }
    }
}

/// Tells whoever waits, once.
#[derive(Debug)]
struct Told(Mutex<Option<oneshot::Sender<Result<(), AppendError>>>>);

impl PublishEnd for Told {
    fn ended(&self, outcome: Result<(), AppendError>) {
        let told = self.0.lock().take();
        // Whoever waits may have gone.
        told.map(|told| told.send(outcome));
    }
}

impl DeadLetters for RouterDeadLetters {
    fn publish(&self, message: Arc<Message>) -> BoxFuture<'static, Result<(), DeadLetterError>> {
        let (told, is_told) = oneshot::channel();
        let end: Arc<dyn PublishEnd> = Arc::new(Told(Mutex::new(Some(told))));
        let mut turn = Turn::begin(self.router.metrics());
        self.router.publish(&message, &mut self.cache.lock(), PublishDone::Told(&end), &mut turn);
        turn.finish();
        async move {
            match is_told.await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(AppendError::Refused { reason, .. })) => Err(DeadLetterError::Refused { reason }),
                Ok(Err(AppendError::ProducerFailed { .. } | AppendError::Closed)) | Err(_) => {
                    Err(DeadLetterError::Unavailable)
                }
            }
        }
        .boxed()
    }
}

//! Retained messages as an administrator sees them.

use super::{Retained, Router, VISITS_MAX};
use crate::log::AppendError;
use crate::mailbox::unix_ms;
use crate::metrics::Metrics;
use std::ops::ControlFlow;
use std::sync::Arc;
use tidemill_core::message::Message;
use tidemill_core::retained::{Position, Search};
use tidemill_core::topic::{TopicFilter, TopicName};
use tokio::sync::oneshot;

/// How often the store is locked for one page.
const LOCKS_MAX: usize = 128;

/// Some retained messages.
#[derive(Debug)]
pub struct RetainedPage {
    /// In the order of their topics, level by level.
    pub messages: Vec<Arc<Message>>,
    /// Where to go on; `None` at the end.
    pub next: Option<Position>,
}

impl Router {
    /// Whether this broker retains messages.
    #[must_use]
    pub fn is_retaining(&self) -> bool {
        self.retained.get().is_some()
    }

    /// Whether a new subscription to `filter` may get retained messages that outlive this broker; true, too, if many topics
    /// would have to be looked at.
    #[must_use]
    pub fn may_get_retained(&self, filter: &TopicFilter) -> bool {
        let Some(retained) = self.retained.get().filter(|retained| retained.is_durable()) else {
            return false;
        };
        let search = Search { filter, from: None, visits_max: VISITS_MAX, now_ms: unix_ms() };
        // What stops the search is a message, or the bound.
        retained.store.read().search(search, |_| ControlFlow::Break(())).is_some()
    }

    /// The retained messages that match `filter` from `from` on, at most `messages_max`, fewer or none if many topics must
    /// be looked at: then go on. `None` if this broker does not retain.
    #[must_use]
    pub fn list_retained(
        &self,
        filter: &TopicFilter,
        from: Option<Position>,
        messages_max: usize,
    ) -> Option<RetainedPage> {
        let retained = self.retained.get()?;
        let mut page = RetainedPage { messages: Vec::new(), next: from };
        for _ in 0..LOCKS_MAX {
            let search =
                Search { filter, from: page.next.as_ref(), visits_max: VISITS_MAX, now_ms: unix_ms() };
            let messages = &mut page.messages;
            let next = retained.store.read().search(search, |message| {
                if messages.len() >= messages_max {
                    return ControlFlow::Break(());
                }
                messages.push(Arc::clone(message));
                ControlFlow::Continue(())
            });
            page.next = next;
            if page.next.is_none() || page.messages.len() >= messages_max {
                break;
            }
        }
        Some(page)
    }

    /// The retained message of `topic`.
    #[must_use]
    pub fn find_retained(&self, topic: &TopicName) -> Option<Arc<Message>> {
        self.retained.get()?.store.read().get(topic, unix_ms()).cloned()
    }

    /// Clears the retained message of `topic`; completes when that is durable. Subscriptions hear nothing of it. Answers
    /// whether there was one. A dropped call may have cleared it.
    ///
    /// # Errors
    ///
    /// [`AppendError`]: the broker is stopping; the message may come back with the next start.
    pub async fn clear_retained(&self, topic: &TopicName) -> Result<bool, AppendError> {
        match self.retained.get().and_then(|retained| retained.begin_clear(topic, &self.metrics)) {
            Some(cleared) => cleared.await.unwrap_or(Err(AppendError::Closed)).map(|()| true),
            None => Ok(false),
        }
    }
}

impl Retained {
    /// `None` if there is nothing to clear.
    fn begin_clear(
        &self,
        topic: &TopicName,
        metrics: &Metrics,
    ) -> Option<oneshot::Receiver<Result<(), AppendError>>> {
        let (answer, cleared) = oneshot::channel();
        let _order = self.lock_topic(topic);
        let mut store = self.store.write();
        store.get(topic, unix_ms())?;
        let former = store.clear(topic);
        // Whoever asked may have stopped waiting.
        if self.is_durable() {
            let done = Box::new(move |outcome: Result<_, _>| drop(answer.send(outcome.map(drop))));
            self.hand_over(topic.text(), None, Some(done), metrics);
        } else {
            drop(answer.send(Ok(())));
        }
        metrics.set_retained(store.len(), store.bytes());
        drop(store);
        drop(former);
        Some(cleared)
    }
}

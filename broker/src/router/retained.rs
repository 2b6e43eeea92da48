//! Retained messages: kept as they are published, sent to new subscriptions.
//!
//! Two rules make that a subscription never gets an older version of a topic after a newer one. A retained publish
//! holds the lock of its topic from the store to the last mailbox and to the log, so that deliveries of a topic have
//! the order of its versions. And a retained message is put into a mailbox while the store is locked for reading, so
//! that no newer version is published meanwhile. No socket is written with either, and the order of locks is topic,
//! store, mailbox.
//!
//! A third rule makes that the versions have one order on disk, too: every change of the store is handed to the
//! [`RetainedLog`] while the store is locked for writing.

mod load;
mod lookup;

pub use lookup::RetainedPage;

use super::matches::RouteCache;
use super::{Publisher, Router};
use crate::log::retained::{RetainedLog, StoreDone};
use crate::mailbox::{LiveDelivery, Mailbox, Turn, unix_ms};
use crate::metrics::{DropReason, Metrics};
use bytes::Bytes;
use bytestring::ByteString;
use futures::future::BoxFuture;
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow;
use std::sync::Arc;
use tidemill_core::message::Message;
use tidemill_core::packet::QoS;
use tidemill_core::retained::{Position, RetainedStore, Search, StoreFull, stored};
use tidemill_core::topic::{TopicFilter, TopicName};

/// Topics are spread over so many locks.
const TOPIC_LOCKS: usize = 64;
/// Levels of topics that are visited, and so messages that are sent, while the store is locked once.
const VISITS_MAX: usize = 256;
/// Expired messages taken away with each retained publish: more than come with it.
const SWEPT_WITH_PUBLISH: usize = 4;
/// Expired messages taken away at once otherwise.
const SWEPT_MAX: usize = 1_024;

/// The retained messages of this broker.
pub(super) struct Retained {
    bytes_max: usize,
    store: RwLock<RetainedStore>,
    /// Where they outlive the broker; `None` if they do not.
    log: Option<Arc<dyn RetainedLog>>,
    hasher: RandomState,
    topics: Vec<Mutex<()>>,
}

/// What a new subscription is still to get of the retained messages. Costs nothing but its memory while it waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetainedRequest {
    /// What was subscribed to.
    pub filter: TopicFilter,
    /// Granted QoS.
    pub qos: QoS,
    /// 5.0: the subscription's identifier.
    pub identifiers: Option<Arc<[u32]>>,
    /// The subscription's client, if it asked not to get its own messages (MQTT-3.8.3-3).
    pub no_local: Option<ByteString>,
    /// Where to go on; `None` begins.
    pub from: Option<Position>,
}

/// How far a [`RetainedRequest`] got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetainedProgress {
    /// Everything was sent.
    Done,
    /// There is more, and the mailbox may have room for it.
    More,
    /// The mailbox takes no more now; see [`Mailbox::deliver_retained`].
    NoRoom,
}

/// A retained message as a client published it.
pub(super) struct Change<'a> {
    pub(super) message: &'a Message,
    /// The publisher can be told that there is no room; then nothing changes. For others the topic is cleared: no message
    /// is better than an outdated one.
    pub(super) can_be_told: bool,
    /// Called when the change is durable, unless it is refused; `None` if nobody waits or nothing is durable.
    pub(super) done: Option<StoreDone>,
}

impl Retained {
    fn new(bytes_max: usize, store: RetainedStore, log: Option<Arc<dyn RetainedLog>>) -> Self {
        Self {
            bytes_max,
            store: RwLock::new(store),
            log,
            hasher: RandomState::new(),
            topics: (0..TOPIC_LOCKS).map(|_| Mutex::new(())).collect(),
        }
    }

    /// Whether messages outlive the broker.
    pub(super) fn is_durable(&self) -> bool {
        self.log.is_some()
    }

    /// Keeps other retained publishes to the topic out, until it is dropped.
    pub(super) fn lock_topic(&self, topic: &TopicName) -> MutexGuard<'_, ()> {
        let number = usize::try_from(self.hasher.hash_one(topic) >> 32).unwrap_or(0) % TOPIC_LOCKS;
        self.topics[number].lock()
    }

    /// Retains a copy of a client's message, or clears its topic. Hold [`Retained::lock_topic`].
    fn set(&self, change: Change<'_>, metrics: &Metrics, now_ms: u64) -> Result<(), StoreFull> {
        let message = Arc::new(change.message.to_compact());
        let is_kept = !message.payload.is_empty() && !message.is_expired(now_ms);
        let encoded = (is_kept && self.is_durable()).then(|| stored::encode(&message));
        let mut store = self.store.write();
        let swept = store.sweep(now_ms, SWEPT_WITH_PUBLISH);
        self.forget(&swept);
        let former = store.set(Arc::clone(&message), self.bytes_max, now_ms);
        let cleared = match &former {
            Ok(_) => {
                self.hand_over(message.topic.text(), encoded, change.done, metrics);
                None
            }
            Err(_) if change.can_be_told => None,
            Err(_) => {
                let cleared = store.clear(&message.topic);
                self.hand_over(message.topic.text(), None, change.done, metrics);
                cleared
            }
        };
        metrics.set_retained(store.len(), store.bytes());
        drop(store);
        // Freed without the lock.
        drop((swept, cleared));
        former.map(drop)
    }

    /// Retains a message of the broker itself, which does not outlive it. Hold [`Retained::lock_topic`].
    fn set_own(&self, message: &Message, metrics: &Metrics, now_ms: u64) {
        let message = Arc::new(message.to_compact());
        let mut store = self.store.write();
        let former = store.set(message, usize::MAX, now_ms);
        metrics.set_retained(store.len(), store.bytes());
        drop(store);
        if let Err(error) = former {
            debug_assert!(false, "there is no bound: {error}");
        }
    }

    /// The store has changed and is still locked: the log hears of it in the same order.
    fn hand_over(
        &self,
        topic: &ByteString,
        message: Option<Bytes>,
        done: Option<StoreDone>,
        metrics: &Metrics,
    ) {
        if let Some(log) = &self.log {
            metrics.count_retained_store();
            log.store(topic, message, done);
        }
    }

    /// Takes expired messages, which the store has lost and is still locked, out of the log. Nobody waits for it.
    fn forget(&self, swept: &[Arc<Message>]) {
        if let Some(log) = &self.log {
            swept.iter().for_each(|message| log.store(message.topic.text(), None, None));
        }
    }

    fn is_congested(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.is_congested())
    }

    fn sweep(&self, metrics: &Metrics, now_ms: u64) {
        // What has expired is passed over anyway; a log that is behind is given nothing that can wait.
        if !self.store.read().has_expired(now_ms) || self.is_congested() {
            return;
        }
        let mut store = self.store.write();
        let swept = store.sweep(now_ms, SWEPT_MAX);
        self.forget(&swept);
        metrics.set_retained(store.len(), store.bytes());
        drop(store);
        drop(swept);
    }
}

impl Router {
    /// What a retained publish waits for before it comes to [`Router::publish`]: a store that is behind, or whose disk is
    /// full. `None` if it need not wait.
    #[must_use]
    pub fn retained_relief(&self) -> Option<BoxFuture<'static, ()>> {
        let log = self.retained.get()?.log.as_ref()?;
        log.is_congested().then(|| log.relieved())
    }

    /// Publishes a retained message of the broker itself, such as a figure below `$SYS`, at QoS 0 to the clients of
    /// this broker. An empty payload clears the topic. It is not forwarded, not logged, not stored, and retained also
    /// beyond the bound of the clients' messages: what a broker says of itself is little, and its own.
    pub fn publish_own(&self, topic: TopicName, payload: Bytes) {
        let message = Arc::new(Message {
            topic,
            payload,
            qos: QoS::AtMostOnce,
            retain: true,
            properties: None,
            publisher: self.own.id.to_string().into(),
            publish_time_ms: unix_ms(),
        });
        let mut turn = Turn::begin(&self.metrics);
        let retained = self.retained.get();
        let order = retained.map(|retained| retained.lock_topic(&message.topic));
        if let Some(retained) = retained {
            retained.set_own(&message, &self.metrics, turn.now_ms());
        }
        let matches = RouteCache::new(Publisher::Other).look_up(&self.tables, &message.topic);
        self.deliver_local(&message, &matches, &mut turn);
        drop(order);
        turn.finish();
    }

    /// Sends of the retained messages what `request` still wants, as they are now, with the retain flag, until the
    /// mailbox takes no more or enough was done for one go.
    pub fn deliver_retained(
        &self,
        request: &mut RetainedRequest,
        mailbox: &Arc<Mailbox>,
        turn: &mut Turn,
    ) -> RetainedProgress {
        let Some(retained) = self.retained.get() else { return RetainedProgress::Done };
        let search = Search {
            filter: &request.filter,
            from: request.from.as_ref(),
            visits_max: VISITS_MAX,
            now_ms: turn.now_ms(),
        };
        let mut has_room = true;
        // Locked until the messages are in the mailbox: see above.
        let store = retained.store.read();
        let from = store.search(search, |message| {
            if request.no_local.as_ref() == Some(&message.publisher) {
                return ControlFlow::Continue(());
            }
            let delivery = LiveDelivery {
                message,
                qos: message.qos.min(request.qos),
                retain: true,
                identifiers: request.identifiers.as_ref(),
            };
            has_room = mailbox.deliver_retained(delivery, turn);
            if has_room { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        drop(store);
        request.from = from;
        retained.sweep(&self.metrics, turn.now_ms());
        match &request.from {
            None => RetainedProgress::Done,
            Some(_) if has_room => RetainedProgress::More,
            Some(_) => RetainedProgress::NoRoom,
        }
    }

    /// Takes expired retained messages away, at most 1,024. Call it about once a second.
    pub fn sweep_retained(&self, now_ms: u64) {
        if let Some(retained) = self.retained.get() {
            retained.sweep(&self.metrics, now_ms);
        }
    }

    /// How a retained publish begins, under the lock of its topic: the store has it, or there is no room. Then a
    /// publisher that can be told is (5.0, above QoS 0), and its message goes nowhere; for all others it is delivered
    /// as any message, and the topic has no retained message any more: an outdated one would be worse
    /// (MQTT-3.3.1-7 of 3.1.1 allows it).
    pub(super) fn retain(&self, retained: &Retained, change: Change<'_>, now_ms: u64) -> bool {
        let (topic, can_be_told) = (&change.message.topic, change.can_be_told);
        let Err(error) = retained.set(change, &self.metrics, now_ms) else { return true };
        tracing::debug!(%topic, %error, "no room to retain a message");
        self.metrics.count_drop(DropReason::RetainedFull);
        !can_be_told
    }
}

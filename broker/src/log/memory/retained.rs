//! The retained messages of the memory log.

use super::store::Store;
use super::{Inner, MemoryLog};
use crate::log::AppendError;
use crate::log::congestion::Congestion;
use crate::log::retained::{
    LOAD_BYTES_MAX, LOAD_ENTRIES_MAX, LoadError, RetainedEntry, RetainedLog, RetainedVersion, StoreDone,
};
use bytes::Bytes;
use bytestring::ByteString;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// What all brokers of a test have retained.
#[derive(Default)]
pub(super) struct RetainedMessages {
    last_version: RetainedVersion,
    topics: BTreeMap<Bytes, (RetainedVersion, Bytes)>,
}

/// The retained messages of one broker. Changes are stored at once, unless they are held.
pub struct MemoryRetained {
    inner: Arc<Inner>,
    changes: Mutex<Changes>,
    congestion: Congestion,
}

#[derive(Default)]
struct Changes {
    is_held: bool,
    waiting: Vec<Change>,
}

struct Change {
    topic: ByteString,
    message: Option<Bytes>,
    done: Option<StoreDone>,
}

impl MemoryLog {
    /// The retained messages on the same storage. They close with the log; what is held then is lost.
    #[must_use]
    pub fn retained(&self) -> Arc<MemoryRetained> {
        Arc::new(MemoryRetained {
            inner: Arc::clone(&self.inner),
            changes: Mutex::default(),
            congestion: Congestion::new(),
        })
    }

    /// Stores these bytes whatever they are, as a damaged disk has them.
    pub fn damage_retained(&self, topic: &'static [u8], message: &'static [u8]) {
        self.inner.store.set_retained(Bytes::from_static(topic), Some(Bytes::from_static(message)));
    }
}

impl Store {
    fn set_retained(&self, topic: Bytes, message: Option<Bytes>) -> RetainedVersion {
        let mut retained = self.retained.lock();
        retained.last_version += 1;
        let version = retained.last_version;
        match message {
            Some(message) => retained.topics.insert(topic, (version, message)),
            None => retained.topics.remove(&topic),
        };
        version
    }
}

impl MemoryRetained {
    /// Stores nothing until [`MemoryRetained::release`]: the store is slow.
    pub fn hold(&self) {
        self.changes.lock().is_held = true;
    }

    /// Stores what was held, in its order.
    pub fn release(&self) {
        let waiting = {
            let mut changes = self.changes.lock();
            changes.is_held = false;
            std::mem::take(&mut changes.waiting)
        };
        for change in waiting {
            self.congestion.remove(1, change.bytes());
            self.apply(change);
        }
    }

    /// How many changes are held.
    #[must_use]
    pub fn waiting_count(&self) -> usize {
        self.changes.lock().waiting.len()
    }

    fn apply(&self, change: Change) {
        let outcome = if *self.inner.closed.borrow() {
            Err(AppendError::Closed)
        } else {
            let topic = change.topic.as_bytes().clone();
            Ok(self.inner.store.set_retained(topic, change.message))
        };
        if let Some(done) = change.done {
            done(outcome);
        }
    }
}

impl Change {
    fn bytes(&self) -> usize {
        self.topic.len() + self.message.as_ref().map_or(0, Bytes::len)
    }
}

impl RetainedLog for MemoryRetained {
    fn store(&self, topic: &ByteString, message: Option<Bytes>, done: Option<StoreDone>) {
        let change = Change { topic: topic.clone(), message, done };
        let mut changes = self.changes.lock();
        if changes.is_held {
            self.congestion.add(change.bytes());
            changes.waiting.push(change);
            return;
        }
        drop(changes);
        self.apply(change);
    }

    fn is_congested(&self) -> bool {
        self.congestion.is_congested()
    }

    fn relieved(&self) -> BoxFuture<'static, ()> {
        self.congestion.relieved()
    }

    fn load(&self, after: Option<Bytes>) -> BoxFuture<'static, Result<Vec<RetainedEntry>, LoadError>> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let retained = self.inner.store.retained.lock();
        let mut bytes = 0;
        let mut entries = Vec::new();
        for (topic, (version, message)) in retained.topics.range((from, Bound::Unbounded)) {
            bytes += message.len();
            entries.push(RetainedEntry { topic: topic.clone(), version: *version, message: message.clone() });
            if entries.len() >= LOAD_ENTRIES_MAX || bytes >= LOAD_BYTES_MAX {
                break;
            }
        }
        Box::pin(std::future::ready(Ok(entries)))
    }
}

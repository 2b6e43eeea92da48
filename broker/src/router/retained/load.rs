//! What a broker finds retained when it starts.

use super::{Retained, Router};
use crate::log::retained::{LoadError, RetainedEntry, RetainedLog};
use crate::mailbox::unix_ms;
use bytestring::ByteString;
use std::sync::Arc;
use tidemill_core::message::Message;
use tidemill_core::retained::{RetainedStore, stored};
use tidemill_core::topic::TopicName;

/// Damaged messages that are named, each with a line; all are counted.
const NAMED_MAX: u64 = 100;

/// What became of the stored messages.
#[derive(Default)]
struct Found {
    expired: u64,
    damaged: u64,
    no_room: u64,
}

impl Router {
    /// Retains messages from now on, in `bytes_max` bytes of memory, beginning with those in `log`: in the order of their
    /// topics, as many as fit. What does not fit stays in the log for a start with more room, and so does what is damaged,
    /// until something newer of its topic replaces it. Once, before anything is published; without it nothing is retained.
    ///
    /// # Errors
    ///
    /// [`LoadError`]: the broker must not serve.
    pub async fn serve_retained(
        &self,
        bytes_max: u64,
        log: Option<Arc<dyn RetainedLog>>,
    ) -> Result<(), LoadError> {
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let mut store = RetainedStore::new();
        if let Some(log) = &log {
            let found = load(&mut store, bytes_max, &**log).await?;
            self.metrics.set_retained(store.len(), store.bytes());
            self.metrics.set_retained_left(found.damaged, found.no_room);
            found.tell(&store);
        }
        let is_first = self.retained.set(Retained::new(bytes_max, store, log)).is_ok();
        debug_assert!(is_first, "a router begins to retain once");
        Ok(())
    }
}

/// Each piece goes on behind the one before, so this ends.
async fn load(
    store: &mut RetainedStore,
    bytes_max: usize,
    log: &dyn RetainedLog,
) -> Result<Found, LoadError> {
    let mut found = Found::default();
    let mut next = log.load(None);
    loop {
        let entries = next.await?;
        let Some(last) = entries.last() else { return Ok(found) };
        // Read while these are looked at.
        next = log.load(Some(last.topic.clone()));
        let now_ms = unix_ms();
        for entry in entries {
            let Some(message) = found.decode(entry) else { continue };
            if message.is_expired(now_ms) {
                found.expired += 1;
                log.store(message.topic.text(), None, None);
            } else if store.set(Arc::new(message), bytes_max, now_ms).is_err() {
                found.no_room += 1;
            }
        }
        log.relieved().await;
    }
}

impl Found {
    fn decode(&mut self, entry: RetainedEntry) -> Option<Message> {
        let named = String::from_utf8_lossy(&entry.topic).into_owned();
        let topic = ByteString::try_from(entry.topic).ok().and_then(|text| TopicName::parse(text).ok());
        let error = match topic.map(|topic| stored::decode(topic, entry.message)) {
            Some(Ok(message)) => return Some(message),
            Some(Err(error)) => error.to_string(),
            None => "it is stored under what is no topic".to_owned(),
        };
        self.damaged += 1;
        if self.damaged <= NAMED_MAX {
            tracing::error!(
                topic = named,
                error,
                "retained message is damaged and not served; the next one of its topic replaces it"
            );
        }
        None
    }

    fn tell(&self, store: &RetainedStore) {
        let Self { expired, damaged, no_room } = self;
        if *no_room > 0 {
            tracing::error!(
                messages = no_room,
                "limits.retainedBytes is too low for all retained messages; these are stored and not served"
            );
        }
        if *damaged > 0 {
            tracing::error!(messages = damaged, "damaged retained messages are not served");
        }
        tracing::info!(messages = store.len(), bytes = store.bytes(), expired, "retained messages loaded");
    }
}

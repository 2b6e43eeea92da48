//! How fast the queues of a partition are served behind its head.

use crate::owner::parts::QueueRules;
use std::collections::BTreeMap;
use tidemill_core::queue::pace::TokenBucket;
use tidemill_core::queue::partition::QueueSlot;

/// What each queue that is behind may get. Empty without a bound.
#[derive(Default)]
pub(super) struct Pace {
    by_slot: BTreeMap<QueueSlot, TokenBucket>,
}

impl Pace {
    /// How many messages a queue may get now.
    pub(super) fn allowed(&mut self, rules: &QueueRules, slot: QueueSlot, now_ms: u64) -> u64 {
        let mut allowed = u64::MAX;
        if let Some(per_second) = rules.replay_per_queue {
            let bucket = self.by_slot.entry(slot).or_insert_with(|| TokenBucket::new(per_second, now_ms));
            allowed = bucket.available(now_ms);
        }
        if let Some(total) = rules.replay_total.as_ref().filter(|_| allowed > 0) {
            allowed = allowed.min(total.lock().available(now_ms));
        }
        allowed
    }

    /// A queue got `messages`.
    pub(super) fn take(&mut self, rules: &QueueRules, slot: QueueSlot, messages: usize) {
        let messages = messages as u64;
        if let Some(bucket) = self.by_slot.get_mut(&slot) {
            bucket.take(messages);
        }
        if let Some(total) = rules.replay_total.as_ref().filter(|_| messages > 0) {
            total.lock().take(messages);
        }
    }

    /// The queue has a new receiver, or is gone.
    pub(super) fn forget(&mut self, slot: QueueSlot) {
        self.by_slot.remove(&slot);
    }
}

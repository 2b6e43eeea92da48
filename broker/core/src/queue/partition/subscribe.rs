//! The subscriptions of the queues of a partition, and the routes that follow from them.

use super::{PartitionQueues, QueueSlot};
use crate::attach::QueueId;
use crate::queue::progress::Mode;
use crate::queue::subscription::Subscription;
use crate::topic::{SharedFilter, TopicFilter};
use std::collections::BTreeSet;
use std::hash::BuildHasher;

impl<S: BuildHasher + Clone> PartitionQueues<S> {
    /// Adds or replaces a subscription; returns what was replaced. See [`Self::has_route`] for the route.
    pub fn subscribe(
        &mut self,
        slot: QueueSlot,
        filter: TopicFilter,
        subscription: Subscription,
    ) -> Option<Subscription> {
        self.index(slot, &filter, Some(&subscription));
        if subscription.end.is_some() {
            self.ending.insert(slot);
        }
        self.queue_mut(slot)?.subscriptions.insert(filter, subscription)
    }

    /// Takes a subscription out at once; returns it.
    pub fn unsubscribe(&mut self, slot: QueueSlot, filter: &TopicFilter) -> Option<Subscription> {
        self.index(slot, filter, None);
        self.queue_mut(slot)?.subscriptions.remove(filter)
    }

    /// Makes the tries say what `subscription` is, or that there is none.
    fn index(&mut self, slot: QueueSlot, filter: &TopicFilter, subscription: Option<&Subscription>) {
        let key = (slot, filter.clone());
        let has_route = subscription.is_some_and(Subscription::has_route);
        let is_beside = !has_route && subscription.is_some_and(Subscription::adds_to_deliveries);
        for (trie, is_in) in [(&mut self.durable, has_route), (&mut self.beside, is_beside)] {
            if is_in {
                trie.insert(filter, key.clone());
            } else {
                trie.remove(filter, &key);
            }
        }
    }

    /// Adds or replaces a shared subscription: kept for the session, no record comes to the queue by it. Returns what was
    /// replaced.
    pub fn subscribe_shared(
        &mut self,
        slot: QueueSlot,
        shared: SharedFilter,
        subscription: Subscription,
    ) -> Option<Subscription> {
        self.queue_mut(slot)?.subscriptions.insert_shared(shared, subscription)
    }

    /// Takes a shared subscription out; returns it.
    pub fn unsubscribe_shared(&mut self, slot: QueueSlot, shared: &SharedFilter) -> Option<Subscription> {
        self.queue_mut(slot)?.subscriptions.remove_shared(shared)
    }

    /// Takes out subscriptions that have ended and that their queue, now at the head, needs no more; with what is in their
    /// place. See [`Self::has_route`] for the route.
    pub fn take_ended(&mut self) -> Vec<(QueueId, TopicFilter, Option<Subscription>)> {
        let mut taken = Vec::new();
        let head = self.head;
        for slot in self.ending.clone() {
            let Some(queue) = self.queue_mut(slot) else { continue };
            if queue.progress.mode() == Mode::Behind {
                continue;
            }
            let id = queue.id.clone();
            let ended = queue.subscriptions.take_ended(head);
            if !queue.subscriptions.has_ending() {
                self.ending.remove(&slot);
            }
            for (filter, next) in ended {
                self.index(slot, &filter, next.as_ref());
                taken.push((id.clone(), filter, next));
            }
        }
        taken
    }

    /// Whether a subscription of QoS > 0 with this filter is in force.
    #[must_use]
    pub fn has_route(&self, filter: &TopicFilter) -> bool {
        self.durable.contains_filter(filter)
    }

    /// The filters of all subscriptions of QoS > 0 in force, in order, each once.
    #[must_use]
    pub fn routes(&self) -> Vec<TopicFilter> {
        let mut filters = BTreeSet::new();
        for queue in self.queues.iter().flatten() {
            for (filter, subscription) in queue.subscriptions.iter() {
                if subscription.has_route() {
                    filters.insert(filter.clone());
                }
            }
        }
        filters.into_iter().collect()
    }
}

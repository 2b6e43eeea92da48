//! What a session subscribed to.

use crate::attach::StoredSubscription;
use crate::packet::SubscriptionOptions;
use crate::topic::TopicFilter;
use std::collections::BTreeMap;

/// The subscriptions of one session, one for each filter.
///
/// Invariant: at most `maximum` filters.
#[derive(Debug, Clone)]
pub struct Subscriptions {
    filters: BTreeMap<TopicFilter, (SubscriptionOptions, Option<u32>)>,
    maximum: usize,
}

/// What became of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subscribed {
    /// The filter was not there.
    New,
    /// The filter was there with these options; they are replaced.
    Replaced(SubscriptionOptions),
    /// There are `maximum` filters already: answer 0x97. Nothing changed.
    QuotaExceeded,
}

impl Subscriptions {
    /// No subscriptions, and room for `maximum`.
    #[must_use]
    pub fn new(maximum: u32) -> Self {
        Self { filters: BTreeMap::new(), maximum: usize::try_from(maximum).unwrap_or(usize::MAX) }
    }

    /// Adds or replaces a subscription.
    pub fn insert(&mut self, subscription: StoredSubscription) -> Subscribed {
        let StoredSubscription { filter, options, identifier } = subscription;
        if let Some(old) = self.filters.get_mut(&filter) {
            let (before, _) = std::mem::replace(old, (options, identifier));
            return Subscribed::Replaced(before);
        }
        if self.filters.len() >= self.maximum {
            return Subscribed::QuotaExceeded;
        }
        self.filters.insert(filter, (options, identifier));
        Subscribed::New
    }

    /// Takes a subscription away; its options if it was there.
    pub fn remove(&mut self, filter: &TopicFilter) -> Option<SubscriptionOptions> {
        self.filters.remove(filter).map(|(options, _)| options)
    }

    /// Whether `filter` may be subscribed: it is there, or there is room beside `more` new ones.
    #[must_use]
    pub fn has_room_for(&self, filter: &TopicFilter, more: usize) -> bool {
        self.filters.contains_key(filter) || self.filters.len() + more < self.maximum
    }

    /// The subscription to `filter`, if there is one.
    #[must_use]
    pub fn get(&self, filter: &TopicFilter) -> Option<StoredSubscription> {
        let (options, identifier) = *self.filters.get(filter)?;
        Some(StoredSubscription { filter: filter.clone(), options, identifier })
    }

    /// Whether there is a subscription to `filter`.
    #[must_use]
    pub fn contains(&self, filter: &TopicFilter) -> bool {
        self.filters.contains_key(filter)
    }

    /// All filters with their options, in filter order.
    pub fn iter(&self) -> impl Iterator<Item = (&TopicFilter, SubscriptionOptions)> {
        self.filters.iter().map(|(filter, (options, _))| (filter, *options))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.filters.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.filters.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{QoS, RetainHandling};

    fn subscription(filter: &str, qos: QoS) -> StoredSubscription {
        let options = SubscriptionOptions {
            qos,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::Send,
        };
        StoredSubscription { filter: TopicFilter::parse(filter).unwrap(), options, identifier: None }
    }

    #[test]
    fn a_full_session_still_replaces_what_it_has() {
        let mut subscriptions = Subscriptions::new(1);

        assert_eq!(subscriptions.insert(subscription("a", QoS::AtMostOnce)), Subscribed::New);
        assert_eq!(subscriptions.insert(subscription("b", QoS::AtMostOnce)), Subscribed::QuotaExceeded);
        let replaced = subscriptions.insert(subscription("a", QoS::AtLeastOnce));
        assert!(
            matches!(replaced, Subscribed::Replaced(options) if options.qos == QoS::AtMostOnce),
            "{replaced:?}"
        );
        assert!(subscriptions.remove(&TopicFilter::parse("a").unwrap()).is_some());
        assert!(subscriptions.remove(&TopicFilter::parse("a").unwrap()).is_none());
    }
}

//! What a session subscribed to.

use crate::attach::StoredSubscription;
use crate::packet::SubscriptionOptions;
use crate::topic::{SharedFilter, SubscriptionTarget, TopicFilter};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

/// The subscriptions of one session: one for each filter, and one for each shared filter.
///
/// Invariant: at most `maximum` in all.
#[derive(Debug, Clone)]
pub struct Subscriptions {
    filters: BTreeMap<TopicFilter, Kept>,
    /// Most sessions have none. What a shared subscription asks for is known to its group.
    shared: BTreeSet<SharedFilter>,
    maximum: usize,
}

/// How one filter is subscribed. One word, because there are millions; no client may send the identifier 0.
#[derive(Debug, Clone, Copy)]
struct Kept {
    options: SubscriptionOptions,
    identifier: Option<NonZeroU32>,
}

/// What became of a plain subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subscribed {
    /// The filter was not there.
    New,
    /// The filter was there with these options; they are replaced.
    Replaced(SubscriptionOptions),
    /// There are `maximum` subscriptions already: answer 0x97. Nothing changed.
    QuotaExceeded,
}

impl Subscriptions {
    /// No subscriptions, and room for `maximum`.
    #[must_use]
    pub fn new(maximum: u32) -> Self {
        let maximum = usize::try_from(maximum).unwrap_or(usize::MAX);
        Self { filters: BTreeMap::new(), shared: BTreeSet::new(), maximum }
    }

    /// Adds or replaces a plain subscription.
    pub fn insert(
        &mut self,
        filter: TopicFilter,
        options: SubscriptionOptions,
        identifier: Option<u32>,
    ) -> Subscribed {
        let new = Kept { options, identifier: identifier.and_then(NonZeroU32::new) };
        if let Some(kept) = self.filters.get_mut(&filter) {
            let former = std::mem::replace(kept, new);
            return Subscribed::Replaced(former.options);
        }
        if self.len() >= self.maximum {
            return Subscribed::QuotaExceeded;
        }
        self.filters.insert(filter, new);
        Subscribed::New
    }

    /// Adds a shared subscription. False if it was not there and there are `maximum` subscriptions already.
    pub fn insert_shared(&mut self, shared: SharedFilter) -> bool {
        if self.shared.contains(&shared) {
            return true;
        }
        self.len() < self.maximum && self.shared.insert(shared)
    }

    /// Takes a plain subscription away; its options if it was there.
    pub fn remove(&mut self, filter: &TopicFilter) -> Option<SubscriptionOptions> {
        self.filters.remove(filter).map(|kept| kept.options)
    }

    /// Takes a shared subscription away; false if it was not there.
    pub fn remove_shared(&mut self, shared: &SharedFilter) -> bool {
        self.shared.remove(shared)
    }

    /// The subscription to `filter`, if there is one.
    #[must_use]
    pub fn get(&self, filter: &TopicFilter) -> Option<StoredSubscription> {
        let Kept { options, identifier } = *self.filters.get(filter)?;
        let identifier = identifier.map(NonZeroU32::get);
        Some(StoredSubscription { target: SubscriptionTarget::Filter(filter.clone()), options, identifier })
    }

    /// Whether `target` may be subscribed: it is there, or there is room beside `more` new ones.
    #[must_use]
    pub fn has_room_for(&self, target: &SubscriptionTarget, more: usize) -> bool {
        self.contains(target) || self.len() + more < self.maximum
    }

    /// Whether there is a subscription to `target`.
    #[must_use]
    pub fn contains(&self, target: &SubscriptionTarget) -> bool {
        match target {
            SubscriptionTarget::Filter(filter) => self.filters.contains_key(filter),
            SubscriptionTarget::Shared(shared) => self.shared.contains(shared),
        }
    }

    /// The plain subscriptions with their options, in filter order.
    pub fn iter(&self) -> impl Iterator<Item = (&TopicFilter, SubscriptionOptions)> {
        self.filters.iter().map(|(filter, kept)| (filter, kept.options))
    }

    /// The shared subscriptions, in order.
    pub fn shared(&self) -> impl ExactSizeIterator<Item = &SharedFilter> {
        self.shared.iter()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.filters.len() + self.shared.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{QoS, RetainHandling};

    fn options(qos: QoS) -> SubscriptionOptions {
        SubscriptionOptions {
            qos,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::Send,
        }
    }

    fn filter(text: &str) -> TopicFilter {
        TopicFilter::parse(text).unwrap()
    }

    fn shared(text: &str) -> SharedFilter {
        match SubscriptionTarget::parse(&text.into()).unwrap() {
            SubscriptionTarget::Shared(shared) => shared,
            SubscriptionTarget::Filter(filter) => panic!("{filter} is not shared"),
        }
    }

    #[test]
    fn a_full_session_still_replaces_what_it_has() {
        let mut subscriptions = Subscriptions::new(1);

        assert_eq!(subscriptions.insert(filter("a"), options(QoS::AtMostOnce), None), Subscribed::New);
        let beyond = subscriptions.insert(filter("b"), options(QoS::AtMostOnce), None);
        assert_eq!(beyond, Subscribed::QuotaExceeded);
        let replaced = subscriptions.insert(filter("a"), options(QoS::AtLeastOnce), None);
        assert!(
            matches!(replaced, Subscribed::Replaced(options) if options.qos == QoS::AtMostOnce),
            "{replaced:?}"
        );
        assert!(subscriptions.remove(&filter("a")).is_some());
        assert!(subscriptions.remove(&filter("a")).is_none());
    }

    #[test]
    fn shared_subscriptions_count_beside_a_plain_one_to_the_same_filter() {
        let mut subscriptions = Subscriptions::new(2);

        assert_eq!(subscriptions.insert(filter("a"), options(QoS::AtMostOnce), None), Subscribed::New);
        assert!(subscriptions.insert_shared(shared("$share/g/a")));
        assert!(subscriptions.insert_shared(shared("$share/g/a")), "it is there");
        assert!(!subscriptions.insert_shared(shared("$share/h/a")));
        let one_more = SubscriptionTarget::Shared(shared("$share/h/a"));
        assert!(!subscriptions.has_room_for(&one_more, 0));
        assert!(subscriptions.remove_shared(&shared("$share/g/a")));
        assert!(!subscriptions.remove_shared(&shared("$share/g/a")));
        assert!(subscriptions.has_room_for(&one_more, 0));
        assert_eq!(subscriptions.len(), 1);
    }
}

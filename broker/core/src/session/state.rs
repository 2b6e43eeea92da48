//! What a session subscribed to.

use crate::attach::StoredSubscription;
use crate::packet::SubscriptionOptions;
use crate::topic::{SharedFilter, SubscriptionTarget, TopicFilter};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

/// Bytes of the filters of one session: far more than sensible clients use, far less than the longest filters would take.
pub const FILTER_BYTES_MAX: usize = 4 << 20;

/// The subscriptions of one session: one for each filter, and one for each shared filter.
///
/// Invariant: at most `maximum` in all, and [`FILTER_BYTES_MAX`] of their texts.
#[derive(Debug, Clone)]
pub struct Subscriptions {
    filters: BTreeMap<TopicFilter, Kept>,
    /// Most sessions have none. What a shared subscription asks for is known to its group.
    shared: BTreeSet<SharedFilter>,
    bytes: usize,
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
    /// There is no room: answer 0x97. Nothing changed.
    QuotaExceeded,
}

impl Subscriptions {
    /// No subscriptions, and room for `maximum`.
    #[must_use]
    pub fn new(maximum: u32) -> Self {
        let maximum = usize::try_from(maximum).unwrap_or(usize::MAX);
        Self { filters: BTreeMap::new(), shared: BTreeSet::new(), bytes: 0, maximum }
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
        if !self.has_room(&filter, 0, 0) {
            return Subscribed::QuotaExceeded;
        }
        self.bytes += filter.as_str().len();
        self.filters.insert(filter, new);
        Subscribed::New
    }

    /// Adds a shared subscription. False if it was not there and there is no room.
    pub fn insert_shared(&mut self, shared: SharedFilter) -> bool {
        if self.shared.contains(&shared) {
            return true;
        }
        let is_added = self.has_room(shared.filter(), 0, 0);
        if is_added {
            self.bytes += shared.filter().as_str().len();
            self.shared.insert(shared);
        }
        is_added
    }

    /// Takes a plain subscription away; its options if it was there.
    pub fn remove(&mut self, filter: &TopicFilter) -> Option<SubscriptionOptions> {
        let kept = self.filters.remove(filter)?;
        self.bytes -= filter.as_str().len();
        Some(kept.options)
    }

    /// Takes a shared subscription away; false if it was not there.
    pub fn remove_shared(&mut self, shared: &SharedFilter) -> bool {
        let was_there = self.shared.remove(shared);
        self.bytes -= if was_there { shared.filter().as_str().len() } else { 0 };
        was_there
    }

    /// The subscription to `filter`, if there is one.
    #[must_use]
    pub fn get(&self, filter: &TopicFilter) -> Option<StoredSubscription> {
        let Kept { options, identifier } = *self.filters.get(filter)?;
        let identifier = identifier.map(NonZeroU32::get);
        Some(StoredSubscription { target: SubscriptionTarget::Filter(filter.clone()), options, identifier })
    }

    /// Whether `target` may be subscribed: it is there, or there is room beside `more` new ones with so many bytes.
    #[must_use]
    pub fn has_room_for(&self, target: &SubscriptionTarget, more: usize, more_bytes: usize) -> bool {
        self.contains(target) || self.has_room(target.filter(), more, more_bytes)
    }

    fn has_room(&self, filter: &TopicFilter, more: usize, more_bytes: usize) -> bool {
        self.len() + more < self.maximum
            && self.bytes + more_bytes + filter.as_str().len() <= FILTER_BYTES_MAX
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
    fn the_texts_of_all_filters_have_a_bound_and_what_goes_makes_room() {
        let long = |number: usize| filter(&format!("{number:05}/{}", "x".repeat(60_000)));
        let mut subscriptions = Subscriptions::new(1_000_000);
        let fitting = (0..).take_while(|number| {
            let target = SubscriptionTarget::Filter(long(*number));
            let has_room = subscriptions.has_room_for(&target, 0, 0);
            let outcome = subscriptions.insert(long(*number), options(QoS::AtMostOnce), None);
            assert_eq!(outcome == Subscribed::New, has_room);
            has_room
        });
        assert_eq!(fitting.count(), FILTER_BYTES_MAX / 60_006);

        assert!(!subscriptions.insert_shared(shared(&format!("$share/g/{}", "x".repeat(60_000)))));
        assert!(subscriptions.remove(&long(3)).is_some());
        assert!(subscriptions.insert_shared(shared(&format!("$share/g/{}", "x".repeat(60_000)))));
        assert!(!subscriptions.has_room_for(&SubscriptionTarget::Filter(long(3)), 0, 0));
        assert!(subscriptions.remove_shared(&shared(&format!("$share/g/{}", "x".repeat(60_000)))));
        assert!(subscriptions.has_room_for(&SubscriptionTarget::Filter(long(3)), 0, 0));
        assert!(!subscriptions.has_room_for(&SubscriptionTarget::Filter(long(3)), 1, 60_006));
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
        assert!(!subscriptions.has_room_for(&one_more, 0, 0));
        assert!(subscriptions.remove_shared(&shared("$share/g/a")));
        assert!(!subscriptions.remove_shared(&shared("$share/g/a")));
        assert!(subscriptions.has_room_for(&one_more, 0, 0));
        assert_eq!(subscriptions.len(), 1);
    }
}

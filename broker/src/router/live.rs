//! Local receivers, and what peers are told about them.

use super::tables::{Entry, Receiver};
use super::{Links, Router};
use crate::cluster::{LiveClass, Route, RouteChange};
use crate::mailbox::Mailbox;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::MutexGuard;
use std::collections::HashMap;
use std::sync::Arc;
use tidemill_core::packet::SubscriptionOptions;
use tidemill_core::topic::TopicFilter;

/// A subscription that is served from memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveSubscription {
    /// What is subscribed to.
    pub filter: TopicFilter,
    /// How to deliver.
    pub options: SubscriptionOptions,
    /// 5.0 subscription identifier.
    pub identifier: Option<u32>,
    /// [`LiveClass::QosZeroOnly`] for a persistent session's subscription above QoS 0: its queue has the rest.
    pub class: LiveClass,
    /// Class of the receiver's former subscription to the filter.
    pub replaces: Option<LiveClass>,
}

/// How many local receivers each announced route has.
#[derive(Debug, Default)]
pub(super) struct Announced(HashMap<(TopicFilter, LiveClass), usize>);

/// What peers will be told. Holds the lock until it is sent, so that they see changes in the order in which they were made.
struct Announcement<'a> {
    announced: MutexGuard<'a, Announced>,
    changes: Vec<RouteChange>,
    links: &'a Links,
}

impl Announcement<'_> {
    fn add(&mut self, filter: &TopicFilter, class: LiveClass) {
        let count = self.announced.0.entry((filter.clone(), class)).or_insert(0);
        *count += 1;
        if *count == 1 {
            self.changes.push(RouteChange::Add(Route::Live { filter: filter.clone(), class }));
        }
    }

    fn remove(&mut self, filter: &TopicFilter, class: LiveClass) {
        let key = (filter.clone(), class);
        let Some(count) = self.announced.0.get_mut(&key) else { return };
        *count -= 1;
        if *count == 0 {
            self.announced.0.remove(&key);
            self.changes.push(RouteChange::Remove(Route::Live { filter: key.0, class }));
        }
    }

    /// Completes when those peers have heard that can be reached.
    fn send(self) -> BoxFuture<'static, ()> {
        if self.changes.is_empty() {
            return futures::future::ready(()).boxed();
        }
        self.links.exchange.announce_live(self.changes)
    }
}

impl Router {
    /// Adds receivers. Publishes of this broker reach them from now on; the future completes when those of reachable
    /// peers do: the gate of a live SUBACK. Dropping it changes nothing but the wait.
    pub fn subscribe_live(
        &self,
        mailbox: &Arc<Mailbox>,
        subscriptions: Vec<LiveSubscription>,
    ) -> BoxFuture<'static, ()> {
        let mut announcement = self.announcement();
        for subscription in subscriptions {
            let LiveSubscription { filter, options, identifier, class, replaces } = subscription;
            let receiver = Receiver::new(Arc::clone(mailbox), options, identifier, class);
            if self.tables.insert(&filter, Entry::Local(receiver)) {
                self.metrics.add_subscriptions(1);
            }
            if let Some(announcement) = &mut announcement
                && replaces != Some(class)
            {
                announcement.add(&filter, class);
                if let Some(former) = replaces {
                    announcement.remove(&filter, former);
                }
            }
        }
        announcement.map_or_else(|| futures::future::ready(()).boxed(), Announcement::send)
    }

    /// Takes receivers away, each with the class it had.
    pub fn unsubscribe_live(
        &self,
        mailbox: &Arc<Mailbox>,
        filters: &[(TopicFilter, SubscriptionOptions, LiveClass)],
    ) {
        let mut announcement = self.announcement();
        for (filter, options, class) in filters {
            let receiver = Receiver::new(Arc::clone(mailbox), *options, None, *class);
            if self.tables.remove(filter, &Entry::Local(receiver)) {
                self.metrics.add_subscriptions(-1);
                if let Some(announcement) = &mut announcement {
                    announcement.remove(filter, *class);
                }
            }
        }
        // Nobody waits until the peers have heard.
        drop(announcement.map(Announcement::send));
    }

    /// Adds a receiver that peers do not hear of: for the broker itself.
    pub fn subscribe_internal(
        &self,
        mailbox: &Arc<Mailbox>,
        filter: &TopicFilter,
        options: SubscriptionOptions,
    ) {
        let receiver = Receiver::new(Arc::clone(mailbox), options, None, LiveClass::AnyQos);
        self.tables.insert(filter, Entry::Local(receiver));
    }

    /// All live routes that this broker has announced, in no particular order.
    #[must_use]
    pub fn announced_live(&self) -> Vec<Route> {
        let Some(links) = self.links.get() else { return Vec::new() };
        let announced = links.announced.lock();
        announced
            .0
            .keys()
            .map(|(filter, class)| Route::Live { filter: filter.clone(), class: *class })
            .collect()
    }

    /// For changes of live routes, if there is somebody to tell.
    fn announcement(&self) -> Option<Announcement<'_>> {
        let links = self.links.get()?;
        Some(Announcement { announced: links.announced.lock(), changes: Vec::new(), links })
    }
}

//! Local receivers, and what peers are told about them.

use super::Router;
use super::tables::{Entry, Receiver};
use crate::cluster::{LiveClass, Route, RouteChange};
use crate::mailbox::Mailbox;
use futures::FutureExt;
use futures::future::BoxFuture;
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

impl Announced {
    fn add(&mut self, filter: &TopicFilter, class: LiveClass, changes: &mut Vec<RouteChange>) {
        let count = self.0.entry((filter.clone(), class)).or_insert(0);
        *count += 1;
        if *count == 1 {
            changes.push(RouteChange::Add(Route::Live { filter: filter.clone(), class }));
        }
    }

    fn remove(&mut self, filter: &TopicFilter, class: LiveClass, changes: &mut Vec<RouteChange>) {
        let key = (filter.clone(), class);
        let Some(count) = self.0.get_mut(&key) else { return };
        *count -= 1;
        if *count == 0 {
            self.0.remove(&key);
            changes.push(RouteChange::Remove(Route::Live { filter: key.0, class }));
        }
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
        let mut changes = Vec::new();
        // Held until the changes are announced, so that peers see them in the order in which they were made.
        let mut announced = self.announced.lock();
        for subscription in subscriptions {
            let LiveSubscription { filter, options, identifier, class, replaces } = subscription;
            let receiver = Receiver { mailbox: Arc::clone(mailbox), options, identifier, class };
            if self.tables.insert(&filter, Entry::Local(receiver)) {
                self.metrics.add_subscriptions(1);
            }
            if replaces != Some(class) {
                announced.add(&filter, class, &mut changes);
                if let Some(former) = replaces {
                    announced.remove(&filter, former, &mut changes);
                }
            }
        }
        self.announce(changes)
    }

    /// Takes receivers away, each with the class it had.
    pub fn unsubscribe_live(
        &self,
        mailbox: &Arc<Mailbox>,
        filters: &[(TopicFilter, SubscriptionOptions, LiveClass)],
    ) {
        let mut changes = Vec::new();
        let mut announced = self.announced.lock();
        for (filter, options, class) in filters {
            let receiver =
                Receiver { mailbox: Arc::clone(mailbox), options: *options, identifier: None, class: *class };
            if self.tables.remove(filter, &Entry::Local(receiver)) {
                self.metrics.add_subscriptions(-1);
                announced.remove(filter, *class, &mut changes);
            }
        }
        drop(self.announce(changes));
    }

    /// Adds a receiver that peers do not hear of: for the broker itself.
    pub fn subscribe_internal(
        &self,
        mailbox: &Arc<Mailbox>,
        filter: &TopicFilter,
        options: SubscriptionOptions,
    ) {
        let receiver =
            Receiver { mailbox: Arc::clone(mailbox), options, identifier: None, class: LiveClass::AnyQos };
        self.tables.insert(filter, Entry::Local(receiver));
    }

    /// All live routes that this broker has announced, in no particular order.
    #[must_use]
    pub fn announced_live(&self) -> Vec<Route> {
        let announced = self.announced.lock();
        let routes = announced.0.keys().map(|(filter, class)| (filter.clone(), *class));
        routes.map(|(filter, class)| Route::Live { filter, class }).collect()
    }

    fn announce(&self, changes: Vec<RouteChange>) -> BoxFuture<'static, ()> {
        match self.links.get() {
            Some(links) if !changes.is_empty() => links.exchange.announce_live(changes),
            Some(_) | None => futures::future::ready(()).boxed(),
        }
    }
}

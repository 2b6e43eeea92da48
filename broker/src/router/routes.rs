//! Routes that others announce: live routes of peers, durable routes of partitions.

use super::tables::Entry;
use super::{Router, bit};
use crate::cluster::{LiveClass, Route, RouteChange};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use tidemill_core::member::MemberId;
use tidemill_core::partition::Partition;
use tidemill_core::topic::TopicFilter;

/// What the tables hold of others, to replace it by a snapshot.
#[derive(Debug, Default)]
pub(super) struct KnownRoutes {
    peers: BTreeMap<MemberId, BTreeSet<(TopicFilter, LiveClass)>>,
    partitions: BTreeMap<Partition, BTreeSet<TopicFilter>>,
}

impl Router {
    /// Applies changes that `member` announced, in order. A durable route belongs to its partition, whoever announces
    /// it.
    pub fn apply_peer_routes(&self, member: &MemberId, changes: &[RouteChange]) {
        let mut known = self.known.lock();
        for change in changes {
            match change {
                RouteChange::Add(Route::Live { filter, class }) => {
                    known.peers.entry(member.clone()).or_default().insert((filter.clone(), *class));
                    self.tables.insert(filter, Entry::peer(member, *class));
                }
                RouteChange::Remove(Route::Live { filter, class }) => {
                    if let Some(routes) = known.peers.get_mut(member) {
                        routes.remove(&(filter.clone(), *class));
                    }
                    self.tables.remove(filter, &Entry::peer(member, *class));
                }
                RouteChange::Add(Route::Durable { partition, filter }) => {
                    self.add_durable(&mut known, *partition, filter);
                }
                RouteChange::Remove(Route::Durable { partition, filter }) => {
                    self.remove_durable(&mut known, *partition, filter);
                }
            }
        }
    }

    /// Replaces all live routes of `member`: a snapshot, or nothing when the member is gone.
    pub fn set_peer_routes(&self, member: &MemberId, routes: BTreeSet<(TopicFilter, LiveClass)>) {
        let mut known = self.known.lock();
        let former = known.peers.remove(member).unwrap_or_default();
        for (filter, class) in former.difference(&routes) {
            self.tables.remove(filter, &Entry::peer(member, *class));
        }
        for (filter, class) in routes.difference(&former) {
            self.tables.insert(filter, Entry::peer(member, *class));
        }
        if !routes.is_empty() {
            known.peers.insert(member.clone(), routes);
        }
    }

    /// Applies changes of the durable routes of one partition, in order: filters that came, then filters that went.
    pub fn apply_durable(&self, partition: Partition, added: &[TopicFilter], removed: &[TopicFilter]) {
        let mut known = self.known.lock();
        for filter in added {
            self.add_durable(&mut known, partition, filter);
        }
        for filter in removed {
            self.remove_durable(&mut known, partition, filter);
        }
    }

    /// Replaces all durable routes of one partition, which is known from now on.
    pub fn set_partition_routes(&self, partition: Partition, filters: BTreeSet<TopicFilter>) {
        let mut known = self.known.lock();
        let former = known.partitions.remove(&partition).unwrap_or_default();
        for filter in filters.difference(&former) {
            self.tables.insert(filter, Entry::Durable(partition));
        }
        for filter in former.difference(&filters) {
            self.tables.remove(filter, &Entry::Durable(partition));
        }
        known.partitions.insert(partition, filters);
        self.unknown_partitions.fetch_and(!bit(partition), Ordering::AcqRel);
    }

    /// The durable routes of a partition are not known (any more): every publish above QoS 0 is appended to it.
    pub fn forget_partition_routes(&self, partition: Partition) {
        self.unknown_partitions.fetch_or(bit(partition), Ordering::AcqRel);
    }

    fn add_durable(&self, known: &mut KnownRoutes, partition: Partition, filter: &TopicFilter) {
        if known.partitions.entry(partition).or_default().insert(filter.clone()) {
            self.tables.insert(filter, Entry::Durable(partition));
        }
    }

    fn remove_durable(&self, known: &mut KnownRoutes, partition: Partition, filter: &TopicFilter) {
        let was_there = known.partitions.get_mut(&partition).is_some_and(|filters| filters.remove(filter));
        if was_there {
            self.tables.remove(filter, &Entry::Durable(partition));
        }
    }
}

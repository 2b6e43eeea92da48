//! The route exchange of a broker without peers: its own durable routes go straight into its router.

use super::Router;
use crate::cluster::{ForwardDone, Forwarder, GateClosed, Route, RouteChange, RouteExchange};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::sync::Arc;
use tidemill_core::member::{MemberId, OwnerEpoch};
use tidemill_core::partition::Partition;
use tidemill_core::record::Record;
use tidemill_core::topic::TopicFilter;

/// `coordination: local`: nobody else needs to know, so every gate is open.
#[derive(Debug, Clone)]
pub struct LocalExchange {
    router: Arc<Router>,
}

impl LocalExchange {
    /// Applies durable routes to `router`.
    #[must_use]
    pub fn new(router: Arc<Router>) -> Self {
        Self { router }
    }
}

impl RouteExchange for LocalExchange {
    fn announce_live(&self, _changes: Vec<RouteChange>) -> BoxFuture<'static, ()> {
        futures::future::ready(()).boxed()
    }

    fn announce_durable(&self, changes: Vec<RouteChange>) -> BoxFuture<'static, Result<(), GateClosed>> {
        for change in changes {
            match change {
                RouteChange::Add(Route::Durable { partition, filter }) => {
                    self.router.apply_durable(partition, &[filter], &[]);
                }
                RouteChange::Remove(Route::Durable { partition, filter }) => {
                    self.router.apply_durable(partition, &[], &[filter]);
                }
                RouteChange::Add(Route::Live { .. }) | RouteChange::Remove(Route::Live { .. }) => {
                    debug_assert!(false, "live routes are announced with announce_live");
                }
            }
        }
        futures::future::ready(Ok(())).boxed()
    }

    fn set_partition_routes(&self, partition: Partition, _epoch: OwnerEpoch, filters: Vec<TopicFilter>) {
        self.router.set_partition_routes(partition, filters.into_iter().collect());
    }

    fn release_partition(&self, _partition: Partition) {}
}

impl Forwarder for LocalExchange {
    fn forward(&self, to: &MemberId, _record: &Arc<Record>, _encoded: &Bytes, done: Option<ForwardDone>) {
        tracing::warn!(member = %to, "a broker without peers has a route to one");
        if let Some(done) = done {
            done();
        }
    }
}

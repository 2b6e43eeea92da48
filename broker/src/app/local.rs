//! A broker without peers: it owns all groups, and nobody else needs to know.

use super::data_path::{DataPath, Wiring};
use super::patience::PatientOwner;
use crate::cluster::{ClusterView, GroupCommand, GroupOwner, MemberInfo};
use crate::log::state::State;
use crate::owner::metrics::OwnerMetrics;
use crate::owner::parts::{DurableRoutes, OwnerParts, Surroundings};
use crate::owner::service::OwnerService;
use crate::router::{LocalExchange, Router};
use futures::FutureExt;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidemill_core::member::{Member, MemberEpoch, MemberId, OwnerEpoch};
use tidemill_core::partition::{Partition, PartitionGroup};
use tidemill_core::topic::TopicFilter;
use tokio::sync::{mpsc, watch};

/// The owner has this long to commit and stop.
const LEAVE_WAIT: Duration = Duration::from_secs(10);

/// The router's side of the owner's durable routes.
struct OwnRoutes(Arc<Router>);

impl DurableRoutes for OwnRoutes {
    fn set_partition(&self, partition: Partition, filters: &[TopicFilter]) {
        self.0.set_partition_routes(partition, filters.iter().cloned().collect());
    }

    fn add(&self, partition: Partition, filter: &TopicFilter) {
        self.0.apply_durable(partition, std::slice::from_ref(filter), &[]);
    }

    fn remove(&self, partition: Partition, filter: &TopicFilter) {
        self.0.apply_durable(partition, &[], std::slice::from_ref(filter));
    }
}

/// A world of one broker.
struct Alone {
    own: Member,
    view: watch::Sender<Arc<ClusterView>>,
    fenced: mpsc::Sender<PartitionGroup>,
}

impl Surroundings for Alone {
    fn now_ms(&self) -> u64 {
        let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
    }

    fn awaited_members(&self) -> Vec<MemberId> {
        Vec::new()
    }

    fn is_dead(&self, host: &Member) -> bool {
        *host != self.own
    }

    fn raise_epoch(&self, group: PartitionGroup, epoch: OwnerEpoch) {
        self.view.send_modify(|view| {
            let owner = Arc::make_mut(view).owners.get_mut(usize::from(group.0));
            if let Some(Some(owner)) = owner {
                owner.epoch = epoch;
            }
        });
    }

    fn fenced(&self, group: PartitionGroup) {
        // One is enough to end the process; when the channel is full it ends already.
        let _ = self.fenced.try_send(group);
    }
}

/// Builds the owner of all groups around `data_path`, on `state`.
///
/// # Errors
///
/// [`prometheus::Error`] if a metric has two meanings: a fault of the program.
pub(super) fn wire(
    data_path: &DataPath,
    state: Arc<dyn State>,
    subscriptions_max: u32,
) -> Result<Wiring, prometheus::Error> {
    let partitioning = data_path.partitioning;
    let (view_sender, view) = watch::channel(Arc::new(first_view(data_path)));
    let (fenced_sender, mut fenced) = mpsc::channel(1);
    let exchange = Arc::new(LocalExchange::new(Arc::clone(&data_path.router)));
    let surroundings = Alone { own: data_path.own.clone(), view: view_sender, fenced: fenced_sender };
    let owner = OwnerService::new(OwnerParts {
        partitioning,
        subscriptions_max: usize::try_from(subscriptions_max).unwrap_or(usize::MAX),
        log: Arc::clone(data_path.router.log()),
        state,
        hosts: Arc::<crate::registry::Registry>::clone(&data_path.registry),
        route_exchange: Arc::<LocalExchange>::clone(&exchange),
        durable_routes: Arc::new(OwnRoutes(Arc::clone(&data_path.router))),
        surroundings: Arc::new(surroundings),
        validity: Arc::clone(&data_path.validity),
        metrics: OwnerMetrics::register(data_path.metrics.registry())?,
    });

    let (commands, receiver) = mpsc::channel(usize::from(partitioning.group_count()).max(1));
    for group in partitioning.groups() {
        // There is room for one command for each group.
        let sent = commands.try_send(GroupCommand::Start { group, epoch: OwnerEpoch(1) });
        debug_assert!(sent.is_ok(), "the channel was made large enough");
    }
    let running = tokio::spawn(Arc::clone(&owner).run(receiver));
    let leave = async move {
        drop(commands);
        match tokio::time::timeout(LEAVE_WAIT, running).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "owner failed"),
            Err(_) => tracing::warn!("owner did not stop in time"),
        }
    };
    let failed = async move {
        match fenced.recv().await {
            Some(group) => format!("partition group {} was taken by another broker", group.0),
            None => std::future::pending().await,
        }
    };
    Ok(Wiring {
        owner: Arc::new(PatientOwner(owner)),
        exchange: Arc::<LocalExchange>::clone(&exchange),
        forwarder: exchange,
        view,
        waiting_for: Arc::new(Vec::new),
        leave: leave.boxed(),
        failed: failed.boxed(),
    })
}

fn first_view(data_path: &DataPath) -> ClusterView {
    let own = data_path.own.clone();
    let info = MemberInfo {
        member: own.clone(),
        epoch: MemberEpoch(1),
        endpoint: String::new(),
        serving: true,
        leaving: false,
    };
    let owner = GroupOwner { member: own.clone(), epoch: OwnerEpoch(1) };
    ClusterView {
        own: own.clone(),
        own_epoch: MemberEpoch(1),
        members: BTreeMap::from([(own.id, info)]),
        owners: data_path.partitioning.groups().map(|_| Some(owner.clone())).collect(),
    }
}

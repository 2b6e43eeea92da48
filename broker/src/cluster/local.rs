//! `coordination: local`: one broker that owns everything. The lock of its data directory, which the log holds, is the
//! proof that there is no other.

use super::peer::random_u64;
use super::{ClusterView, Coordination, GroupCommand, GroupOwner, MemberInfo, Validity};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidemill_core::member::{Incarnation, Member, MemberEpoch, MemberId, OwnerEpoch};
use tidemill_core::partition::{PartitionGroup, Partitioning};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

/// Longest wait for the owner to stop a group when the broker leaves.
const LEAVE: Duration = Duration::from_secs(9);

/// Membership of one, ownership of all groups.
///
/// All groups start at once with epoch 0, which the owner raises above the stored one. With Kafka as the log the newest
/// start fences the older one: its owner loses a group, and the process exits.
pub struct LocalCoordination {
    view: watch::Sender<Arc<ClusterView>>,
    validity: Arc<Validity>,
    commands: mpsc::Sender<GroupCommand>,
    taken: Mutex<Option<mpsc::Receiver<GroupCommand>>>,
    ended: watch::Sender<Option<String>>,
    groups: Vec<PartitionGroup>,
}

impl LocalCoordination {
    /// The only member, under a fresh incarnation. The caller holds the lock of the data directory.
    #[must_use]
    pub fn new(member: MemberId, partitioning: Partitioning) -> Arc<Self> {
        let own = Member { id: member, incarnation: Incarnation(random_u64()) };
        let info = MemberInfo {
            member: own.clone(),
            epoch: MemberEpoch(1),
            endpoint: String::new(),
            serving: true,
            leaving: false,
        };
        let owner = GroupOwner { member: own.clone(), epoch: OwnerEpoch(0) };
        let groups: Vec<_> = partitioning.groups().collect();
        let view = ClusterView {
            own: own.clone(),
            own_epoch: MemberEpoch(1),
            members: BTreeMap::from([(own.id, info)]),
            owners: vec![Some(owner); groups.len()],
        };
        // One start and one stop for each group.
        let (commands, taken) = mpsc::channel(2 * groups.len());
        for group in &groups {
            commands
                .try_send(GroupCommand::Start { group: *group, epoch: OwnerEpoch(0) })
                .expect("the channel has room for every group");
        }
        Arc::new(Self {
            view: watch::Sender::new(Arc::new(view)),
            validity: Arc::new(Validity::always()),
            commands,
            taken: Mutex::new(Some(taken)),
            ended: watch::Sender::new(None),
            groups,
        })
    }

    /// Nothing may be acknowledged any more, and the process exits.
    pub fn end(&self, reason: String) {
        self.validity.set(0);
        self.ended.send_if_modified(|ended| {
            let is_first = ended.is_none();
            ended.get_or_insert(reason);
            is_first
        });
    }
}

impl Coordination for LocalCoordination {
    fn view(&self) -> watch::Receiver<Arc<ClusterView>> {
        self.view.subscribe()
    }

    fn validity(&self) -> Arc<Validity> {
        Arc::clone(&self.validity)
    }

    fn take_group_commands(&self) -> Option<mpsc::Receiver<GroupCommand>> {
        self.taken.lock().take()
    }

    fn raise_epoch(&self, group: PartitionGroup, epoch: OwnerEpoch) {
        self.view.send_modify(|view| {
            let owners = &mut Arc::make_mut(view).owners;
            if let Some(Some(owner)) = owners.get_mut(usize::from(group.0)) {
                owner.epoch = owner.epoch.max(epoch);
            }
        });
    }

    fn group_lost(&self, group: PartitionGroup) {
        self.end(format!("partition group {} was taken over by another start of this broker", group.0));
    }

    fn ready_to_serve(&self) {}

    fn set_reachable(&self, _: Vec<MemberId>) {}

    fn ended(&self) -> BoxFuture<'static, String> {
        let mut ended = self.ended.subscribe();
        Box::pin(async move {
            let reason = ended.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
            match reason {
                Some(reason) => reason,
                // The coordination was dropped: the broker is stopping anyway.
                None => std::future::pending().await,
            }
        })
    }

    fn leave(&self) -> BoxFuture<'static, ()> {
        let commands = self.commands.clone();
        let groups = self.groups.clone();
        Box::pin(async move {
            let stop_all = async {
                let mut stopping = Vec::new();
                for group in groups {
                    let (stopped, told) = oneshot::channel();
                    if commands.send(GroupCommand::Stop { group, stopped }).await.is_ok() {
                        stopping.push(told);
                    }
                }
                for told in stopping {
                    // An owner that is gone has stopped too.
                    let _ = told.await;
                }
            };
            let _ = timeout(LEAVE, stop_all).await;
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local() -> Arc<LocalCoordination> {
        LocalCoordination::new(MemberId::new("b-0"), Partitioning::new(8, 4).unwrap())
    }

    #[tokio::test]
    async fn all_groups_start_at_once_and_stop_when_the_broker_leaves() {
        let local = local();
        let mut commands = local.take_group_commands().unwrap();
        for number in 0..4 {
            let Some(GroupCommand::Start { group, epoch }) = commands.recv().await else {
                panic!("no start")
            };
            assert_eq!((group, epoch), (PartitionGroup(number), OwnerEpoch(0)));
        }

        let owner = tokio::spawn(async move {
            for _ in 0..4 {
                let Some(GroupCommand::Stop { stopped, .. }) = commands.recv().await else {
                    panic!("no stop")
                };
                stopped.send(()).unwrap();
            }
        });
        local.leave().await;

        owner.await.unwrap();
    }

    #[tokio::test]
    async fn a_raised_epoch_stands_in_the_view_and_never_falls() {
        let local = local();

        local.raise_epoch(PartitionGroup(2), OwnerEpoch(7));
        local.raise_epoch(PartitionGroup(2), OwnerEpoch(3));

        let owner = local.view().borrow().owners[2].clone().unwrap();
        assert_eq!(owner.epoch, OwnerEpoch(7));
    }

    #[tokio::test]
    async fn a_broker_that_was_fenced_is_not_valid_and_its_first_reason_counts() {
        let local = local();
        let ended = local.ended();
        assert!(local.validity().is_valid());

        local.group_lost(PartitionGroup(2));
        local.group_lost(PartitionGroup(3));

        assert!(!local.validity().is_valid());
        assert_eq!(ended.await, "partition group 2 was taken over by another start of this broker");
    }
}

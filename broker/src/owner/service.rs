//! The owner's front: finds the group's task and carries questions and answers.

use super::OwnerSide;
use super::group::{self, GroupHandle, Request};
use super::intent_search::IntentSearch;
use super::parts::OwnerParts;
use super::sessions::{SessionDetail, SessionQuery, SessionStanding};
use crate::cluster::GroupCommand;
use futures::future::{BoxFuture, try_join_all};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidemill_core::attach::{
    Acked, AttachGrant, AttachRequest, ConnectionEpoch, Detach, ExactlyOnceRequest, HostAttachments,
    OwnerError, SubscribeRequest, SubscriptionReasons, UnsubscribeRequest, WillOver,
};
use tidemill_core::member::{Member, OwnerEpoch};
use tidemill_core::partition::{PartitionGroup, QueueKind};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long an attach or re-attach may take.
const ATTACH_WAIT: Duration = Duration::from_secs(10);
/// How long storing steps of QoS 2 may take; the host asks again.
const EXACTLY_ONCE_WAIT: Duration = Duration::from_secs(10);
/// How long an administrator waits.
const ADMIN_WAIT: Duration = Duration::from_secs(10);
/// How long a subscribe or unsubscribe may take beyond its gate: the question for the log's end, and a commit.
const SUBSCRIBE_WAIT_BEYOND_GATE: Duration = Duration::from_secs(10);

/// Serves the partition groups that this broker owns. Cheap to share.
pub struct OwnerService {
    parts: Arc<OwnerParts>,
    intent_search: Arc<IntentSearch>,
    groups: RwLock<BTreeMap<PartitionGroup, GroupHandle>>,
}

impl OwnerService {
    /// Owns nothing yet.
    #[must_use]
    pub fn new(parts: OwnerParts) -> Arc<Self> {
        let intent_search = Arc::new(IntentSearch::new(Arc::clone(&parts.log), parts.partitioning));
        Arc::new(Self { parts: Arc::new(parts), intent_search, groups: RwLock::default() })
    }

    /// Starts and stops groups as told, until `commands` closes; then stops all. A group that ended by itself (fenced,
    /// or this broker's membership is over) is gone until the next start.
    ///
    /// # Panics
    ///
    /// When the task of a group panicked: the process must end.
    pub async fn run(self: Arc<Self>, mut commands: mpsc::Receiver<GroupCommand>) {
        let mut tasks: JoinSet<PartitionGroup> = JoinSet::new();
        loop {
            tokio::select! {
                command = commands.recv() => match command {
                    Some(GroupCommand::Start { group, epoch }) => self.start(group, epoch, &mut tasks),
                    Some(GroupCommand::Stop { group, stopped }) => self.stop(group, stopped),
                    None => break,
                },
                Some(ended) = tasks.join_next() => self.end(ended),
            }
        }
        for handle in std::mem::take(&mut *self.groups.write()).into_values() {
            handle.stop(oneshot::channel().0);
        }
        while let Some(ended) = tasks.join_next().await {
            self.end(ended);
        }
    }

    fn start(&self, group: PartitionGroup, epoch: OwnerEpoch, tasks: &mut JoinSet<PartitionGroup>) {
        let (handle, runner) =
            group::prepare((Arc::clone(&self.parts), Arc::clone(&self.intent_search)), group, epoch);
        // A group that is started anew while it runs goes on under the new claim only; fencing keeps them apart.
        let former = self.groups.write().insert(group, handle);
        if let Some(former) = former {
            former.stop(oneshot::channel().0);
        }
        tasks.spawn(async move {
            runner.run().await;
            group
        });
    }

    fn stop(&self, group: PartitionGroup, stopped: oneshot::Sender<()>) {
        let handle = self.groups.write().remove(&group);
        match handle {
            Some(handle) => handle.stop(stopped),
            // Not served: nothing to stop. The receiver may be gone, then nobody wants to know.
            None => drop(stopped.send(())),
        }
    }

    fn end(&self, ended: Result<PartitionGroup, tokio::task::JoinError>) {
        match ended {
            Ok(group) => {
                let mut groups = self.groups.write();
                if groups.get(&group).is_some_and(GroupHandle::has_ended) {
                    groups.remove(&group);
                }
            }
            Err(error) => {
                if let Ok(panic) = error.try_into_panic() {
                    std::panic::resume_unwind(panic);
                }
            }
        }
    }

    /// The first persistent sessions that are asked for, of all groups that this broker owns, in the order of their
    /// client ids.
    ///
    /// # Errors
    ///
    /// [`OwnerError::Unavailable`] when a group does not serve its queues now, or not within 10 s.
    pub async fn list_sessions(&self, query: SessionQuery) -> Result<Vec<SessionStanding>, OwnerError> {
        let handles: Vec<GroupHandle> = self.groups.read().values().cloned().collect();
        let ask = |handle| {
            let query = query.clone();
            Self::ask(Some(handle), ADMIN_WAIT, |answer| Request::ListSessions(query, answer))
        };
        let mut sessions = try_join_all(handles.into_iter().map(ask)).await?.concat();
        sessions.sort_unstable_by(|one, other| one.client_id.cmp(&other.client_id));
        sessions.truncate(query.limit);
        Ok(sessions)
    }

    /// The persistent session of `client_id`; `None` when it has none, or none here.
    ///
    /// # Errors
    ///
    /// [`OwnerError::Unavailable`] when its group does not serve its queues now, or not within 10 s.
    pub async fn show_session(&self, client_id: &str) -> Result<Option<SessionDetail>, OwnerError> {
        let Some(handle) = self.handle_of(client_id) else { return Ok(None) };
        let client_id = client_id.to_owned();
        Self::ask(Some(handle), ADMIN_WAIT, |answer| Request::ShowSession(client_id, answer)).await
    }

    fn handle(&self, group: PartitionGroup) -> Option<GroupHandle> {
        self.groups.read().get(&group).cloned()
    }

    fn subscribe_wait(&self) -> Duration {
        self.parts.route_exchange.durable_gate() + SUBSCRIBE_WAIT_BEYOND_GATE
    }

    fn handle_of(&self, client_id: &str) -> Option<GroupHandle> {
        let partitioning = self.parts.partitioning;
        self.handle(partitioning.group_of(partitioning.partition_of(QueueKind::Session, client_id)))
    }

    fn ask<T: Send + 'static>(
        handle: Option<GroupHandle>,
        wait: Duration,
        request: impl FnOnce(oneshot::Sender<Result<T, OwnerError>>) -> Request,
    ) -> BoxFuture<'static, Result<T, OwnerError>> {
        let (answer, answered) = oneshot::channel();
        let request = request(answer);
        Box::pin(async move {
            let handle = handle.ok_or(OwnerError::Unavailable)?;
            let asked = async {
                handle.ask(request).await.map_err(|()| OwnerError::Unavailable)?;
                answered.await.unwrap_or(Err(OwnerError::Unavailable))
            };
            timeout(wait, asked).await.unwrap_or(Err(OwnerError::Unavailable))
        })
    }
}

impl OwnerSide for OwnerService {
    fn attach(&self, request: AttachRequest) -> BoxFuture<'static, Result<AttachGrant, OwnerError>> {
        let handle = self.handle_of(&request.client_id);
        Self::ask(handle, ATTACH_WAIT, |answer| Request::Attach(Box::new(request), answer))
    }

    fn detach(&self, detach: Detach) {
        if let Some(handle) = self.handle_of(&detach.client_id) {
            handle.detach(detach);
        }
    }

    fn will_over(&self, over: WillOver) {
        if let Some(handle) = self.handle_of(&over.client_id) {
            handle.will_over(over);
        }
    }

    fn subscribe(
        &self,
        request: SubscribeRequest,
    ) -> BoxFuture<'static, Result<SubscriptionReasons, OwnerError>> {
        let handle = self.handle_of(&request.client_id);
        Self::ask(handle, self.subscribe_wait(), |answer| Request::Subscribe(request, answer))
    }

    fn unsubscribe(
        &self,
        request: UnsubscribeRequest,
    ) -> BoxFuture<'static, Result<SubscriptionReasons, OwnerError>> {
        let handle = self.handle_of(&request.client_id);
        Self::ask(handle, self.subscribe_wait(), |answer| Request::Unsubscribe(request, answer))
    }

    fn store_exactly_once(&self, request: ExactlyOnceRequest) -> BoxFuture<'static, Result<(), OwnerError>> {
        let handle = self.handle_of(&request.client_id);
        Self::ask(handle, EXACTLY_ONCE_WAIT, |answer| Request::ExactlyOnce(request, answer))
    }

    fn acked(&self, acked: Acked) {
        if let Some(handle) = self.handle(self.parts.partitioning.group_of(acked.partition)) {
            handle.acked(acked);
        }
    }

    fn reattach(
        &self,
        group: PartitionGroup,
        host: Member,
        attachments: HostAttachments,
    ) -> BoxFuture<'static, Result<Vec<Result<ConnectionEpoch, OwnerError>>, OwnerError>> {
        Self::ask(self.handle(group), ATTACH_WAIT, |answer| Request::Reattach { host, attachments, answer })
    }
}

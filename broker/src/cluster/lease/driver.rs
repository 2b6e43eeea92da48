//! The task that runs the lease protocol: reads, writes, watches and clocks on one side, the broker on the other.

use super::api::{Events, LeaseApi};
use super::object::{key_of, observe, version_of};
use super::pods::{own_container, status_of};
use super::{LeaseConfig, Shared, Wishes};
use crate::cluster::lease::identity::{Place, process_started};
use crate::cluster::{ClusterView, GroupCommand, GroupOwner, MemberInfo, boot_time_nanos};
use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::watcher::{self, Event};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tidemill_core::member::{Member, MemberEpoch};
use tidemill_core::membership::Membership;
use tidemill_core::membership::event::MembershipEvent;
use tidemill_core::membership::lease::{
    LeaseKey, ListId, MemberState, Observed, ResourceVersion, WatchEvent, WriteId, WriteResult,
};
use tidemill_core::membership::message::PeerMessage;
use tidemill_core::partition::PartitionGroup;
use tidemill_core::time::BootTime;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// The longest sleep. Timers of the runtime stand still while the machine is suspended; the clock of leases does not.
const NAP: Duration = Duration::from_millis(500);

/// What became of a call.
enum Answer {
    Written(WriteId, LeaseKey, WriteResult, Option<Box<Lease>>),
    Listed(ListId, Option<Vec<Lease>>),
}

type Messages = mpsc::Receiver<(Member, PeerMessage)>;
type Commands = mpsc::Sender<GroupCommand>;

/// Whether the driver goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    Goes,
    Ends,
}

/// Runs the lease protocol. One per process; see [`super::LeaseCoordination::new`].
pub struct LeaseDriver {
    membership: Membership,
    config: LeaseConfig,
    api: LeaseApi,
    shared: Arc<Shared>,
    messages: Option<Messages>,
    commands: Commands,
    /// The newest object of each lease, from which replacements are made.
    objects: BTreeMap<LeaseKey, Lease>,
    /// Leases that the present start of the watch has shown; `None` outside of it.
    listing: Option<BTreeSet<LeaseKey>>,
    calls: JoinSet<Answer>,
    stopping: JoinSet<PartitionGroup>,
    joined: Option<(Member, MemberEpoch)>,
    was_ready: bool,
    /// When this process started, by the clock that the kubelet of its machine uses too.
    started: Timestamp,
}

impl LeaseDriver {
    pub(super) fn new(
        membership: Membership,
        config: LeaseConfig,
        api: LeaseApi,
        shared: Arc<Shared>,
        (messages, commands): (Messages, Commands),
    ) -> Self {
        Self {
            membership,
            config,
            api,
            shared,
            messages: Some(messages),
            commands,
            objects: BTreeMap::new(),
            listing: None,
            calls: JoinSet::new(),
            stopping: JoinSet::new(),
            joined: None,
            was_ready: false,
            started: process_started(),
        }
    }

    /// Runs until this broker has left, its membership has ended, or `stop`. Dropping it is like the death of the
    /// process: the lease expires.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut leases = self.api.watch_leases();
        let mut pods: Events<Pod> = match self.config.place {
            Place::Pod { .. } => self.api.watch_pods(),
            // Without pods there is nothing to prove a death by.
            Place::DataDirectory { .. } => futures::stream::pending().boxed(),
        };
        let Some(mut messages) = self.messages.take() else { return };
        while self.act() == Course::Goes {
            let nap = self.nap();
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.shared.wished.notified() => self.take_wishes(),
                Some(event) = leases.next() => self.handle_lease_event(event),
                Some(event) = pods.next() => self.handle_pod_event(event),
                Some(Ok(answer)) = self.calls.join_next() => self.handle_answer(answer),
                Some(Ok(group)) = self.stopping.join_next() => {
                    self.membership.handle_group_stopped(group, now());
                }
                Some((from, message)) = messages.recv() => {
                    self.membership.handle_message(&from, &message, now());
                }
                () = sleep(nap) => self.membership.handle_timeout(now()),
            }
        }
    }

    fn nap(&self) -> Duration {
        self.membership.poll_timeout().since(now()).min(NAP)
    }

    /// Carries out everything that the protocol asks for.
    fn act(&mut self) -> Course {
        self.shared.validity.set(self.membership.valid_until().0);
        let mut course = Course::Goes;
        while let Some(event) = self.membership.poll_event() {
            if let MembershipEvent::Joined { member, epoch } = &event {
                self.joined = Some((member.clone(), *epoch));
                self.was_ready = false;
            }
            // Whoever is told to start a group finds the members and owners of that moment in the view.
            self.publish_view();
            if self.handle_event(event) == Course::Ends {
                course = Course::Ends;
            }
        }
        self.tell_ready();
        while let Some((id, write)) = self.membership.poll_write() {
            self.send_write(id, write.key, write.expected, write.content);
        }
        while let Some(id) = self.membership.poll_list() {
            let api = self.api.clone();
            self.calls.spawn(async move { Answer::Listed(id, api.list().await) });
        }
        while let Some((to, message)) = self.membership.poll_message() {
            if let Some(send) = self.shared.sender.get() {
                send(&to, &message);
            }
        }
        self.shared.validity.set(self.membership.valid_until().0);
        self.publish_view();
        course
    }

    fn handle_event(&mut self, event: MembershipEvent) -> Course {
        match event {
            MembershipEvent::Joined { member, epoch } => {
                tracing::info!(member = %member.id, incarnation = %member.incarnation, epoch = epoch.0, "joined");
            }
            MembershipEvent::Serving => tracing::info!("serving"),
            MembershipEvent::StartGroup { group, epoch } => {
                tracing::info!(group = group.0, epoch = epoch.0, "claimed a partition group");
                return self.command(GroupCommand::Start { group, epoch });
            }
            MembershipEvent::StopGroup { group, urgency } => {
                tracing::info!(group = group.0, ?urgency, "stopping a partition group");
                let (stopped, told) = oneshot::channel();
                // An owner that is gone has stopped too.
                self.stopping.spawn(async move { told.await.map_or(group, |()| group) });
                return self.command(GroupCommand::Stop { group, stopped });
            }
            MembershipEvent::MembersChanged => {}
            MembershipEvent::Invalid { reason } => {
                return self.end(format!("membership has ended: {reason:?}"));
            }
            MembershipEvent::Left => {
                tracing::info!("left");
                self.shared.left.send_replace(true);
                return Course::Ends;
            }
        }
        Course::Goes
    }

    fn command(&self, command: GroupCommand) -> Course {
        match self.commands.try_send(command) {
            Ok(()) => Course::Goes,
            Err(_) => self.end("the owner of partition groups does not take commands".into()),
        }
    }

    /// This incarnation is over; the process must exit.
    fn end(&self, reason: String) -> Course {
        self.shared.validity.set(0);
        tracing::error!(reason, "membership has ended");
        self.shared.ended.send_replace(Some(reason));
        Course::Ends
    }

    fn send_write(
        &mut self,
        id: WriteId,
        key: LeaseKey,
        expected: ResourceVersion,
        content: tidemill_core::membership::lease::LeaseContent,
    ) {
        let former = self.objects.get(&key).filter(|lease| version_of(lease) == Some(expected)).cloned();
        let api = self.api.clone();
        self.calls.spawn(async move {
            let Some(former) = former else {
                // A newer object is known already: the compare-and-swap fails without asking.
                return Answer::Written(id, key, WriteResult::Conflict, None);
            };
            let (result, stored) = api.replace(&key, &former, &content).await;
            Answer::Written(id, key, result, stored.map(Box::new))
        });
    }

    fn handle_answer(&mut self, answer: Answer) {
        match answer {
            Answer::Written(id, key, result, stored) => {
                if let Some(stored) = stored {
                    self.remember(&key, *stored);
                }
                self.membership.handle_write_result(id, result, now());
            }
            Answer::Listed(id, leases) => {
                let observed = leases.map(|leases| self.learn_all(leases));
                self.membership.handle_list(id, observed, now());
            }
        }
    }

    fn learn_all(&mut self, leases: Vec<Lease>) -> Vec<Observed> {
        leases.into_iter().filter_map(|lease| self.learn(lease)).collect()
    }

    fn learn(&mut self, lease: Lease) -> Option<Observed> {
        let observed = observe(self.api.cluster(), &lease)?;
        self.remember(&observed.key, lease);
        Some(observed)
    }

    /// Keeps the newest object.
    fn remember(&mut self, key: &LeaseKey, lease: Lease) {
        if self.objects.get(key).is_none_or(|known| version_of(known) <= version_of(&lease)) {
            self.objects.insert(key.clone(), lease);
        }
    }

    fn handle_lease_event(&mut self, event: Result<Event<Lease>, watcher::Error>) {
        match event {
            Ok(Event::Apply(lease)) => self.see(lease),
            Ok(Event::Delete(lease)) => {
                let name = lease.metadata.name.as_deref().unwrap_or_default();
                if let (Some(key), Some(version)) = (key_of(self.api.cluster(), name), version_of(&lease)) {
                    self.forget(key, version);
                }
            }
            Ok(Event::Init) => self.listing = Some(BTreeSet::new()),
            Ok(Event::InitApply(lease)) => self.see(lease),
            Ok(Event::InitDone) => {
                let shown = self.listing.take().unwrap_or_default();
                let gone: Vec<_> = self
                    .objects
                    .iter()
                    .filter(|(key, _)| !shown.contains(key))
                    .filter_map(|(key, lease)| Some((key.clone(), version_of(lease)?)))
                    .collect();
                gone.into_iter().for_each(|(key, version)| self.forget(key, version));
            }
            Err(error) => tracing::warn!(%error, "the watch of leases failed; watching again"),
        }
    }

    fn see(&mut self, lease: Lease) {
        if let Some(observed) = self.learn(lease) {
            if let Some(listing) = &mut self.listing {
                listing.insert(observed.key.clone());
            }
            self.membership.handle_watch(WatchEvent::Changed(observed), now());
        }
    }

    fn forget(&mut self, key: LeaseKey, version: ResourceVersion) {
        if self.objects.get(&key).and_then(version_of).is_none_or(|known| known <= version) {
            self.objects.remove(&key);
        }
        self.membership.handle_watch(WatchEvent::Deleted(key, version), now());
    }

    fn handle_pod_event(&mut self, event: Result<Event<Pod>, watcher::Error>) {
        match event {
            Ok(Event::Apply(pod) | Event::InitApply(pod)) => {
                let uid = self.config.place.uid();
                let is_own = pod.metadata.name.as_deref() == Some(self.config.member.as_str());
                if is_own && let Some(id) = own_container(&pod, uid, self.started) {
                    self.membership.handle_container(id, now());
                }
                if let Some(status) = status_of(&pod) {
                    self.membership.handle_pod_status(status, now());
                }
            }
            // A pod that is gone proves nothing.
            Ok(Event::Delete(_) | Event::Init | Event::InitDone) => {}
            Err(error) => tracing::warn!(%error, "the watch of pods failed; watching again"),
        }
    }

    fn take_wishes(&mut self) {
        let wishes = std::mem::take(&mut *self.shared.wishes.lock());
        let Wishes { ready, leave, reachable, raised, lost, digest } = wishes;
        if let Some(digest) = digest {
            self.membership.handle_route_digest(digest);
        }
        if let Some(reachable) = reachable {
            self.membership.handle_reachable(reachable, now());
        }
        for (group, epoch) in raised {
            self.membership.handle_epoch_raised(group, epoch, now());
        }
        for group in lost {
            self.membership.handle_group_stopped(group, now());
        }
        // Being ready outlives the taking: it is told again after a join.
        self.shared.wishes.lock().ready |= ready;
        if leave {
            self.membership.handle_leave(now());
        }
    }

    /// Tells the protocol once after the join that the broker is ready.
    fn tell_ready(&mut self) {
        if self.joined.is_some() && !self.was_ready && self.shared.wishes.lock().ready {
            self.was_ready = true;
            self.membership.handle_ready_to_serve(now());
        }
    }

    fn publish_view(&self) {
        let (own, own_epoch) = self.joined.clone().unwrap_or_else(|| {
            let own = self.shared.view.borrow().own.clone();
            (own, MemberEpoch(0))
        });
        let known = self.membership.members(now());
        let members = known.into_iter().map(|(id, known)| {
            let state = known.lease.state;
            let info = MemberInfo {
                member: known.member,
                epoch: known.epoch,
                endpoint: known.lease.endpoint,
                serving: state == MemberState::Serving,
                leaving: matches!(state, MemberState::Draining | MemberState::Leaving),
            };
            (id, info)
        });
        let mut owners = vec![None; usize::from(self.config.group_count)];
        for (group, (holder, epoch)) in self.membership.owners() {
            if let Some(place) = owners.get_mut(usize::from(group.0)) {
                *place = Some(GroupOwner { member: holder.member, epoch });
            }
        }
        let view = ClusterView { own, own_epoch, members: members.collect(), owners };
        self.shared.view.send_if_modified(|current| {
            let is_new = **current != view;
            if is_new {
                *current = Arc::new(view);
            }
            is_new
        });
    }
}

fn now() -> BootTime {
    BootTime(boot_time_nanos())
}

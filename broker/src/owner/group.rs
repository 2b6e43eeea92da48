//! The task of one partition group. It owns everything of the group: the registry of connected clients, which works on
//! the lease alone, and, once log and state are there, the queues. Everything it waits for is a [`Job`].

mod alarm;
mod attach;
mod catch_up;
mod commit;
mod dead_letter;
mod delivery;
mod exactly_once;
mod expiry;
mod inbox;
mod job;
mod load;
mod operation;
mod pace;
mod park;
mod partition_run;
mod queue_reader;
mod readings;
mod reattach;
mod recent;
mod registry;
mod resolve;
mod retained;
mod scan;
mod sessions;
mod subscribe;
mod trim;
mod unsubscribe;
mod wills;

pub(super) use inbox::{GroupHandle, Request};
pub use wills::RestoredWill;

use super::intent_search::IntentSearch;
use super::parts::OwnerParts;
use alarm::Alarm;
use attach::WaitingAttach;
use commit::Ledger;
use futures::StreamExt;
use inbox::{Inbox, Notice};
use job::{Job, Jobs};
use operation::Operations;
use partition_run::PartitionRun;
use reattach::Reattachment;
use registry::Registry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tidemill_core::attach::{ConnectionEpoch, SessionNumber};
use tidemill_core::member::OwnerEpoch;
use tidemill_core::partition::{Partition, PartitionGroup, QueueKind};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{debug, error, warn};
use wills::StoredWills;

/// How long a stopping group tries to store its last cursors. What is not stored is delivered again.
const LAST_COMMIT_WAIT: Duration = Duration::from_secs(1);

/// Makes the task of a group and the handle to it. Nothing happens before [`Group::run`].
pub(super) fn prepare(
    (parts, intent_search): (Arc<OwnerParts>, Arc<IntentSearch>),
    group: PartitionGroup,
    epoch: OwnerEpoch,
) -> (GroupHandle, Group) {
    let (handle, inbox) = inbox::open();
    let reattachment = Reattachment::new(Instant::now());
    let group = Group {
        parts,
        intent_search,
        group,
        epoch,
        connection_counter: 0,
        session_counter: 0,
        registry: Registry::default(),
        waiting: VecDeque::new(),
        reattachment,
        operations: Operations::default(),
        wills: StoredWills::default(),
        queues: Queues::Loading,
        ledger: Ledger::default(),
        jobs: Jobs::default(),
        inbox,
        end: None,
        has_more: false,
    };
    (handle, group)
}

/// Why a group ends.
#[derive(Debug)]
enum End {
    /// Told to stop; say so here.
    Stopped(Option<oneshot::Sender<()>>),
    /// Another owner has opened the group.
    Fenced,
    /// This broker's membership is not valid any more.
    Invalid,
}

/// Whether the queues are there.
enum Queues {
    /// Log or state is still loading, or away.
    Loading,
    /// The state is damaged: the queues are not served.
    Refused,
    /// Served. A refused partition is in it and says so.
    Loaded(BTreeMap<Partition, PartitionRun>),
}

/// One group being served.
pub(super) struct Group {
    parts: Arc<OwnerParts>,
    intent_search: Arc<IntentSearch>,
    group: PartitionGroup,
    epoch: OwnerEpoch,
    connection_counter: u32,
    session_counter: u32,
    registry: Registry,
    waiting: VecDeque<WaitingAttach>,
    reattachment: Reattachment,
    operations: Operations,
    wills: StoredWills,
    queues: Queues,
    ledger: Ledger,
    jobs: Jobs,
    inbox: Inbox,
    end: Option<End>,
    /// Work was left so that others get their turn: go on without waiting.
    has_more: bool,
}

impl Group {
    /// Serves the group until it is told to stop, is fenced, or this broker may not act any more.
    pub(super) async fn run(mut self) {
        debug!(group = self.group.0, epoch = self.epoch.0, "owner started");
        self.parts.metrics.groups.inc();
        self.start_loading(Duration::ZERO);
        let mut alarm = Alarm::new();
        while self.end.is_none() {
            tokio::select! {
                stopped = &mut self.inbox.stop => self.end = Some(End::Stopped(stopped.ok())),
                Some(request) = self.inbox.requests.recv() => self.handle_request(request),
                notices = self.inbox.notices.take() => self.handle_notices(notices),
                Some(job) = self.jobs.running.next() => self.handle_job(job),
                () = alarm.ring() => self.handle_tick(),
                () = tokio::task::yield_now(), if self.has_more => {}
            }
            self.settle();
            alarm.set(self.next_look());
        }
        self.finish().await;
    }

    /// Hands over and stores what the last input led to.
    fn settle(&mut self) {
        self.has_more = false;
        if self.end.is_none() && !self.parts.validity.is_valid() {
            self.end = Some(End::Invalid);
        }
        if self.end.is_some() {
            return;
        }
        self.process_heads();
        self.catch_up();
        self.end_given_up();
        self.publish_dead_letters();
        self.hand_over();
        self.start_commit();
    }

    fn handle_request(&mut self, request: Request) {
        // What a host reported before it asked holds already.
        let notices = self.inbox.notices.take_now();
        self.handle_notices(notices);
        match request {
            Request::Attach(request, answer) => self.handle_attach(WaitingAttach::new(*request, answer)),
            Request::Subscribe(request, answer) => self.handle_subscribe(request, answer),
            Request::Unsubscribe(request, answer) => self.handle_unsubscribe(request, answer),
            Request::ExactlyOnce(request, answer) => self.handle_exactly_once(request, answer),
            Request::Reattach { host, attachments, answer } => {
                self.handle_reattach(&host, attachments, answer);
            }
            // Whoever asked may have given up.
            Request::ListSessions(query, answer) => drop(answer.send(self.list_sessions(&query))),
            Request::ShowSession(client_id, answer) => drop(answer.send(self.show_session(&client_id))),
        }
    }

    fn handle_notices(&mut self, notices: Vec<Notice>) {
        for notice in notices {
            match notice {
                Notice::Acked(acked) => self.handle_acked(&acked),
                Notice::Detach(detach) => self.handle_detach(detach),
                Notice::WillOver(over) => self.forget_will(over),
            }
        }
    }

    fn handle_job(&mut self, job: Job) {
        match job {
            Job::Loaded(loaded) => self.handle_loaded(loaded),
            Job::TakenOver { client_id, turn, is_closed } => {
                // The old connection's host reported its end, and what it had in flight, before it answered.
                let notices = self.inbox.notices.take_now();
                self.handle_notices(notices);
                self.forget_replaced(&client_id, turn, is_closed);
                self.handle_taken_over(&client_id, turn);
            }
            Job::Read { partition, reader, event } => self.handle_read(partition, reader, event),
            Job::CaughtUp { partition, ticket, reader, event } => {
                self.handle_caught_up(partition, ticket, reader, event);
            }
            Job::Bounds { operation, end } => self.handle_subscription_start(operation, end),
            Job::Gate { operation, is_passed } => self.handle_gate(operation, is_passed),
            Job::Committed { writer, commit, outcome } => self.handle_commit_outcome(writer, commit, outcome),
            Job::Trimmed { partition, result } => self.handle_trimmed(partition, result),
            Job::Buried { partition, queue, offset, outcome } => {
                self.handle_buried(partition, &queue, offset, outcome);
            }
            Job::ToPark { partition, read } => self.park(partition, read),
            Job::Nothing => {}
        }
    }

    fn handle_tick(&mut self) {
        self.expire_waiting();
        self.end_reattachment_if_due();
        self.detach_dead_hosts();
        self.expire_sessions();
        self.scan_queues();
        self.plan_trims();
    }

    /// The partition of a client id.
    fn partition_of(&self, client_id: &str) -> Partition {
        self.parts.partitioning.partition_of(QueueKind::Session, client_id)
    }

    /// The partition's queues, if they are served.
    fn served(&mut self, partition: Partition) -> Option<&mut PartitionRun> {
        match &mut self.queues {
            Queues::Loaded(partitions) => partitions.get_mut(&partition).filter(|run| !run.is_refused()),
            Queues::Loading | Queues::Refused => None,
        }
    }

    fn partition_count(&self) -> i64 {
        let count = self.parts.partitioning.partitions_of(self.group).count();
        i64::try_from(count).unwrap_or(i64::MAX)
    }

    fn next_connection(&mut self) -> ConnectionEpoch {
        self.connection_counter += 1;
        ConnectionEpoch { owner: self.epoch, counter: self.connection_counter }
    }

    fn next_session(&mut self) -> SessionNumber {
        self.session_counter += 1;
        SessionNumber::new(self.epoch, self.session_counter)
    }

    /// Serves with at least `epoch` from now on.
    fn raise_epoch(&mut self, epoch: OwnerEpoch) {
        if epoch > self.epoch {
            self.epoch = epoch;
            self.parts.surroundings.raise_epoch(self.group, epoch);
            self.announce_routes();
        }
    }

    /// Speaks for the partitions, also for refused ones: who publishes to their queues is to learn it, and nobody else. Members that heard a former owner listen to nobody with a lower epoch.
    fn announce_routes(&self) {
        let Queues::Loaded(partitions) = &self.queues else { return };
        for (partition, run) in partitions {
            let routes = run.queues.routes();
            self.parts.route_exchange.set_partition_routes(*partition, self.epoch, routes);
        }
    }

    /// Ends: nothing is acknowledged from here on. Whoever waits learns it when its answer is dropped.
    async fn finish(mut self) {
        let end = self.end.take();
        self.waiting.clear();
        self.registry.clear(&self.parts.metrics);
        self.operations.clear();
        self.ledger.drop_waiters();
        if matches!(end, Some(End::Stopped(_))) {
            // Stored cursors spare redelivery; who takes over fences this owner anyway.
            let last = tokio::time::timeout(LAST_COMMIT_WAIT, self.commit_last());
            if last.await.is_err() {
                warn!(group = self.group.0, "last cursors were not stored in time; they are delivered again");
            }
        }
        match &self.queues {
            Queues::Loaded(partitions) => {
                for (partition, run) in partitions {
                    run.forget(&self.parts.metrics);
                    self.parts.route_exchange.release_partition(*partition);
                }
            }
            Queues::Refused => self.parts.metrics.partitions_refused.sub(self.partition_count()),
            Queues::Loading => {}
        }
        self.parts.metrics.groups.dec();
        match end {
            Some(End::Stopped(stopped)) => {
                debug!(group = self.group.0, "owner stopped");
                // A receiver that is gone does not want to know.
                stopped.map(|stopped| stopped.send(()));
            }
            Some(End::Fenced) => {
                error!(group = self.group.0, epoch = self.epoch.0, "owner fenced by another one");
                self.parts.metrics.fenced.inc();
                self.parts.surroundings.fenced(self.group);
            }
            Some(End::Invalid) | None => {
                warn!(group = self.group.0, "owner ended: this broker's membership is not valid");
            }
        }
    }
}

//! Group commit of the state: one commit at a time, each with everything that waits.

use super::exactly_once::HeldDeliveries;
use super::inbox::Answer;
use super::job::Job;
use super::{End, Group, Queues};
use crate::log::index::IndexWrite;
use crate::log::state::{Commit, CommitOutcome, StateWrite, StateWriter};
use bytes::Bytes;
use bytestring::ByteString;
use std::collections::BTreeMap;
use std::time::Duration;
use tidemill_core::attach::QueueId;
use tidemill_core::packet::PacketId;
use tidemill_core::partition::{Offset, Partition};
use tidemill_core::state::key::StateKey;
use tidemill_core::topic::{SubscriptionTarget, TopicFilter};
use tokio::time::{Instant, sleep};
use tracing::warn;

/// How long a change that nobody waits for may stay unstored. With the tick it makes at most 1 s.
const LAZY: Duration = Duration::from_millis(700);
/// Cursors of one partition in one commit.
const CURSORS_MAX: usize = 10_000;
/// Pauses before a commit with an unknown outcome is repeated; the last one stays.
const UNKNOWN_PAUSES: [Duration; 4] = [
    Duration::from_millis(20),
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_secs(1),
];

/// Who waits for a commit.
pub(super) enum CommitWaiter {
    /// An attach of a persistent session.
    Attach { client_id: ByteString, turn: u64 },
    /// A subscribe or unsubscribe.
    Operation(u64),
    /// The log may be trimmed to `floor` then.
    Trim { partition: Partition, floor: Offset },
    /// QoS 2 deliveries, which may go out then.
    HandOver(Box<HeldDeliveries>),
    /// A host that is to send PUBREL.
    Release { queue: QueueId, packet_ids: Vec<PacketId> },
    /// A publisher at QoS 2.
    ExactlyOnce(Answer<()>),
}

/// What is to be stored.
#[derive(Default)]
pub(super) struct Ledger {
    writer: Option<Box<dyn StateWriter>>,
    pending: BTreeMap<(Partition, Bytes), Option<Bytes>>,
    waiters: Vec<CommitWaiter>,
    in_flight: Vec<CommitWaiter>,
    is_in_flight: bool,
    changed_at: Option<Instant>,
    repeats: usize,
}

impl Ledger {
    /// The group is open.
    pub(super) fn set_writer(&mut self, writer: Box<dyn StateWriter>) {
        self.writer = Some(writer);
    }

    /// Stores or deletes `key` with the next commit; a later write of the same key replaces this one.
    pub(super) fn write(&mut self, partition: Partition, key: &StateKey, value: Option<Bytes>) {
        self.pending.insert((partition, key.encode()), value);
    }

    /// The next commit, with everything written before this call, begins at once and calls `waiter`.
    pub(super) fn wait(&mut self, waiter: CommitWaiter) {
        self.waiters.push(waiter);
    }

    /// Makes a commit due soon, whatever is pending.
    pub(super) fn store_soon(&mut self) {
        self.changed_at.get_or_insert_with(Instant::now);
    }

    /// When the next commit begins although nobody waits for it; `None` if nothing has changed, or one is under way.
    pub(super) fn due_at(&self) -> Option<Instant> {
        self.changed_at.filter(|_| !self.is_in_flight).map(|since| since + LAZY)
    }

    /// Nobody is called any more.
    pub(super) fn drop_waiters(&mut self) {
        self.waiters.clear();
        self.in_flight.clear();
    }
}

impl Group {
    /// Begins a commit if one is due and none is under way.
    pub(super) fn start_commit(&mut self) {
        let Queues::Loaded(partitions) = &self.queues else { return };
        let is_changed = !self.ledger.pending.is_empty()
            || partitions.values().any(|run| run.queues.is_dirty() || run.queues.is_counted());
        if is_changed && self.ledger.changed_at.is_none() {
            self.ledger.changed_at = Some(Instant::now());
        }
        let is_due = self.ledger.changed_at.is_some_and(|since| since.elapsed() >= LAZY);
        if self.ledger.is_in_flight || (self.ledger.waiters.is_empty() && !is_due) {
            return;
        }
        let Some(writer) = self.ledger.writer.take() else { return };
        self.ledger.changed_at = None;
        let commit = self.collect(LAZY);
        self.ledger.in_flight = std::mem::take(&mut self.ledger.waiters);
        self.ledger.is_in_flight = true;
        self.push_commit(writer, commit, Duration::ZERO);
    }

    fn push_commit(&mut self, mut writer: Box<dyn StateWriter>, commit: Commit, pause: Duration) {
        self.jobs.push(async move {
            if !pause.is_zero() {
                sleep(pause).await;
            }
            let outcome = writer.commit(commit.clone()).await;
            Job::Committed { writer, commit, outcome }
        });
    }

    /// Everything to store. The offset that a partition is processed to moves only with all cursors that changed: it is
    /// where the next owner goes on, and a queue at the tail is not looked at below it. What was only counted makes it
    /// move at most once in `counts_every`: a commit that somebody waits for does not store the counts of every queue.
    /// With that offset go the blocks of the index, which end at or below it.
    fn collect(&mut self, counts_every: Duration) -> Commit {
        let Queues::Loaded(partitions) = &mut self.queues else { return Commit::default() };
        let mut index = Vec::new();
        let mut orphans: Vec<(Partition, TopicFilter)> = Vec::new();
        for (partition, run) in partitions.iter_mut().filter(|(_, run)| !run.is_refused()) {
            for (queue, offset) in run.queues.take_unparked() {
                self.ledger.write(*partition, &StateKey::Parked { queue, offset }, None);
            }
            let mut cursors = run.queues.take_dirty(CURSORS_MAX);
            if run.processed_at.elapsed() >= counts_every {
                cursors.extend(run.queues.take_counted(CURSORS_MAX - cursors.len()));
            }
            for (queue, stored) in cursors {
                self.ledger.write(*partition, &StateKey::Cursor { queue }, Some(stored.encode()));
            }
            run.owner.epoch = self.epoch;
            run.owner.connection_counter = self.connection_counter;
            run.owner.session_counter = self.session_counter;
            if !run.queues.is_dirty() && !run.queues.is_counted() {
                run.processed_at = Instant::now();
                for (queue, filter, next) in run.queues.take_ended() {
                    if next.is_some() && !run.queues.has_route(&filter) {
                        orphans.push((*partition, filter.clone()));
                    }
                    let target = SubscriptionTarget::Filter(filter);
                    let key = StateKey::Subscription { queue, target };
                    self.ledger.write(*partition, &key, next.map(|next| next.encode()));
                }
                run.owner.processed = run.queues.head();
                let blocks = run.queues.take_blocks().into_iter();
                index.extend(blocks.map(|block| IndexWrite::Block { partition: *partition, block }));
                if let Some(floor) = run.take_trim_floor() {
                    if self.parts.state.index().is_some() {
                        index.push(IndexWrite::Trim { partition: *partition, floor });
                    }
                    self.ledger.wait(CommitWaiter::Trim { partition: *partition, floor });
                }
            }
            let key = StateKey::Owner { partition: *partition };
            self.ledger.write(*partition, &key, Some(run.owner.encode()));
        }
        for (partition, filter) in orphans {
            self.withdraw_routes(partition, vec![filter]);
        }
        let writes = std::mem::take(&mut self.ledger.pending)
            .into_iter()
            .map(|((partition, key), value)| StateWrite { partition, key, value })
            .collect();
        Commit { writes, index }
    }

    /// A commit ended: calls who waited, repeats it, or ends the group.
    pub(super) fn handle_commit_outcome(
        &mut self,
        writer: Box<dyn StateWriter>,
        commit: Commit,
        outcome: CommitOutcome,
    ) {
        match outcome {
            CommitOutcome::Committed => {
                self.parts.metrics.commits.inc();
                self.ledger.repeats = 0;
                self.ledger.is_in_flight = false;
                self.ledger.writer = Some(writer);
                for waiter in std::mem::take(&mut self.ledger.in_flight) {
                    self.call(waiter);
                }
            }
            CommitOutcome::Unknown => {
                self.parts.metrics.commits_unknown.inc();
                // Repeated until it is known: whoever waits is answered by nothing less. Its own bound is at the asker.
                let pause = UNKNOWN_PAUSES[self.ledger.repeats.min(UNKNOWN_PAUSES.len() - 1)];
                self.ledger.repeats += 1;
                warn!(group = self.group.0, repeats = self.ledger.repeats, "outcome of a commit is unknown");
                self.push_commit(writer, commit, pause);
            }
            CommitOutcome::Fenced => self.end = Some(End::Fenced),
        }
    }

    fn call(&mut self, waiter: CommitWaiter) {
        if !self.parts.validity.is_valid() {
            self.end = Some(End::Invalid);
            return;
        }
        match waiter {
            CommitWaiter::Attach { client_id, turn } => self.handle_attach_committed(&client_id, turn),
            CommitWaiter::Operation(operation) => self.handle_operation_committed(operation),
            CommitWaiter::Trim { partition, floor } => self.start_trim(partition, floor),
            CommitWaiter::HandOver(held) => self.hand_over_held(*held),
            CommitWaiter::Release { queue, packet_ids } => self.release(queue, packet_ids),
            CommitWaiter::ExactlyOnce(answer) => {
                // Whoever asked may have given up.
                let _ = answer.send(Ok(()));
            }
        }
    }

    /// Stores the last changes of a group that stops; tries once.
    pub(super) async fn commit_last(&mut self) {
        use futures::StreamExt;
        while self.ledger.is_in_flight {
            match self.jobs.running.next().await {
                Some(Job::Committed { writer, outcome: CommitOutcome::Committed, .. }) => {
                    self.ledger.is_in_flight = false;
                    self.ledger.writer = Some(writer);
                }
                Some(Job::Committed { .. }) | None => return,
                Some(_) => {}
            }
        }
        let Some(mut writer) = self.ledger.writer.take() else { return };
        if !self.parts.validity.is_valid() {
            return;
        }
        if let Queues::Loaded(partitions) = &mut self.queues {
            for run in partitions.values_mut() {
                run.queues.end_block();
            }
        }
        let commit = self.collect(Duration::ZERO);
        match writer.commit(commit).await {
            CommitOutcome::Committed => self.parts.metrics.commits.inc(),
            // What is not stored is delivered again by the next owner.
            CommitOutcome::Unknown | CommitOutcome::Fenced => {}
        }
    }
}

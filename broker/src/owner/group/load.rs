//! Opening a group: fence, load, check against the log, store the epoch, serve.

use super::job::Job;
use super::partition_run::{PartitionRun, Session};
use super::resolve::resolve_intents;
use super::wills::LeftWill;
use super::{End, Group, Queues};
use crate::log::state::{CommitOutcome, OpenError, OpenedGroup, StateEntry, StateWrite, StateWriter};
use crate::log::{Bounds, ReadError};
use crate::owner::intent_search::IntentSearch;
use crate::owner::parts::OwnerParts;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidemill_core::attach::{ConnectionEpoch, QueueId};
use tidemill_core::binary::FormatError;
use tidemill_core::member::OwnerEpoch;
use tidemill_core::partition::{Offset, Partition, PartitionGroup, QueueKind};
use tidemill_core::queue::subscription::Subscription;
use tidemill_core::record::Record;
use tidemill_core::session::exactly_once::{ExactlyOnce, Incoming};
use tidemill_core::state::cursor::StoredCursor;
use tidemill_core::state::key::StateKey;
use tidemill_core::state::meta::SessionMeta;
use tidemill_core::state::value::{Parked, PartitionOwner, PublisherIn, SessionOut, read_mark};
use tidemill_core::state::will::{StoredWill, WillDue};
use tidemill_core::topic::{SubscriptionTarget, TopicFilter};
use tokio::time::sleep;
use tracing::{debug, error, warn};

/// Pause before a group that could not be opened is tried again. It is tried for as long as this broker owns it.
const RETRY: Duration = Duration::from_millis(500);
/// Pause before the first commit is repeated.
const COMMIT_RETRY: Duration = Duration::from_millis(100);

/// What became of opening a group.
pub(super) enum LoadOutcome {
    /// Open; the epoch is stored.
    Loaded(Box<LoadedGroup>),
    /// Another owner has opened it since.
    Fenced,
    /// The state cannot be read as what it should be.
    Damaged(String),
    /// Worth another try.
    Unavailable(String),
}

/// A group that is open.
pub(super) struct LoadedGroup {
    epoch: OwnerEpoch,
    writer: Box<dyn StateWriter>,
    partitions: BTreeMap<Partition, PartitionRun>,
    wills: Vec<LeftWill>,
}

/// What is stored of one queue.
#[derive(Default)]
struct StoredQueue {
    subscriptions: Vec<(SubscriptionTarget, Subscription)>,
    cursor: Option<StoredCursor>,
    meta: Option<SessionMeta>,
    exactly_once: Option<Box<ExactlyOnce>>,
    /// Offsets whose PUBREC is stored; their cursor may be older.
    released: Vec<Offset>,
    parked: Vec<(Offset, Arc<Record>)>,
    retained_dues: Vec<TopicFilter>,
}

/// What is stored of one partition.
#[derive(Default)]
struct StoredPartition {
    owner: Option<PartitionOwner>,
    queues: BTreeMap<QueueId, StoredQueue>,
    /// One past the highest offset of this partition that an outgoing QoS 2 exchange names.
    exchanges_end: Offset,
    wills: BTreeMap<(QueueId, ConnectionEpoch), (Option<StoredWill>, Option<WillDue>)>,
}

impl Group {
    /// Opens the group after `pause`.
    pub(super) fn start_loading(&mut self, pause: Duration) {
        let (parts, search) = (Arc::clone(&self.parts), Arc::clone(&self.intent_search));
        let (group, epoch) = (self.group, self.epoch);
        self.jobs.push(async move {
            sleep(pause).await;
            let outcome = open((&parts, &search), group, epoch).await.unwrap_or_else(|outcome| outcome);
            if !matches!(outcome, LoadOutcome::Unavailable(_)) {
                search.end(group).await;
            }
            Job::Loaded(outcome)
        });
    }

    /// Serves the queues, or tries again.
    pub(super) fn handle_loaded(&mut self, outcome: LoadOutcome) {
        match outcome {
            LoadOutcome::Loaded(loaded) => self.serve(*loaded),
            LoadOutcome::Fenced => self.end = Some(End::Fenced),
            LoadOutcome::Damaged(reason) => {
                error!(group = self.group.0, reason, "state refused; the group's queues are not served");
                self.parts.metrics.partitions_refused.add(self.partition_count());
                for partition in self.parts.partitioning.partitions_of(self.group) {
                    self.parts.log.refuse(partition, "the state of its group is damaged");
                }
                self.queues = Queues::Refused;
                self.refuse_unbound();
                self.retry_waiting();
            }
            LoadOutcome::Unavailable(reason) => {
                warn!(group = self.group.0, reason, "group cannot be opened yet; clean sessions are served");
                self.start_loading(RETRY);
            }
        }
    }

    fn serve(&mut self, loaded: LoadedGroup) {
        let LoadedGroup { epoch, writer, partitions, wills } = loaded;
        self.raise_epoch(epoch);
        if self.epoch > epoch {
            // Raised above the connections that hosts told of while the state was loading.
            self.ledger.store_soon();
        }
        self.ledger.set_writer(writer);
        let mut sessions = 0;
        for (partition, run) in &partitions {
            sessions += run.sessions.len();
            if run.is_refused() {
                continue;
            }
            self.parts.log.admit(*partition);
            let reader = self.parts.log.reader(*partition, run.queues.head());
            self.jobs.read(*partition, reader, Duration::ZERO);
        }
        self.parts.metrics.sessions.add(i64::try_from(sessions).unwrap_or(i64::MAX));
        debug!(group = self.group.0, epoch = self.epoch.0, sessions, "queues served");
        self.queues = Queues::Loaded(partitions);
        self.announce_routes();
        self.discard_replaced_sessions();
        self.bind_unbound();
        self.take_left_wills(wills);
        self.note_lost_connections();
        self.restore_wills();
        self.retry_waiting();
    }
}

async fn open(
    (parts, search): (&Arc<OwnerParts>, &IntentSearch),
    group: PartitionGroup,
    lease_epoch: OwnerEpoch,
) -> Result<LoadOutcome, LoadOutcome> {
    let partitions: Vec<Partition> = parts.partitioning.partitions_of(group).collect();
    // Fenced first, then loaded: nothing a former owner could still commit is missed.
    let opened = parts.state.open(group, partitions.clone()).await;
    let OpenedGroup { entries, mut writer } = opened.map_err(|error| match error {
        OpenError::Fenced { .. } => LoadOutcome::Fenced,
        OpenError::Unavailable { reason, .. } => LoadOutcome::Unavailable(reason),
        OpenError::Damaged { reason, .. } => LoadOutcome::Damaged(reason),
    })?;
    let mut bounds = BTreeMap::new();
    for partition in partitions {
        let asked = parts.log.bounds(partition).await;
        bounds.insert(
            partition,
            asked.map_err(|error: ReadError| LoadOutcome::Unavailable(error.to_string()))?,
        );
    }
    let stored = aside(move || parse(entries)).await?;
    let stored = stored.map_err(|error| LoadOutcome::Damaged(error.to_string()))?;
    give_up_what_is_lost(parts, &stored, &mut bounds).await?;
    let for_build = Arc::clone(parts);
    let Built { epoch, mut partitions, wills } =
        aside(move || build(stored, &bounds, lease_epoch, &for_build)).await?;
    if parts.state.index().is_some() {
        partitions.values_mut().for_each(|run| run.queues.keep_index(parts.index_block_offsets));
    }
    let served = partitions.values().filter(|run| !run.is_refused());
    let mut writes: Vec<StateWrite> = served
        .map(|run| StateWrite {
            partition: run.partition,
            key: StateKey::Owner { partition: run.partition }.encode(),
            value: Some(run.owner.encode()),
        })
        .collect();
    let resolved = resolve_intents(search, (group, parts.partitioning), &mut partitions).await;
    writes.extend(resolved.map_err(|error| LoadOutcome::Unavailable(error.to_string()))?);
    // Until it is known; a stop of the group drops this.
    loop {
        match writer.commit(writes.clone().into()).await {
            CommitOutcome::Committed => break,
            CommitOutcome::Fenced => return Err(LoadOutcome::Fenced),
            CommitOutcome::Unknown => {
                parts.metrics.commits_unknown.inc();
                sleep(COMMIT_RETRY).await;
            }
        }
    }
    Ok(LoadOutcome::Loaded(Box::new(LoadedGroup { epoch, writer, partitions, wills })))
}

/// Does `work`, which may take long, where it holds nobody up.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, LoadOutcome> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Ok(done),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(LoadOutcome::Unavailable("the broker is stopping".into())),
        },
    }
}

/// Sorts what is stored by partition.
fn parse(entries: Vec<StateEntry>) -> Result<BTreeMap<Partition, StoredPartition>, FormatError> {
    let mut stored: BTreeMap<Partition, StoredPartition> = BTreeMap::new();
    for entry in entries {
        stored.entry(entry.partition).or_default().add(entry)?;
    }
    Ok(stored)
}

/// Where the log ends below what the state knows, it has lost records. If it may lose what was acknowledged, its end
/// moves, so that no offset that the state names is used again; else the partition is refused later.
async fn give_up_what_is_lost(
    parts: &OwnerParts,
    stored: &BTreeMap<Partition, StoredPartition>,
    bounds: &mut BTreeMap<Partition, Bounds>,
) -> Result<(), LoadOutcome> {
    for (partition, stored) in stored {
        let Some(bounds) = bounds.get_mut(partition) else { continue };
        let known_end = stored.known_end();
        if known_end <= bounds.end {
            continue;
        }
        match parts.log.give_up(*partition, known_end).await {
            Ok(()) => bounds.end = known_end,
            Err(ReadError::OutOfRange { .. }) => {}
            Err(error @ (ReadError::Unavailable { .. } | ReadError::Damaged { .. } | ReadError::Closed)) => {
                return Err(LoadOutcome::Unavailable(error.to_string()));
            }
        }
    }
    Ok(())
}

/// Rebuilds the partitions from what is stored. The epoch is above every one that was stored.
fn build(
    mut stored: BTreeMap<Partition, StoredPartition>,
    bounds: &BTreeMap<Partition, Bounds>,
    lease_epoch: OwnerEpoch,
    parts: &OwnerParts,
) -> Built {
    let highest = stored.values().filter_map(|partition| partition.owner.map(|owner| owner.epoch.0)).max();
    let epoch = OwnerEpoch(lease_epoch.0.max(highest.unwrap_or(0).saturating_add(1)));
    let (mut partitions, mut wills) = (BTreeMap::new(), Vec::new());
    for (partition, bounds) in bounds {
        let mut stored = stored.remove(partition).unwrap_or_default();
        wills.extend(stored.take_wills());
        partitions.insert(*partition, stored.build(*partition, *bounds, epoch, parts));
    }
    Built { epoch, partitions, wills }
}

/// A group as it is stored.
struct Built {
    epoch: OwnerEpoch,
    partitions: BTreeMap<Partition, PartitionRun>,
    wills: Vec<LeftWill>,
}

impl StoredPartition {
    /// One past the highest offset that anything stored names. The log has ended there or above it.
    fn known_end(&self) -> Offset {
        let owner = self.owner.map_or(0, |owner| owner.processed.max(owner.trim_floor));
        let cursors = self.queues.values().filter_map(|queue| Some(queue.cursor.as_ref()?.known_end()));
        let subscriptions = self.queues.values().flat_map(|queue| &queue.subscriptions);
        let subscriptions =
            subscriptions.map(|(_, subscription)| subscription.start.max(subscription.end.unwrap_or(0)));
        cursors.chain(subscriptions).fold(owner.max(self.exchanges_end), Offset::max)
    }

    /// The wills; a deadline without one is what a deletion left.
    fn take_wills(&mut self) -> Vec<LeftWill> {
        let wills = std::mem::take(&mut self.wills).into_iter();
        let left = wills.filter_map(|((session, connection), (stored, due))| {
            Some(LeftWill { session, connection, stored: stored?, due })
        });
        left.collect()
    }

    fn add(&mut self, entry: StateEntry) -> Result<(), FormatError> {
        match StateKey::decode(entry.key.clone())? {
            StateKey::Subscription { queue, target } => {
                let subscription = Subscription::decode(entry.value)?;
                self.queues.entry(queue).or_default().subscriptions.push((target, subscription));
            }
            StateKey::Cursor { queue } => {
                self.queues.entry(queue).or_default().cursor = Some(StoredCursor::decode(entry.value)?);
            }
            StateKey::Meta { queue } => {
                self.queues.entry(queue).or_default().meta = Some(SessionMeta::decode(entry.value)?);
            }
            StateKey::Parked { queue, offset } => {
                let record = Arc::new(Record::decode(Parked::decode(entry.value)?.record)?);
                self.queues.entry(queue).or_default().parked.push((offset, record));
            }
            StateKey::SessionOut { session, packet_id } => {
                let out = SessionOut::decode(entry.value)?;
                if out.partition == entry.partition {
                    self.exchanges_end = self.exchanges_end.max(out.offset + 1);
                }
                let queue = self.queues.entry(session).or_default();
                let exactly_once = queue.exactly_once.get_or_insert_default();
                exactly_once.restore_outgoing(packet_id, out.offset, out.released);
                queue.released.extend(out.released.then_some(out.offset));
            }
            StateKey::PublisherIn { session, packet_id } => {
                let stored = PublisherIn::decode(entry.value)?;
                let PublisherIn { unique_id, since_ms, is_settled, found } = stored;
                let queue = self.queues.entry(session).or_default();
                let incoming = Incoming { unique_id, since_ms, is_settled, found };
                queue.exactly_once.get_or_insert_default().set_incoming(packet_id, incoming);
            }
            StateKey::Will { session, connection } => {
                let will = self.wills.entry((session, connection)).or_default();
                will.0 = Some(StoredWill::decode(entry.value)?);
            }
            StateKey::WillDue { session, connection } => {
                let will = self.wills.entry((session, connection)).or_default();
                will.1 = Some(WillDue::decode(entry.value)?);
            }
            StateKey::RetainedDue { session, filter } => {
                read_mark(entry.value)?;
                self.queues.entry(session).or_default().retained_dues.push(filter);
            }
            StateKey::Owner { .. } => self.owner = Some(PartitionOwner::decode(entry.value)?),
        }
        Ok(())
    }

    fn build(
        self,
        partition: Partition,
        bounds: Bounds,
        epoch: OwnerEpoch,
        parts: &OwnerParts,
    ) -> PartitionRun {
        // A partition that never had an owner has no queue either: nobody needs what is in it.
        let fresh =
            PartitionOwner { trim_floor: bounds.start, processed: bounds.end, ..PartitionOwner::default() };
        let stored = self.owner.unwrap_or(fresh);
        let owner = PartitionOwner { epoch, ..stored };
        let head = owner.processed.max(owner.trim_floor);
        let mut run = PartitionRun::new(partition, owner, head, parts.queues.limits);
        if bounds.end < head {
            run.refuse(
                &format!(
                    "the log ends at {}, below {head}: records were lost or it is another log",
                    bounds.end
                ),
                parts,
            );
        } else if bounds.start > owner.trim_floor {
            run.refuse(
                &format!("the log starts at {}, above the trim floor {}", bounds.start, owner.trim_floor),
                parts,
            );
        }
        for (id, queue) in self.queues {
            add_queue(&mut run, id, queue);
        }
        run
    }
}

/// Adds a queue. A client id has one session: a new one is stored in the commit that deletes the one before.
fn add_queue(run: &mut PartitionRun, id: QueueId, stored: StoredQueue) {
    let StoredQueue { subscriptions, cursor, meta, exactly_once, released, parked, retained_dues } = stored;
    // Without a cursor nothing was ever handed out: a fragment of a session that is gone.
    let Some(cursor) = cursor else { return };
    let slot = run.queues.restore(id.clone(), &cursor, run.owner.trim_floor);
    for (offset, record) in parked {
        run.queues.restore_parked(slot, offset, record);
    }
    run.retained_dues.restore(slot, retained_dues);
    for (target, subscription) in subscriptions {
        match target {
            SubscriptionTarget::Filter(filter) => run.queues.subscribe(slot, filter, subscription),
            SubscriptionTarget::Shared(shared) => run.queues.subscribe_shared(slot, shared, subscription),
        };
    }
    if id.kind == QueueKind::Session
        && let Some(meta) = meta
    {
        let name = id.name.clone();
        run.queues.handle_acked(slot, &released, true, 0);
        let session = Session { id, slot, meta, in_flight: None, exactly_once, is_restored: true };
        run.sessions.insert(name.clone(), session);
        run.note_deadline(&name, None);
    }
}

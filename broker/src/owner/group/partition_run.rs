//! One partition being served: its queues, sessions, and the reading of its log.

use super::delivery::AtHead;
use super::readings::CatchUps;
use super::recent::Recent;
use super::retained::RetainedDues;
use super::trim::TrimLag;
use crate::owner::metrics::OwnerMetrics;
use crate::owner::parts::OwnerParts;
use bytestring::ByteString;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::RandomState;
use tidemill_core::attach::QueueId;
use tidemill_core::member::Member;
use tidemill_core::partition::{Offset, Partition};
use tidemill_core::queue::limits::QueueLimits;
use tidemill_core::queue::partition::{PartitionQueues, QueueSlot};
use tidemill_core::record::Origin;
use tidemill_core::session::exactly_once::ExactlyOnce;
use tidemill_core::session::in_flight::InFlight;
use tidemill_core::state::meta::SessionMeta;
use tidemill_core::state::value::PartitionOwner;
use tokio::time::Instant;
use tracing::{error, warn};

/// Origins whose sequence is followed; the one silent for longest is forgotten beyond it.
const ORIGINS_MAX: usize = 1_024;

/// One persistent session.
pub(super) struct Session {
    /// Its queue.
    pub(super) id: QueueId,
    /// Its queue's place.
    pub(super) slot: QueueSlot,
    /// What is stored of it.
    pub(super) meta: SessionMeta,
    /// What it had in flight when its last connection ended, or what that one was granted. In memory only.
    pub(super) in_flight: Option<Box<InFlight>>,
    /// Its QoS 2 exchanges, as they are stored.
    pub(super) exactly_once: Option<Box<ExactlyOnce>>,
    /// No host has told since the group was opened what it has in flight.
    pub(super) is_restored: bool,
}

/// One partition of the group.
pub(super) struct PartitionRun {
    /// Which one.
    pub(super) partition: Partition,
    /// The queues.
    pub(super) queues: PartitionQueues<RandomState>,
    /// The sessions by client id.
    pub(super) sessions: HashMap<ByteString, Session>,
    /// Subscriptions that have not got all retained messages.
    pub(super) retained_dues: RetainedDues,
    /// When sessions without connection end.
    pub(super) deadlines: BTreeSet<(u64, ByteString)>,
    /// The newest records.
    pub(super) recent: Recent,
    /// What was read at the head and not offered yet; `None` while a read is armed.
    pub(super) at_head: Option<AtHead>,
    /// Queues that read behind the head.
    pub(super) catch_ups: CatchUps,
    /// What is stored of the partition, as of the last commit begun.
    pub(super) owner: PartitionOwner,
    /// When the trim floor was last looked at, and the head then.
    pub(super) trim_seen: (Instant, Offset),
    /// How far it may be trimmed.
    pub(super) trim_lag: TrimLag,
    /// The floor can move with the next commit.
    pub(super) is_trim_due: bool,
    /// When all queues were last looked at.
    pub(super) scanned: Instant,
    /// When `processed` was last stored.
    pub(super) processed_at: Instant,
    /// What the receivers have too long is being read.
    pub(super) is_parking: bool,
    /// Queues near their limit, as the metric knows.
    pub(super) near_limit: i64,
    /// Queues that cannot go on, as the metric knows.
    pub(super) stopped: i64,
    origins: Origins,
    refused: bool,
}

impl PartitionRun {
    /// Serves `partition` from what is stored.
    pub(super) fn new(
        partition: Partition,
        owner: PartitionOwner,
        head: Offset,
        limits: QueueLimits,
    ) -> Self {
        Self {
            partition,
            queues: PartitionQueues::new(head, RandomState::new()).with_limits(limits),
            sessions: HashMap::new(),
            retained_dues: RetainedDues::default(),
            deadlines: BTreeSet::new(),
            recent: Recent::new(head),
            at_head: None,
            catch_ups: CatchUps::default(),
            owner,
            trim_seen: (Instant::now(), head),
            trim_lag: TrimLag::new(owner.trim_floor, head),
            is_trim_due: false,
            scanned: Instant::now(),
            processed_at: Instant::now(),
            is_parking: false,
            near_limit: 0,
            stopped: 0,
            origins: Origins::default(),
            refused: false,
        }
    }

    /// Stops serving the partition for good: its log or state is not what it must be. A human must act. Its log takes
    /// nothing more: what came behind would hide what is missing, and nothing would ever be trimmed.
    pub(super) fn refuse(&mut self, reason: &str, parts: &OwnerParts) {
        if !self.refused {
            self.refused = true;
            parts.metrics.partitions_refused.inc();
            parts.log.refuse(self.partition, reason);
            error!(partition = self.partition.0, reason, "partition refused; its queues are not served");
        }
    }

    /// Whether it is not served.
    pub(super) fn is_refused(&self) -> bool {
        self.refused
    }

    /// Takes it out of the metrics.
    pub(super) fn forget(&self, metrics: &OwnerMetrics) {
        metrics.sessions.sub(i64::try_from(self.sessions.len()).unwrap_or(i64::MAX));
        metrics.partitions_refused.sub(i64::from(self.refused));
        metrics.queues_near_limit.sub(self.near_limit);
        metrics.queues_stopped.sub(self.stopped);
        metrics.set_largest(self.partition, Vec::new());
    }

    /// Notes when the session ends, now that its meta has changed.
    pub(super) fn note_deadline(&mut self, client_id: &ByteString, former: Option<u64>) {
        if let Some(at) = former {
            self.deadlines.remove(&(at, client_id.clone()));
        }
        if let Some(at) = self.sessions.get(client_id).and_then(|session| session.meta.expires_at_ms()) {
            self.deadlines.insert((at, client_id.clone()));
        }
    }

    /// Follows the sequence of a record's origin; counts what is missing or out of order.
    pub(super) fn check_origin(&mut self, offset: Offset, origin: &Origin, metrics: &OwnerMetrics) {
        if let Some(expected) = self.origins.follow(origin) {
            let missing = origin.sequence.saturating_sub(expected).max(1);
            metrics.sequence_faults.inc_by(missing);
            warn!(
                partition = self.partition.0,
                offset,
                member = %origin.member.id,
                expected,
                sequence = origin.sequence,
                "origin's sequence is broken"
            );
        }
    }
}

/// The last sequence of each origin. An origin is known from its first record on.
#[derive(Default)]
struct Origins {
    last: BTreeMap<(Member, u32), (u64, u64)>,
    clock: u64,
}

impl Origins {
    /// Returns the expected sequence when the origin's is another one.
    fn follow(&mut self, origin: &Origin) -> Option<u64> {
        self.clock += 1;
        let seen = (origin.sequence, self.clock);
        let last = self.last.insert((origin.member.clone(), origin.producer), seen);
        if self.last.len() > ORIGINS_MAX {
            let oldest = self.last.iter().min_by_key(|(_, (_, clock))| *clock).map(|(key, _)| key.clone());
            oldest.map(|key| self.last.remove(&key));
        }
        last.map(|(sequence, _)| sequence + 1).filter(|expected| *expected != origin.sequence)
    }
}

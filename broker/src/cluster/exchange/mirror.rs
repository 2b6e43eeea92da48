//! What one peer has announced, kept to verify its digest and to know what changes.

use super::own::Delta;
use crate::cluster::wire::WireError;
use crate::cluster::wire::routes::{
    LiveKey, LiveRoute, PartitionChange, PartitionChangeKind, PartitionRoutes, RouteDelta, RouteSnapshot,
    digest_of, durable_digest, live_digest, speaker_digest,
};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_core::member::OwnerEpoch;
use tidemill_core::partition::Partition;
use tidemill_core::topic::TopicFilter;

/// Routes in the parts of one change; more are refused. Far above what a broker can hold.
const PENDING_ROUTES_MAX: usize = 16_000_000;

/// What a frame came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// More parts follow, or the frame was not for now.
    Nothing,
    /// All routes of the peer are these now.
    Replaced(Delta),
    /// These changed.
    Changed(Delta),
    /// The routes do not fit the digest or the sequence: ask for a snapshot.
    Diverged,
}

/// The routes of one peer as it has told them.
#[derive(Debug, Default)]
pub(super) struct Mirror {
    /// Of the last change applied; `None` before the first snapshot.
    sequence: Option<u64>,
    digest: u128,
    live: BTreeSet<LiveKey>,
    partitions: BTreeMap<Partition, (OwnerEpoch, BTreeSet<TopicFilter>)>,
    /// Parts of one change that have arrived.
    pending: Delta,
    pending_routes: usize,
}

impl Mirror {
    /// The last change applied; `None` before the first snapshot.
    pub(super) fn sequence(&self) -> Option<u64> {
        self.sequence
    }

    #[cfg(test)]
    /// The epoch under which the peer speaks for `partition`.
    pub(super) fn speaks_for(&self, partition: Partition) -> Option<OwnerEpoch> {
        self.partitions.get(&partition).map(|(epoch, _)| *epoch)
    }

    #[cfg(test)]
    /// The routes that the peer speaks for in `partition`.
    pub(super) fn filters(&self, partition: Partition) -> Vec<TopicFilter> {
        self.partitions
            .get(&partition)
            .map(|(_, filters)| filters.iter().cloned().collect())
            .unwrap_or_default()
    }

    /// Takes a part of a snapshot.
    ///
    /// # Errors
    ///
    /// [`WireError`]; break the link.
    pub(super) fn handle_snapshot(&mut self, part: RouteSnapshot) -> Result<Outcome, WireError> {
        self.collect(part.live, Vec::new(), part.partitions)?;
        if !part.last {
            return Ok(Outcome::Nothing);
        }
        let all = self.take_pending();
        let digest = digest_of(part.digest)?;
        *self = Self { sequence: Some(part.sequence), ..Self::default() };
        self.apply(&all);
        if self.digest != digest {
            *self = Self::default();
            return Ok(Outcome::Diverged);
        }
        Ok(Outcome::Replaced(all))
    }

    /// Takes a part of a delta. Before the first snapshot, and after a divergence, deltas are passed over.
    ///
    /// # Errors
    ///
    /// [`WireError`]; break the link.
    pub(super) fn handle_delta(&mut self, part: RouteDelta) -> Result<Outcome, WireError> {
        let Some(sequence) = self.sequence else { return Ok(Outcome::Nothing) };
        self.collect(part.live_added, part.live_removed, part.partitions)?;
        if !part.last {
            return Ok(Outcome::Nothing);
        }
        let delta = self.take_pending();
        let digest = digest_of(part.digest)?;
        self.apply(&delta);
        if part.sequence != sequence + 1 || self.digest != digest {
            self.sequence = None;
            return Ok(Outcome::Diverged);
        }
        self.sequence = Some(part.sequence);
        Ok(Outcome::Changed(delta))
    }

    fn take_pending(&mut self) -> Delta {
        self.pending_routes = 0;
        std::mem::take(&mut self.pending)
    }

    fn collect(
        &mut self,
        added: Vec<LiveRoute>,
        removed: Vec<LiveRoute>,
        partitions: Vec<PartitionRoutes>,
    ) -> Result<(), WireError> {
        self.pending_routes += added.len() + removed.len();
        for route in added {
            self.pending.live_added.push(route.try_into()?);
        }
        for route in removed {
            self.pending.live_removed.push(route.try_into()?);
        }
        for routes in partitions {
            let change = PartitionChange::try_from(routes)?;
            self.pending_routes += 1 + change.added.len() + change.removed.len();
            // A partition that was cut is joined again, so that its routes change at one moment.
            match self.pending.partitions.last_mut() {
                Some(before)
                    if before.partition == change.partition
                        && before.epoch == change.epoch
                        && change.kind == PartitionChangeKind::Amends =>
                {
                    before.added.extend(change.added);
                    before.removed.extend(change.removed);
                }
                Some(_) | None => self.pending.partitions.push(change),
            }
        }
        if self.pending_routes > PENDING_ROUTES_MAX {
            return Err(WireError::Value { field: "routes", value: self.pending_routes as u64 });
        }
        Ok(())
    }

    fn apply(&mut self, delta: &Delta) {
        for key in &delta.live_removed {
            if self.live.remove(key) {
                self.digest = self.digest.wrapping_sub(live_digest(key));
            }
        }
        for key in &delta.live_added {
            if self.live.insert(key.clone()) {
                self.digest = self.digest.wrapping_add(live_digest(key));
            }
        }
        delta.partitions.iter().for_each(|change| self.apply_partition(change));
    }

    fn apply_partition(&mut self, change: &PartitionChange) {
        let partition = change.partition;
        if change.kind != PartitionChangeKind::Amends
            && let Some((epoch, filters)) = self.partitions.remove(&partition)
        {
            let digest = self.digest.wrapping_sub(speaker_digest(partition, epoch));
            self.digest = filters
                .iter()
                .fold(digest, |digest, filter| digest.wrapping_sub(durable_digest(partition, epoch, filter)));
        }
        if change.kind == PartitionChangeKind::Releases {
            return;
        }
        if change.kind == PartitionChangeKind::Replaces {
            self.digest = self.digest.wrapping_add(speaker_digest(partition, change.epoch));
            self.partitions.insert(partition, (change.epoch, BTreeSet::new()));
        }
        // A change of a partition that the peer does not speak for shows as a wrong digest.
        let Some((epoch, filters)) = self.partitions.get_mut(&partition) else { return };
        for filter in &change.removed {
            if filters.remove(filter) {
                self.digest = self.digest.wrapping_sub(durable_digest(partition, *epoch, filter));
            }
        }
        for filter in &change.added {
            if filters.insert(filter.clone()) {
                self.digest = self.digest.wrapping_add(durable_digest(partition, *epoch, filter));
            }
        }
    }
}

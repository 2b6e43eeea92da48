//! The routes that this broker announces, their sequence and digest, and the frames that tell them.

use crate::cluster::wire::routes::{
    Digest, LiveKey, LiveRoute, PartitionChange, PartitionChangeKind, PartitionRoutes, RouteDelta,
    RouteSnapshot, durable_digest, live_digest, speaker_digest,
};
use crate::cluster::{Route, RouteChange};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_core::member::OwnerEpoch;
use tidemill_core::partition::Partition;
use tidemill_core::topic::TopicFilter;

/// Text of the routes in one frame, about; far below the smallest frame bound.
const PART_BYTES: usize = 32 * 1024;
/// What a route costs in a frame beyond its text, at most.
const ROUTE_BYTES: usize = 16;

/// The durable routes of one partition that this broker speaks for.
#[derive(Debug)]
struct Spoken {
    epoch: OwnerEpoch,
    /// With the sequence under which each was announced.
    filters: BTreeMap<TopicFilter, u64>,
}

/// This broker's routes.
#[derive(Debug, Default)]
pub(super) struct OwnRoutes {
    sequence: u64,
    digest: u128,
    live: BTreeMap<LiveKey, u64>,
    partitions: BTreeMap<Partition, Spoken>,
}

/// What a change came to.
#[derive(Debug, Default)]
pub(super) struct Announcement {
    /// What is new: to be told to all peers.
    pub(super) delta: Delta,
    /// The routes asked for are known to a peer that has acknowledged this sequence; 0 when there is nothing to know.
    pub(super) known_at: u64,
    /// Some durable route was for a partition that this broker does not speak for.
    pub(super) is_foreign: bool,
}

/// One numbered change.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Delta {
    pub(super) live_added: Vec<LiveKey>,
    pub(super) live_removed: Vec<LiveKey>,
    pub(super) partitions: Vec<PartitionChange>,
}

impl Delta {
    pub(super) fn is_empty(&self) -> bool {
        self.live_added.is_empty() && self.live_removed.is_empty() && self.partitions.is_empty()
    }
}

/// A change being made. Sets, because one SUBSCRIBE brings thousands of filters, under locks that others wait for. What
/// goes and comes in one change is told as coming only, so that it does not matter in which order a receiver applies it.
#[derive(Debug, Default)]
struct Draft {
    live_added: BTreeSet<LiveKey>,
    live_removed: BTreeSet<LiveKey>,
    partitions: BTreeMap<Partition, Amendment>,
}

/// What changes of the durable routes of one partition.
#[derive(Debug)]
struct Amendment {
    epoch: OwnerEpoch,
    added: BTreeSet<TopicFilter>,
    removed: BTreeSet<TopicFilter>,
}

impl Draft {
    /// The change of `partition`.
    fn amendment(&mut self, partition: Partition, epoch: OwnerEpoch) -> &mut Amendment {
        self.partitions.entry(partition).or_insert_with(|| Amendment {
            epoch,
            added: BTreeSet::new(),
            removed: BTreeSet::new(),
        })
    }
}

impl From<Draft> for Delta {
    fn from(draft: Draft) -> Self {
        let partitions = draft.partitions.into_iter().map(|(partition, amendment)| PartitionChange {
            partition,
            epoch: amendment.epoch,
            added: amendment.added.into_iter().collect(),
            removed: amendment.removed.into_iter().collect(),
            kind: PartitionChangeKind::Amends,
        });
        Self {
            live_added: draft.live_added.into_iter().collect(),
            live_removed: draft.live_removed.into_iter().collect(),
            partitions: partitions.collect(),
        }
    }
}

impl OwnRoutes {
    pub(super) fn digest(&self) -> u128 {
        self.digest
    }

    /// Applies changes in order. What changes nothing is not announced again.
    pub(super) fn change(&mut self, changes: Vec<RouteChange>) -> Announcement {
        let mut announcement = Announcement::default();
        let mut draft = Draft::default();
        for change in changes {
            match change {
                RouteChange::Add(Route::Live { filter, class }) => {
                    let known_at = self.add_live(LiveKey { filter, class }, &mut draft);
                    announcement.known_at = announcement.known_at.max(known_at);
                }
                RouteChange::Remove(Route::Live { filter, class }) => {
                    self.remove_live(LiveKey { filter, class }, &mut draft);
                }
                RouteChange::Add(Route::Durable { partition, filter }) => {
                    match self.add_durable(partition, filter, &mut draft) {
                        Some(known_at) => announcement.known_at = announcement.known_at.max(known_at),
                        None => announcement.is_foreign = true,
                    }
                }
                RouteChange::Remove(Route::Durable { partition, filter }) => {
                    self.remove_durable(partition, filter, &mut draft);
                }
            }
        }
        announcement.delta = draft.into();
        if !announcement.delta.is_empty() {
            self.sequence += 1;
        }
        announcement
    }

    /// Returns the sequence under which the route is told, or was.
    fn add_live(&mut self, key: LiveKey, draft: &mut Draft) -> u64 {
        match self.live.entry(key.clone()) {
            Entry::Occupied(known_at) => *known_at.get(),
            Entry::Vacant(place) => {
                self.digest = self.digest.wrapping_add(live_digest(&key));
                draft.live_removed.remove(&key);
                draft.live_added.insert(key);
                *place.insert(self.sequence + 1)
            }
        }
    }

    fn remove_live(&mut self, key: LiveKey, draft: &mut Draft) {
        if self.live.remove(&key).is_some() {
            self.digest = self.digest.wrapping_sub(live_digest(&key));
            draft.live_added.remove(&key);
            draft.live_removed.insert(key);
        }
    }

    /// Returns the sequence under which the route is told, or was; `None` for a partition that this broker does not
    /// speak for.
    fn add_durable(&mut self, partition: Partition, filter: TopicFilter, draft: &mut Draft) -> Option<u64> {
        let spoken = self.partitions.get_mut(&partition)?;
        Some(match spoken.filters.entry(filter.clone()) {
            Entry::Occupied(known_at) => *known_at.get(),
            Entry::Vacant(place) => {
                self.digest = self.digest.wrapping_add(durable_digest(partition, spoken.epoch, &filter));
                let change = draft.amendment(partition, spoken.epoch);
                change.removed.remove(&filter);
                change.added.insert(filter);
                *place.insert(self.sequence + 1)
            }
        })
    }

    fn remove_durable(&mut self, partition: Partition, filter: TopicFilter, draft: &mut Draft) {
        let Some(spoken) = self.partitions.get_mut(&partition) else { return };
        if spoken.filters.remove(&filter).is_some() {
            self.digest = self.digest.wrapping_sub(durable_digest(partition, spoken.epoch, &filter));
            let change = draft.amendment(partition, spoken.epoch);
            change.added.remove(&filter);
            change.removed.insert(filter);
        }
    }

    /// This broker speaks for `partition` from now on, with exactly these routes.
    pub(super) fn set_partition(
        &mut self,
        partition: Partition,
        epoch: OwnerEpoch,
        filters: Vec<TopicFilter>,
    ) -> Delta {
        self.forget(partition);
        self.sequence += 1;
        let filters: BTreeMap<_, _> = filters.into_iter().map(|filter| (filter, self.sequence)).collect();
        let added: Vec<_> = filters.keys().cloned().collect();
        self.digest = added
            .iter()
            .fold(self.digest.wrapping_add(speaker_digest(partition, epoch)), |digest, filter| {
                digest.wrapping_add(durable_digest(partition, epoch, filter))
            });
        self.partitions.insert(partition, Spoken { epoch, filters });
        let kind = PartitionChangeKind::Replaces;
        Delta {
            partitions: vec![PartitionChange { partition, epoch, added, removed: Vec::new(), kind }],
            ..Delta::default()
        }
    }

    /// This broker speaks for `partition` no longer. `None` when it did not.
    pub(super) fn release_partition(&mut self, partition: Partition) -> Option<Delta> {
        let epoch = self.forget(partition)?;
        self.sequence += 1;
        let kind = PartitionChangeKind::Releases;
        let change = PartitionChange { partition, epoch, added: Vec::new(), removed: Vec::new(), kind };
        Some(Delta { partitions: vec![change], ..Delta::default() })
    }

    fn forget(&mut self, partition: Partition) -> Option<OwnerEpoch> {
        let spoken = self.partitions.remove(&partition)?;
        let digest = self.digest.wrapping_sub(speaker_digest(partition, spoken.epoch));
        self.digest = spoken.filters.keys().fold(digest, |digest, filter| {
            digest.wrapping_sub(durable_digest(partition, spoken.epoch, filter))
        });
        Some(spoken.epoch)
    }

    /// The frames that tell all routes; the last one is marked.
    pub(super) fn snapshot(&self, data_sequence: u64) -> Vec<RouteSnapshot> {
        let all = Delta {
            live_added: self.live.keys().cloned().collect(),
            live_removed: Vec::new(),
            partitions: self
                .partitions
                .iter()
                .map(|(partition, spoken)| PartitionChange {
                    partition: *partition,
                    epoch: spoken.epoch,
                    added: spoken.filters.keys().cloned().collect(),
                    removed: Vec::new(),
                    kind: PartitionChangeKind::Replaces,
                })
                .collect(),
        };
        let parts = split(&all);
        let count = parts.len();
        let into_frame = |(index, part): (usize, Part)| RouteSnapshot {
            sequence: self.sequence,
            live: part.live_added,
            partitions: part.partitions,
            digest: (index + 1 == count).then(|| Digest::from(self.digest)),
            last: index + 1 == count,
            data_sequence,
        };
        parts.into_iter().enumerate().map(into_frame).collect()
    }

    /// The frames that tell `delta`, which was the last change; the last one is marked.
    pub(super) fn delta_frames(&self, delta: &Delta, data_sequence: u64) -> Vec<RouteDelta> {
        let parts = split(delta);
        let count = parts.len();
        let into_frame = |(index, part): (usize, Part)| RouteDelta {
            sequence: self.sequence,
            live_added: part.live_added,
            live_removed: part.live_removed,
            partitions: part.partitions,
            digest: (index + 1 == count).then(|| Digest::from(self.digest)),
            last: index + 1 == count,
            data_sequence,
        };
        parts.into_iter().enumerate().map(into_frame).collect()
    }
}

#[derive(Debug, Default)]
struct Part {
    live_added: Vec<LiveRoute>,
    live_removed: Vec<LiveRoute>,
    partitions: Vec<PartitionRoutes>,
    bytes: usize,
}

/// Splits a change into parts that fit a frame; at least one. A partition that is cut goes on as an amendment, which the
/// receiver joins again.
fn split(delta: &Delta) -> Vec<Part> {
    let mut parts = vec![Part::default()];
    for key in &delta.live_added {
        part_for(&mut parts, key.filter.as_str().len()).live_added.push(key.into());
    }
    for key in &delta.live_removed {
        part_for(&mut parts, key.filter.as_str().len()).live_removed.push(key.into());
    }
    for change in &delta.partitions {
        let head = PartitionChange { added: Vec::new(), removed: Vec::new(), ..change.clone() };
        part_for(&mut parts, 0).partitions.push((&head).into());
        let more = PartitionChange { kind: PartitionChangeKind::Amends, ..head };
        for filter in &change.added {
            let text = filter.as_str().to_owned();
            routes_of(part_for(&mut parts, text.len()), &more).added.push(text);
        }
        for filter in &change.removed {
            let text = filter.as_str().to_owned();
            routes_of(part_for(&mut parts, text.len()), &more).removed.push(text);
        }
    }
    parts
}

fn part_for(parts: &mut Vec<Part>, bytes: usize) -> &mut Part {
    if parts.last().is_none_or(|part| part.bytes > PART_BYTES) {
        parts.push(Part::default());
    }
    let part = parts.last_mut().expect("a part was pushed when there was none");
    part.bytes += bytes + ROUTE_BYTES;
    part
}

fn routes_of<'a>(part: &'a mut Part, more: &PartitionChange) -> &'a mut PartitionRoutes {
    let number = u32::from(more.partition.0);
    if part.partitions.last().is_none_or(|routes| routes.partition != number) {
        part.partitions.push(more.into());
    }
    part.partitions.last_mut().expect("one was pushed when there was none")
}

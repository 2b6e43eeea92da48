//! All queues of one partition: which there are, what they subscribed to, and how far each has come.

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod model_tests;
pub mod offer;
mod receiver;
mod subscribe;
#[cfg(test)]
mod tests;

use super::progress::Progress;
use super::subscription::{Interest, Subscriptions};
use crate::attach::QueueId;
use crate::partition::Offset;
use crate::record::Record;
use crate::state::cursor::StoredCursor;
use crate::topic::TopicFilter;
use crate::trie::FilterTrie;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::BuildHasher;
use std::sync::Arc;

/// Short name of a queue within its partition; used again after the queue is gone.
pub type QueueSlot = u32;

/// One queue.
#[derive(Debug)]
struct Queue {
    id: QueueId,
    subscriptions: Subscriptions,
    progress: Progress,
}

/// One record for the receiver of one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandOut {
    /// Which queue.
    pub slot: QueueSlot,
    /// Where the record is.
    pub offset: Offset,
    /// How it goes out.
    pub interest: Interest,
    /// The receiver may have seen it before.
    pub redelivery: bool,
    /// The record.
    pub record: Arc<Record>,
}

/// The queues of one partition. `head` is the partition's: everything below was offered to all queues.
#[derive(Debug)]
pub struct PartitionQueues<S> {
    head: Offset,
    queues: Vec<Option<Queue>>,
    free: Vec<QueueSlot>,
    by_id: BTreeMap<QueueId, QueueSlot>,
    durable: FilterTrie<(QueueSlot, TopicFilter), S>,
    /// Those of QoS 0 that say something about a delivery which another subscription of their queue makes.
    beside: FilterTrie<(QueueSlot, TopicFilter), S>,
    dirty: BTreeSet<QueueSlot>,
    ending: BTreeSet<QueueSlot>,
    lagging: BTreeSet<QueueSlot>,
    hand_outs: VecDeque<HandOut>,
    lost: u64,
    expired: u64,
}

impl<S: BuildHasher + Clone> PartitionQueues<S> {
    /// No queues; the first record to be offered is at `head` or later. Clients choose the filters: `hasher` is seeded.
    #[must_use]
    pub fn new(head: Offset, hasher: S) -> Self {
        Self {
            head,
            queues: Vec::new(),
            free: Vec::new(),
            by_id: BTreeMap::new(),
            durable: FilterTrie::with_hasher(hasher.clone()),
            beside: FilterTrie::with_hasher(hasher),
            dirty: BTreeSet::new(),
            ending: BTreeSet::new(),
            lagging: BTreeSet::new(),
            hand_outs: VecDeque::new(),
            lost: 0,
            expired: 0,
        }
    }

    /// Everything below was offered to all queues.
    #[must_use]
    pub fn head(&self) -> Offset {
        self.head
    }

    /// Number of queues.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there is no queue.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Adds a new queue at the head; it is dirty.
    pub fn create(&mut self, id: QueueId) -> QueueSlot {
        let slot = self.add(id, Progress::new(self.head));
        self.dirty.insert(slot);
        slot
    }

    /// Adds a stored queue, in a partition of which nothing below `trim_floor` is needed.
    pub fn restore(&mut self, id: QueueId, stored: &StoredCursor, trim_floor: Offset) -> QueueSlot {
        self.add(id, Progress::restore(stored, trim_floor))
    }

    fn add(&mut self, id: QueueId, progress: Progress) -> QueueSlot {
        let queue = Queue { id: id.clone(), subscriptions: Subscriptions::default(), progress };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.queues.push(None);
            QueueSlot::try_from(self.queues.len() - 1).expect("queues are bounded by memory, far below u32")
        });
        *self.place(slot) = Some(queue);
        self.by_id.insert(id, slot);
        slot
    }

    fn place(&mut self, slot: QueueSlot) -> &mut Option<Queue> {
        self.queues.get_mut(index(slot)).expect("a slot is given out with its place")
    }

    fn queue(&self, slot: QueueSlot) -> Option<&Queue> {
        self.queues.get(index(slot))?.as_ref()
    }

    fn queue_mut(&mut self, slot: QueueSlot) -> Option<&mut Queue> {
        self.queues.get_mut(index(slot))?.as_mut()
    }

    /// The slot of a queue.
    #[must_use]
    pub fn slot(&self, id: &QueueId) -> Option<QueueSlot> {
        self.by_id.get(id).copied()
    }

    /// The id of the queue in a slot.
    #[must_use]
    pub fn id(&self, slot: QueueSlot) -> Option<&QueueId> {
        Some(&self.queue(slot)?.id)
    }

    /// The subscriptions of a queue.
    #[must_use]
    pub fn subscriptions(&self, slot: QueueSlot) -> Option<&Subscriptions> {
        Some(&self.queue(slot)?.subscriptions)
    }

    /// The progress of a queue.
    #[must_use]
    pub fn progress(&self, slot: QueueSlot) -> Option<&Progress> {
        Some(&self.queue(slot)?.progress)
    }

    /// Takes a queue out. Returns the filters that no queue of the partition has any more.
    pub fn remove(&mut self, slot: QueueSlot) -> Vec<TopicFilter> {
        let Some(queue) = self.queues.get_mut(index(slot)).and_then(Option::take) else { return Vec::new() };
        self.by_id.remove(&queue.id);
        self.dirty.remove(&slot);
        self.ending.remove(&slot);
        self.lagging.remove(&slot);
        self.hand_outs.retain(|hand_out| hand_out.slot != slot);
        self.free.push(slot);
        let mut orphans = Vec::new();
        for (filter, _) in queue.subscriptions.iter() {
            let key = (slot, filter.clone());
            self.beside.remove(filter, &key);
            let had = self.durable.remove(filter, &key);
            if had && !self.durable.contains_filter(filter) {
                orphans.push(filter.clone());
            }
        }
        orphans
    }

    /// The next record to hand over, in the order of hand-outs.
    pub fn poll_hand_out(&mut self) -> Option<HandOut> {
        self.hand_outs.pop_front()
    }

    /// The first queue after `after` that has a receiver with room and needs records behind the head.
    #[must_use]
    pub fn next_lagging(&mut self, after: Option<QueueSlot>) -> Option<QueueSlot> {
        let from = after.map_or(0, |slot| slot + 1);
        while let Some(slot) = self.lagging.range(from..).next().copied() {
            if self.wanted_from(slot).is_some() {
                return Some(slot);
            }
            self.lagging.remove(&slot);
        }
        None
    }

    /// From where a queue needs records behind the head; `None` when it needs or takes none.
    #[must_use]
    pub fn wanted_from(&self, slot: QueueSlot) -> Option<Offset> {
        self.queue(slot)?.progress.wanted_from()
    }

    /// Takes up to `limit` queues whose cursor changed since it was taken last, with what to store.
    pub fn take_dirty(&mut self, limit: usize) -> Vec<(QueueId, StoredCursor)> {
        let mut taken = Vec::new();
        while taken.len() < limit
            && let Some(slot) = self.dirty.pop_first()
        {
            if let Some(queue) = self.queue(slot) {
                taken.push((queue.id.clone(), queue.progress.stored()));
            }
        }
        taken
    }

    /// Whether a cursor changed since it was taken last.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Nothing below is needed by any queue. Looks at all of them.
    #[must_use]
    pub fn floor(&self) -> Offset {
        self.queues.iter().flatten().map(|queue| queue.progress.floor(self.head)).min().unwrap_or(self.head)
    }

    /// Messages that open cursors named and the log no longer had, since last asked.
    pub fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }

    /// Messages that expired before they were handed out, since last asked.
    pub fn take_expired(&mut self) -> u64 {
        std::mem::take(&mut self.expired)
    }
}

fn index(slot: QueueSlot) -> usize {
    usize::try_from(slot).expect("u32 fits usize on the machines this runs on")
}

//! All queues of one partition: which there are, what they subscribed to, and how far each has come.

pub mod aside;
#[cfg(test)]
mod fixture;
pub mod index;
#[cfg(test)]
mod limit_tests;
#[cfg(test)]
mod model_tests;
pub mod offer;
pub mod receiver;
mod subscribe;
#[cfg(test)]
mod tests;
pub mod waiting;

use self::index::Index;
use super::limits::{DropReason, Drops, QueueLimits};
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
    // Boxed: most queues drop nothing.
    drops: Option<Box<Drops>>,
    redelivered: u64,
    /// Last acknowledgement, milliseconds since the Unix epoch; 0: none.
    acked_ms: u64,
    is_near_limit: bool,
    /// It has given something up since it came near its limit.
    is_at_limit: bool,
}

impl Queue {
    fn new(id: QueueId, progress: Progress) -> Self {
        Self {
            id,
            subscriptions: Subscriptions::default(),
            progress,
            drops: None,
            redelivered: 0,
            acked_ms: 0,
            is_near_limit: false,
            is_at_limit: false,
        }
    }

    fn dropped(&mut self, reason: DropReason, messages: u64) {
        self.drops.get_or_insert_default().add(reason, messages);
    }
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

/// One record that a queue gave up and that goes to the dead-letter topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Which queue.
    pub slot: QueueSlot,
    /// Where the record is. Its place in the queue is kept until [`PartitionQueues::handle_buried`].
    pub offset: Offset,
    /// Why it was given up.
    pub reason: DropReason,
    /// The record.
    pub record: Arc<Record>,
}

/// The queues of one partition. `head` is the partition's: everything below was offered to all queues.
#[derive(Debug)]
pub struct PartitionQueues<S> {
    head: Offset,
    limits: QueueLimits,
    queues: Vec<Option<Queue>>,
    free: Vec<QueueSlot>,
    by_id: BTreeMap<QueueId, QueueSlot>,
    durable: FilterTrie<(QueueSlot, TopicFilter), S>,
    /// Those of QoS 0 that say something about a delivery which another subscription of their queue makes.
    beside: FilterTrie<(QueueSlot, TopicFilter), S>,
    dirty: BTreeSet<QueueSlot>,
    /// Queues of which only the counts changed.
    counted: BTreeSet<QueueSlot>,
    ending: BTreeSet<QueueSlot>,
    lagging: BTreeSet<QueueSlot>,
    hand_outs: VecDeque<HandOut>,
    dead_letters: VecDeque<DeadLetter>,
    /// Messages kept outside the log.
    parked: BTreeMap<(QueueSlot, Offset), Arc<Record>>,
    parked_bytes: usize,
    unparked: Vec<(QueueId, Offset)>,
    given_up: Vec<(QueueSlot, Offset)>,
    /// Queues that have just passed 4/5 of a bound, and how many are beyond it.
    near_limit: Vec<QueueSlot>,
    at_limit: Vec<(QueueSlot, DropReason)>,
    near_limit_count: usize,
    lost: u64,
    drops: Drops,
    index: Option<Index>,
}

impl<S: BuildHasher + Clone> PartitionQueues<S> {
    /// No queues; the first record to be offered is at `head` or later. Clients choose the filters: `hasher` is seeded.
    #[must_use]
    pub fn new(head: Offset, hasher: S) -> Self {
        Self {
            head,
            limits: QueueLimits::NONE,
            queues: Vec::new(),
            free: Vec::new(),
            by_id: BTreeMap::new(),
            durable: FilterTrie::with_hasher(hasher.clone()),
            beside: FilterTrie::with_hasher(hasher),
            dirty: BTreeSet::new(),
            counted: BTreeSet::new(),
            ending: BTreeSet::new(),
            lagging: BTreeSet::new(),
            hand_outs: VecDeque::new(),
            dead_letters: VecDeque::new(),
            parked: BTreeMap::new(),
            parked_bytes: 0,
            unparked: Vec::new(),
            given_up: Vec::new(),
            near_limit: Vec::new(),
            at_limit: Vec::new(),
            near_limit_count: 0,
            lost: 0,
            drops: Drops::default(),
            index: None,
        }
    }

    /// The same with bounds for each queue; without them there is none.
    #[must_use]
    pub fn with_limits(self, limits: QueueLimits) -> Self {
        Self { limits, ..self }
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
        let slot = self.add(id, Progress::restore(stored, trim_floor));
        // Without a receiver, it may need records to make dead letters of them.
        self.note_lag(slot);
        slot
    }

    fn add(&mut self, id: QueueId, progress: Progress) -> QueueSlot {
        let queue = Queue::new(id.clone(), progress);
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
        self.counted.remove(&slot);
        self.near_limit_count -= usize::from(queue.is_near_limit);
        self.forget_aside(slot);
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

    /// How many records wait to be handed over.
    #[must_use]
    pub fn hand_out_count(&self) -> usize {
        self.hand_outs.len()
    }

    /// The first queue after `after` that needs records behind the head, and takes them.
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
        let progress = &self.queue(slot)?.progress;
        let dead_from = progress.dead_from(self.limits.policy);
        progress.wanted_from().into_iter().chain(dead_from).chain(progress.idle_from()).min()
    }

    /// Takes up to `limit` queues whose cursor changed since it was taken last, with what to store. What was counted at
    /// the head changes no cursor: see [`Self::take_counted`].
    pub fn take_dirty(&mut self, limit: usize) -> Vec<(QueueId, StoredCursor)> {
        let mut taken = Vec::new();
        while taken.len() < limit
            && let Some(slot) = self.dirty.pop_first()
        {
            self.counted.remove(&slot);
            if let Some(queue) = self.queue(slot) {
                taken.push((queue.id.clone(), queue.progress.stored()));
            }
        }
        taken
    }

    /// As [`Self::take_dirty`], for queues of which only the counts changed. All of them are to be stored before, or with,
    /// an offset from which the next owner goes on: it counts from there.
    pub fn take_counted(&mut self, limit: usize) -> Vec<(QueueId, StoredCursor)> {
        let mut taken = Vec::new();
        while taken.len() < limit
            && let Some(slot) = self.counted.pop_first()
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

    /// Whether something was counted for a queue since it was taken last.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        !self.counted.is_empty()
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

    /// Messages that were given up, since last asked.
    pub fn take_drops(&mut self) -> Drops {
        std::mem::take(&mut self.drops)
    }
}

fn index(slot: QueueSlot) -> usize {
    usize::try_from(slot).expect("u32 fits usize on the machines this runs on")
}

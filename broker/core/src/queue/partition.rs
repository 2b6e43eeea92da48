//! All queues of one partition.

use super::progress::{Mode, Progress, Turn};
use super::subscription::{Interest, Subscription, Subscriptions};
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

/// What reading behind the head came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CatchUp {
    /// The record was taken or passed; the queue needs the next one.
    Continue,
    /// The queue takes nothing now: its window is full, or its receiver is gone. The record must be offered again.
    Stopped,
    /// The queue has reached the head; a record at or beyond it was not taken.
    AtHead,
    /// The queue needs records before these: read from [`PartitionQueues::wanted_from`] again.
    Misplaced,
}

/// A record read behind the head.
#[derive(Debug, Clone, Copy)]
pub struct ReadBehind<'a> {
    /// The log holds nothing between this offset and the record's.
    pub from: Offset,
    /// Where the record is.
    pub offset: Offset,
    /// The record.
    pub record: &'a Arc<Record>,
}

/// The queues of one partition. `head` is the partition's: everything below was offered to all queues.
#[derive(Debug)]
pub struct PartitionQueues<S> {
    head: Offset,
    queues: Vec<Option<Queue>>,
    free: Vec<QueueSlot>,
    by_id: BTreeMap<QueueId, QueueSlot>,
    durable: FilterTrie<(QueueSlot, TopicFilter), S>,
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
            durable: FilterTrie::with_hasher(hasher),
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
            let had = self.durable.remove(filter, &(slot, filter.clone()));
            if had && !self.durable.contains_filter(filter) {
                orphans.push(filter.clone());
            }
        }
        orphans
    }

    /// Adds or replaces a subscription; returns what was replaced. See [`Self::has_route`] for the route.
    pub fn subscribe(
        &mut self,
        slot: QueueSlot,
        filter: TopicFilter,
        subscription: Subscription,
    ) -> Option<Subscription> {
        let key = (slot, filter.clone());
        if subscription.is_durable() && subscription.end.is_none() {
            self.durable.insert(&filter, key);
        } else {
            self.durable.remove(&filter, &key);
        }
        if subscription.end.is_some() {
            self.ending.insert(slot);
        }
        self.queue_mut(slot)?.subscriptions.insert(filter, subscription)
    }

    /// Takes a subscription out at once; returns it.
    pub fn unsubscribe(&mut self, slot: QueueSlot, filter: &TopicFilter) -> Option<Subscription> {
        self.durable.remove(filter, &(slot, filter.clone()));
        self.queue_mut(slot)?.subscriptions.remove(filter)
    }

    /// Takes out subscriptions that have ended and that their queue, now at the head, needs no more.
    pub fn take_ended(&mut self) -> Vec<(QueueId, TopicFilter)> {
        let mut taken = Vec::new();
        for slot in self.ending.clone() {
            let Some(queue) = self.queue_mut(slot) else { continue };
            if queue.progress.mode() == Mode::Behind {
                continue;
            }
            for filter in queue.subscriptions.take_ended() {
                taken.push((queue.id.clone(), filter));
            }
            self.ending.remove(&slot);
        }
        taken
    }

    /// Whether a subscription of QoS > 0 with this filter is in force.
    #[must_use]
    pub fn has_route(&self, filter: &TopicFilter) -> bool {
        self.durable.contains_filter(filter)
    }

    /// The filters of all subscriptions of QoS > 0 in force, in order, each once.
    #[must_use]
    pub fn routes(&self) -> Vec<TopicFilter> {
        let mut filters = BTreeSet::new();
        for queue in self.queues.iter().flatten() {
            for (filter, subscription) in queue.subscriptions.iter() {
                if subscription.is_durable() && subscription.end.is_none() {
                    filters.insert(filter.clone());
                }
            }
        }
        filters.into_iter().collect()
    }

    /// A receiver is there; see [`Progress::attach`].
    pub fn attach(&mut self, slot: QueueSlot, window: u16, done: &[Offset], in_flight: &[Offset]) {
        self.hand_outs.retain(|hand_out| hand_out.slot != slot);
        let Some(queue) = self.queue_mut(slot) else { return };
        queue.progress.attach(window, done, in_flight);
        if !done.is_empty() {
            self.dirty.insert(slot);
        }
        self.note_lag(slot);
    }

    /// The receiver is gone; what was not handed over yet is handed out again to the next one.
    pub fn detach(&mut self, slot: QueueSlot) {
        self.hand_outs.retain(|hand_out| hand_out.slot != slot);
        self.lagging.remove(&slot);
        if let Some(queue) = self.queue_mut(slot) {
            queue.progress.detach();
        }
    }

    /// The record at the head of the partition: offered to all queues, once, in offset order. One below the head was
    /// offered before and is ignored.
    pub fn handle_record(&mut self, offset: Offset, record: &Arc<Record>, now_ms: u64) {
        if offset < self.head {
            return;
        }
        self.head = offset + 1;
        let mut matching: Vec<(QueueSlot, TopicFilter)> = Vec::new();
        self.durable.for_each_match(&record.message.topic, |key| matching.push(key.clone()));
        matching.sort_unstable();
        for same in matching.chunk_by(|one, other| one.0 == other.0) {
            if let Some((slot, _)) = same.first() {
                let filters: Vec<&TopicFilter> = same.iter().map(|(_, filter)| filter).collect();
                self.offer_at_head(*slot, &filters, (offset, record), now_ms);
            }
        }
    }

    fn offer_at_head(
        &mut self,
        slot: QueueSlot,
        filters: &[&TopicFilter],
        (offset, record): (Offset, &Arc<Record>),
        now_ms: u64,
    ) {
        let Some(queue) = self.queues.get_mut(index(slot)).and_then(Option::as_mut) else { return };
        if queue.progress.mode() == Mode::Behind {
            return;
        }
        let interest = queue.subscriptions.interest_of(filters, &queue.id.name, offset, record);
        let Some(interest) = interest else { return };
        if record.message.is_expired(now_ms) {
            self.expired += 1;
            return;
        }
        match queue.progress.take_at_head(offset) {
            Turn::HandOut { redelivery } => {
                self.dirty.insert(slot);
                let record = Arc::clone(record);
                self.hand_outs.push_back(HandOut { slot, offset, interest, redelivery, record });
            }
            Turn::Wait => {
                self.dirty.insert(slot);
                self.note_lag(slot);
            }
            Turn::Pass => {}
        }
    }

    /// Nothing is between the last record offered and `end`.
    pub fn handle_end(&mut self, end: Offset) {
        self.head = self.head.max(end);
    }

    /// A record behind the head for one queue.
    pub fn handle_behind(&mut self, slot: QueueSlot, read: ReadBehind<'_>, now_ms: u64) -> CatchUp {
        let ReadBehind { from, offset, record } = read;
        if offset >= self.head {
            return self.handle_behind_end(slot, from, offset);
        }
        let Some(queue) = self.queues.get_mut(index(slot)).and_then(Option::as_mut) else {
            return CatchUp::Stopped;
        };
        let Some(missing) = queue.progress.missing_from() else { return CatchUp::AtHead };
        if missing < from {
            return CatchUp::Misplaced;
        }
        let lost = queue.progress.lose_below(offset);
        let interest = queue.subscriptions.interest(&queue.id.name, offset, record);
        let is_expired = interest.is_some() && record.message.is_expired(now_ms);
        let turn = queue.progress.take_behind(offset, || interest.is_some() && !is_expired);
        let has_passed = missing <= offset && turn == Turn::Pass;
        if lost > 0 || matches!(turn, Turn::HandOut { .. }) {
            self.dirty.insert(slot);
        }
        self.lost += lost as u64;
        self.expired += u64::from(is_expired && has_passed);
        match turn {
            Turn::HandOut { redelivery } => {
                // A delivery that was begun is completed, whatever became of the subscription.
                let interest = interest.unwrap_or_else(Interest::of_ended_subscription);
                let record = Arc::clone(record);
                self.hand_outs.push_back(HandOut { slot, offset, interest, redelivery, record });
            }
            Turn::Wait => {
                self.note_lag(slot);
                return CatchUp::Stopped;
            }
            Turn::Pass => {}
        }
        if offset + 1 == self.head {
            self.handle_behind_end(slot, self.head, self.head)
        } else {
            CatchUp::Continue
        }
    }

    /// The log holds nothing between `from` and `end`, for a queue behind the head. Answers as for a record there.
    pub fn handle_behind_end(&mut self, slot: QueueSlot, from: Offset, end: Offset) -> CatchUp {
        let head = self.head;
        let Some(queue) = self.queue_mut(slot) else { return CatchUp::Stopped };
        match queue.progress.missing_from() {
            None => return CatchUp::AtHead,
            Some(missing) if missing < from => return CatchUp::Misplaced,
            Some(_) => {}
        }
        let lost = queue.progress.lose_below(end.min(head));
        let has_reached = end >= head && queue.progress.reach_head(head);
        self.lost += lost as u64;
        if lost > 0 || has_reached {
            self.dirty.insert(slot);
        }
        self.note_lag(slot);
        if end >= head { CatchUp::AtHead } else { CatchUp::Continue }
    }

    /// The receiver `is_current`, or a former one, is done with `offsets`; unknown and repeated ones change nothing.
    pub fn handle_acked(&mut self, slot: QueueSlot, offsets: &[Offset], is_current: bool) {
        let Some(queue) = self.queue_mut(slot) else { return };
        let mut changed = false;
        for offset in offsets {
            changed |= queue.progress.finish(*offset, is_current);
        }
        if changed {
            self.dirty.insert(slot);
            self.note_lag(slot);
        }
    }

    fn note_lag(&mut self, slot: QueueSlot) {
        if self.queue(slot).is_some_and(|queue| queue.progress.wanted_from().is_some()) {
            self.lagging.insert(slot);
        } else {
            self.lagging.remove(&slot);
        }
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

//! Messages that have left the way from the log to the receiver: parked ones and dead letters.

use super::{Mode, Progress};
use crate::partition::Offset;
use crate::queue::limits::{DropReason, QueuePolicy};
use std::collections::{BTreeMap, BTreeSet};

/// Dead letters of one queue that are under way at the same time.
pub const DEAD_LETTERS_MAX: usize = 64;

/// What has left the way.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Aside {
    /// Handed out and not done, but kept outside the cursor and the log.
    pub(super) parked: BTreeSet<Offset>,
    /// Open in the cursor, to be read and published as dead letters.
    pub(super) dead: BTreeMap<Offset, DropReason>,
    /// Open in the cursor, being published.
    pub(super) dying: BTreeMap<Offset, DropReason>,
    /// How often an open offset was handed out, if more than once.
    pub(super) deliveries: BTreeMap<Offset, u16>,
}

impl Aside {
    /// `offset` is done. Returns whether it was parked.
    pub(super) fn forget(&mut self, offset: Offset) -> bool {
        self.dead.remove(&offset);
        self.dying.remove(&offset);
        self.deliveries.remove(&offset);
        self.parked.remove(&offset)
    }

    fn is_empty(&self) -> bool {
        self.parked.is_empty() && self.dead.is_empty() && self.dying.is_empty() && self.deliveries.is_empty()
    }

    /// Everything that is to become a dead letter, in offset order.
    pub(super) fn all_dead(&self) -> BTreeMap<Offset, DropReason> {
        self.dead.iter().chain(&self.dying).map(|(offset, reason)| (*offset, *reason)).collect()
    }

    pub(super) fn first_dead(&self) -> Option<Offset> {
        self.dead.first_key_value().map(|(offset, _)| *offset)
    }
}

impl Progress {
    pub(super) fn aside(&mut self) -> &mut Aside {
        self.aside.get_or_insert_default()
    }

    pub(super) fn drop_empty_aside(&mut self) {
        self.aside.take_if(|aside| aside.is_empty());
    }

    /// Whether `offset` is parked.
    #[must_use]
    pub fn is_parked(&self, offset: Offset) -> bool {
        self.aside.as_ref().is_some_and(|aside| aside.parked.contains(&offset))
    }

    /// Whether `offset` is becoming a dead letter.
    #[must_use]
    pub fn is_dead(&self, offset: Offset) -> bool {
        self.dead_reason(offset).is_some()
            || self.aside.as_ref().is_some_and(|one| one.dying.contains_key(&offset))
    }

    /// Why the record at `offset` is to be read and published as a dead letter.
    #[must_use]
    pub fn dead_reason(&self, offset: Offset) -> Option<DropReason> {
        self.aside.as_ref()?.dead.get(&offset).copied()
    }

    /// Whether another dead letter may go under way.
    #[must_use]
    pub fn can_bury(&self) -> bool {
        self.aside.as_ref().is_none_or(|aside| aside.dying.len() < DEAD_LETTERS_MAX)
    }

    /// From where it needs records that nobody receives, to make dead letters of them.
    #[must_use]
    pub fn dead_from(&self, policy: QueuePolicy) -> Option<Offset> {
        if !self.can_bury() {
            return None;
        }
        let given_up =
            policy == QueuePolicy::DeadLetter && self.mode == Mode::Behind && self.is_next_given_up();
        let next = given_up.then(|| self.cursor.head());
        self.aside.as_ref().and_then(|aside| aside.first_dead()).into_iter().chain(next).min()
    }

    /// The record at `offset` is being published as a dead letter: a new one behind the head, or an open one. It stays
    /// open until [`Self::buried`].
    pub fn bury(&mut self, offset: Offset, bytes: usize, reason: DropReason) {
        if self.is_new(offset) {
            self.cursor.hand_out(offset);
            self.pass(offset, bytes);
        }
        self.redeliver.remove(&offset);
        let aside = self.aside();
        aside.dead.remove(&offset);
        aside.dying.insert(offset, reason);
    }

    /// The dead letter at `offset` is durable, or nobody can have it. Returns whether it was under way.
    pub fn buried(&mut self, offset: Offset) -> bool {
        let was_dying = self.aside.as_ref().is_some_and(|aside| aside.dying.contains_key(&offset));
        if was_dying {
            self.forget(offset);
        }
        was_dying
    }

    /// The dead letter at `offset` was not published: it is read again. Returns whether it was under way.
    pub fn exhume(&mut self, offset: Offset) -> bool {
        let Some(aside) = &mut self.aside else { return false };
        let reason = aside.dying.remove(&offset);
        aside.dead.extend(reason.map(|reason| (offset, reason)));
        reason.is_some()
    }

    /// Counts another hand-out of `offset`, which was handed out before. Returns how often it was handed out until now.
    pub fn count_delivery(&mut self, offset: Offset) -> u16 {
        let before = self.aside().deliveries.entry(offset).or_insert(1);
        let count = *before;
        *before = count.saturating_add(1);
        count
    }

    /// The message to be handed out again at `offset` is given up instead. Returns whether the cursor changed.
    pub fn give_up(&mut self, offset: Offset) -> bool {
        self.redeliver.remove(&offset);
        self.forget(offset)
    }

    /// What the receiver has had since `before_ms` or longer, and that still pins the log.
    pub fn overdue(&self, before_ms: u64) -> impl Iterator<Item = Offset> + '_ {
        let is_overdue =
            move |offset: &Offset, at_ms: u64| at_ms <= before_ms && self.cursor.is_open(*offset);
        self.in_flight
            .iter()
            .filter(move |(offset, sent)| is_overdue(offset, sent.at_ms))
            .map(|(offset, _)| *offset)
    }

    /// Takes `offset`, which is at the receiver, out of the cursor. Returns false, and changes nothing, if it is not.
    pub fn park(&mut self, offset: Offset) -> bool {
        let is_there = self.in_flight.contains_key(&offset) && self.cursor.finish(offset);
        if is_there {
            self.aside().parked.insert(offset);
        }
        is_there
    }

    /// A parked message that is stored.
    pub fn restore_parked(&mut self, offset: Offset) {
        self.cursor.finish(offset);
        self.aside().parked.insert(offset);
    }

    /// The parked message that is to be handed out next, if there is room for it.
    #[must_use]
    pub fn next_parked(&self) -> Option<Offset> {
        let aside = self.aside.as_ref()?;
        let next = self.redeliver.first().filter(|offset| aside.parked.contains(offset))?;
        self.has_room().then_some(*next)
    }

    /// Number of dead letters that are not durable yet.
    #[must_use]
    pub fn dead_count(&self) -> usize {
        self.aside.as_ref().map_or(0, |aside| aside.dead.len() + aside.dying.len())
    }

    /// Number of parked messages.
    #[must_use]
    pub fn parked_count(&self) -> usize {
        self.aside.as_ref().map_or(0, |aside| aside.parked.len())
    }
}

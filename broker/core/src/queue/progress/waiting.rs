//! What waits for a queue behind the head: counted, bounded, given up.

use super::{Fate, Mode, Progress};
use crate::message::Message;
use crate::partition::Offset;
use crate::queue::backlog::{Backlog, Passing, Tally};
use crate::queue::limits::{DropReason, QueueLimits, QueuePolicy};

impl Progress {
    /// What waits and is not given up.
    #[must_use]
    pub fn waiting(&self) -> Tally {
        self.counted().map(Backlog::waiting).unwrap_or_default()
    }

    /// When the oldest message that waits was published, at the earliest; `None` when nothing waits.
    #[must_use]
    pub fn oldest_waiting_ms(&self) -> Option<u64> {
        self.counted()?.oldest_ms()
    }

    /// From where it looks whether anything waits, while nobody receives and nothing that was counted does: at the head it
    /// does not pin the log.
    #[must_use]
    pub fn idle_from(&self) -> Option<Offset> {
        let is_idle = !self.is_attached()
            && self.mode == Mode::Behind
            && self.waiting() == Tally::default()
            && !self.is_next_given_up();
        is_idle.then(|| self.cursor.head())
    }

    /// The message at [`Self::idle_from`] waits.
    pub fn find(&mut self, message: Passing) {
        if self.idle_from().is_some() {
            let backlog = self.backlog.get_or_insert_with(|| Box::new(Backlog::new(message.offset)));
            backlog.find(message);
        }
    }

    fn counted(&self) -> Option<&Backlog> {
        self.backlog.as_deref().filter(|_| self.mode == Mode::Behind)
    }

    /// Bytes of memory that counting takes.
    #[must_use]
    pub fn backlog_bytes(&self) -> usize {
        self.backlog.as_ref().map_or(0, |backlog| backlog.memory_bytes())
    }

    /// A message that this queue wants came at the head while it is behind: counts it, and gives up what is beyond
    /// `limits`. Returns what is given up by that.
    pub fn count(&mut self, message: Passing, limits: &QueueLimits) -> Option<(DropReason, u64)> {
        let backlog = self.backlog.get_or_insert_with(|| Box::new(Backlog::new(message.offset)));
        if let Some(reason) = backlog.count(message, limits) {
            return Some((reason, 1));
        }
        let given_up = match limits.policy {
            QueuePolicy::DropNewest => None,
            QueuePolicy::DropOldest | QueuePolicy::DeadLetter => backlog.give_up_excess(limits),
        };
        self.jump(limits.policy);
        given_up
    }

    /// Gives up what is known to be older than the limit allows. Returns how many messages that are.
    pub fn give_up_old(&mut self, limits: &QueueLimits, now_ms: u64) -> u64 {
        let Some(age_ms) = limits.age_ms.filter(|_| self.mode == Mode::Behind) else { return 0 };
        let Some(backlog) = &mut self.backlog else { return 0 };
        let given_up = backlog.give_up_older(now_ms.saturating_sub(age_ms));
        self.jump(limits.policy);
        given_up.map_or(0, |(_, messages)| messages)
    }

    /// Lets go of the log below what is given up, as far as it is known where that is.
    fn jump(&mut self, policy: QueuePolicy) {
        if policy == QueuePolicy::DeadLetter {
            return;
        }
        if let Some(to) = self.backlog.as_mut().and_then(|backlog| backlog.jump()) {
            self.cursor.advance(to);
        }
    }

    /// What becomes of a new record at `offset`, read behind the head; `is_wanted`: it interests this queue.
    pub fn fate(
        &mut self,
        offset: Offset,
        (message, is_wanted): (&Message, bool),
        limits: &QueueLimits,
        now_ms: u64,
    ) -> Fate {
        let head = self.cursor.head();
        let is_expired = is_wanted && message.is_expired(now_ms);
        let Some(backlog) = &mut self.backlog else {
            return match (is_wanted, is_expired) {
                (false, _) => Fate::Unwanted,
                (true, true) => Fate::Dropped(DropReason::Expired),
                (true, false) => Fate::Due,
            };
        };
        let is_skipped = backlog.skips(offset).is_some();
        backlog.approach(head, offset);
        if !is_wanted || is_skipped {
            return Fate::Unwanted;
        }
        if backlog.given_up() > 0 {
            return Fate::Dropped(backlog.reason.unwrap_or(DropReason::Messages));
        }
        if is_expired {
            return Fate::Dropped(DropReason::Expired);
        }
        let is_old =
            limits.age_ms.is_some_and(|age_ms| message.publish_time_ms.saturating_add(age_ms) < now_ms);
        if is_old { Fate::Dropped(DropReason::Age) } else { Fate::Due }
    }

    /// Whether the next message behind the head was given up, and counted so, before.
    #[must_use]
    pub fn is_next_given_up(&self) -> bool {
        self.counted().is_some_and(|backlog| backlog.given_up() > 0)
    }
}

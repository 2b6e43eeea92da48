//! When what was written is synced.

use std::time::{Duration, Instant};

/// When an append or a commit of the state is done, and what a power cut can take. A broker that is killed loses nothing
/// that was done, whatever is chosen: the system has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Done after a sync that covers it. A power cut takes nothing that was done.
    #[default]
    Fsync,
    /// Done after the write; a sync follows at most so much later. A power cut can take what was done since the last one.
    Interval(Duration),
    /// Done after the write; the system decides when it reaches the disk. A segment is synced when it is full, the rest
    /// when the log is closed. A power cut can take what the system had not written.
    None,
}

/// Remembers what was written and not synced.
#[derive(Debug)]
pub(super) struct Unsynced {
    durability: Durability,
    /// Since when.
    since: Option<Instant>,
}

impl Unsynced {
    /// Nothing is.
    pub(super) fn new(durability: Durability) -> Self {
        Self { durability, since: None }
    }

    pub(super) fn durability(&self) -> Durability {
        self.durability
    }

    /// Something was written.
    pub(super) fn note_write(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// Everything was synced.
    pub(super) fn note_sync(&mut self) {
        self.since = None;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.since.is_none()
    }

    /// When the next sync is due, if one is.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.durability {
            Durability::Fsync => self.since,
            Durability::Interval(interval) => self.since.map(|since| since + interval),
            Durability::None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_is_due_at_once_after_the_interval_or_never() {
        let now = Instant::now();
        let interval = Duration::from_millis(100);
        let due = |durability| {
            let mut unsynced = Unsynced::new(durability);
            assert_eq!(unsynced.due(), None, "nothing was written");
            unsynced.note_write(now);
            unsynced.note_write(now + interval);
            unsynced.due()
        };

        assert_eq!(due(Durability::Fsync), Some(now));
        assert_eq!(due(Durability::Interval(interval)), Some(now + interval), "from the first write on");
        assert_eq!(due(Durability::None), None);
    }
}

//! What a test can make go wrong.

use super::MemoryLog;
use parking_lot::{Condvar, Mutex};
use tidemill_core::partition::{Offset, Partition};

/// A commit of the state whose outcome the writer is not told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownCommit {
    /// It was stored, its answer was lost.
    Stored,
    /// It was not stored.
    Lost,
}

/// Whether the committer may store what it holds.
pub(super) enum Gate {
    Open,
    ProducerFailed,
    Failed,
}

#[derive(Default)]
pub(super) struct Faults {
    switches: Mutex<Switches>,
    changed: Condvar,
}

#[derive(Default)]
struct Switches {
    held: bool,
    producer_failed: bool,
    failed: bool,
    dead: bool,
    unreadable: bool,
    next_commit: Option<UnknownCommit>,
}

impl Faults {
    fn switch(&self, change: impl FnOnce(&mut Switches)) {
        change(&mut self.switches.lock());
        self.changed.notify_all();
    }

    /// Waits while appends are held.
    pub(super) fn wait_at_gate(&self) -> Gate {
        let mut switches = self.switches.lock();
        while switches.held && !switches.producer_failed && !switches.failed {
            self.changed.wait(&mut switches);
        }
        if switches.failed {
            Gate::Failed
        } else if std::mem::take(&mut switches.producer_failed) {
            Gate::ProducerFailed
        } else {
            Gate::Open
        }
    }

    pub(super) fn release_appends(&self) {
        self.switch(|switches| switches.held = false);
    }

    pub(super) fn abandon_appends(&self) {
        self.switch(|switches| switches.failed = true);
    }

    pub(super) fn is_dead(&self) -> bool {
        self.switches.lock().dead
    }

    pub(super) fn is_unreadable(&self) -> bool {
        self.switches.lock().unreadable
    }

    pub(super) fn take_next_commit(&self) -> Option<UnknownCommit> {
        self.switches.lock().next_commit.take()
    }
}

impl MemoryLog {
    /// Commits no append until [`MemoryLog::release_appends`]: the log is slow or away.
    pub fn hold_appends(&self) {
        self.inner.faults.switch(|switches| switches.held = true);
    }

    /// Commits the appends that were held, in their order.
    pub fn release_appends(&self) {
        self.inner.faults.release_appends();
    }

    /// From now on appends are committed and their callbacks never called: this broker dies right after the commit.
    pub fn die_after_commit(&self) {
        self.inner.faults.switch(|switches| switches.dead = true);
    }

    /// The producer meets a fatal error: all waiting appends are answered so, and the next producer number starts.
    pub fn fail_producer(&self) {
        self.inner.faults.switch(|switches| switches.producer_failed = true);
        self.inner.intake.poke();
    }

    /// The storage fails for good: [`crate::log::Log::failed`] completes, everything is answered `Closed`.
    pub fn fail(&self, reason: &str) {
        self.inner.faults.switch(|switches| switches.failed = true);
        self.inner.failed.send_replace(Some(reason.to_owned()));
        self.inner.intake.close();
    }

    /// Reads, bounds, trims and opens answer `Unavailable` until [`MemoryLog::make_readable`].
    pub fn make_unreadable(&self) {
        self.inner.faults.switch(|switches| switches.unreadable = true);
    }

    /// Ends [`MemoryLog::make_unreadable`].
    pub fn make_readable(&self) {
        self.inner.faults.switch(|switches| switches.unreadable = false);
    }

    /// The power fails: records of `partition` from `from` on are lost although they were acknowledged, and the state is
    /// not. From now on the log gives up what it has lost.
    pub fn lose_from(&self, partition: Partition, from: Offset) {
        self.inner.store.lose(partition, from);
    }

    /// The stored bytes of one record become others.
    pub fn damage(&self, partition: Partition, offset: Offset) {
        self.inner.store.damage(partition, offset);
    }

    /// The next commit of the state through this broker answers `Unknown`.
    pub fn lose_next_commit(&self, unknown: UnknownCommit) {
        self.inner.faults.switch(|switches| switches.next_commit = Some(unknown));
    }
}

//! The queue in front of the committer of the state.

use crate::log::congestion::Congestion;
use crate::log::embedded::retained::{Change, Waiting};
use crate::log::retained::{LoadError, RetainedEntry};
use crate::log::state::{Commit, CommitOutcome, OpenError, StateEntry};
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tidemill_core::partition::{Partition, PartitionGroup};
use tokio::sync::{oneshot, watch};

/// What the committer is asked.
pub(super) enum Job {
    Open {
        group: PartitionGroup,
        partitions: Vec<Partition>,
        reply: oneshot::Sender<Result<(u64, Vec<StateEntry>), OpenError>>,
    },
    Commit {
        group: PartitionGroup,
        generation: u64,
        commit: Commit,
        reply: oneshot::Sender<CommitOutcome>,
    },
    /// Answers when everything that was committed before is synced.
    Sync {
        reply: oneshot::Sender<()>,
    },
    LoadRetained {
        after: Option<Bytes>,
        reply: oneshot::Sender<Result<Vec<RetainedEntry>, LoadError>>,
    },
}

/// The queue in front of the committer. Bounded by its callers: each waits for its one job. Changes of retained messages
/// have a bound of their own.
pub(in crate::log::embedded) struct Queue {
    jobs: Mutex<Jobs>,
    arrived: Condvar,
    /// The committer has ended.
    pub(super) ended: watch::Sender<bool>,
    /// Of the changes of retained messages.
    pub(in crate::log::embedded) congestion: Congestion,
}

struct Jobs {
    waiting: VecDeque<Job>,
    retained: Waiting,
    closed: bool,
}

impl Queue {
    pub(super) fn new() -> Self {
        let jobs = Jobs { waiting: VecDeque::new(), retained: Waiting::default(), closed: false };
        Self {
            jobs: Mutex::new(jobs),
            arrived: Condvar::new(),
            ended: watch::Sender::new(false),
            congestion: Congestion::new(),
        }
    }

    pub(super) fn push(&self, job: Job) {
        let mut jobs = self.jobs.lock();
        // A job that is dropped answers by its closed channel.
        if !jobs.closed {
            jobs.waiting.push_back(job);
            self.arrived.notify_one();
        }
    }

    /// Queues a change of a retained message; gives it back if the queue is closed.
    pub(in crate::log::embedded) fn push_change(&self, change: Change) -> Result<(), Change> {
        let mut jobs = self.jobs.lock();
        if jobs.closed {
            return Err(change);
        }
        if jobs.retained.push(change, Instant::now()) {
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// Puts a batch of changes back in front of the others until the time is over; gives it back if the queue is closed.
    pub(in crate::log::embedded) fn put_back(
        &self,
        changes: Vec<Change>,
        time: Duration,
    ) -> Result<(), Vec<Change>> {
        let mut jobs = self.jobs.lock();
        if jobs.closed {
            return Err(changes);
        }
        jobs.retained.put_back(changes, Instant::now() + time);
        Ok(())
    }

    /// Asks for stored retained messages. The answer's channel closes if there is none any more.
    pub(in crate::log::embedded) fn load_retained(
        &self,
        after: Option<Bytes>,
    ) -> oneshot::Receiver<Result<Vec<RetainedEntry>, LoadError>> {
        let (reply, replied) = oneshot::channel();
        self.push(Job::LoadRetained { after, reply });
        replied
    }

    pub(super) fn close(&self) {
        self.jobs.lock().closed = true;
        self.arrived.notify_one();
    }

    /// Waits for jobs or for changes that are due, no longer than `until`, and takes both. `None` means that the queue is
    /// closed and empty.
    pub(super) fn take(&self, until: Option<Instant>) -> Option<(VecDeque<Job>, Vec<Change>)> {
        let mut jobs = self.jobs.lock();
        while jobs.waiting.is_empty() && !jobs.closed {
            let now = Instant::now();
            match jobs.retained.due_at(now).into_iter().chain(until).min() {
                Some(due_at) if due_at <= now => break,
                Some(due_at) => drop(self.arrived.wait_until(&mut jobs, due_at)),
                None => self.arrived.wait(&mut jobs),
            }
        }
        if jobs.closed {
            jobs.retained.end_pause();
        }
        let retained = jobs.retained.take_batch(Instant::now());
        let is_over = jobs.closed && jobs.waiting.is_empty() && retained.is_empty();
        (!is_over).then(|| (std::mem::take(&mut jobs.waiting), retained))
    }

    /// Waits until closed or the time is over; answers whether it is closed.
    pub(super) fn pause(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        let mut jobs = self.jobs.lock();
        while !jobs.closed && !self.arrived.wait_until(&mut jobs, deadline).timed_out() {}
        jobs.closed
    }
}

//! The queue in front of the committer of the state.

use crate::log::state::{CommitOutcome, OpenError, StateEntry, StateWrite};
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
        writes: Vec<StateWrite>,
        reply: oneshot::Sender<CommitOutcome>,
    },
    /// Answers when everything that was committed before is synced.
    Sync { reply: oneshot::Sender<()> },
}

/// The queue in front of the committer. Bounded by its callers: each waits for its one job.
pub(super) struct Queue {
    jobs: Mutex<Jobs>,
    arrived: Condvar,
    /// The committer has ended.
    pub(super) ended: watch::Sender<bool>,
}

struct Jobs {
    waiting: VecDeque<Job>,
    closed: bool,
}

impl Queue {
    pub(super) fn new() -> Self {
        Self {
            jobs: Mutex::new(Jobs { waiting: VecDeque::new(), closed: false }),
            arrived: Condvar::new(),
            ended: watch::Sender::new(false),
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

    pub(super) fn close(&self) {
        self.jobs.lock().closed = true;
        self.arrived.notify_one();
    }

    /// Waits for jobs, no longer than `until`. `None` means that the queue is closed and empty.
    pub(super) fn take(&self, until: Option<Instant>) -> Option<VecDeque<Job>> {
        let mut jobs = self.jobs.lock();
        while jobs.waiting.is_empty() && !jobs.closed {
            match until {
                None => self.arrived.wait(&mut jobs),
                Some(until) if self.arrived.wait_until(&mut jobs, until).timed_out() => break,
                Some(_) => {}
            }
        }
        let is_over = jobs.waiting.is_empty() && jobs.closed;
        (!is_over).then(|| std::mem::take(&mut jobs.waiting))
    }

    /// Waits until closed or the time is over; answers whether it is closed.
    pub(super) fn pause(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        let mut jobs = self.jobs.lock();
        while !jobs.closed && !self.arrived.wait_until(&mut jobs, deadline).timed_out() {}
        jobs.closed
    }
}

//! The state of the embedded log: one fjall keyspace behind one committer thread, because fjall holds its lock while it
//! syncs. Owners are fenced by a generation number of this process; other processes by the lock of the data directory.

use super::disk::Disk;
use super::health::Health;
use super::open::OpenLogError;
use crate::log::state::{
    CommitOutcome, KEY_BYTES_MAX, OpenError, OpenedGroup, StateEntry, StateWrite, StateWriter,
};
use bytes::Bytes;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};
use futures::future::BoxFuture;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tidemill_core::partition::{Partition, PartitionGroup};
use tokio::sync::{oneshot, watch};

const KEYSPACE: &str = "state";
const CACHE_BYTES: u64 = 16 << 20;
/// Free bytes below which nothing is committed, so that fjall never meets a full disk: it could not go on after one.
const RESERVED_BYTES: u64 = 16 << 20;
const FULL_PAUSE: Duration = Duration::from_secs(1);

enum Job {
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
}

/// The queue in front of the committer. Bounded by its callers: each waits for its one job.
struct Queue {
    jobs: Mutex<Jobs>,
    arrived: Condvar,
    ended: watch::Sender<bool>,
}

struct Jobs {
    waiting: VecDeque<Job>,
    closed: bool,
}

/// The handle of the state.
pub(super) struct StateStore {
    queue: Arc<Queue>,
    committer: Option<JoinHandle<()>>,
}

impl StateStore {
    /// Opens the store in `directory`, which this process has locked.
    pub(super) fn open(
        directory: PathBuf,
        disk: Arc<dyn Disk>,
        health: Arc<Health>,
    ) -> Result<Self, OpenLogError> {
        let failed =
            |error: fjall::Error| OpenLogError::State { path: directory.clone(), reason: error.to_string() };
        let database = Database::builder(&directory)
            .worker_threads(1)
            .cache_size(CACHE_BYTES)
            .manual_journal_persist(true)
            .open()
            .map_err(failed)?;
        let keyspace = database.keyspace(KEYSPACE, KeyspaceCreateOptions::default).map_err(failed)?;
        let queue = Arc::new(Queue {
            jobs: Mutex::new(Jobs { waiting: VecDeque::new(), closed: false }),
            arrived: Condvar::new(),
            ended: watch::Sender::new(false),
        });
        let committer = Committer {
            queue: Arc::clone(&queue),
            database,
            keyspace,
            directory: directory.clone(),
            disk,
            health,
            generations: BTreeMap::new(),
        };
        let committer = std::thread::Builder::new()
            .name("tidemill-state".to_owned())
            .spawn(move || committer.run())
            .map_err(|source| OpenLogError::Io { path: directory, source })?;
        Ok(Self { queue, committer: Some(committer) })
    }

    pub(super) fn open_group(
        &self,
        group: PartitionGroup,
        partitions: Vec<Partition>,
    ) -> BoxFuture<'static, Result<OpenedGroup, OpenError>> {
        let queue = Arc::clone(&self.queue);
        Box::pin(async move {
            let (reply, replied) = oneshot::channel();
            queue.push(Job::Open { group, partitions, reply });
            let closed =
                |_| OpenError::Unavailable { group: group.0, reason: "the log is closed".to_owned() };
            let (generation, entries) = replied.await.map_err(closed)??;
            Ok(OpenedGroup { entries, writer: Box::new(Writer { queue, group, generation }) })
        })
    }

    /// Commits what waits, then closes the store.
    pub(super) fn close(&self) -> BoxFuture<'static, ()> {
        self.queue.close();
        let mut ended = self.queue.ended.subscribe();
        Box::pin(async move {
            // An error means that the committer is gone.
            let _ = ended.wait_for(|ended| *ended).await;
        })
    }
}

impl Drop for StateStore {
    fn drop(&mut self) {
        self.queue.close();
        if let Some(committer) = self.committer.take() {
            // A panic was reported through `failed`.
            let _ = committer.join();
        }
    }
}

impl Queue {
    fn push(&self, job: Job) {
        let mut jobs = self.jobs.lock();
        // A job that is dropped answers by its closed channel.
        if !jobs.closed {
            jobs.waiting.push_back(job);
            self.arrived.notify_one();
        }
    }

    fn close(&self) {
        self.jobs.lock().closed = true;
        self.arrived.notify_one();
    }

    /// Waits for jobs; none means that the queue is closed and empty.
    fn take(&self) -> VecDeque<Job> {
        let mut jobs = self.jobs.lock();
        while jobs.waiting.is_empty() && !jobs.closed {
            self.arrived.wait(&mut jobs);
        }
        std::mem::take(&mut jobs.waiting)
    }

    /// Waits until closed or the time is over; answers whether it is closed.
    fn pause(&self, time: Duration) -> bool {
        let deadline = std::time::Instant::now() + time;
        let mut jobs = self.jobs.lock();
        while !jobs.closed && !self.arrived.wait_until(&mut jobs, deadline).timed_out() {}
        jobs.closed
    }
}

struct Writer {
    queue: Arc<Queue>,
    group: PartitionGroup,
    generation: u64,
}

impl StateWriter for Writer {
    fn commit(&mut self, writes: Vec<StateWrite>) -> BoxFuture<'_, CommitOutcome> {
        Box::pin(async move {
            let (reply, replied) = oneshot::channel();
            let (group, generation) = (self.group, self.generation);
            self.queue.push(Job::Commit { group, generation, writes, reply });
            replied.await.unwrap_or(CommitOutcome::Unknown)
        })
    }
}

/// The thread that has the database.
struct Committer {
    queue: Arc<Queue>,
    database: Database,
    keyspace: Keyspace,
    directory: PathBuf,
    disk: Arc<dyn Disk>,
    health: Arc<Health>,
    /// The newest owner of each group.
    generations: BTreeMap<PartitionGroup, u64>,
}

/// Commits that share one write and one sync. The last value of a key counts: fjall gives all entries of a batch the
/// same number, so a key may be in it only once.
#[derive(Default)]
struct Gathered {
    writes: BTreeMap<Vec<u8>, Option<Bytes>>,
    replies: Vec<oneshot::Sender<CommitOutcome>>,
}

impl Committer {
    fn run(mut self) {
        let health = Arc::clone(&self.health);
        let _guard = health.guard("tidemill-state");
        let queue = Arc::clone(&self.queue);
        loop {
            let jobs = queue.take();
            if jobs.is_empty() {
                break;
            }
            self.work(jobs);
        }
        // The database is closed before anyone is told.
        drop(self);
        queue.ended.send_replace(true);
    }

    fn work(&mut self, jobs: VecDeque<Job>) {
        let mut gathered = Gathered::default();
        for job in jobs {
            match job {
                Job::Commit { group, generation, writes, reply } => {
                    if self.generations.get(&group) != Some(&generation) {
                        let _ = reply.send(CommitOutcome::Fenced);
                    } else if let Some(key) = writes.iter().find(|write| write.key.len() > KEY_BYTES_MAX) {
                        tracing::error!(
                            group = group.0,
                            bytes = key.key.len(),
                            "key of the state is too long"
                        );
                        let _ = reply.send(CommitOutcome::Unknown);
                    } else {
                        for StateWrite { partition, key, value } in writes {
                            gathered.writes.insert(stored_key(partition, &key), value);
                        }
                        gathered.replies.push(reply);
                    }
                }
                Job::Open { group, partitions, reply } => {
                    self.commit(std::mem::take(&mut gathered));
                    let generation = self.generations.entry(group).or_default();
                    *generation += 1;
                    let generation = *generation;
                    let entries = self.load(&partitions).map_err(|error| OpenError::Unavailable {
                        group: group.0,
                        reason: error.to_string(),
                    });
                    let _ = reply.send(entries.map(|entries| (generation, entries)));
                }
            }
        }
        self.commit(gathered);
    }

    /// Commits and answers.
    fn commit(&mut self, gathered: Gathered) {
        let outcome = if gathered.writes.is_empty() || (self.wait_for_space() && self.store(gathered.writes))
        {
            CommitOutcome::Committed
        } else {
            CommitOutcome::Unknown
        };
        for reply in gathered.replies {
            // Who asked may have stopped waiting.
            let _ = reply.send(outcome);
        }
    }

    fn store(&self, writes: BTreeMap<Vec<u8>, Option<Bytes>>) -> bool {
        if self.health.has_failed() {
            return false;
        }
        let mut batch = self.database.batch().durability(Some(PersistMode::SyncAll));
        for (key, value) in writes {
            match value {
                Some(value) => batch.insert(&self.keyspace, key, value.as_ref()),
                None => batch.remove(&self.keyspace, key),
            }
        }
        match batch.commit() {
            Ok(()) => true,
            Err(error) => {
                self.health.fail(format!("commit of the state in {}: {error}", self.directory.display()));
                false
            }
        }
    }

    /// Waits while the disk is full; false if the store is closed meanwhile.
    fn wait_for_space(&self) -> bool {
        let mut full = false;
        while is_below(&*self.disk, &self.directory, RESERVED_BYTES) {
            if !full {
                tracing::error!(directory = %self.directory.display(), "disk is full; the state waits");
            }
            full = true;
            if self.queue.pause(FULL_PAUSE) {
                return false;
            }
        }
        if full {
            tracing::info!(directory = %self.directory.display(), "disk has space again");
        }
        true
    }

    fn load(&self, partitions: &[Partition]) -> Result<Vec<StateEntry>, fjall::Error> {
        let snapshot = self.database.snapshot();
        let mut entries = Vec::new();
        for partition in partitions {
            for entry in snapshot.prefix(&self.keyspace, partition.0.to_be_bytes()) {
                let (key, value) = entry.into_inner()?;
                let key = Bytes::copy_from_slice(key.get(2..).unwrap_or_default());
                let value = Bytes::copy_from_slice(&value);
                entries.push(StateEntry { partition: *partition, key, value });
            }
        }
        Ok(entries)
    }
}

fn is_below(disk: &dyn Disk, directory: &Path, bytes: u64) -> bool {
    // A file system that does not tell is written to until it refuses.
    disk.available(directory).is_ok_and(|free| free < bytes)
}

/// The partition in front, big endian, so that one partition is one range.
fn stored_key(partition: Partition, key: &[u8]) -> Vec<u8> {
    [&partition.0.to_be_bytes(), key].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_stored_behind_its_partition() {
        assert_eq!(stored_key(Partition(0x0102), b"k"), [1, 2, b'k']);
    }
}

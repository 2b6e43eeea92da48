//! The state of the embedded log: a fjall database behind one committer thread, because fjall holds its lock while it
//! syncs. The retained messages beside it share its commits. Owners are fenced by a generation number of this process;
//! other processes by the lock of the data directory.

mod index;
mod queue;

pub(super) use queue::Queue;

use super::disk::Disk;
use super::durability::{Durability, Unsynced};
use super::health::Health;
use super::open::OpenLogError;
use super::retained::{self, Change, EmbeddedRetained, RetainedKeyspace};
use crate::log::AppendError;
use crate::log::index::{Index, IndexWrite};
use crate::log::retained::RetainedVersion;
use crate::log::state::{
    Commit, CommitOutcome, KEY_BYTES_MAX, OpenError, OpenedGroup, StateEntry, StateWrite, StateWriter,
};
use bytes::Bytes;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};
use futures::future::BoxFuture;
use index::{IndexKeyspace, IndexReader};
use prometheus::IntGauge;
use queue::Job;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidemill_core::partition::{Partition, PartitionGroup};
use tokio::sync::oneshot;

const KEYSPACE: &str = "state";
const CACHE_BYTES: u64 = 16 << 20;
/// Of fjall's journals together, about: what is read again at every start.
const JOURNALS_BYTES: u64 = 128 << 20;
/// Free bytes below which nothing is committed, so that fjall never meets a full disk: it could not go on after one.
const RESERVED_BYTES: u64 = 16 << 20;
pub(super) const FULL_PAUSE: Duration = Duration::from_secs(1);

/// What the store has from the log beside it.
pub(super) struct StateParts {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) health: Arc<Health>,
    /// 1 while the store waits for space.
    pub(super) waits_for_space: IntGauge,
    /// 1 while changes of retained messages do.
    pub(super) retained_waits_for_space: IntGauge,
    pub(super) durability: Durability,
}

/// The handle of the state.
pub(super) struct StateStore {
    queue: Arc<Queue>,
    index: Arc<IndexReader>,
    committer: Option<JoinHandle<()>>,
}

impl StateStore {
    /// Opens the store in `directory`, which this process has locked.
    pub(super) fn open(directory: PathBuf, parts: StateParts) -> Result<Self, OpenLogError> {
        let failed =
            |error: fjall::Error| OpenLogError::State { path: directory.clone(), reason: error.to_string() };
        let database = Database::builder(&directory)
            .worker_threads(1)
            .cache_size(CACHE_BYTES)
            .manual_journal_persist(true)
            .max_journaling_size(JOURNALS_BYTES)
            .open()
            .map_err(failed)?;
        let keyspace = database.keyspace(KEYSPACE, KeyspaceCreateOptions::default).map_err(failed)?;
        let retained = RetainedKeyspace::open(&database, &directory, &*parts.disk)
            .map_err(|reason| OpenLogError::State { path: directory.clone(), reason })?;
        let (index, index_reader) = IndexKeyspace::open(&database).map_err(failed)?;
        let queue = Arc::new(Queue::new());
        let committer = Committer {
            queue: Arc::clone(&queue),
            database,
            keyspace,
            index,
            retained,
            directory: directory.clone(),
            unsynced: Unsynced::new(parts.durability),
            parts,
            generations: BTreeMap::new(),
        };
        let committer = std::thread::Builder::new()
            .name("tidemill-state".to_owned())
            .spawn(move || committer.run())
            .map_err(|source| OpenLogError::Io { path: directory, source })?;
        Ok(Self { queue, index: index_reader, committer: Some(committer) })
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

    /// Completes when everything that was committed before the call is synced; an error means that it never will be.
    pub(super) fn sync(&self) -> oneshot::Receiver<()> {
        let (reply, replied) = oneshot::channel();
        self.queue.push(Job::Sync { reply });
        replied
    }

    /// The retained messages beside the state.
    pub(super) fn retained(&self) -> EmbeddedRetained {
        EmbeddedRetained::new(Arc::clone(&self.queue))
    }

    /// The index beside the state.
    pub(super) fn index(&self) -> Arc<dyn Index> {
        Arc::clone(&self.index) as Arc<dyn Index>
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

struct Writer {
    queue: Arc<Queue>,
    group: PartitionGroup,
    generation: u64,
}

impl StateWriter for Writer {
    fn commit(&mut self, commit: Commit) -> BoxFuture<'_, CommitOutcome> {
        Box::pin(async move {
            let (reply, replied) = oneshot::channel();
            let (group, generation) = (self.group, self.generation);
            self.queue.push(Job::Commit { group, generation, commit, reply });
            replied.await.unwrap_or(CommitOutcome::Unknown)
        })
    }
}

/// The thread that has the database.
struct Committer {
    queue: Arc<Queue>,
    database: Database,
    keyspace: Keyspace,
    index: IndexKeyspace,
    retained: RetainedKeyspace,
    directory: PathBuf,
    parts: StateParts,
    unsynced: Unsynced,
    /// The newest owner of each group.
    generations: BTreeMap<PartitionGroup, u64>,
}

/// Commits that share one write and one sync. The last value of a key counts: fjall gives all entries of a batch the
/// same number, so a key may be in it only once.
#[derive(Default)]
struct Gathered {
    writes: BTreeMap<Vec<u8>, Option<Bytes>>,
    index: Vec<IndexWrite>,
    replies: Vec<oneshot::Sender<CommitOutcome>>,
    retained: Vec<Change>,
}

impl Committer {
    fn run(mut self) {
        let health = Arc::clone(&self.parts.health);
        let _guard = health.guard("tidemill-state");
        let queue = Arc::clone(&self.queue);
        while let Some((jobs, retained)) = queue.take(self.unsynced.due()) {
            self.work(jobs, retained);
            if self.unsynced.due().is_some_and(|due| due <= Instant::now()) {
                self.sync();
            }
        }
        self.sync();
        self.index.close();
        // The database is closed before anyone is told.
        drop(self);
        queue.ended.send_replace(true);
    }

    fn work(&mut self, jobs: VecDeque<Job>, retained: Vec<Change>) {
        let retained = self.retained.admit(retained, &self.queue, &*self.parts.disk);
        self.parts.retained_waits_for_space.set(self.retained.is_full().into());
        let mut gathered = Gathered { retained, ..Gathered::default() };
        for job in jobs {
            match job {
                Job::Commit { group, generation, commit: Commit { writes, index }, reply } => {
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
                        gathered.index.extend(index);
                        gathered.replies.push(reply);
                    }
                }
                Job::Sync { reply } => {
                    self.commit(std::mem::take(&mut gathered));
                    // Without an answer it was not.
                    if self.sync() {
                        let _ = reply.send(());
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
                Job::LoadRetained { after, reply } => {
                    let _ = reply.send(self.retained.load(after));
                }
            }
        }
        self.commit(gathered);
    }

    /// Commits and answers.
    fn commit(&mut self, gathered: Gathered) {
        let Gathered { writes, index, replies, retained } = gathered;
        let stored = if writes.is_empty() && index.is_empty() && retained.is_empty() {
            Some(0)
        } else if self.wait_for_space() {
            self.store(writes, index, &retained)
        } else {
            None
        };
        let outcome = if stored.is_some() { CommitOutcome::Committed } else { CommitOutcome::Unknown };
        for reply in replies {
            // Who asked may have stopped waiting.
            let _ = reply.send(outcome);
        }
        retained::answer(&self.queue.congestion, retained, stored.ok_or(AppendError::Closed));
    }

    /// Answers the version of the first retained message once all is stored; `None` if it cannot be.
    fn store(
        &mut self,
        writes: BTreeMap<Vec<u8>, Option<Bytes>>,
        mut index: Vec<IndexWrite>,
        retained: &[Change],
    ) -> Option<RetainedVersion> {
        if self.parts.health.has_failed() {
            return None;
        }
        // Nothing depends on blocks: they never take the space that the state needs.
        let has_blocks = index.iter().any(|write| matches!(write, IndexWrite::Block { .. }));
        if has_blocks && is_below(&*self.parts.disk, &self.directory, self.retained.reserved_bytes()) {
            index.retain(|write| matches!(write, IndexWrite::Trim { .. }));
        }
        // At least the system has it, so that a killed broker loses nothing.
        let is_synced = self.unsynced.durability() == Durability::Fsync;
        let mode = if is_synced { PersistMode::SyncAll } else { PersistMode::Buffer };
        let mut batch = self.database.batch().durability(Some(mode));
        for (key, value) in writes {
            match value {
                Some(value) => batch.insert(&self.keyspace, key, value.as_ref()),
                None => batch.remove(&self.keyspace, key),
            }
        }
        if let Err(error) = self.index.write(index, &mut batch) {
            self.fail("trim of the index", &error);
            return None;
        }
        let first = self.retained.write(retained, &mut batch);
        match batch.commit() {
            Ok(()) => {
                if !is_synced {
                    self.unsynced.note_write(Instant::now());
                }
                Some(first)
            }
            Err(error) => {
                self.fail("commit", &error);
                None
            }
        }
    }

    /// Syncs what was committed, if something was; answers whether it is on the disk.
    fn sync(&mut self) -> bool {
        if self.unsynced.is_empty() {
            return !self.parts.health.has_failed();
        }
        if self.parts.health.has_failed() {
            return false;
        }
        let synced = self.database.persist(PersistMode::SyncAll);
        match synced {
            Ok(()) => self.unsynced.note_sync(),
            Err(error) => {
                self.fail("sync", &error);
                return false;
            }
        }
        true
    }

    fn fail(&self, what: &str, error: &fjall::Error) {
        self.parts.health.fail(format!("{what} of the state in {}: {error}", self.directory.display()));
    }

    /// Waits while the disk is full; false if the store is closed meanwhile.
    fn wait_for_space(&self) -> bool {
        let mut full = false;
        while is_below(&*self.parts.disk, &self.directory, RESERVED_BYTES) {
            if !full {
                tracing::error!(directory = %self.directory.display(), "disk is full; the state waits");
                self.parts.waits_for_space.set(1);
            }
            full = true;
            if self.queue.pause(FULL_PAUSE) {
                self.parts.waits_for_space.set(0);
                return false;
            }
        }
        if full {
            self.parts.waits_for_space.set(0);
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

pub(super) fn is_below(disk: &dyn Disk, directory: &Path, bytes: u64) -> bool {
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

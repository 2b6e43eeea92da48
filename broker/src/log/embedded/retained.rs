//! Retained messages of the embedded log: a keyspace beside the state, written by its committer in the same commits.

use super::disk::Disk;
use super::state::{FULL_PAUSE, Queue, is_below};
use crate::log::AppendError;
use crate::log::congestion::Congestion;
use crate::log::retained::{
    LOAD_BYTES_MAX, LOAD_ENTRIES_MAX, LoadError, RetainedEntry, RetainedLog, RetainedVersion, StoreDone,
};
use bytes::Bytes;
use bytestring::ByteString;
use fjall::compaction::Leveled;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch};
use futures::future::BoxFuture;
use std::collections::{HashSet, VecDeque};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_core::binary::{FormatError, Reader, Writer};

const KEYSPACE: &str = "retained";
/// fjall writes what it holds in memory as one table when it has so many bytes, and merges tables of this size.
const MEMTABLE_BYTES: u64 = 8 << 20;
const TABLE_BYTES: u64 = 8 << 20;
/// Free bytes below which changes wait; half of a small file system. fjall writes tables and merges them on its own, after
/// the commits that need it, and cannot go on when it meets a full disk then: twenty unmerged tables and those that they
/// are merged with must have room beside what there is.
const RESERVED_BYTES_MAX: u64 = 256 << 20;
/// The newest format of the keyspace.
const FORMAT: u8 = 1;
/// Holds the format and the last version. Sorts before every topic, and is none: topics have no U+0000.
const LAST_VERSION_KEY: [u8; 1] = [0];
/// In front of the message.
const VERSION_BYTES: usize = size_of::<RetainedVersion>();

/// Changes in one commit, so that the state beside them need not wait for thousands.
const BATCH_CHANGES: usize = 1_024;
/// Bytes after which a commit takes no further change.
const BATCH_BYTES: usize = 4 << 20;
/// What nobody waits for is committed at the latest after this time, or when a commit is full.
const LAZY: Duration = Duration::from_millis(100);

/// A change on its way.
pub(super) struct Change {
    topic: ByteString,
    message: Option<Bytes>,
    done: Option<StoreDone>,
}

impl Change {
    fn bytes(&self) -> usize {
        self.topic.len() + self.message.as_ref().map_or(0, Bytes::len)
    }
}

/// Changes that wait for the committer, in order. Bounded by the callers, who stop when the store is congested.
#[derive(Default)]
pub(super) struct Waiting {
    changes: VecDeque<Change>,
    /// How many have someone who waits.
    awaited: usize,
    /// Since when the oldest waits that nobody waits for.
    lazy_since: Option<Instant>,
    /// Nothing is due before: the disk was full.
    paused_until: Option<Instant>,
}

impl Waiting {
    /// Answers whether [`Waiting::due_at`] is earlier now.
    pub(super) fn push(&mut self, change: Change, now: Instant) -> bool {
        let is_awaited = change.done.is_some();
        self.changes.push_back(change);
        if is_awaited {
            self.awaited += 1;
            return true;
        }
        let is_first = self.lazy_since.is_none();
        self.lazy_since.get_or_insert(now);
        is_first || self.changes.len() == BATCH_CHANGES
    }

    /// A batch that was taken waits again, in front of the others.
    pub(super) fn put_back(&mut self, batch: Vec<Change>, until: Instant) {
        for change in batch.into_iter().rev() {
            self.awaited += usize::from(change.done.is_some());
            self.changes.push_front(change);
        }
        self.lazy_since.get_or_insert(until);
        self.paused_until = Some(until);
    }

    pub(super) fn end_pause(&mut self) {
        self.paused_until = None;
    }

    /// When they must be committed; `None` if there are none.
    pub(super) fn due_at(&self, now: Instant) -> Option<Instant> {
        if self.paused_until.is_some() {
            return self.paused_until;
        }
        if self.awaited > 0 || self.changes.len() >= BATCH_CHANGES {
            return Some(now);
        }
        self.lazy_since.map(|since| since + LAZY)
    }

    /// The oldest, as many as fit into one commit; none during a pause.
    pub(super) fn take_batch(&mut self, now: Instant) -> Vec<Change> {
        let mut bytes = 0;
        let mut batch = Vec::new();
        if self.paused_until.is_some_and(|until| now < until) {
            return batch;
        }
        self.paused_until = None;
        while batch.len() < BATCH_CHANGES && bytes < BATCH_BYTES {
            let Some(change) = self.changes.pop_front() else { break };
            bytes += change.bytes();
            self.awaited -= usize::from(change.done.is_some());
            batch.push(change);
        }
        if self.changes.is_empty() {
            self.lazy_since = None;
        }
        batch
    }
}

/// The handle that the router has.
pub(super) struct EmbeddedRetained {
    queue: Arc<Queue>,
}

impl EmbeddedRetained {
    pub(super) fn new(queue: Arc<Queue>) -> Self {
        Self { queue }
    }
}

impl RetainedLog for EmbeddedRetained {
    fn store(&self, topic: &ByteString, message: Option<Bytes>, done: Option<StoreDone>) {
        let change = Change { topic: topic.clone(), message, done };
        self.queue.congestion.add(change.bytes());
        if let Err(change) = self.queue.push_change(change) {
            answer(&self.queue.congestion, vec![change], Err(AppendError::Closed));
        }
    }

    fn is_congested(&self) -> bool {
        self.queue.congestion.is_congested()
    }

    fn relieved(&self) -> BoxFuture<'static, ()> {
        self.queue.congestion.relieved()
    }

    fn load(&self, after: Option<Bytes>) -> BoxFuture<'static, Result<Vec<RetainedEntry>, LoadError>> {
        let loaded = self.queue.load_retained(after);
        Box::pin(async move {
            loaded.await.unwrap_or_else(|_| Err(LoadError { reason: "the store is closed".to_owned() }))
        })
    }
}

/// Calls back. `first` is the version of the first change; the others follow it.
pub(super) fn answer(
    congestion: &Congestion,
    changes: Vec<Change>,
    first: Result<RetainedVersion, AppendError>,
) {
    let bytes = changes.iter().map(Change::bytes).sum();
    congestion.remove(changes.len(), bytes);
    for (version, change) in (0..).zip(changes) {
        if let Some(done) = change.done {
            done(first.clone().map(|first| first + version));
        }
    }
}

/// The keyspace, for the committer.
pub(super) struct RetainedKeyspace {
    keyspace: Keyspace,
    last_version: RetainedVersion,
    directory: PathBuf,
    reserved_bytes: u64,
    /// Changes wait for free space.
    is_full: bool,
}

impl RetainedKeyspace {
    /// Opens it, creating it in a database that has none yet.
    ///
    /// # Errors
    ///
    /// The reason in words: the database cannot be read, or a newer version has written it.
    pub(super) fn open(database: &Database, directory: &Path, disk: &dyn Disk) -> Result<Self, String> {
        let options = || {
            let tables = Leveled::default().with_table_target_size(TABLE_BYTES);
            KeyspaceCreateOptions::default()
                .max_memtable_size(MEMTABLE_BYTES)
                .compaction_strategy(Arc::new(tables))
        };
        let keyspace = database.keyspace(KEYSPACE, options);
        let keyspace = keyspace.map_err(|error| error.to_string())?;
        let stored = keyspace.get(LAST_VERSION_KEY).map_err(|error| error.to_string())?;
        let last_version = match stored {
            Some(bytes) => decode_last_version(Bytes::copy_from_slice(&bytes))
                .map_err(|fault| format!("last version of keyspace {KEYSPACE}: {fault}"))?,
            None => 0,
        };
        // A file system that does not tell its size is taken for a large one.
        let disk_bytes = disk.size(directory).unwrap_or(u64::MAX);
        Ok(Self {
            keyspace,
            last_version,
            directory: directory.to_owned(),
            reserved_bytes: RESERVED_BYTES_MAX.min(disk_bytes / 2),
            is_full: false,
        })
    }

    /// Free bytes that are kept for what fjall writes after a commit.
    pub(super) fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    /// Whether changes wait for free space, as of the last ones.
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Gives `changes` back while there is room; else they wait in the queue, and their publishers too.
    pub(super) fn admit(&mut self, changes: Vec<Change>, queue: &Queue, disk: &dyn Disk) -> Vec<Change> {
        if changes.is_empty() {
            return changes;
        }
        let is_full = is_below(disk, &self.directory, self.reserved_bytes);
        if is_full && !self.is_full {
            tracing::error!(
                directory = %self.directory.display(),
                free_bytes_min = self.reserved_bytes,
                "disk is full; retained messages wait"
            );
            queue.congestion.stall();
        } else if self.is_full && !is_full {
            tracing::info!(directory = %self.directory.display(), "disk has space for retained messages again");
            queue.congestion.unstall();
        }
        self.is_full = is_full;
        if !is_full {
            return changes;
        }
        if let Err(changes) = queue.put_back(changes, FULL_PAUSE) {
            queue.congestion.unstall();
            answer(&queue.congestion, changes, Err(AppendError::Closed));
        }
        Vec::new()
    }

    /// Adds `changes` to a commit and answers the version of the first. Of each topic only the last one is written: all
    /// entries of a batch get the same number from fjall, so a key may be in it only once.
    pub(super) fn write(&mut self, changes: &[Change], batch: &mut OwnedWriteBatch) -> RetainedVersion {
        let first = self.last_version + 1;
        if changes.is_empty() {
            return first;
        }
        let mut version = self.last_version + changes.len() as u64;
        batch.insert(&self.keyspace, LAST_VERSION_KEY, encode_last_version(version).as_ref());
        self.last_version = version;
        let mut written = HashSet::new();
        for change in changes.iter().rev() {
            if written.insert(&change.topic) {
                match &change.message {
                    Some(message) => {
                        let value = [&version.to_le_bytes(), &message[..]].concat();
                        batch.insert(&self.keyspace, &*change.topic, value);
                    }
                    None => batch.remove(&self.keyspace, &*change.topic),
                }
            }
            version -= 1;
        }
        first
    }

    /// See [`RetainedLog::load`].
    pub(super) fn load(&self, after: Option<Bytes>) -> Result<Vec<RetainedEntry>, LoadError> {
        let after = after.unwrap_or_else(|| Bytes::from_static(&LAST_VERSION_KEY));
        let mut entries = Vec::new();
        let mut bytes = 0;
        for entry in self.keyspace.range::<&[u8], _>((Bound::Excluded(&after[..]), Bound::Unbounded)) {
            let (topic, value) =
                entry.into_inner().map_err(|error| LoadError { reason: error.to_string() })?;
            bytes += value.len();
            entries.push(decode_entry(&topic, &value));
            if entries.len() >= LOAD_ENTRIES_MAX || bytes >= LOAD_BYTES_MAX {
                break;
            }
        }
        Ok(entries)
    }
}

fn decode_entry(topic: &[u8], value: &[u8]) -> RetainedEntry {
    let topic = Bytes::copy_from_slice(topic);
    match value.split_first_chunk::<VERSION_BYTES>() {
        Some((version, message)) => RetainedEntry {
            topic,
            version: RetainedVersion::from_le_bytes(*version),
            message: Bytes::copy_from_slice(message),
        },
        // No message is empty, so whoever decodes it meets the damage.
        None => RetainedEntry { topic, version: 0, message: Bytes::new() },
    }
}

fn encode_last_version(version: RetainedVersion) -> Bytes {
    let mut writer = Writer::versioned(FORMAT, 16);
    writer.number(version);
    writer.finish()
}

fn decode_last_version(bytes: Bytes) -> Result<RetainedVersion, FormatError> {
    let mut reader = Reader::new(bytes);
    match reader.u8("format")? {
        FORMAT => {}
        format => return Err(FormatError::Unknown { field: "format", value: format.into() }),
    }
    let version = reader.number("last version")?;
    reader.finish()?;
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Log;
    use crate::log::embedded::fixture::Scene;
    use crate::log::state::{CommitOutcome, State, StateWrite};
    use std::sync::mpsc;
    use tidemill_core::partition::{Partition, PartitionGroup};

    fn start(log: &dyn RetainedLog, topic: &str, message: &'static [u8]) -> mpsc::Receiver<RetainedVersion> {
        let (answer, answered) = mpsc::sync_channel(1);
        let done: StoreDone = Box::new(move |outcome| drop(outcome.map(|version| answer.send(version))));
        log.store(&ByteString::from(topic), Some(Bytes::from_static(message)), Some(done));
        answered
    }

    #[test]
    fn format_1_keeps_its_bytes() {
        let version = 0x0102_0304_0506_0708;
        let counter = [1, 0x88, 0x8e, 0x98, 0xa8, 0xc0, 0xe0, 0x80, 0x81, 0x01];
        assert_eq!(encode_last_version(version)[..], counter);
        assert_eq!(decode_last_version(Bytes::copy_from_slice(&counter)), Ok(version));
        let entry = decode_entry(b"t", &[8, 7, 6, 5, 4, 3, 2, 1, b'm']);
        let expected =
            RetainedEntry { topic: Bytes::from_static(b"t"), version, message: Bytes::from_static(b"m") };
        assert_eq!(entry, expected);
    }

    #[tokio::test]
    async fn what_is_stored_is_the_version_and_the_message_under_the_topic() {
        let scene = Scene::new();
        let log = scene.open();
        start(&*log.retained(), "t", b"message").recv().unwrap();
        drop(log);

        let database = Database::builder(scene.data().join("state")).open().unwrap();
        let keyspace = database.keyspace(KEYSPACE, KeyspaceCreateOptions::default).unwrap();

        let stored = |key: &[u8]| keyspace.get(key).unwrap().map(|value| value.to_vec());
        assert_eq!(stored(b"t").as_deref(), Some(&b"\x01\0\0\0\0\0\0\0message"[..]));
        assert_eq!(stored(&LAST_VERSION_KEY).as_deref(), Some(&[1, 1][..]));
        keyspace.insert(LAST_VERSION_KEY, [2, 1]).unwrap();
        drop((keyspace, database));
        let refused = scene.try_open().err().unwrap().to_string();
        assert!(refused.contains("format has the unknown value 2"), "{refused}");
    }

    #[test]
    fn a_value_without_a_version_is_an_entry_without_a_message() {
        let entry = decode_entry(b"t", &[1, 2, 3]);

        assert_eq!((entry.version, entry.message), (0, Bytes::new()));
    }

    /// The state goes on longer: without it nothing of the log could be trimmed.
    #[tokio::test]
    async fn changes_wait_for_a_full_disk_and_their_publishers_for_them_and_the_state_goes_on() {
        let scene = Scene::new();
        let log = scene.open();
        let retained = log.retained();
        start(&*retained, "t", b"before").recv().unwrap();
        scene.disk.plan.lock().available = Some(RESERVED_BYTES_MAX - 1);

        let waiting = start(&*retained, "t", b"waiting");
        while !retained.is_congested() {
            tokio::task::yield_now().await;
        }
        let mut opened = State::open(&*log, PartitionGroup(0), vec![Partition(0)]).await.unwrap();
        let value = Some(Bytes::from_static(b"v"));
        let write = StateWrite { partition: Partition(0), key: Bytes::from_static(b"k"), value };
        assert_eq!(opened.writer.commit(vec![write].into()).await, CommitOutcome::Committed);
        assert_eq!(waiting.try_recv(), Err(mpsc::TryRecvError::Empty));
        assert_eq!(log.metrics().retained_waits_for_space.get(), 1);
        scene.disk.plan.lock().available = None;

        assert_eq!(waiting.recv().unwrap(), 2);
        retained.relieved().await;
        assert_eq!(log.metrics().retained_waits_for_space.get(), 0);
        assert_eq!(retained.load(None).await.unwrap()[0].message[..], *b"waiting");
    }

    #[tokio::test]
    async fn a_full_disk_is_closed_without_acknowledging() {
        let scene = Scene::new();
        let log = scene.open();
        let retained = log.retained();
        scene.disk.plan.lock().available = Some(0);
        let waiting = start(&*retained, "t", b"waiting");

        log.close().await;

        assert_eq!(waiting.recv(), Err(mpsc::RecvError), "answered, and not with a version");
    }
}

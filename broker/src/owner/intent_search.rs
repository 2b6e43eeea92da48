//! Looks in the log for the records of QoS 2 publishes that were under way when their host died.
//!
//! After a start all groups open at about the same time, and each looks in every partition. What one has read serves the
//! others: the unique ids of the last seconds are kept until each group has opened once.

use crate::log::seek::offset_at;
use crate::log::{Log, ReadError, ReadEvent};
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use tidemill_core::partition::{Offset, Partition, PartitionGroup, Partitioning};
use tidemill_core::record::Record;
use tokio::sync::Mutex;
use tracing::error;

/// Unique ids that are kept of one partition: about 6 MiB.
const IDS_MAX: usize = 1 << 18;

/// The unique ids in the log, as far back as somebody asked.
pub(super) struct IntentSearch {
    log: Arc<dyn Log>,
    ids_max: usize,
    /// By partition.
    read: Vec<Mutex<Option<Read>>>,
    /// Groups that have not opened yet. Nothing that they look for was appended since the start.
    opening: parking_lot::Mutex<BTreeSet<PartitionGroup>>,
}

/// What was read of a partition: all from an offset on.
struct Read {
    from: Offset,
    ids: HashSet<u128>,
    /// There are too many farther back: whoever wants those reads by itself.
    is_full: bool,
}

impl Default for Read {
    fn default() -> Self {
        Self { from: Offset::MAX, ids: HashSet::new(), is_full: false }
    }
}

impl IntentSearch {
    pub(super) fn new(log: Arc<dyn Log>, partitioning: Partitioning) -> Self {
        // Where other brokers append, too, what one group has read may be outdated when another one opens.
        let groups = partitioning.groups().filter(|_| !log.is_shared());
        Self {
            opening: parking_lot::Mutex::new(groups.collect()),
            read: partitioning.partitions().map(|_| Mutex::new(None)).collect(),
            log,
            ids_max: IDS_MAX,
        }
    }

    /// Which of `wanted` are in `partition`, in what was appended at `since_ms` or later. For a group that is being opened:
    /// nothing that it looks for is appended meanwhile.
    ///
    /// # Errors
    ///
    /// [`ReadError`]: the log cannot be read now. What is damaged is passed over.
    pub(super) async fn find(
        &self,
        group: PartitionGroup,
        (partition, since_ms): (Partition, u64),
        wanted: &BTreeSet<u128>,
    ) -> Result<BTreeSet<u128>, ReadError> {
        let from = offset_at(self.log.as_ref(), partition, since_ms).await?;
        let is_kept = self.opening.lock().contains(&group);
        if let Some(kept) = self.read.get(usize::from(partition.0)).filter(|_| is_kept) {
            let mut kept = kept.lock().await;
            let read = kept.get_or_insert_with(Read::default);
            if from < read.from {
                let Read { ids, is_full, .. } = read;
                let keep = |id| {
                    *is_full |= ids.len() >= self.ids_max;
                    if !*is_full {
                        ids.insert(id);
                    }
                    !*is_full
                };
                self.visit(partition, (from, read.from), keep).await?;
                if !read.is_full {
                    read.from = from;
                }
            }
            if from >= read.from {
                return Ok(wanted.iter().filter(|id| read.ids.contains(id)).copied().collect());
            }
        }
        let mut found = BTreeSet::new();
        let take = |id| {
            if wanted.contains(&id) {
                found.insert(id);
            }
            true
        };
        self.visit(partition, (from, Offset::MAX), take).await?;
        Ok(found)
    }

    /// The group is open, or never will be. What nobody needs any more is freed.
    pub(super) async fn end(&self, group: PartitionGroup) {
        let is_last = {
            let mut opening = self.opening.lock();
            opening.remove(&group) && opening.is_empty()
        };
        if is_last {
            for read in &self.read {
                *read.lock().await = None;
            }
        }
    }

    /// Shows the unique ids of the records from `from` to `until`, or to the end of the log, to `take`, until it answers
    /// false.
    async fn visit(
        &self,
        partition: Partition,
        (from, until): (Offset, Offset),
        mut take: impl FnMut(u128) -> bool,
    ) -> Result<(), ReadError> {
        let mut reader = self.log.reader(partition, from);
        let mut is_damaged = false;
        // Ends at the end of the log: nothing is appended by clients before the group is open, and others append at most
        // as fast as this reads.
        loop {
            match reader.next().await {
                Ok(ReadEvent::Records(records)) => {
                    for stored in records {
                        let is_over = stored.offset >= until;
                        let id = Record::unique_id_of(stored.bytes).unwrap_or(None);
                        if is_over || id.is_some_and(|id| !take(id)) {
                            return Ok(());
                        }
                    }
                }
                Ok(ReadEvent::End(_)) => return Ok(()),
                // Whoever needs the record is told elsewhere; publishers are not kept out for it.
                Err(error @ ReadError::Damaged { offset, .. }) => {
                    if !std::mem::replace(&mut is_damaged, true) {
                        error!(partition = partition.0, %error, "QoS 2 publishes are not looked for there");
                    }
                    reader = self.log.reader(partition, offset + 1);
                }
                // Trimmed meanwhile: nobody needs what was there.
                Err(ReadError::OutOfRange { offset, start, .. }) if offset < start => {
                    reader = self.log.reader(partition, start);
                }
                Err(ReadError::OutOfRange { .. }) => return Ok(()),
                Err(error @ (ReadError::Unavailable { .. } | ReadError::Closed)) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::memory::{MemoryLog, Offsets};
    use bytes::Bytes;
    use tidemill_core::member::{Incarnation, Member, MemberId};
    use tidemill_core::message::Message;
    use tidemill_core::packet::QoS;
    use tidemill_core::record::{Origin, RecordBody};
    use tidemill_core::topic::TopicName;
    use tokio::sync::oneshot;

    const PARTITION: Partition = Partition(1);
    const GROUPS: [PartitionGroup; 2] = [PartitionGroup(0), PartitionGroup(1)];
    /// Only the newest record; and everything.
    const NEWEST: u64 = u64::MAX;
    const ALL: u64 = 0;

    async fn append(log: &MemoryLog, unique_id: u128) {
        let record = Record {
            body: RecordBody::Inline,
            retry: false,
            origin: Origin {
                member: Member { id: MemberId::new("b"), incarnation: Incarnation(1) },
                producer: 1,
                sequence: 0,
            },
            unique_id: Some(unique_id),
            message: Message {
                topic: TopicName::parse("t").unwrap(),
                payload: Bytes::new(),
                qos: QoS::ExactlyOnce,
                retain: false,
                properties: None,
                publisher: "p".into(),
                publish_time_ms: 0,
            },
        };
        let (done, is_done) = oneshot::channel();
        let done = Box::new(move |result| drop(done.send(result)));
        log.append(PARTITION, &mut |_| record.encode(), done);
        is_done.await.unwrap().unwrap();
    }

    /// A log with three publishes, and a search on it.
    async fn world(is_kept: bool) -> (Arc<MemoryLog>, IntentSearch) {
        let partitioning = Partitioning::new(4, 2).unwrap();
        let log = Arc::new(MemoryLog::new(partitioning, Offsets::Contiguous));
        for unique_id in [1, 2, 3] {
            append(&log, unique_id).await;
        }
        let search = IntentSearch::new(log.clone(), partitioning);
        if is_kept {
            search.opening.lock().extend(GROUPS);
        }
        (log, search)
    }

    async fn found(search: &IntentSearch, group: PartitionGroup, since_ms: u64) -> Vec<u128> {
        let wanted = BTreeSet::from([1, 3, 4]);
        search.find(group, (PARTITION, since_ms), &wanted).await.unwrap().into_iter().collect()
    }

    #[tokio::test]
    async fn what_one_group_has_read_serves_the_others_until_all_are_open() {
        let (log, search) = world(true).await;
        assert_eq!(found(&search, GROUPS[0], NEWEST).await, [3]);
        assert_eq!(found(&search, GROUPS[1], ALL).await, [1, 3], "the rest is read, too");

        // It is not read again.
        log.lose_from(PARTITION, 0);
        assert_eq!(found(&search, GROUPS[0], ALL).await, [1, 3]);
        search.end(GROUPS[0]).await;
        assert_eq!(
            found(&search, GROUPS[0], ALL).await,
            [0; 0],
            "one that opens once more reads what is there now"
        );
        assert_eq!(found(&search, GROUPS[1], ALL).await, [1, 3]);
        search.end(GROUPS[1]).await;
        assert!(search.read.iter().all(|read| read.try_lock().unwrap().is_none()), "nothing is kept");
    }

    #[tokio::test]
    async fn what_is_too_much_to_keep_is_read_each_time() {
        let (log, mut search) = world(true).await;
        search.ids_max = 2;

        assert_eq!(found(&search, GROUPS[0], NEWEST).await, [3]);
        assert_eq!(found(&search, GROUPS[0], ALL).await, [1, 3]);
        log.lose_from(PARTITION, 0);
        assert_eq!(found(&search, GROUPS[1], ALL).await, [0; 0]);
    }

    #[tokio::test]
    async fn what_is_damaged_is_passed_over() {
        let (log, search) = world(true).await;
        log.damage(PARTITION, 0);

        assert_eq!(found(&search, GROUPS[0], ALL).await, [3]);
    }

    #[tokio::test]
    async fn where_other_brokers_append_everything_is_read_each_time() {
        let (log, search) = world(false).await;
        assert_eq!(found(&search, GROUPS[0], ALL).await, [1, 3]);

        append(&log, 4).await;

        assert_eq!(found(&search, GROUPS[1], ALL).await, [1, 3, 4]);
    }
}

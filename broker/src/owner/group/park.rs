//! Messages that receivers have for long without a word: kept in the state, so that they do not pin the log.

use super::job::Job;
use super::partition_run::PartitionRun;
use super::{Group, Queues};
use crate::log::{Log, ReadEvent};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tidemill_core::attach::QueueId;
use tidemill_core::partition::{Offset, Partition};
use tidemill_core::record::Record;
use tidemill_core::state::key::StateKey;
use tidemill_core::state::value::Parked;
use tokio::time::timeout;
use tracing::debug;

/// Messages of one partition that are parked at a time; the next look takes more.
const PARK_MAX: usize = 256;
/// How long reading one of them may take.
const READ_WAIT: Duration = Duration::from_secs(5);

/// A message as the log has it.
pub(super) struct ReadToPark {
    queue: QueueId,
    offset: Offset,
    bytes: Bytes,
}

impl PartitionRun {
    /// What is to be read for parking now; nothing while the last look is not through.
    pub(super) fn take_overdue(&mut self, now_ms: u64, park_after: Duration) -> Vec<(QueueId, Offset)> {
        if self.is_parking {
            return Vec::new();
        }
        let after_ms = u64::try_from(park_after.as_millis()).unwrap_or(u64::MAX);
        let Some(before_ms) = now_ms.checked_sub(after_ms) else { return Vec::new() };
        let overdue = self.queues.overdue(before_ms, PARK_MAX);
        let named = |(slot, offset)| Some((self.queues.id(slot)?.clone(), offset));
        let overdue: Vec<_> = overdue.into_iter().filter_map(named).collect();
        self.is_parking = !overdue.is_empty();
        overdue
    }
}

impl Group {
    /// Reads what is to be parked.
    pub(super) fn read_to_park(&mut self, partition: Partition, overdue: Vec<(QueueId, Offset)>) {
        let log = Arc::clone(&self.parts.log);
        self.jobs.push(async move {
            let mut read = Vec::new();
            for (queue, offset) in overdue {
                if let Some(bytes) = read_one(log.as_ref(), partition, offset).await {
                    read.push(ReadToPark { queue, offset, bytes });
                }
            }
            Job::ToPark { partition, read }
        });
    }

    /// Parks what was read and is not done meanwhile; its cursor is stored with it.
    pub(super) fn park(&mut self, partition: Partition, read: Vec<ReadToPark>) {
        let since_ms = self.parts.surroundings.now_ms();
        let parked_messages = self.parts.metrics.parked_messages.clone();
        let Queues::Loaded(partitions) = &mut self.queues else { return };
        let Some(run) = partitions.get_mut(&partition).filter(|run| !run.is_refused()) else { return };
        run.is_parking = false;
        for ReadToPark { queue, offset, bytes } in read {
            let Some(slot) = run.queues.slot(&queue) else { continue };
            // A damaged record is found, and the partition refused, when it is read to be delivered.
            let Ok(record) = Record::decode(bytes.clone()) else { continue };
            let Some(queue) = run.queues.park(slot, offset, &Arc::new(record)) else { continue };
            debug!(client_id = %queue.name, partition = partition.0, offset, "message is parked");
            parked_messages.inc();
            let parked = Parked { since_ms, record: bytes };
            self.ledger.write(partition, &StateKey::Parked { queue, offset }, Some(parked.encode()));
        }
    }
}

/// The record at `offset`; `None` when it cannot be read now.
async fn read_one(log: &dyn Log, partition: Partition, offset: Offset) -> Option<Bytes> {
    let mut reader = log.reader(partition, offset);
    match timeout(READ_WAIT, reader.next()).await {
        Ok(Ok(ReadEvent::Records(records))) => {
            records.into_iter().next().filter(|first| first.offset == offset).map(|first| first.bytes)
        }
        Ok(Ok(ReadEvent::End(_)) | Err(_)) | Err(_) => None,
    }
}

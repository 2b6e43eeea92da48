//! A small pool of consumers that many readers share. Each partition is assigned at most once per consumer; the first
//! reader of a partition, usually the one at its head, shares the first consumer with those of the other partitions.

use super::KafkaSettings;
use super::clients::{Consumer, Context, log_consumer};
use parking_lot::{Condvar, Mutex};
use rdkafka::consumer::Consumer as _;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::{Offset as KafkaOffset, TopicPartitionList};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tidemill_core::partition::{Offset, Partition};
use tokio::sync::Notify;

/// Most consumers, which is the most readers of one partition at the same time.
const CONSUMERS_MAX: usize = 16;
/// How often a consumer is asked for what concerns it as a whole. Records do not come this way.
const SERVE_PAUSE: Duration = Duration::from_millis(500);

/// The consumers of one log.
pub(super) struct Consumers {
    settings: Arc<KafkaSettings>,
    topic: String,
    pool: Mutex<Vec<Arc<Pooled>>>,
    freed: Arc<Notify>,
}

/// All consumers have a reader of this partition already, or Kafka's client refuses.
#[derive(Debug, thiserror::Error)]
pub(super) enum AttachError {
    #[error("{CONSUMERS_MAX} readers read this partition already")]
    Busy,
    #[error("client: {0}")]
    Client(#[from] KafkaError),
}

impl Consumers {
    pub(super) fn new(settings: Arc<KafkaSettings>) -> Self {
        let topic = settings.topics.log();
        Self { settings, topic, pool: Mutex::default(), freed: Arc::new(Notify::new()) }
    }

    /// Starts to fetch `partition` from `position`. Blocks shortly.
    pub(super) fn attach(&self, partition: Partition, position: Offset) -> Result<Attachment, AttachError> {
        let pooled = self.reserve(partition)?;
        let wake = Arc::new(Notify::new());
        // The queue is split off first, so that not one record goes to the shared queue.
        let queue = pooled.consumer.split_partition_queue(&self.topic, partition.0.into());
        let mut attachment = Attachment { pooled, partition, queue, wake };
        let Some(queue) = &mut attachment.queue else {
            return Err(AttachError::Client(KafkaError::Subscription(self.topic.clone())));
        };
        let woken = Arc::clone(&attachment.wake);
        queue.set_nonempty_callback(move || woken.notify_one());
        attachment.pooled.consumer.incremental_assign(&one(&self.topic, partition, Some(position))?)?;
        Ok(attachment)
    }

    /// Wakes those who wait when a place came free.
    pub(super) fn freed(&self) -> &Notify {
        &self.freed
    }

    fn reserve(&self, partition: Partition) -> Result<Arc<Pooled>, AttachError> {
        let mut pool = self.pool.lock();
        if let Some(pooled) = pool.iter().find(|pooled| pooled.used.lock().insert(partition.0)) {
            return Ok(Arc::clone(pooled));
        }
        if pool.len() == CONSUMERS_MAX {
            return Err(AttachError::Busy);
        }
        let pooled = Arc::new(Pooled {
            consumer: Arc::new(log_consumer(&self.settings)?),
            topic: self.topic.clone(),
            used: Mutex::new(BTreeSet::from([partition.0])),
            detached: Mutex::default(),
            wake: Condvar::new(),
            freed: Arc::clone(&self.freed),
            thread: Mutex::new(None),
        });
        let served = Arc::clone(&pooled);
        let thread = std::thread::Builder::new()
            .name("tidemill-consumer".to_owned())
            .spawn(move || served.serve())
            .map_err(|error| KafkaError::ClientCreation(error.to_string()))?;
        *pooled.thread.lock() = Some(thread);
        pool.push(Arc::clone(&pooled));
        Ok(pooled)
    }
}

impl Drop for Consumers {
    fn drop(&mut self) {
        let pool = std::mem::take(&mut *self.pool.lock());
        for pooled in &pool {
            pooled.detached.lock().ended = true;
            pooled.wake.notify_one();
        }
        for pooled in pool {
            if let Some(thread) = pooled.thread.lock().take() {
                thread.join().expect("a consumer's thread does not panic");
            }
        }
    }
}

/// One consumer of the pool.
struct Pooled {
    consumer: Arc<Consumer>,
    topic: String,
    /// The partitions that are assigned.
    used: Mutex<BTreeSet<u16>>,
    detached: Mutex<Detached>,
    wake: Condvar,
    freed: Arc<Notify>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What readers have left. Bounded: a partition is left before it is used again.
#[derive(Default)]
struct Detached {
    queues: Vec<(Partition, Option<PartitionQueue<Context>>)>,
    ended: bool,
}

impl Pooled {
    /// Ends fetches that nobody reads, and looks at what concerns the whole consumer.
    fn serve(&self) {
        loop {
            let (left, ended) = {
                let mut detached = self.detached.lock();
                if detached.queues.is_empty() && !detached.ended {
                    self.wake.wait_for(&mut detached, SERVE_PAUSE);
                }
                (std::mem::take(&mut detached.queues), detached.ended)
            };
            for (partition, queue) in left {
                drop(queue);
                self.unassign(partition);
            }
            while let Some(event) = self.consumer.poll(Duration::ZERO) {
                match event {
                    // Every partition has a queue of its own.
                    Ok(_) => {
                        tracing::error!(topic = self.topic, "a record came outside its partition's queue")
                    }
                    Err(error) => tracing::debug!(%error, "kafka consumer"),
                }
            }
            if ended {
                return;
            }
        }
    }

    fn unassign(&self, partition: Partition) {
        let unassigned = one(&self.topic, partition, None)
            .and_then(|partitions| self.consumer.incremental_unassign(&partitions));
        if let Err(error) = unassigned {
            tracing::debug!(%error, partition = partition.0, "not unassigned");
        }
        self.used.lock().remove(&partition.0);
        self.freed.notify_waiters();
    }
}

/// A reader's place in a consumer. Dropped, it ends the fetch.
pub(super) struct Attachment {
    pooled: Arc<Pooled>,
    partition: Partition,
    queue: Option<PartitionQueue<Context>>,
    wake: Arc<Notify>,
}

impl Attachment {
    /// The partition's records and errors, taken without waiting.
    pub(super) fn queue(&self) -> Option<&PartitionQueue<Context>> {
        self.queue.as_ref()
    }

    /// Is notified when the queue is no longer empty.
    pub(super) fn wake(&self) -> &Arc<Notify> {
        &self.wake
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // The consumer's thread does the rest, because it may block.
        self.pooled.detached.lock().queues.push((self.partition, self.queue.take()));
        self.pooled.wake.notify_one();
    }
}

/// A list of one partition, at `position` if given.
fn one(topic: &str, partition: Partition, position: Option<Offset>) -> KafkaResult<TopicPartitionList> {
    let mut partitions = TopicPartitionList::with_capacity(1);
    match position {
        Some(position) => {
            let offset = KafkaOffset::Offset(i64::try_from(position).unwrap_or(i64::MAX));
            partitions.add_partition_offset(topic, partition.0.into(), offset)?;
        }
        None => {
            partitions.add_partition(topic, partition.0.into());
        }
    }
    Ok(partitions)
}

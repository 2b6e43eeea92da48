//! The log and the state in Kafka: records in `<prefix>.log`, state in `<prefix>.state`. Only this module names the
//! Kafka client.

mod clients;
mod consumers;
mod producer;
mod reader;
mod seats;
mod state;
mod topics;
mod watermarks;

pub use topics::{TopicCreation, TopicsError, ensure_topics};

use super::state::{OpenError, OpenedGroup, State};
use super::{AppendDone, Bounds, BuildRecord, Log, LogReader, ReadError};
use clients::{Admin, Consumer, admin, high_watermark_probe};
use consumers::Consumers;
use futures::future::BoxFuture;
use producer::Appender;
use rdkafka::admin::AdminOptions;
use rdkafka::error::KafkaError;
use rdkafka::{Offset as KafkaOffset, TopicPartitionList};
use reader::KafkaReader;
use seats::Seats;
use state::Opening;
use std::sync::Arc;
use std::time::Duration;
use tidemill_contract::config::{Kafka, default_partition_groups};
use tidemill_contract::names::Topics;
use tidemill_contract::topics::{RECORD_OVERHEAD_BYTES, TopicNumbers};
use tidemill_core::partition::{Offset, Partition, PartitionGroup, Partitioning, PartitioningError};
use watermarks::watermarks;

/// Bound of one question to Kafka.
const REQUEST_MAX: Duration = Duration::from_secs(5);
/// What Kafka's batch and record headers need of that.
const BATCH_EXTRA: usize = 1 << 10;

/// Which Kafka, and what is expected of it.
#[derive(Debug, Clone)]
pub struct KafkaSettings {
    /// `host:port,host:port`.
    pub bootstrap_servers: String,
    /// The names of the topics.
    pub topics: Topics,
    /// Partitions of every topic, and groups.
    pub partitioning: Partitioning,
    /// Least replicas of every topic.
    pub replication_factor: i16,
    /// Least `min.insync.replicas` of every topic.
    pub min_in_sync_replicas: i16,
    /// Largest MQTT packet; the topics must take records of it.
    pub maximum_packet_bytes: u32,
}

impl KafkaSettings {
    /// Takes the section of the config file.
    ///
    /// # Errors
    ///
    /// [`PartitioningError`] if the numbers make no partitioning.
    pub fn new(kafka: &Kafka, topics: Topics, maximum_packet_bytes: u32) -> Result<Self, PartitioningError> {
        let groups = kafka.partition_groups.unwrap_or_else(|| default_partition_groups(kafka.partitions));
        Ok(Self {
            bootstrap_servers: kafka.bootstrap_servers.clone(),
            topics,
            partitioning: Partitioning::new(kafka.partitions, groups)?,
            replication_factor: kafka.replication_factor,
            min_in_sync_replicas: kafka.min_in_sync_replicas,
            maximum_packet_bytes,
        })
    }

    fn topic_numbers(&self) -> TopicNumbers {
        TopicNumbers {
            partitions: self.partitioning.partition_count(),
            replication_factor: self.replication_factor,
            min_in_sync_replicas: self.min_in_sync_replicas,
            maximum_packet_bytes: self.maximum_packet_bytes,
        }
    }

    /// Least `max.message.bytes` of the topics.
    fn message_bytes_max(&self) -> usize {
        self.maximum_packet_bytes as usize + RECORD_OVERHEAD_BYTES as usize
    }

    /// Largest record.
    fn record_bytes_max(&self) -> usize {
        self.message_bytes_max() - BATCH_EXTRA
    }

    fn unavailable(&self, error: &KafkaError) -> TopicsError {
        TopicsError::Unavailable {
            bootstrap_servers: self.bootstrap_servers.clone(),
            reason: error.to_string(),
        }
    }
}

/// One broker's log and state in Kafka.
///
/// An append is done when all in-sync replicas have it. The producer never gives up: while Kafka is away appends wait.
pub struct KafkaLog {
    inner: Arc<Inner>,
}

/// What handle and readers share.
struct Inner {
    settings: Arc<KafkaSettings>,
    appender: Appender,
    seats: Seats,
    probe: Arc<Consumer>,
    admin: Admin,
}

impl KafkaLog {
    /// Creates missing topics if `creation` says so, checks them all, and connects.
    ///
    /// # Errors
    ///
    /// [`TopicsError`]: the broker must not start with these topics; while Kafka does not answer it may try again.
    pub async fn connect(settings: KafkaSettings, creation: TopicCreation) -> Result<Arc<Self>, TopicsError> {
        let settings = Arc::new(settings);
        ensure_topics(&settings, creation).await?;
        let unavailable = |error: KafkaError| settings.unavailable(&error);
        let inner = Inner {
            appender: Appender::start(Arc::clone(&settings)).map_err(unavailable)?,
            seats: Seats::new(Consumers::new(Arc::clone(&settings))),
            probe: Arc::new(high_watermark_probe(&settings).map_err(unavailable)?),
            admin: admin(&settings).map_err(unavailable)?,
            settings,
        };
        Ok(Arc::new(Self { inner: Arc::new(inner) }))
    }
}

impl Inner {
    /// First offset and high watermark, asked from the leader.
    async fn bounds(self: &Arc<Self>, partition: Partition) -> Result<Bounds, ReadError> {
        let unavailable = |reason: String| ReadError::Unavailable { partition: partition.0, reason };
        if *self.appender.closings().borrow() {
            return Err(ReadError::Closed);
        }
        let probe = Arc::clone(&self.probe);
        let topic = self.settings.topics.log();
        let asking = tokio::task::spawn_blocking(move || watermarks(&probe, &topic, partition));
        let (start, end) =
            asking.await.map_err(|_| ReadError::Closed)?.map_err(|error| unavailable(error.to_string()))?;
        match (u64::try_from(start), u64::try_from(end)) {
            (Ok(start), Ok(end)) => Ok(Bounds { start, end }),
            _ => Err(unavailable("kafka does not know its bounds".to_owned())),
        }
    }

    async fn trim(self: &Arc<Self>, partition: Partition, floor: Offset) -> Result<(), ReadError> {
        let Bounds { start, end } = self.bounds(partition).await?;
        if floor > end {
            return Err(ReadError::OutOfRange { partition: partition.0, offset: floor, start, end });
        }
        if floor <= start {
            return Ok(());
        }
        self.delete_below(partition, floor)
            .await
            .map_err(|error| ReadError::Unavailable { partition: partition.0, reason: error.to_string() })
    }

    async fn delete_below(&self, partition: Partition, floor: Offset) -> Result<(), KafkaError> {
        let mut offsets = TopicPartitionList::with_capacity(1);
        let floor = KafkaOffset::Offset(i64::try_from(floor).unwrap_or(i64::MAX));
        offsets.add_partition_offset(&self.settings.topics.log(), partition.0.into(), floor)?;
        let options =
            AdminOptions::new().request_timeout(Some(REQUEST_MAX)).operation_timeout(Some(REQUEST_MAX));
        let deleted = self.admin.delete_records(&offsets, &options).await?;
        deleted.elements().iter().try_for_each(rdkafka::topic_partition_list::TopicPartitionListElem::error)
    }
}

impl Log for KafkaLog {
    fn append(&self, partition: Partition, build: BuildRecord<'_>, done: AppendDone) {
        self.inner.appender.append(partition, build, done);
    }

    fn is_congested(&self) -> bool {
        self.inner.appender.congestion().is_congested()
    }

    fn relieved(&self) -> BoxFuture<'static, ()> {
        self.inner.appender.congestion().relieved()
    }

    fn reader(&self, partition: Partition, from: Offset) -> Box<dyn LogReader> {
        Box::new(KafkaReader::new(Arc::clone(&self.inner), partition, from))
    }

    fn bounds(&self, partition: Partition) -> BoxFuture<'static, Result<Bounds, ReadError>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.bounds(partition).await })
    }

    fn trim(&self, partition: Partition, floor: Offset) -> BoxFuture<'static, Result<(), ReadError>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.trim(partition, floor).await })
    }

    /// Never: what fails in Kafka is repeated or answered, and nothing of it is stored in this process.
    fn failed(&self) -> BoxFuture<'static, String> {
        Box::pin(std::future::pending())
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        self.inner.appender.close();
        let mut closings = self.inner.appender.closings();
        Box::pin(async move {
            // An error means that the appender is gone, which is closed too.
            let _ = closings.wait_for(|closed| *closed).await;
        })
    }
}

impl State for KafkaLog {
    fn open(
        &self,
        group: PartitionGroup,
        partitions: Vec<Partition>,
    ) -> BoxFuture<'static, Result<OpenedGroup, OpenError>> {
        let settings = Arc::clone(&self.inner.settings);
        let probe = Arc::clone(&self.inner.probe);
        state::open(Opening { settings, probe, group, partitions })
    }
}

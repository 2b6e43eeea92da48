//! The promises of the log and the state, kept by Kafka. Needs a Kafka broker at `$TIDEMILL_E2E_KAFKA` (`host:port`); each
//! test makes topics of its own there.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidemill_broker::log::conformance::{Handles, Store};
use tidemill_broker::log::kafka::{KafkaLog, KafkaSettings, TopicCreation, TopicsError};
use tidemill_broker::log::state::{CommitOutcome, State, StateWrite};
use tidemill_broker::log::{Log, LogReader, ReadEvent};
use tidemill_contract::names::Topics;
use tidemill_core::partition::{Partition, PartitionGroup, Partitioning};

fn bootstrap_servers() -> String {
    std::env::var("TIDEMILL_E2E_KAFKA")
        .expect("TIDEMILL_E2E_KAFKA must name a Kafka broker (host:port) for this test")
}

/// A prefix that no other test and no other run has.
fn new_prefix() -> String {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is set").as_millis();
    format!("e2e.log.{now}.{}.{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed))
}

fn settings(prefix: &str) -> KafkaSettings {
    KafkaSettings {
        bootstrap_servers: bootstrap_servers(),
        topics: Topics::new(prefix),
        partitioning: Partitioning::new(6, 3).expect("three groups of two partitions"),
        replication_factor: 1,
        min_in_sync_replicas: 1,
        maximum_packet_bytes: 1 << 20,
    }
}

struct Kafka {
    prefix: String,
    brokers: Mutex<Vec<Arc<KafkaLog>>>,
}

impl Kafka {
    fn new() -> Self {
        Self { prefix: new_prefix(), brokers: Mutex::default() }
    }
}

impl Store for Kafka {
    fn partitioning(&self) -> Partitioning {
        settings(&self.prefix).partitioning
    }

    fn open(&self) -> BoxFuture<'_, Handles> {
        Box::pin(async {
            let connected = KafkaLog::connect(settings(&self.prefix), TopicCreation::Create).await;
            let log = connected.expect("kafka can be used");
            self.brokers.lock().push(Arc::clone(&log));
            Handles { log: Arc::clone(&log) as _, state: log }
        })
    }

    fn restart(&self) -> BoxFuture<'_, Handles> {
        Box::pin(async {
            let brokers = std::mem::take(&mut *self.brokers.lock());
            for broker in brokers {
                broker.close().await;
            }
            self.open().await
        })
    }
}

tidemill_broker::log_conformance!(Kafka::new());

#[tokio::test]
async fn two_brokers_that_create_the_topics_at_once_both_succeed() {
    let prefix = new_prefix();

    let (one, other) = tokio::join!(
        KafkaLog::connect(settings(&prefix), TopicCreation::Create),
        KafkaLog::connect(settings(&prefix), TopicCreation::Create)
    );

    assert!(one.is_ok() && other.is_ok());
    assert!(KafkaLog::connect(settings(&prefix), TopicCreation::Check).await.is_ok());
}

async fn problems(settings: KafkaSettings) -> Vec<String> {
    match KafkaLog::connect(settings, TopicCreation::Check).await {
        Err(TopicsError::Refused { problems }) => problems,
        Err(other) => panic!("{other}"),
        Ok(_) => Vec::new(),
    }
}

#[tokio::test]
async fn topics_that_do_not_fit_are_refused_in_plain_words() {
    let prefix = new_prefix();
    let missing = problems(settings(&prefix)).await;
    assert_eq!(missing[0], format!("{prefix}.log does not exist"));
    assert_eq!(missing.len(), 4);
    KafkaLog::connect(settings(&prefix), TopicCreation::Create).await.unwrap();

    let partitioning = Partitioning::new(8, 2).unwrap();
    let other_partitions = problems(KafkaSettings { partitioning, ..settings(&prefix) }).await;
    let more_replicas = problems(KafkaSettings { replication_factor: 3, ..settings(&prefix) }).await;
    let stricter = problems(KafkaSettings { min_in_sync_replicas: 2, ..settings(&prefix) }).await;
    let larger = problems(KafkaSettings { maximum_packet_bytes: 2 << 20, ..settings(&prefix) }).await;

    assert_eq!(
        other_partitions[0],
        format!("{prefix}.log has 6 partitions instead of 8, and the number cannot change")
    );
    assert_eq!(more_replicas[0], format!("{prefix}.log has 1 replicas, less than 3"));
    assert_eq!(stricter[0], format!("{prefix}.log has min.insync.replicas=1, less than 2"));
    assert_eq!(
        larger[0],
        format!("{prefix}.log has max.message.bytes=1114112, less than the 2162688 of the largest packet")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_readers_than_consumers_take_turns_also_while_some_are_not_asked() {
    const READERS: usize = 40;
    let partition = Partition(2);
    let log = KafkaLog::connect(settings(&new_prefix()), TopicCreation::Create).await.unwrap();
    for number in 0..10_u8 {
        append(&*log, partition, number).await;
    }

    let mut readers: Vec<_> = (0..READERS).map(|_| log.reader(partition, 0)).collect();
    for reader in &mut readers {
        assert_eq!(read(&mut **reader, 10).await, (0..10).collect::<Vec<_>>());
    }
    for number in 10..20_u8 {
        append(&*log, partition, number).await;
    }

    for reader in &mut readers {
        assert_eq!(read(&mut **reader, 10).await, (10..20).collect::<Vec<_>>());
    }
}

async fn append(log: &dyn Log, partition: Partition, number: u8) {
    let (answer, answered) = tokio::sync::oneshot::channel();
    let build = &mut |_| Bytes::copy_from_slice(&[number]);
    log.append(partition, build, Box::new(move |result| drop(answer.send(result))));
    answered.await.expect("every append is answered").expect("the append is committed");
}

async fn read(reader: &mut dyn LogReader, count: usize) -> Vec<u8> {
    let mut numbers = Vec::new();
    while numbers.len() < count {
        if let ReadEvent::Records(records) = reader.next().await.expect("the log can be read") {
            numbers.extend(records.iter().map(|record| record.bytes[0]));
        }
    }
    numbers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_former_owner_left_open_is_aborted_and_never_loaded() {
    let group = PartitionGroup(1);
    let prefix = new_prefix();
    let log = KafkaLog::connect(settings(&prefix), TopicCreation::Create).await.unwrap();
    let mut opened = log.open(group, vec![Partition(1), Partition(4)]).await.unwrap();
    let write = |value| StateWrite {
        partition: Partition(1),
        key: Bytes::from_static(b"k"),
        value: Some(Bytes::from_static(value)),
    };
    assert_eq!(opened.writer.commit(vec![write(b"committed")].into()).await, CommitOutcome::Committed);
    let zombie = begin_transaction(&prefix, group, b"left open");
    assert_eq!(opened.writer.commit(vec![write(b"fenced")].into()).await, CommitOutcome::Fenced);

    let opened = log.open(group, vec![Partition(1), Partition(4)]).await.unwrap();

    assert_eq!(opened.entries.len(), 1);
    assert_eq!(opened.entries[0].value, "committed");
    assert!(zombie.commit_transaction(Duration::from_secs(10)).is_err(), "it was fenced");
}

/// A former owner that wrote to the state, but has not committed.
fn begin_transaction(prefix: &str, group: PartitionGroup, value: &[u8]) -> BaseProducer {
    let topics = Topics::new(prefix);
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap_servers())
        .set("transactional.id", topics.transactional_id(group.0))
        .create()
        .expect("the client can be configured");
    producer.init_transactions(Duration::from_secs(30)).expect("kafka answers");
    producer.begin_transaction().expect("a transaction can begin");
    let topic = topics.state();
    producer.send(BaseRecord::to(&topic).partition(1).key("k").payload(value)).expect("the client takes it");
    producer.flush(Duration::from_secs(30)).expect("kafka takes it");
    producer
}

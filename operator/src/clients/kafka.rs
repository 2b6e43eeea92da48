//! The operator's Kafka client. It only looks at topics and creates them.
//!
//! librdkafka blocks (a metadata request, the end of a client), so everything runs on the blocking pool, each call with a
//! deadline and all of them bounded in number: a Kafka that does not answer delays only the clusters that use it.

use crate::controller::topics::KafkaObservation;
use parking_lot::Mutex;
use rdkafka::ClientConfig;
use rdkafka::admin::{
    AdminClient, AdminOptions, NewTopic, OwnedResourceSpecifier, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};
use tidemill_contract::topics::{ObservedTopic, Topic};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

/// Deadline of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Clients at the same time.
const CLIENTS_MAX: usize = 16;
/// How long a look at Kafka is good for. A rollout causes many passes within seconds.
const REUSE: Duration = Duration::from_secs(20);

/// Topics could not be created.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// Kafka did not answer, or refused the whole request.
    #[error("Kafka did not create the topics: {0}")]
    Request(#[from] KafkaError),
    /// Kafka refused one topic.
    #[error("Kafka did not create topic {topic}: {code}")]
    Topic {
        /// Its name.
        topic: String,
        /// Kafka's answer.
        code: RDKafkaErrorCode,
    },
    /// The operator is shutting down.
    #[error("the operator is shutting down")]
    Shutdown,
}

type Key = (String, Vec<String>);

/// Looks at Kafka for all clusters and remembers for a short time what it saw.
pub struct KafkaObserver {
    /// Bounded: entries older than [`REUSE`] are dropped at each insertion.
    seen: Mutex<HashMap<Key, (Instant, KafkaObservation)>>,
    clients: std::sync::Arc<Semaphore>,
}

impl Default for KafkaObserver {
    fn default() -> Self {
        Self { seen: Mutex::default(), clients: std::sync::Arc::new(Semaphore::new(CLIENTS_MAX)) }
    }
}

impl KafkaObserver {
    /// Looks at `topics` of the Kafka at `bootstrap_servers`; what was seen in the last 20 s is told again. Takes at most
    /// about 10 s once a client is free.
    pub async fn observe(&self, bootstrap_servers: &str, topics: Vec<String>) -> KafkaObservation {
        let key = (bootstrap_servers.to_owned(), topics);
        if let Some((at, observation)) = self.seen.lock().get(&key)
            && at.elapsed() < REUSE
        {
            return observation.clone();
        }
        let (servers, names) = key.clone();
        let seen = self.blocking(move |handle| observe_blocking(&servers, &names, handle)).await;
        let observation = match seen {
            Some(Ok(topics)) => KafkaObservation::Reached { topics },
            Some(Err(error)) => KafkaObservation::Unreachable {
                reason: format!("no answer from {bootstrap_servers}: {error}"),
            },
            None => KafkaObservation::Unreachable { reason: "the operator is shutting down".to_owned() },
        };
        let mut seen = self.seen.lock();
        seen.retain(|_, (at, _)| at.elapsed() < REUSE);
        seen.insert(key, (Instant::now(), observation.clone()));
        observation
    }

    /// Creates `topics`; one that exists already counts as created, and the next look compares it.
    ///
    /// # Errors
    ///
    /// [`CreateError`]; what was created stays, and trying again is safe.
    pub async fn create(&self, bootstrap_servers: &str, topics: Vec<Topic>) -> Result<(), CreateError> {
        let servers = bootstrap_servers.to_owned();
        let created = self.blocking(move |handle| create_blocking(&servers, &topics, handle)).await;
        self.seen.lock().retain(|(servers, _), _| servers != bootstrap_servers);
        created.unwrap_or(Err(CreateError::Shutdown))
    }

    /// `None`: the runtime is shutting down.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Handle) -> T + Send + 'static,
    ) -> Option<T> {
        let permit = self.clients.clone().acquire_owned().await.ok()?;
        let handle = Handle::current();
        let task = tokio::task::spawn_blocking(move || {
            // The permit goes with the work: a caller that gives up does not let another client start.
            let _permit = permit;
            work(&handle)
        });
        task.await.ok()
    }
}

fn connect(bootstrap_servers: &str) -> Result<AdminClient<DefaultClientContext>, KafkaError> {
    ClientConfig::new()
        .set("bootstrap.servers", bootstrap_servers)
        .set("client.id", "tidemill-operator")
        .set("socket.timeout.ms", REQUEST_TIMEOUT.as_millis().to_string())
        .set("allow.auto.create.topics", "false")
        .set_log_level(rdkafka::config::RDKafkaLogLevel::Critical)
        .create()
}

fn options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(REQUEST_TIMEOUT)).operation_timeout(Some(REQUEST_TIMEOUT))
}

fn observe_blocking(
    servers: &str,
    names: &[String],
    handle: &Handle,
) -> Result<BTreeMap<String, ObservedTopic>, KafkaError> {
    let admin = connect(servers)?;
    // All topics, not one by one: asking for a topic by name may create it.
    let metadata = admin.inner().fetch_metadata(None, REQUEST_TIMEOUT)?;
    let mut topics: BTreeMap<_, _> = metadata
        .topics()
        .iter()
        .filter(|topic| topic.error().is_none() && names.iter().any(|name| name == topic.name()))
        .map(|topic| {
            let replicas = topic.partitions().iter().map(|partition| partition.replicas().len());
            let observed = ObservedTopic {
                partitions: topic.partitions().len(),
                replication_factor: replicas.min().unwrap_or_default(),
                settings: BTreeMap::new(),
            };
            (topic.name().to_owned(), observed)
        })
        .collect();
    let present: Vec<_> = topics.keys().cloned().collect();
    if present.is_empty() {
        return Ok(topics);
    }
    let specifiers: Vec<_> = present.iter().map(|name| ResourceSpecifier::Topic(name)).collect();
    for resource in handle.block_on(admin.describe_configs(&specifiers, &options()))? {
        let resource = resource.map_err(KafkaError::AdminOp)?;
        if let OwnedResourceSpecifier::Topic(name) = &resource.specifier
            && let Some(topic) = topics.get_mut(name)
        {
            let entries = resource.entries.into_iter().filter_map(|entry| Some((entry.name, entry.value?)));
            topic.settings.extend(entries);
        }
    }
    Ok(topics)
}

fn create_blocking(servers: &str, topics: &[Topic], handle: &Handle) -> Result<(), CreateError> {
    let admin = connect(servers)?;
    let new: Vec<_> = topics
        .iter()
        .map(|topic| {
            let replication = TopicReplication::Fixed(topic.replication_factor);
            let mut new = NewTopic::new(&topic.name, topic.partitions, replication);
            for (key, value) in &topic.settings {
                new = new.set(key, value);
            }
            new
        })
        .collect();
    for created in handle.block_on(admin.create_topics(&new, &options()))? {
        match created {
            Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
            Err((topic, code)) => return Err(CreateError::Topic { topic, code }),
        }
    }
    Ok(())
}

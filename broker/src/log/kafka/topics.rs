//! The topics of a cluster: creates them if asked to, and refuses those that cannot keep its promises.

use super::KafkaSettings;
use super::clients::{Admin, admin};
use rdkafka::admin::{AdminOptions, ConfigResource, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::Metadata;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_contract::topics::{
    ObservedTopic, TRANSACTION_STATE, Topic, TopicReport, compare_topics, desired_topics,
};

/// Bound of one request.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// How long new topics may take until all their partitions have a leader.
const READY_MAX: Duration = Duration::from_secs(30);
const READY_PAUSE: Duration = Duration::from_millis(100);

/// The topics cannot be used. The broker must not start with them.
#[derive(Debug, thiserror::Error)]
pub enum TopicsError {
    /// Kafka does not answer.
    #[error("kafka at {bootstrap_servers} does not answer: {reason}")]
    Unavailable {
        /// Where it was asked.
        bootstrap_servers: String,
        /// Why, in Kafka's words.
        reason: String,
    },
    /// Kafka does not create a topic.
    #[error("topic {topic} cannot be created: {reason}")]
    Create {
        /// The topic.
        topic: String,
        /// Why, in Kafka's words.
        reason: String,
    },
    /// Topics are not as they must be.
    #[error("kafka topics do not fit: {}", problems.join("; "))]
    Refused {
        /// Everything that does not fit, each with the topic's name.
        problems: Vec<String>,
    },
}

/// Whether missing topics are created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopicCreation {
    /// Yes; a topic that another broker creates at the same time is as good.
    Create,
    /// No: whoever manages the topics has made them.
    Check,
}

/// Creates what is missing, if `creation` says so, then checks everything.
///
/// # Errors
///
/// [`TopicsError`] as described there. `Unavailable` may pass; the others need a human.
pub async fn ensure_topics(
    settings: &Arc<KafkaSettings>,
    creation: TopicCreation,
) -> Result<(), TopicsError> {
    let unavailable = |error: KafkaError| settings.unavailable(&error);
    let admin = Arc::new(admin(settings).map_err(unavailable)?);
    let wanted = desired_topics(&settings.topics, settings.topic_numbers());
    if creation == TopicCreation::Create {
        create(settings, &admin, &wanted).await?;
    }
    let metadata = settled_metadata(settings, &admin, &wanted, creation).await?;
    let observed = observe(settings, &admin, &metadata, &wanted).await?;
    let TopicReport { missing, mut problems } = compare_topics(&wanted, &observed);
    problems.extend(missing.iter().map(|topic| format!("{} does not exist", topic.name)));
    if problems.is_empty() { Ok(()) } else { Err(TopicsError::Refused { problems }) }
}

async fn create(settings: &KafkaSettings, admin: &Admin, wanted: &[Topic]) -> Result<(), TopicsError> {
    let topics = wanted.iter().map(|topic| {
        let replication = TopicReplication::Fixed(topic.replication_factor);
        let new = NewTopic::new(&topic.name, topic.partitions, replication);
        topic.settings.iter().fold(new, |new, (key, value)| new.set(key, value))
    });
    let topics: Vec<_> = topics.collect();
    let created =
        admin.create_topics(&topics, &options()).await.map_err(|error| settings.unavailable(&error))?;
    for result in created {
        match result {
            Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
            Err((topic, code)) => return Err(TopicsError::Create { topic, reason: code.to_string() }),
        }
    }
    Ok(())
}

/// The metadata, once all partitions of topics that were just created have a leader.
async fn settled_metadata(
    settings: &KafkaSettings,
    admin: &Arc<Admin>,
    wanted: &[Topic],
    creation: TopicCreation,
) -> Result<Metadata, TopicsError> {
    let deadline = Instant::now() + READY_MAX;
    loop {
        let asked = Arc::clone(admin);
        let asking = tokio::task::spawn_blocking(move || asked.inner().fetch_metadata(None, REQUEST_MAX));
        let metadata = asking
            .await
            .unwrap_or(Err(KafkaError::Canceled))
            .map_err(|error| settings.unavailable(&error))?;
        let is_ready = |wanted: &Topic| {
            metadata.topics().iter().any(|topic| {
                topic.name() == wanted.name
                    && !topic.partitions().is_empty()
                    && topic.partitions().iter().all(|partition| partition.leader() >= 0)
            })
        };
        let ready = creation == TopicCreation::Check || wanted.iter().all(is_ready);
        if ready || Instant::now() > deadline {
            return Ok(metadata);
        }
        tokio::time::sleep(READY_PAUSE).await;
    }
}

/// Those of `wanted`, and Kafka's topic behind transactions, that exist.
async fn observe(
    settings: &KafkaSettings,
    admin: &Admin,
    metadata: &Metadata,
    wanted: &[Topic],
) -> Result<BTreeMap<String, ObservedTopic>, TopicsError> {
    let mut observed = BTreeMap::new();
    for topic in metadata.topics() {
        let is_wanted =
            topic.name() == TRANSACTION_STATE || wanted.iter().any(|one| one.name == topic.name());
        if !is_wanted || topic.partitions().is_empty() {
            continue;
        }
        let replicas = topic.partitions().iter().map(|partition| partition.replicas().len());
        let shape = ObservedTopic {
            partitions: topic.partitions().len(),
            replication_factor: replicas.min().unwrap_or_default(),
            settings: BTreeMap::new(),
        };
        observed.insert(topic.name().to_owned(), shape);
    }
    let names: Vec<_> = observed.keys().cloned().collect();
    // In the order of the names.
    let configs = describe(settings, admin, names.iter().map(String::as_str)).await?;
    for (topic, config) in observed.values_mut().zip(configs) {
        let entries = config.entries.into_iter().filter_map(|entry| Some((entry.name, entry.value?)));
        topic.settings.extend(entries);
    }
    Ok(observed)
}

async fn describe(
    settings: &KafkaSettings,
    admin: &Admin,
    topics: impl Iterator<Item = &str>,
) -> Result<Vec<ConfigResource>, TopicsError> {
    let topics: Vec<_> = topics.map(ResourceSpecifier::Topic).collect();
    if topics.is_empty() {
        return Ok(Vec::new());
    }
    let described = admin.describe_configs(&topics, &options()).await;
    let described = described.map_err(|error| settings.unavailable(&error))?;
    described
        .into_iter()
        .map(|config| config.map_err(|code| settings.unavailable(&KafkaError::AdminOp(code))))
        .collect()
}

fn options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(REQUEST_MAX)).operation_timeout(Some(REQUEST_MAX))
}

//! The topics of a cluster: creates them if asked to, and refuses those that cannot keep its promises.

use super::KafkaSettings;
use super::clients::{Admin, admin};
use rdkafka::admin::{AdminOptions, ConfigResource, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::Metadata;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Topic in which Kafka keeps transactions. It is there from the first transaction on.
const TRANSACTION_STATE: &str = "__transaction_state";
/// Bound of one request.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// How long new topics may take until all their partitions have a leader.
const READY_MAX: Duration = Duration::from_secs(30);
const READY_PAUSE: Duration = Duration::from_millis(100);
/// Segment length of the log, which is the grain in which trimmed space comes back.
const LOG_SEGMENT_BYTES: &str = "134217728";

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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Policy {
    /// Nothing goes by itself; owners trim.
    Trimmed,
    /// The last value of each key stays.
    Compacted,
}

/// What a topic must be.
struct Wanted {
    name: String,
    policy: Policy,
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
    let wanted = wanted(settings);
    if creation == TopicCreation::Create {
        create(settings, &admin, &wanted).await?;
    }
    let metadata = settled_metadata(settings, &admin, &wanted, creation).await?;
    let mut problems = Vec::new();
    for topic in &wanted {
        problems.extend(placement_problems(settings, &metadata, &topic.name));
    }
    // A missing topic has no configuration to ask for.
    if problems.is_empty() {
        let configs = describe(settings, &admin, wanted.iter().map(|topic| topic.name.as_str())).await?;
        for (topic, config) in wanted.iter().zip(&configs) {
            problems.extend(config_problems(settings, topic, config));
        }
        problems.extend(transaction_state_problems(settings, &admin, &metadata).await?);
    }
    if problems.is_empty() { Ok(()) } else { Err(TopicsError::Refused { problems }) }
}

fn wanted(settings: &KafkaSettings) -> Vec<Wanted> {
    let topics = &settings.topics;
    vec![
        Wanted { name: topics.log(), policy: Policy::Trimmed },
        Wanted { name: topics.state(), policy: Policy::Compacted },
        Wanted { name: topics.index(), policy: Policy::Trimmed },
        Wanted { name: topics.retained(), policy: Policy::Compacted },
    ]
}

async fn create(settings: &KafkaSettings, admin: &Admin, wanted: &[Wanted]) -> Result<(), TopicsError> {
    let min_in_sync_replicas = settings.min_in_sync_replicas.to_string();
    let message_bytes_max = settings.message_bytes_max().to_string();
    let topics = wanted.iter().map(|wanted| {
        let partitions = settings.partitioning.partition_count().into();
        let replication = TopicReplication::Fixed(settings.replication_factor.into());
        let topic = NewTopic::new(&wanted.name, partitions, replication)
            .set("min.insync.replicas", &min_in_sync_replicas)
            .set("max.message.bytes", &message_bytes_max)
            .set("unclean.leader.election.enable", "false")
            .set("message.timestamp.type", "LogAppendTime");
        match wanted.policy {
            Policy::Trimmed => topic
                .set("cleanup.policy", "delete")
                .set("retention.ms", "-1")
                .set("retention.bytes", "-1")
                .set("segment.bytes", LOG_SEGMENT_BYTES),
            Policy::Compacted => topic.set("cleanup.policy", "compact"),
        }
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
    wanted: &[Wanted],
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
        let is_ready = |wanted: &Wanted| {
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

fn placement_problems(settings: &KafkaSettings, metadata: &Metadata, name: &str) -> Vec<String> {
    let found = metadata.topics().iter().find(|topic| topic.name() == name);
    let Some(topic) = found.filter(|topic| !topic.partitions().is_empty()) else {
        return vec![format!("{name} does not exist")];
    };
    let mut problems = Vec::new();
    let partitions = topic.partitions().len();
    let wanted = usize::from(settings.partitioning.partition_count());
    if partitions != wanted {
        problems.push(format!("{name} has {partitions} partitions, not {wanted}; the number cannot change"));
    }
    problems.extend(replication_problem(settings, topic));
    problems
}

fn replication_problem(settings: &KafkaSettings, topic: &rdkafka::metadata::MetadataTopic) -> Option<String> {
    let replicas = topic.partitions().iter().map(|partition| partition.replicas().len()).min()?;
    let wanted = usize::try_from(settings.replication_factor).unwrap_or_default();
    (replicas < wanted).then(|| format!("{} has {replicas} replicas, fewer than {wanted}", topic.name()))
}

fn config_problems(settings: &KafkaSettings, topic: &Wanted, config: &ConfigResource) -> Vec<String> {
    let mut problems = Vec::new();
    let name = &topic.name;
    let value = |key: &str| config.get(key).and_then(|entry| entry.value.as_deref()).unwrap_or("unset");
    let mut must_be = |key: &str, wanted: &str| {
        if value(key) != wanted {
            problems.push(format!("{name} has {key} {}, not {wanted}", value(key)));
        }
    };
    must_be("unclean.leader.election.enable", "false");
    match topic.policy {
        Policy::Trimmed => {
            must_be("cleanup.policy", "delete");
            must_be("retention.ms", "-1");
            must_be("retention.bytes", "-1");
            must_be("message.timestamp.type", "LogAppendTime");
        }
        Policy::Compacted => must_be("cleanup.policy", "compact"),
    }
    problems.extend(too_small(name, config, "min.insync.replicas", settings.min_in_sync_replicas.into()));
    let bytes = i64::try_from(settings.message_bytes_max()).unwrap_or(i64::MAX);
    problems.extend(too_small(name, config, "max.message.bytes", bytes));
    problems
}

fn too_small(name: &str, config: &ConfigResource, key: &str, least: i64) -> Option<String> {
    let value = config.get(key).and_then(|entry| entry.value.as_deref()).unwrap_or("unset");
    let enough = value.parse::<i64>().is_ok_and(|value| value >= least);
    (!enough).then(|| format!("{name} has {key} {value}, less than {least}"))
}

/// The fences of owners are as durable as this topic.
async fn transaction_state_problems(
    settings: &KafkaSettings,
    admin: &Admin,
    metadata: &Metadata,
) -> Result<Vec<String>, TopicsError> {
    let found = metadata.topics().iter().find(|topic| topic.name() == TRANSACTION_STATE);
    let Some(topic) = found.filter(|topic| !topic.partitions().is_empty()) else { return Ok(Vec::new()) };
    let mut problems: Vec<_> = replication_problem(settings, topic).into_iter().collect();
    let configs = describe(settings, admin, std::iter::once(TRANSACTION_STATE)).await?;
    for config in &configs {
        let least = settings.min_in_sync_replicas.into();
        problems.extend(too_small(TRANSACTION_STATE, config, "min.insync.replicas", least));
    }
    Ok(problems)
}

async fn describe(
    settings: &KafkaSettings,
    admin: &Admin,
    topics: impl Iterator<Item = &str>,
) -> Result<Vec<ConfigResource>, TopicsError> {
    let topics: Vec<_> = topics.map(ResourceSpecifier::Topic).collect();
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

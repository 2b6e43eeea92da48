//! The log and the state: embedded, or Kafka.

use crate::config_file::Environment;
use crate::log::Log;
use crate::log::embedded::{DataDirectory, Durability, EmbeddedLog, EmbeddedMetrics, OpenLogError};
use crate::log::kafka::{KafkaLog, KafkaSettings, TopicCreation, TopicsError};
use crate::log::retained::RetainedLog;
use crate::log::state::State;
use std::sync::Arc;
use std::time::Duration;
use tidemill_contract::config::{self, Config, Coordination, Embedded, Kafka};
use tidemill_contract::names::{Topics, default_topic_prefix};
use tidemill_core::partition::{Partitioning, PartitioningError};

/// Pause between two attempts to reach Kafka at start.
const KAFKA_PAUSE: Duration = Duration::from_secs(2);

/// The log or the state cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The embedded log cannot be opened.
    #[error(transparent)]
    Embedded(#[from] OpenLogError),
    /// Kafka's topics do not fit.
    #[error(transparent)]
    Topics(#[from] TopicsError),
    /// The partitioning is none. The config's check refuses it before.
    #[error(transparent)]
    Partitioning(#[from] PartitioningError),
}

/// Where records and state are.
pub(super) struct Storage {
    /// The records.
    pub(super) log: Arc<dyn Log>,
    /// The state.
    pub(super) state: Arc<dyn State>,
    /// Retained messages; with Kafka they do not outlive the broker yet.
    pub(super) retained: Option<Arc<dyn RetainedLog>>,
    /// The lock of the data directory; also with Kafka, so that a second broker on this machine does not fence this one
    /// by accident.
    pub(super) directory: DataDirectory,
    /// What the embedded log counts; none with Kafka.
    pub(super) embedded: Option<EmbeddedMetrics>,
}

/// Opens what the config names. Waits for Kafka as long as it does not answer: a broker that comes up before Kafka is
/// not at fault.
pub(super) async fn open(
    config: &Config,
    environment: &Environment,
    directory: DataDirectory,
    partitioning: Partitioning,
) -> Result<Storage, StorageError> {
    if let Some(kafka) = &config.kafka {
        let log = connect(config, kafka, environment).await?;
        let (retained, embedded) = (None, None);
        return Ok(Storage { log: Arc::clone(&log) as _, state: log, retained, directory, embedded });
    }
    let embedded = config.embedded.clone().unwrap_or_default();
    let log = EmbeddedLog::open(&directory, partitioning, durability(&embedded))?;
    log.hold_appends();
    let (retained, embedded) = (Some(log.retained()), Some(log.metrics().clone()));
    Ok(Storage { log: Arc::clone(&log) as _, state: log, retained, directory, embedded })
}

/// Says what a power cut can take.
fn durability(embedded: &Embedded) -> Durability {
    match embedded.durability {
        config::Durability::Fsync => Durability::Fsync,
        config::Durability::Interval => {
            let interval_ms = embedded.sync_interval_ms.unwrap_or(Embedded::SYNC_INTERVAL_MS);
            tracing::warn!(
                interval_ms,
                "embedded.durability is interval: a power cut can take what was acknowledged since the last sync"
            );
            Durability::Interval(Duration::from_millis(interval_ms.into()))
        }
        config::Durability::None => {
            tracing::warn!(
                "embedded.durability is none: a power cut can take whatever the system has not written to the disk, \
                 up to half a minute or more of what was acknowledged"
            );
            Durability::None
        }
    }
}

async fn connect(
    config: &Config,
    kafka: &Kafka,
    environment: &Environment,
) -> Result<Arc<KafkaLog>, StorageError> {
    let topics = Topics::new(topic_prefix(config, kafka, environment));
    let settings = KafkaSettings::new(kafka, topics, config.limits.maximum_packet_bytes)?;
    if kafka.replication_factor == 1 {
        tracing::warn!(
            "kafka.replicationFactor is 1: what is acknowledged does not survive the loss of a Kafka broker"
        );
    }
    tracing::info!(bootstrap_servers = kafka.bootstrap_servers, "connecting to Kafka");
    let creation = if kafka.create_topics { TopicCreation::Create } else { TopicCreation::Check };
    loop {
        match KafkaLog::connect(settings.clone(), creation).await {
            Ok(log) => return Ok(log),
            Err(error @ TopicsError::Unavailable { .. }) => {
                tracing::warn!(%error, "waiting for Kafka");
                tokio::time::sleep(KAFKA_PAUSE).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// `<namespace>.<cluster>` in Kubernetes, `<cluster>` without it.
fn topic_prefix(config: &Config, kafka: &Kafka, environment: &Environment) -> String {
    let namespace = config.membership.namespace.as_ref().or(environment.namespace.as_ref());
    match (&kafka.topic_prefix, namespace) {
        (Some(prefix), _) => prefix.clone(),
        (None, Some(namespace)) if config.coordination == Coordination::Kubernetes => {
            default_topic_prefix(namespace, &config.cluster.0)
        }
        (None, _) => config.cluster.0.clone(),
    }
}

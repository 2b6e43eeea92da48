//! From a config to a running broker: opens the log and chooses who else there is.

use super::{Foundation, Running, StartError, Wiring, local, start};
use crate::cluster::Validity;
use crate::config_file::Environment;
use crate::log::Log;
use crate::log::embedded::{DataDirectory, EmbeddedLog};
use crate::log::kafka::{KafkaLog, KafkaSettings, TopicCreation};
use crate::log::state::State;
use std::sync::Arc;
use tidemill_contract::config::{Config, Coordination, Kafka};
use tidemill_contract::names::{Topics, default_topic_prefix};
use tidemill_core::member::{Incarnation, Member, MemberId};
use tidemill_core::partition::Partitioning;

/// The log and the state beside it; both are one store.
struct Store {
    log: Arc<dyn Log>,
    state: Arc<dyn State>,
}

/// Starts the broker that `config` describes.
///
/// # Errors
///
/// [`StartError`] says what to change.
pub async fn launch(config: &Config, environment: &Environment) -> Result<Running, StartError> {
    config.check()?;
    let (partitions, groups) = config.partitioning();
    let partitioning = Partitioning::new(partitions, groups)?;
    let own = Member {
        id: MemberId::new(config.member.as_deref().unwrap_or("broker")),
        incarnation: new_incarnation()?,
    };
    match config.coordination {
        Coordination::Local => {
            // Also with Kafka: the lock keeps a second broker of this machine from fencing this one by accident.
            let directory = lock_data_directory(config).await?;
            let store = open_store(config, environment, partitioning, &directory).await?;
            let foundation =
                Foundation { own, partitioning, validity: Arc::new(Validity::always()), log: store.log };
            let mut running = start(config, foundation, |data_path| {
                Ok::<Wiring, StartError>(local::wire(data_path, store.state, config.limits.subscriptions)?)
            })
            .await?;
            running.keep(directory);
            Ok(running)
        }
        Coordination::Kubernetes => Err(StartError::NoKubernetes),
    }
}

async fn lock_data_directory(config: &Config) -> Result<DataDirectory, StartError> {
    let path = config.data.directory.clone();
    let locked = tokio::task::spawn_blocking(move || DataDirectory::lock(&path)).await;
    Ok(locked.map_err(StartError::Interrupted)??)
}

async fn open_store(
    config: &Config,
    environment: &Environment,
    partitioning: Partitioning,
    directory: &DataDirectory,
) -> Result<Store, StartError> {
    if let Some(kafka) = &config.kafka {
        let settings = KafkaSettings::new(
            kafka,
            Topics::new(topic_prefix(config, kafka, environment)),
            config.limits.maximum_packet_bytes,
        )?;
        let creation = if kafka.create_topics { TopicCreation::Create } else { TopicCreation::Check };
        let log = KafkaLog::connect(settings, creation).await?;
        return Ok(Store { log: Arc::<KafkaLog>::clone(&log), state: log });
    }
    let directory = directory.clone();
    let opened = tokio::task::spawn_blocking(move || EmbeddedLog::open(&directory, partitioning)).await;
    let log = opened.map_err(StartError::Interrupted)??;
    Ok(Store { log: Arc::<EmbeddedLog>::clone(&log), state: log })
}

fn topic_prefix(config: &Config, kafka: &Kafka, environment: &Environment) -> String {
    let default = || match config.membership.namespace.as_ref().or(environment.namespace.as_ref()) {
        Some(namespace) => default_topic_prefix(namespace, &config.cluster.0),
        None => config.cluster.0.clone(),
    };
    kafka.topic_prefix.clone().unwrap_or_else(default)
}

fn new_incarnation() -> Result<Incarnation, StartError> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| StartError::Threads(error.into()))?;
    Ok(Incarnation(u64::from_le_bytes(random)))
}

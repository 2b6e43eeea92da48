//! From what the user wrote to what can be built. Pure. It repeats the rules of the definition, because an API server
//! may hold objects that are older than a rule.

use crate::controller::build::config::broker_config;
use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use std::collections::BTreeMap;
use tidemill_contract::config::{Config, ConfigError};
use tidemill_contract::names;
use tidemill_crds::{Embedded, Kafka, Listener, MqttCluster, Storage};

/// Most brokers of one cluster.
pub const REPLICAS_MAX: i32 = 64;
const NAME_LENGTH_MAX: usize = 40;

/// Why a cluster cannot be built. The messages are for the user: they go into conditions and events.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The API server gave an object without an identity.
    #[error("metadata.{0} is missing")]
    MetadataMissing(&'static str),
    /// Pod and Service names could not be made from the name.
    #[error("the name '{0}' is not at most 40 of a-z, 0-9 and '-', starting with a letter")]
    Name(String),
    /// Not 1 to 64.
    #[error("replicas is {0}, allowed is 1 to 64")]
    Replicas(i32),
    /// Nothing was said about access.
    #[error("auth is missing: say who may connect, for example auth: {{anonymous: true}}")]
    AuthMissing,
    /// Both or neither.
    #[error("exactly one of kafka and embedded must be given: it is where messages are kept")]
    StoreChoice,
    /// More than one broker without a shared log.
    #[error("embedded keeps everything in one broker: replicas must be 1, not {0}")]
    EmbeddedReplicas(i32),
    /// Two listeners that exclude each other.
    #[error("two listeners have the same {0}")]
    DuplicateListener(&'static str),
    /// The brokers would refuse the config file.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// Where a cluster keeps messages and state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Store {
    /// In Kafka; the brokers share it.
    Kafka {
        /// As the user wrote it.
        kafka: Kafka,
        /// The names of the topics.
        topics: names::Topics,
    },
    /// On the volume of the only broker.
    Embedded(Embedded),
}

/// A cluster that can be built.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidatedCluster {
    /// Name of the resource and prefix of everything built.
    pub name: String,
    /// Where everything is built.
    pub namespace: String,
    /// Identity of the resource.
    pub uid: String,
    /// Generation of the spec.
    pub generation: i64,
    /// Brokers, 1 to 64.
    pub replicas: i32,
    /// Image that the user asks for.
    pub image: Option<String>,
    /// Where clients connect.
    pub listeners: Vec<Listener>,
    /// Where messages and state are kept.
    pub store: Store,
    /// What every broker's config file says.
    pub config: Config,
    /// CPU and memory of a broker.
    pub resources: Option<ResourceRequirements>,
    /// The volume of a broker.
    pub storage: Storage,
    /// Nothing may be changed.
    pub paused: bool,
}

/// Checks `cluster`.
///
/// # Errors
///
/// The first [`Refusal`]; the user must change the spec, trying again is of no use.
pub fn validate(cluster: &MqttCluster) -> Result<ValidatedCluster, Refusal> {
    let metadata = &cluster.metadata;
    let spec = &cluster.spec;
    let name = metadata.name.clone().ok_or(Refusal::MetadataMissing("name"))?;
    let namespace = metadata.namespace.clone().ok_or(Refusal::MetadataMissing("namespace"))?;
    let uid = metadata.uid.clone().ok_or(Refusal::MetadataMissing("uid"))?;
    check_name(&name)?;
    if !(1..=REPLICAS_MAX).contains(&spec.replicas) {
        return Err(Refusal::Replicas(spec.replicas));
    }
    check_listeners(&spec.listeners)?;
    let auth = spec.auth.as_ref().ok_or(Refusal::AuthMissing)?;
    let store = match (&spec.kafka, &spec.embedded) {
        (Some(kafka), None) => {
            let prefix =
                kafka.topic_prefix.clone().unwrap_or_else(|| names::default_topic_prefix(&namespace, &name));
            Store::Kafka { kafka: kafka.clone(), topics: names::Topics::new(prefix) }
        }
        (None, Some(embedded)) if spec.replicas == 1 => Store::Embedded(embedded.clone()),
        (None, Some(_)) => return Err(Refusal::EmbeddedReplicas(spec.replicas)),
        (Some(_), Some(_)) | (None, None) => return Err(Refusal::StoreChoice),
    };
    let config = broker_config(&namespace, &name, spec, auth);
    config.check()?;
    Ok(ValidatedCluster {
        name,
        namespace,
        uid,
        generation: metadata.generation.unwrap_or_default(),
        replicas: spec.replicas,
        image: spec.image.clone(),
        listeners: spec.listeners.clone(),
        store,
        config,
        resources: spec.resources.clone(),
        storage: spec.storage.clone().unwrap_or_default(),
        paused: spec.paused,
    })
}

fn check_name(name: &str) -> Result<(), Refusal> {
    let plain = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    let starts = name.starts_with(|first: char| first.is_ascii_lowercase());
    if plain && starts && !name.ends_with('-') && name.len() <= NAME_LENGTH_MAX {
        Ok(())
    } else {
        Err(Refusal::Name(name.to_owned()))
    }
}

fn check_listeners(listeners: &[Listener]) -> Result<(), Refusal> {
    for (index, listener) in listeners.iter().enumerate() {
        let earlier = &listeners[..index];
        if earlier.iter().any(|other| other.name == listener.name) {
            return Err(Refusal::DuplicateListener("name"));
        }
        if earlier.iter().any(|other| other.port == listener.port) {
            return Err(Refusal::DuplicateListener("port"));
        }
    }
    Ok(())
}

impl ValidatedCluster {
    /// Name of the pod, and so of the member, with number `ordinal`.
    #[must_use]
    pub fn pod(&self, ordinal: i32) -> String {
        format!("{}-{ordinal}", self.name)
    }

    /// The pods that the spec asks for.
    #[must_use]
    pub fn pods(&self) -> Vec<String> {
        (0..self.replicas).map(|ordinal| self.pod(ordinal)).collect()
    }

    /// Name of the Service in front of `listener`.
    #[must_use]
    pub fn listener_service(&self, listener: &Listener) -> String {
        format!("{}-{}", self.name, listener.name)
    }

    /// Name of the headless Service that gives pods their DNS names.
    #[must_use]
    pub fn peer_service(&self) -> String {
        format!("{}-peers", self.name)
    }

    /// Name of the ConfigMap with `broker.yaml`.
    #[must_use]
    pub fn config_map(&self) -> String {
        format!("{}-config", self.name)
    }

    /// Name of the Secret with the key of the cluster's certificate authority. No pod mounts it.
    #[must_use]
    pub fn authority_secret(&self) -> String {
        format!("{}-ca", self.name)
    }

    /// Name of the Secret with the certificates of the brokers, which every broker mounts.
    #[must_use]
    pub fn peer_secret(&self) -> String {
        format!("{}-peer-tls", self.name)
    }

    /// Whether the brokers coordinate by leases.
    #[must_use]
    pub fn has_leases(&self) -> bool {
        match self.store {
            Store::Kafka { .. } => true,
            Store::Embedded(_) => false,
        }
    }

    /// Number of partition groups.
    #[must_use]
    pub fn group_count(&self) -> u16 {
        self.config.partitioning().1
    }

    /// The labels that select the brokers' pods. They must never change: a StatefulSet keeps its selector.
    #[must_use]
    pub fn selector(&self) -> BTreeMap<String, String> {
        BTreeMap::from([
            ("app.kubernetes.io/name".to_owned(), "tidemill".to_owned()),
            ("app.kubernetes.io/component".to_owned(), "broker".to_owned()),
            (names::LABEL_CLUSTER.to_owned(), self.name.clone()),
        ])
    }

    /// The labels of everything that is built.
    #[must_use]
    pub fn labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.selector();
        labels.insert("app.kubernetes.io/instance".to_owned(), self.name.clone());
        labels.insert("app.kubernetes.io/managed-by".to_owned(), "tidemill-operator".to_owned());
        labels
    }

    /// Makes an object go when the cluster goes.
    #[must_use]
    pub fn owner_reference(&self) -> OwnerReference {
        OwnerReference {
            api_version: MqttCluster::api_version(&()).into_owned(),
            kind: MqttCluster::kind(&()).into_owned(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::fixtures::{embedded_cluster, kafka_cluster, with};
    use serde_json::json;

    #[test]
    fn a_missing_auth_choice_is_refused_in_plain_words() {
        let mut cluster = kafka_cluster();
        cluster.spec.auth = None;

        let refusal = validate(&cluster).unwrap_err();

        assert_eq!(
            refusal.to_string(),
            "auth is missing: say who may connect, for example auth: {anonymous: true}"
        );
    }

    #[test]
    fn an_auth_choice_that_lets_nobody_in_is_refused() {
        let mut cluster = kafka_cluster();
        cluster.spec.auth.as_mut().unwrap().anonymous = false;

        assert!(matches!(validate(&cluster), Err(Refusal::Config(ConfigError::OpenListener { .. }))));
    }

    #[test]
    fn exactly_one_store_is_accepted() {
        let mut both = kafka_cluster();
        both.spec.embedded = embedded_cluster().spec.embedded;
        let mut neither = kafka_cluster();
        neither.spec.kafka = None;

        assert_eq!(validate(&both), Err(Refusal::StoreChoice));
        assert_eq!(validate(&neither), Err(Refusal::StoreChoice));
        assert!(validate(&kafka_cluster()).is_ok());
        assert!(validate(&embedded_cluster()).is_ok());
    }

    #[test]
    fn embedded_is_one_broker() {
        let mut cluster = embedded_cluster();
        cluster.spec.replicas = 2;

        assert_eq!(validate(&cluster), Err(Refusal::EmbeddedReplicas(2)));
    }

    #[test]
    fn retained_messages_are_bounded_where_there_are_some() {
        let limits =
            tidemill_crds::Limits { retained_bytes: Some(1_000), ..tidemill_crds::Limits::default() };
        let (mut alone, mut shared) = (embedded_cluster(), kafka_cluster());
        alone.spec.limits = Some(limits.clone());
        shared.spec.limits = Some(limits);

        assert_eq!(validate(&alone).unwrap().config.limits.retained_bytes, 1_000);
        let refusal = validate(&shared).unwrap_err();
        assert!(refusal.to_string().contains("limits.retainedBytes"), "{refusal}");
    }

    #[test]
    fn a_choice_that_brokers_do_not_take_is_refused_by_its_key() {
        let dead_letters = |topic: &str| json!({"sessions": {"queue": {"deadLetterTopic": topic}}});
        let groups = |first: &str, second: &str| {
            let group = |name: &str| json!({"name": name, "strategy": "sticky"});
            json!({"sharedSubscriptions": {"groups": [group(first), group(second)]}})
        };
        let cases = [
            (json!({"threads": 0}), "threads"),
            (json!({"threads": 1025}), "threads"),
            (json!({"embedded": {"syncIntervalMs": 5}}), "embedded.syncIntervalMs"),
            (json!({"embedded": {"durability": "none", "syncIntervalMs": 5}}), "embedded.syncIntervalMs"),
            (
                json!({"embedded": {"durability": "interval", "syncIntervalMs": 60_001}}),
                "embedded.syncIntervalMs",
            ),
            (dead_letters("lost/#"), "sessions.queue.deadLetterTopic"),
            (dead_letters("$SYS/lost"), "sessions.queue.deadLetterTopic"),
            (dead_letters("$share/a/b"), "sessions.queue.deadLetterTopic"),
            (dead_letters("lost/{clientID}"), "sessions.queue.deadLetterTopic"),
            (json!({"embedded": {"partitions": 8, "partitionGroups": 9}}), "embedded.partitionGroups"),
            (dead_letters(&"é".repeat(513)), "sessions.queue.deadLetterTopic"),
            (groups("a/b", "c"), "sharedSubscriptions.groups[0].name"),
            (groups("a", "a"), "sharedSubscriptions.groups[1].name"),
            (groups("a*", "ab*"), "sharedSubscriptions.groups[1].name"),
        ];

        for (choice, key) in cases {
            let refusal = validate(&with(embedded_cluster(), choice)).unwrap_err().to_string();
            assert!(refusal.starts_with(key), "{key}: {refusal}");
        }
        let on_kafka = validate(&with(kafka_cluster(), groups("a", "b"))).unwrap_err().to_string();
        assert!(on_kafka.starts_with("sharedSubscriptions"), "{on_kafka}");
    }

    #[test]
    fn the_topics_are_named_after_namespace_and_cluster_unless_the_spec_says_otherwise() {
        let mut cluster = kafka_cluster();
        let prefix = |cluster: &MqttCluster| match validate(cluster).unwrap().store {
            Store::Kafka { topics, .. } => topics.log(),
            Store::Embedded(_) => panic!("not embedded"),
        };

        assert_eq!(prefix(&cluster), "messaging.demo.log");
        cluster.spec.kafka.as_mut().unwrap().topic_prefix = Some("iot".to_owned());
        assert_eq!(prefix(&cluster), "iot.log");
    }

    #[test]
    fn names_that_make_no_pod_name_are_refused() {
        for name in ["1st", "a.b", "Upper", "ends-", &"x".repeat(41)] {
            let mut cluster = kafka_cluster();
            cluster.metadata.name = Some(name.to_owned());

            assert_eq!(validate(&cluster), Err(Refusal::Name(name.to_owned())));
        }
    }

    #[test]
    fn listeners_differ_in_name_and_port() {
        let mut cluster = kafka_cluster();
        let mut second = cluster.spec.listeners[0].clone();
        second.name = "other".to_owned();
        cluster.spec.listeners.push(second);

        assert_eq!(validate(&cluster), Err(Refusal::DuplicateListener("port")));
    }
}

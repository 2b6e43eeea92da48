//! The brokers' config file.
//!
//! Only what differs from the defaults is written: a newer operator that knows more keys writes the same file for the
//! same spec, so that upgrading it restarts no broker, and an older broker never meets a key it does not know.

mod settings;

use crate::controller::validate::ValidatedCluster;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use tidemill_contract::config::{self, Config, Coordination, Kafka, Membership, PeerTls, Peers, Protocol};
use tidemill_contract::{names, ports};
use tidemill_crds::{Auth, ListenerProtocol, MqttClusterSpec};
use xxhash_rust::xxh3::xxh3_128;

/// Key of the config file in the ConfigMap, and its file name in the pod.
pub(crate) const CONFIG_FILE: &str = "broker.yaml";
/// Where the ConfigMap is mounted.
pub(crate) const CONFIG_DIRECTORY: &str = "/etc/tidemill";
/// Where the Secret with the peer certificates is mounted.
pub(crate) const TLS_DIRECTORY: &str = "/etc/tidemill-tls";
/// Where the volume is mounted.
pub(crate) const DATA_DIRECTORY: &str = "/var/lib/tidemill";

/// The config that every broker of the cluster gets. What differs between pods comes through the environment.
pub(crate) fn broker_config(namespace: &str, name: &str, spec: &MqttClusterSpec, auth: &Auth) -> Config {
    let mut config = Config {
        cluster: config::ClusterName(name.to_owned()),
        listeners: config::Listeners(spec.listeners.iter().map(listener).collect()),
        admin: config::Admin { address: format!("0.0.0.0:{}", ports::ADMIN) },
        data: config::Data { directory: PathBuf::from(DATA_DIRECTORY) },
        auth: config::Auth { anonymous: auth.anonymous },
        ..Config::default()
    };
    if let Some(kafka) = &spec.kafka {
        let prefix =
            kafka.topic_prefix.clone().unwrap_or_else(|| names::default_topic_prefix(namespace, name));
        config.kafka = Some(Kafka {
            bootstrap_servers: kafka.bootstrap_servers.clone(),
            topic_prefix: Some(prefix),
            partitions: kafka.partitions,
            partition_groups: Some(groups_of(kafka.partition_groups, kafka.partitions)),
            replication_factor: kafka.replication_factor,
            min_in_sync_replicas: kafka.min_in_sync_replicas,
            create_topics: false,
        });
        config.coordination = Coordination::Kubernetes;
        config.membership = membership(namespace, spec);
        config.peers = Some(peers());
    }
    if let Some(embedded) = &spec.embedded {
        config.embedded = Some(settings::embedded(embedded));
    }
    config.sessions = settings::sessions(spec);
    config.shared_subscriptions = settings::shared_subscriptions(spec);
    config.mqtt = settings::mqtt(spec);
    config.limits = settings::limits(spec);
    config.threads = spec.threads;
    config
}

/// Written also where it is the default: partitioning must not follow a default that changes.
fn groups_of(wanted: Option<u16>, partitions: u16) -> u16 {
    wanted.unwrap_or_else(|| config::default_partition_groups(partitions))
}

fn listener(listener: &tidemill_crds::Listener) -> config::Listener {
    config::Listener {
        name: listener.name.clone(),
        protocol: match listener.protocol {
            ListenerProtocol::Mqtt => Protocol::Mqtt,
        },
        address: format!("0.0.0.0:{}", listener.port),
    }
}

fn membership(namespace: &str, spec: &MqttClusterSpec) -> Membership {
    let wanted = spec.membership.clone().unwrap_or_default();
    Membership {
        namespace: Some(namespace.to_owned()),
        lease_duration_secs: wanted.lease_duration_secs,
        renew_interval_secs: wanted.renew_interval_secs,
        stop_after_secs: wanted.stop_after_secs,
        strict_identity: wanted.strict_identity.unwrap_or_default(),
    }
}

fn peers() -> Peers {
    let file = |name: String| PathBuf::from(TLS_DIRECTORY).join(name);
    Peers {
        address: format!("0.0.0.0:{}", ports::PEERS),
        advertised: None,
        tls: PeerTls {
            ca_file: file("ca.crt".to_owned()),
            certificate_file: file(format!("${{{}}}.crt", names::ENV_MEMBER)),
            key_file: file(format!("${{{}}}.key", names::ENV_MEMBER)),
        },
    }
}

/// What is left out of the file when it is equal. Numbers that must not follow a default are never equal.
fn baseline() -> Config {
    Config {
        kafka: Some(Kafka {
            bootstrap_servers: String::new(),
            topic_prefix: None,
            partitions: 0,
            partition_groups: None,
            replication_factor: 0,
            min_in_sync_replicas: 0,
            create_topics: false,
        }),
        embedded: Some(config::Embedded { partitions: 0, ..config::Embedded::default() }),
        peers: Some(Peers {
            address: format!("0.0.0.0:{}", ports::PEERS),
            advertised: None,
            tls: PeerTls {
                ca_file: PathBuf::new(),
                certificate_file: PathBuf::new(),
                key_file: PathBuf::new(),
            },
        }),
        ..Config::default()
    }
}

/// The config file as a document, without what equals the defaults.
pub(crate) fn config_document(config: &Config) -> Value {
    let as_value = |config: &Config| serde_json::to_value(config).expect("a config of plain types is JSON");
    let mut document = as_value(config);
    without_equal(&mut document, &as_value(&baseline()));
    document
}

fn without_equal(value: &mut Value, default: &Value) {
    let (Value::Object(entries), Value::Object(defaults)) = (value, default) else { return };
    entries.retain(|key, entry| {
        let Some(default) = defaults.get(key) else { return true };
        without_equal(entry, default);
        let emptied = entry.is_object() && entry.as_object().is_some_and(serde_json::Map::is_empty);
        entry != default && !emptied
    });
}

/// Changes whenever the brokers must read their config anew. It does not depend on how YAML is printed.
pub(crate) fn config_hash(config: &Config) -> String {
    format!("{:032x}", xxh3_128(config_document(config).to_string().as_bytes()))
}

/// The ConfigMap with `broker.yaml`.
pub(crate) fn build_config_map(cluster: &ValidatedCluster) -> ConfigMap {
    let yaml =
        serde_saphyr::to_string(&config_document(&cluster.config)).expect("JSON with text keys is YAML");
    ConfigMap {
        metadata: super::metadata(cluster, cluster.config_map()),
        data: Some(BTreeMap::from([(CONFIG_FILE.to_owned(), yaml)])),
        ..ConfigMap::default()
    }
}

#[cfg(test)]
mod tests;

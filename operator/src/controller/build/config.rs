//! The brokers' config file.
//!
//! Only what differs from the defaults is written: a newer operator that knows more keys writes the same file for the
//! same spec, so that upgrading it restarts no broker, and an older broker never meets a key it does not know.

use crate::controller::validate::ValidatedCluster;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use tidemill_contract::config::{
    self, Config, Coordination, Kafka, Limits, Membership, Mqtt, PeerTls, Peers, Protocol,
};
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
            partition_groups: kafka.partition_groups,
            replication_factor: kafka.replication_factor,
            min_in_sync_replicas: kafka.min_in_sync_replicas,
            create_topics: false,
        });
        config.coordination = Coordination::Kubernetes;
        config.membership = membership(namespace, spec);
        config.peers = Some(peers());
    }
    if let Some(embedded) = &spec.embedded {
        config.embedded.partitions = embedded.partitions;
        config.embedded.partition_groups = embedded.partition_groups;
    }
    if let Some(seconds) = spec.sessions.as_ref().and_then(|sessions| sessions.max_expiry_secs) {
        config.sessions.max_expiry_secs = seconds;
    }
    config.mqtt = mqtt(spec);
    config.limits = limits(spec);
    config
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

fn mqtt(spec: &MqttClusterSpec) -> Mqtt {
    let wanted = spec.mqtt.clone().unwrap_or_default();
    let default = Mqtt::default();
    Mqtt {
        maximum_keep_alive_secs: wanted.maximum_keep_alive_secs,
        response_information: wanted.response_information,
        check_payload_format: wanted.check_payload_format.unwrap_or(default.check_payload_format),
        sys_interval_secs: wanted.sys_interval_secs.unwrap_or(default.sys_interval_secs),
    }
}

fn limits(spec: &MqttClusterSpec) -> Limits {
    let wanted = spec.limits.clone().unwrap_or_default();
    let default = Limits::default();
    Limits {
        maximum_packet_bytes: wanted.maximum_packet_bytes.unwrap_or(default.maximum_packet_bytes),
        connections: wanted.connections.unwrap_or(default.connections),
        receive_maximum: wanted.receive_maximum.unwrap_or(default.receive_maximum),
        in_flight: wanted.in_flight.unwrap_or(default.in_flight),
        mailbox_messages: wanted.mailbox_messages.unwrap_or(default.mailbox_messages),
        mailbox_bytes: wanted.mailbox_bytes.unwrap_or(default.mailbox_bytes),
        subscriptions: wanted.subscriptions.unwrap_or(default.subscriptions),
        retained_bytes: wanted.retained_bytes.unwrap_or(default.retained_bytes),
    }
}

/// What is left out of the file when it is equal. Numbers that must not follow a default are never equal.
fn baseline() -> Config {
    Config {
        kafka: Some(Kafka {
            bootstrap_servers: String::new(),
            topic_prefix: None,
            partitions: 0,
            partition_groups: 0,
            replication_factor: 0,
            min_in_sync_replicas: 0,
            create_topics: false,
        }),
        embedded: config::Embedded { partitions: 0, partition_groups: 0, ..config::Embedded::default() },
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
    if config.kafka.is_some()
        && let Some(entries) = document.as_object_mut()
    {
        entries.remove("embedded");
    }
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
mod tests {
    use super::*;
    use crate::controller::fixtures::{embedded_cluster, kafka_cluster};
    use crate::controller::validate::validate;

    #[test]
    fn the_file_reads_back_as_the_config_it_was_made_from() {
        for cluster in [kafka_cluster(), embedded_cluster()] {
            let cluster = validate(&cluster).unwrap();
            let file = build_config_map(&cluster).data.unwrap().remove(CONFIG_FILE).unwrap();

            let read: Config = serde_saphyr::from_str(&file).unwrap();

            assert_eq!(read, cluster.config, "{file}");
        }
    }

    #[test]
    fn a_default_is_not_written_and_a_choice_is() {
        let mut cluster = kafka_cluster();
        let plain = config_document(&validate(&cluster).unwrap().config);
        cluster.spec.limits =
            Some(tidemill_crds::Limits { in_flight: Some(7), ..tidemill_crds::Limits::default() });
        cluster.spec.mqtt = Some(tidemill_crds::Mqtt {
            maximum_keep_alive_secs: Some(60),
            response_information: Some("answers/{clientId}".into()),
            check_payload_format: Some(true),
            sys_interval_secs: Some(0),
        });
        let chosen = config_document(&validate(&cluster).unwrap().config);

        assert_eq!((plain.get("limits"), plain.get("mqtt")), (None, None));
        assert_eq!(chosen["limits"], serde_json::json!({"inFlight": 7}));
        assert_eq!(
            chosen["mqtt"],
            serde_json::json!({
                "maximumKeepAliveSecs": 60,
                "responseInformation": "answers/{clientId}",
                "checkPayloadFormat": true,
                "sysIntervalSecs": 0,
            })
        );
        assert_eq!(
            plain["kafka"]["partitions"], 32,
            "fixed numbers are written even where they are the default"
        );
    }

    #[test]
    fn another_limit_is_another_hash() {
        let mut cluster = kafka_cluster();
        let before = config_hash(&validate(&cluster).unwrap().config);
        cluster.spec.limits =
            Some(tidemill_crds::Limits { in_flight: Some(7), ..tidemill_crds::Limits::default() });

        assert_ne!(before, config_hash(&validate(&cluster).unwrap().config));
    }
}

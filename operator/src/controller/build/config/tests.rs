mod keys;

use super::*;
use crate::controller::fixtures::{
    chosen_embedded_cluster, chosen_kafka_cluster, embedded_cluster, kafka_cluster, samples,
};
use crate::controller::validate::validate;
use std::collections::BTreeSet;
use tidemill_crds::MqttCluster;

#[test]
fn the_file_reads_back_as_the_config_it_was_made_from() {
    for cluster in [kafka_cluster(), embedded_cluster(), chosen_kafka_cluster(), chosen_embedded_cluster()] {
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
    assert_eq!(plain["kafka"]["partitions"], 32, "fixed numbers are written even where they are the default");
}

#[test]
fn the_groups_are_written_also_where_they_follow_the_partitions() {
    for (partitions, wanted, written) in
        [(32, None, 16), (8, None, 8), (64, None, 16), (32, Some(16), 16), (8, Some(3), 3)]
    {
        let (mut shared, mut alone) = (kafka_cluster(), embedded_cluster());
        let kafka = shared.spec.kafka.as_mut().unwrap();
        (kafka.partitions, kafka.partition_groups) = (partitions, wanted);
        let embedded = alone.spec.embedded.as_mut().unwrap();
        (embedded.partitions, embedded.partition_groups) = (partitions, wanted);

        for (cluster, section) in [(shared, "kafka"), (alone, "embedded")] {
            let document = config_document(&validate(&cluster).unwrap().config);
            assert_eq!(document[section]["partitions"], partitions);
            assert_eq!(document[section]["partitionGroups"], written, "{section} {partitions} {wanted:?}");
        }
    }
}

#[test]
fn another_limit_is_another_hash() {
    let mut cluster = kafka_cluster();
    let before = config_hash(&validate(&cluster).unwrap().config);
    cluster.spec.limits =
        Some(tidemill_crds::Limits { in_flight: Some(7), ..tidemill_crds::Limits::default() });

    assert_ne!(before, config_hash(&validate(&cluster).unwrap().config));
}

fn spec_document(cluster: &MqttCluster) -> Value {
    serde_json::to_value(&cluster.spec).unwrap()
}

#[test]
fn every_choice_of_the_user_is_in_the_file_under_its_key() {
    let shared = keys::shared_keys();
    let mut chosen = BTreeSet::new();
    for cluster in [chosen_kafka_cluster(), chosen_embedded_cluster()] {
        let written = keys::values(&config_document(&validate(&cluster).unwrap().config));
        for (key, choice) in keys::values(&spec_document(&cluster)) {
            if shared.contains(&key) {
                assert_eq!(written.get(&key), Some(&choice), "{key}");
                chosen.insert(key);
            }
        }
    }

    assert_eq!(chosen, shared, "the fixtures choose something at every key");
}

#[test]
fn a_number_below_what_the_definition_allows_is_refused_with_its_key() {
    let (shared, schema) = (keys::shared_keys(), keys::spec_schema());
    let minimum_of = |key: &str| {
        let path = key.replace("[]", "/items").replace('.', "/properties/");
        schema.pointer(&format!("/properties/{path}"))?.get("minimum")?.as_i64()
    };
    let mut refused = 0;
    for cluster in [chosen_kafka_cluster(), chosen_embedded_cluster()] {
        for key in keys::values(&spec_document(&cluster)).into_keys().filter(|key| shared.contains(key)) {
            let Some(minimum) = minimum_of(&key).filter(|minimum| *minimum > 0) else { continue };
            let mut document = serde_json::to_value(&cluster).unwrap();
            *document.pointer_mut(&format!("/spec/{}", key.replace('.', "/"))).unwrap() =
                (minimum - 1).into();

            let refusal = validate(&serde_json::from_value(document).unwrap()).unwrap_err().to_string();

            assert!(refusal.contains(key.rsplit('.').next().unwrap()), "{key}: {refusal}");
            refused += 1;
        }
    }
    assert!(refused > 40, "{refused}");
}

#[test]
fn every_sample_is_a_cluster_that_can_be_built() {
    let known = keys::resource_keys();
    for (path, mut document) in samples() {
        for key in keys::values(&document["spec"]).keys() {
            assert!(known.contains_key(key), "{path}: {key} is no key");
        }
        for (key, value) in [("namespace", "messaging"), ("uid", "11111111-2222-3333-4444-555555555555")] {
            document["metadata"][key] = value.into();
        }

        let refusal = validate(&serde_json::from_value(document).unwrap()).err();

        assert_eq!(refusal, None, "{path}");
    }
}

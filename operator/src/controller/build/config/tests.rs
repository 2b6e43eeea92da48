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
    assert_eq!(plain["kafka"]["partitions"], 32, "fixed numbers are written even where they are the default");
}

#[test]
fn another_limit_is_another_hash() {
    let mut cluster = kafka_cluster();
    let before = config_hash(&validate(&cluster).unwrap().config);
    cluster.spec.limits =
        Some(tidemill_crds::Limits { in_flight: Some(7), ..tidemill_crds::Limits::default() });

    assert_ne!(before, config_hash(&validate(&cluster).unwrap().config));
}

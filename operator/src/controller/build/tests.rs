//! The built objects, byte by byte. `TIDEMILL_UPDATE_GOLDEN=1` writes the files anew; a change in a pod template there
//! restarts the brokers of every user, so look twice.

use super::*;
use crate::controller::dereference::Observed;
use crate::controller::fixtures::{
    assert_golden, chosen_embedded_cluster, chosen_kafka_cluster, embedded_cluster, identity, kafka_cluster,
    now,
};
use crate::controller::plan::plan;
use crate::controller::validate::validate;
use serde::Serialize;
use tidemill_crds::MqttCluster;

fn built(cluster: &MqttCluster) -> Objects {
    let cluster = validate(cluster).unwrap();
    let plan = plan(&cluster, &Observed::default(), "tidemill/broker:0.1.0", now());
    let pods = cluster.pods();
    let identity =
        cluster.has_leases().then(|| identity(&pods.iter().map(String::as_str).collect::<Vec<_>>()));
    build(&cluster, &plan, identity.as_ref())
}

fn document(object: &impl Serialize) -> String {
    let value = serde_json::to_value(object).unwrap();
    format!("---\n{}", serde_saphyr::to_string(&value).unwrap())
}

fn documents(objects: &Objects) -> String {
    let mut text = document(&objects.service_account);
    text.extend(objects.role.iter().map(document));
    text.extend(objects.role_binding.iter().map(document));
    text.extend(objects.leases.iter().map(document));
    text.extend(objects.secrets.iter().map(document));
    text.push_str(&document(&objects.config_map));
    text.extend(objects.services.iter().map(document));
    text.extend(objects.disruption_budget.iter().map(document));
    text.push_str(&document(&objects.stateful_set));
    text
}

#[test]
fn a_cluster_on_kafka_is_built_as_checked_in() {
    assert_golden("kafka.yaml", &documents(&built(&kafka_cluster())));
}

#[test]
fn an_embedded_cluster_is_built_as_checked_in() {
    assert_golden("embedded.yaml", &documents(&built(&embedded_cluster())));
}

/// The resource, and the config that its brokers get.
fn resource_and_config(cluster: &MqttCluster) -> String {
    document(cluster) + &document(&built(cluster).config_map)
}

#[test]
fn every_choice_of_the_user_goes_into_the_config_as_checked_in() {
    assert_golden("kafka-choices.yaml", &resource_and_config(&chosen_kafka_cluster()));
    assert_golden("embedded-choices.yaml", &resource_and_config(&chosen_embedded_cluster()));
}

#[test]
fn the_same_cluster_builds_the_same_bytes() {
    assert_eq!(documents(&built(&kafka_cluster())), documents(&built(&kafka_cluster())));
}

#[test]
fn the_pod_template_does_not_depend_on_the_operator_or_the_number_of_brokers() {
    let mut larger = kafka_cluster();
    larger.spec.replicas = 5;
    let template = |cluster: &MqttCluster| document(&built(cluster).stateful_set.spec.unwrap().template);

    let before = template(&kafka_cluster());

    assert_eq!(before, template(&larger));
    let version = env!("CARGO_PKG_VERSION");
    let without_image = before.replace("tidemill/broker:0.1.0", "");
    assert!(!without_image.contains(version), "the operator's version {version} is in the pod template");
}

#[test]
fn brokers_may_write_their_own_leases_and_nothing_else() {
    let objects = built(&kafka_cluster());
    let rules = objects.role.unwrap().rules.unwrap();

    let writing: Vec<_> =
        rules.iter().filter(|rule| rule.verbs.iter().any(|verb| verb == "update")).collect();

    let allowed = ["get", "list", "watch", "update"];
    assert!(rules.iter().flat_map(|rule| &rule.verbs).all(|verb| allowed.contains(&verb.as_str())));
    assert_eq!(writing.len(), 1);
    let names = writing[0].resource_names.as_ref().unwrap();
    assert!(names.iter().all(|name| name.starts_with("demo.")), "{names:?}");
    assert_eq!(names.len(), 3 + 16 + 1, "members, groups, view");
}

#[test]
fn no_pod_mounts_the_key_of_the_authority() {
    let objects = built(&kafka_cluster());
    let volumes = objects.stateful_set.spec.unwrap().template.spec.unwrap().volumes.unwrap();
    let mounted: Vec<_> = volumes.into_iter().filter_map(|volume| volume.secret?.secret_name).collect();

    assert_eq!(mounted, ["demo-peer-tls"]);
    let peer = &objects.secrets[1];
    assert!(peer.data.as_ref().unwrap().keys().all(|key| key != "ca.key"));
}

#[test]
fn a_single_broker_has_no_disruption_budget() {
    assert!(built(&embedded_cluster()).disruption_budget.is_none());
    assert!(built(&kafka_cluster()).disruption_budget.is_some());
}

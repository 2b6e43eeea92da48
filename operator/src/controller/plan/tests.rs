use super::*;
use crate::controller::fixtures::{embedded_cluster, healthy, kafka_cluster, lease, now, ready_pod};
use crate::controller::validate::validate;
use tidemill_crds::MqttCluster;

const IMAGE: &str = "tidemill/broker:0.1.0";

fn planned(cluster: &MqttCluster, observed: &Observed) -> Plan {
    plan(&validate(cluster).unwrap(), observed, IMAGE, now())
}

fn with_replicas(replicas: i32) -> MqttCluster {
    let mut cluster = kafka_cluster();
    cluster.spec.replicas = replicas;
    cluster
}

#[test]
fn a_cluster_that_runs_its_spec_is_steady() {
    let plan = planned(&kafka_cluster(), &healthy(3));

    assert_eq!(plan.operation, Operation::Steady);
    assert_eq!(plan.replicas, 3);
    assert!(plan.missing_leases.is_empty());
    assert!(plan.surplus.is_empty());
}

#[test]
fn a_new_cluster_gets_every_lease_and_its_groups_may_be_claimed_at_once() {
    let plan = planned(&kafka_cluster(), &Observed::default());

    assert_eq!(plan.operation, Operation::Create);
    assert_eq!(plan.missing_leases.len(), 3 + 16 + 1);
    for lease in &plan.missing_leases {
        assert_eq!(lease.epoch, i32::from(lease.kind == names::LEASE_GROUP), "{}", lease.name);
    }
}

#[test]
fn a_lost_group_lease_is_made_again_without_the_right_to_claim_at_once() {
    let mut observed = healthy(3);
    observed.leases.retain(|lease| name(&lease.metadata) != "demo.pg.5");

    let plan = planned(&kafka_cluster(), &observed);

    assert_eq!(
        plan.missing_leases,
        [LeaseToCreate { name: "demo.pg.5".to_owned(), kind: names::LEASE_GROUP, epoch: 0 }]
    );
}

#[test]
fn pods_of_a_former_cluster_of_that_name_keep_new_groups_from_being_claimed_at_once() {
    let observed = Observed { pods: vec![ready_pod("demo-0")], ..Observed::default() };

    let plan = planned(&kafka_cluster(), &observed);

    assert!(plan.missing_leases.iter().all(|lease| lease.epoch == 0));
}

#[test]
fn brokers_are_added_all_at_once() {
    let plan = planned(&with_replicas(5), &healthy(3));

    assert_eq!(plan.operation, Operation::Expand);
    assert_eq!(plan.replicas, 5);
    assert_eq!(
        plan.missing_leases.iter().map(|lease| lease.name.as_str()).collect::<Vec<_>>(),
        ["demo.member.demo-3", "demo.member.demo-4"]
    );
}

#[test]
fn brokers_are_taken_away_one_by_one() {
    let plan = planned(&with_replicas(2), &healthy(5));

    assert_eq!(plan.operation, Operation::Shrink);
    assert_eq!(plan.replicas, 4);
}

#[test]
fn the_next_broker_stays_while_the_last_one_still_owns_a_group() {
    let mut observed = healthy(4);
    observed.leases.push(lease("demo.member.demo-4", "", 2, Some("Leaving")));
    observed.leases.retain(|lease| name(&lease.metadata) != "demo.pg.0");
    observed.leases.push(lease("demo.pg.0", "demo-4_00000000000000aa_1", 1, None));

    assert_eq!(planned(&with_replicas(2), &observed).replicas, 4);
}

#[test]
fn the_next_broker_stays_while_the_last_one_still_runs() {
    let mut observed = healthy(4);
    observed.pods.push(ready_pod("demo-4"));

    assert_eq!(planned(&with_replicas(2), &observed).replicas, 4);
}

#[test]
fn a_cluster_without_a_ready_broker_can_still_be_made_smaller() {
    let mut observed = healthy(4);
    observed.pods.clear();
    observed.leases.push(lease("demo.pg.0", "demo-4_00000000000000aa_1", 1, None));

    assert_eq!(planned(&with_replicas(2), &observed).replicas, 3);
}

#[test]
fn leases_of_brokers_that_are_gone_stay_writable_for_those_who_expire_them() {
    let plan = planned(&with_replicas(2), &healthy(3));

    assert!(plan.granted_leases.contains(&"demo.member.demo-2".to_owned()));
}

#[test]
fn another_default_image_does_not_restart_brokers_that_run() {
    let cluster = validate(&kafka_cluster()).unwrap();

    let plan = plan(&cluster, &healthy(3), "tidemill/broker:9.9.9", now());

    assert_eq!(plan.image, IMAGE);
    assert_eq!(plan.operation, Operation::Steady);
}

#[test]
fn an_image_in_the_spec_rolls_the_brokers() {
    let mut cluster = kafka_cluster();
    cluster.spec.image = Some("registry.example/broker:2".to_owned());

    let plan = planned(&cluster, &healthy(3));

    assert_eq!(plan.image, "registry.example/broker:2");
    assert_eq!(plan.operation, Operation::Roll);
}

#[test]
fn topics_are_created_only_when_managed() {
    let reached = KafkaObservation::Reached { topics: std::collections::BTreeMap::new() };
    let observed = Observed { kafka: Some(reached), ..Observed::default() };
    let created = |cluster: &MqttCluster| {
        let validated = validate(cluster).unwrap();
        plan(&validated, &observed, IMAGE, now()).topics_to_create(&validated).len()
    };
    let mut observing = kafka_cluster();
    observing.spec.kafka.as_mut().unwrap().topic_management = TopicManagement::Observe;

    assert_eq!(created(&kafka_cluster()), 4);
    assert_eq!(created(&observing), 0);
}

#[test]
fn an_embedded_cluster_has_no_leases_and_no_certificates() {
    let plan = planned(&embedded_cluster(), &Observed::default());

    assert!(plan.missing_leases.is_empty());
    assert_eq!(plan.certificates, None);
}

#[test]
fn the_service_of_a_removed_listener_is_surplus() {
    let mut observed = healthy(3);
    let service = |name: &str| k8s_openapi::api::core::v1::Service {
        metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
            name: Some(name.to_owned()),
            ..Default::default()
        },
        ..Default::default()
    };
    observed.services = vec![service("demo-peers"), service("demo-mqtt"), service("demo-old")];

    assert_eq!(planned(&kafka_cluster(), &observed).surplus, [Surplus::Service("demo-old".to_owned())]);
}

#[test]
fn what_is_left_of_a_former_cluster_of_that_name_is_not_built_upon() {
    let mut observed = healthy(3);
    let cluster = validate(&kafka_cluster()).unwrap();
    assert_eq!(left_over(&cluster, &observed), None);

    let mut former = cluster.owner_reference();
    former.uid = "another".to_owned();
    observed.leases[4].metadata.owner_references = Some(vec![former]);

    assert_eq!(left_over(&cluster, &observed), Some("Lease demo.pg.1".to_owned()));
}

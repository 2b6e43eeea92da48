use super::*;
use crate::controller::fixtures::{healthy, kafka_cluster, lease, now};
use crate::controller::plan::plan;
use crate::controller::topics::{KafkaObservation, desired_topics};
use crate::controller::validate::validate;
use k8s_openapi::jiff::SignedDuration;
use tidemill_contract::topics::ObservedTopic;

fn reached(cluster: &MqttCluster) -> KafkaObservation {
    let topics = desired_topics(&validate(cluster).unwrap()).into_iter().map(|topic| {
        let observed = ObservedTopic {
            partitions: usize::try_from(topic.partitions).unwrap(),
            replication_factor: usize::try_from(topic.replication_factor).unwrap(),
            settings: topic.settings.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect(),
        };
        (topic.name, observed)
    });
    KafkaObservation::Reached { topics: topics.collect() }
}

fn healthy_with_kafka() -> Observed {
    Observed { kafka: Some(reached(&kafka_cluster())), ..healthy(3) }
}

fn status(cluster: &MqttCluster, observed: &Observed) -> MqttClusterStatus {
    let validated = validate(cluster).unwrap();
    let plan = plan(&validated, observed, "tidemill/broker:0.1.0", now());
    build_status(cluster.status.as_ref(), &validated, &plan, observed, now())
}

fn condition_of<'a>(status: &'a MqttClusterStatus, type_: &str) -> &'a Condition {
    status.conditions.iter().find(|condition| condition.type_ == type_).unwrap()
}

fn verdict<'a>(status: &'a MqttClusterStatus, type_: &str) -> (&'a str, &'a str) {
    let condition = condition_of(status, type_);
    (&condition.status, &condition.reason)
}

#[test]
fn a_healthy_cluster_is_ready_and_says_where_clients_connect() {
    let status = status(&kafka_cluster(), &healthy_with_kafka());

    assert_eq!(verdict(&status, condition::READY), ("True", "AllReady"));
    assert_eq!(verdict(&status, condition::AVAILABLE), ("True", "BrokerReady"));
    assert_eq!(verdict(&status, condition::PROGRESSING), ("False", "Steady"));
    assert_eq!(verdict(&status, condition::DEGRADED), ("False", "Healthy"));
    assert_eq!(verdict(&status, condition::MEMBERSHIP_HEALTHY), ("True", "AllServing"));
    assert_eq!(verdict(&status, condition::TOPICS_READY), ("True", "AsSpecified"));
    assert_eq!(status.endpoints[0].url, "mqtt://demo-mqtt.messaging.svc:1883");
    assert_eq!(status.partition_groups, Some(PartitionGroupsStatus { total: 16, owned: 16, unowned: 0 }));
    assert_eq!(status.members.iter().map(|member| member.partition_groups).sum::<i32>(), 16);
    assert_eq!((status.replicas, status.ready_replicas, status.updated_replicas), (3, 3, 3));
}

#[test]
fn the_same_observation_later_makes_the_same_status() {
    let mut cluster = kafka_cluster();
    let observed = healthy_with_kafka();
    let first = status(&cluster, &observed);
    cluster.status = Some(first.clone());

    let validated = validate(&cluster).unwrap();
    let plan = plan(&validated, &observed, "tidemill/broker:0.1.0", now());
    let later = now() + SignedDuration::from_hours(5);
    let second = build_status(cluster.status.as_ref(), &validated, &plan, &observed, later);

    assert_eq!(first, second);
}

#[test]
fn a_condition_that_turns_tells_when_and_the_others_keep_their_time() {
    let mut cluster = kafka_cluster();
    cluster.status = Some(status(&cluster, &healthy_with_kafka()));
    let mut observed = healthy_with_kafka();
    observed.kafka = Some(KafkaObservation::Unreachable { reason: "no answer from kafka:9092".to_owned() });
    let validated = validate(&cluster).unwrap();
    let plan = plan(&validated, &observed, "tidemill/broker:0.1.0", now());
    let later = now() + SignedDuration::from_hours(5);

    let status = build_status(cluster.status.as_ref(), &validated, &plan, &observed, later);

    assert_eq!(verdict(&status, condition::KAFKA_READY), ("False", "Unreachable"));
    assert_eq!(verdict(&status, condition::TOPICS_READY), ("Unknown", "KafkaUnreachable"));
    assert_eq!(verdict(&status, condition::AVAILABLE), ("True", "BrokerReady"), "brokers still take clients");
    assert_eq!(condition_of(&status, condition::KAFKA_READY).last_transition_time.0, later);
    assert_eq!(condition_of(&status, condition::AVAILABLE).last_transition_time.0, now());
}

#[test]
fn a_broker_that_lost_its_lease_degrades_the_cluster_and_its_groups_count_as_unowned() {
    let mut cluster = kafka_cluster();
    let mut observed = healthy_with_kafka();
    cluster.status = Some(status(&cluster, &observed));
    observed.leases.retain(|lease| lease.name_any() != "demo.member.demo-1");
    observed.leases.push(lease("demo.member.demo-1", "", 2, Some("Serving")));

    let status = status(&cluster, &observed);

    assert_eq!(verdict(&status, condition::MEMBERSHIP_HEALTHY), ("False", "NotServing"));
    assert_eq!(verdict(&status, condition::DEGRADED), ("True", "NotServing"));
    assert_eq!(verdict(&status, condition::READY), ("False", "NotServing"));
    assert_eq!(status.members[1].state, "Absent");
    assert_eq!(status.partition_groups.unwrap().unowned, 5);
}

#[test]
fn one_replica_in_kafka_is_said_to_be_not_power_loss_durable() {
    let mut cluster = kafka_cluster();
    let kafka = cluster.spec.kafka.as_mut().unwrap();
    kafka.replication_factor = 1;
    kafka.min_in_sync_replicas = 1;
    let mut observed = healthy_with_kafka();
    observed.kafka = Some(reached(&cluster));

    let status = status(&cluster, &observed);

    assert!(condition_of(&status, condition::TOPICS_READY).message.contains("not power-loss durable"));
}

#[test]
fn a_refused_spec_is_told_in_its_own_words_and_nothing_else_is_forgotten() {
    let mut cluster = kafka_cluster();
    cluster.status = Some(status(&cluster, &healthy_with_kafka()));
    cluster.spec.auth = None;
    let refusal = validate(&cluster).unwrap_err();

    let status = refused_status(&cluster, &refusal, now());

    assert_eq!(verdict(&status, condition::READY), ("False", "SpecInvalid"));
    assert!(condition_of(&status, condition::DEGRADED).message.starts_with("auth is missing"));
    assert_eq!(verdict(&status, condition::AVAILABLE), ("True", "BrokerReady"));
    assert_eq!(status.ready_replicas, 3);
}

#[test]
fn a_paused_cluster_says_so() {
    let mut cluster = kafka_cluster();
    cluster.spec.paused = true;
    cluster.spec.replicas = 5;

    let status = status(&cluster, &healthy_with_kafka());

    assert_eq!(verdict(&status, condition::PAUSED), ("True", "Paused"));
    assert_eq!(verdict(&status, condition::PROGRESSING), ("False", "Paused"));
    assert_eq!(verdict(&status, condition::AVAILABLE), ("True", "BrokerReady"));
}

#[test]
fn brokers_that_start_are_progress_for_ten_minutes_and_a_degradation_after_that() {
    let mut cluster = kafka_cluster();
    let mut observed = healthy_with_kafka();
    let stateful_set = observed.stateful_set.as_mut().unwrap();
    stateful_set.status.as_mut().unwrap().ready_replicas = Some(2);
    cluster.status = Some(status(&cluster, &observed));
    let validated = validate(&cluster).unwrap();
    let plan = plan(&validated, &observed, "tidemill/broker:0.1.0", now());
    let at = |minutes| {
        let at = now() + SignedDuration::from_mins(minutes);
        build_status(cluster.status.as_ref(), &validated, &plan, &observed, at)
    };

    let (soon, late) = (at(9), at(10));

    assert_eq!(verdict(&soon, condition::PROGRESSING), ("True", "Starting"));
    assert_eq!(verdict(&soon, condition::DEGRADED), ("False", "Healthy"));
    assert_eq!(verdict(&late, condition::PROGRESSING), ("False", "Steady"));
    assert_eq!(verdict(&late, condition::DEGRADED), ("True", "BrokersNotReady"));
    assert_eq!(verdict(&late, condition::READY), ("False", "BrokersNotReady"));
}

#[test]
fn topics_that_the_operator_makes_are_no_degradation_and_missing_ones_of_others_are() {
    let mut cluster = kafka_cluster();
    let mut observed = healthy_with_kafka();
    observed.kafka = Some(KafkaObservation::Reached { topics: std::collections::BTreeMap::new() });
    let managed = status(&cluster, &observed);
    cluster.spec.kafka.as_mut().unwrap().topic_management = tidemill_crds::TopicManagement::Observe;
    let others = status(&cluster, &observed);

    assert_eq!(verdict(&managed, condition::TOPICS_READY), ("False", "Creating"));
    assert_eq!(verdict(&managed, condition::DEGRADED), ("False", "Healthy"));
    assert_eq!(verdict(&others, condition::TOPICS_READY), ("False", "Missing"));
    assert_eq!(verdict(&others, condition::DEGRADED), ("True", "Missing"));
}

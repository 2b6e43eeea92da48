//! The operator's Kafka client on a real Kafka: the topics it makes are the topics it wants, and what others made of
//! them is told.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use tidemill_contract::topics::{Topic, TopicReport, compare_topics};
use tidemill_e2e::environment::kafka;
use tidemill_operator::clients::kafka::{CreateError, KafkaObserver};
use tidemill_operator::controller::topics::{KafkaObservation, desired_topics};
use tidemill_operator::controller::validate::validate;

/// The topics of a cluster of its own for each test.
fn desired(test: &str, replication_factor: i16) -> Vec<Topic> {
    let cluster = serde_json::json!({
        "apiVersion": "tidemill.dev/v1alpha1",
        "kind": "MqttCluster",
        "metadata": {"name": test, "namespace": "e2e", "uid": "u"},
        "spec": {
            "kafka": {
                "bootstrapServers": "unused:9092",
                "topicPrefix": format!("{test}-{}", std::process::id()),
                "replicationFactor": replication_factor,
                "minInSyncReplicas": 1,
                "partitions": 4,
                "partitionGroups": 2,
            },
            "auth": {"anonymous": true},
        },
    });
    let cluster = serde_json::from_value(cluster).expect("the document is an MqttCluster");
    desired_topics(&validate(&cluster).expect("the cluster is valid"))
}

async fn compared(observer: &KafkaObserver, topics: &[Topic]) -> TopicReport {
    let names = topics.iter().map(|topic| topic.name.clone()).collect();
    let servers = kafka().expect("TIDEMILL_E2E_KAFKA names the Kafka of the test");
    match observer.observe(&servers, names).await {
        KafkaObservation::Reached { topics: observed } => compare_topics(topics, &observed),
        KafkaObservation::Unreachable { reason } => panic!("{reason}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_are_created_as_wanted_and_looking_at_them_creates_none() {
    let observer = KafkaObserver::default();
    let topics = desired("created", 1);

    assert_eq!(compared(&observer, &topics).await.missing, topics);
    assert_eq!(compared(&KafkaObserver::default(), &topics).await.missing, topics, "a look is only a look");
    observer.create(&kafka().unwrap(), topics.clone()).await.unwrap();

    assert_eq!(compared(&observer, &topics).await, TopicReport::default());
    observer.create(&kafka().unwrap(), topics.clone()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_somebody_else_made_otherwise_is_told_and_left_alone() {
    let observer = KafkaObserver::default();
    let topics = desired("foreign", 1);
    let mut foreign = topics[1].clone();
    foreign.partitions = 2;
    foreign.settings.insert("cleanup.policy", "delete".to_owned());
    foreign.settings.insert("unclean.leader.election.enable", "true".to_owned());
    observer.create(&kafka().unwrap(), vec![foreign]).await.unwrap();

    observer.create(&kafka().unwrap(), topics.clone()).await.unwrap();

    let name = &topics[1].name;
    assert_eq!(
        compared(&observer, &topics).await.problems,
        [
            format!("{name} has 2 partitions instead of 4, and the number cannot change"),
            format!("{name} has cleanup.policy=delete instead of compact"),
            format!("{name} has unclean.leader.election.enable=true instead of false"),
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_kafka_refuses_is_named() {
    let topics = desired("toomany", 100);

    let refused = KafkaObserver::default().create(&kafka().unwrap(), topics).await;

    assert!(matches!(refused, Err(CreateError::Topic { .. })), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kafka_that_is_away_is_an_observation_and_holds_up_nobody_else() {
    let observer = KafkaObserver::default();
    let topics = desired("away", 1);
    let away = observer.observe("127.0.0.1:1", vec![topics[0].name.clone()]);
    tokio::pin!(away);

    let report = tokio::select! {
        biased;
        seen = &mut away => panic!("the one that is away came first: {seen:?}"),
        report = compared(&observer, &topics) => report,
    };
    let away = away.await;

    assert_eq!(report.missing.len(), 4);
    assert!(matches!(away, KafkaObservation::Unreachable { .. }), "{away:?}");
}

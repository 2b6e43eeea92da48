//! Three broker processes, a real Kafka, a real Kubernetes API: both stories, without pods.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use rumqttc::v5::mqttbytes::v5::{DisconnectReasonCode, Packet};
use rumqttc::v5::{AsyncClient, ConnectionError, Event, MqttOptions, StateError};
use std::time::Duration;
use tidemill_core::partition::{Partitioning, QueueKind};
use tidemill_e2e::audit::{Audit, Load};
use tidemill_e2e::environment::is_soak;
use tidemill_e2e::mosquitto::{Subscriber, publish};
use tidemill_e2e::processes::Processes;

const PERSISTENT: [&str; 3] = ["-i", "reader", "-c"];

/// A cluster name of its own for each test: leases and topics are not shared.
fn unique(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

/// The partition group of a session in the clusters of `Processes`.
fn group_of(client_id: &str) -> u16 {
    let partitioning = Partitioning::new(8, 6).expect("8 partitions in 6 groups");
    partitioning.group_of(partitioning.partition_of(QueueKind::Session, client_id)).0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_on_one_broker_gets_what_is_published_on_another() {
    let cluster = Processes::start(&unique("live"), 3).await.unwrap();
    let endpoints = cluster.endpoints();
    let mut subscriber = Subscriber::start(&endpoints[0], "news/#", 1, &[]).await.unwrap();

    for (number, endpoint) in endpoints.iter().enumerate() {
        publish(endpoint, "news/local", &number.to_string(), u8::try_from(number % 2).unwrap(), &[])
            .await
            .unwrap();
        assert_eq!(subscriber.next_message().await.unwrap(), format!("news/local {number}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_that_was_away_gets_its_message_although_the_owner_was_killed_in_between() {
    let mut cluster = Processes::start(&unique("away"), 3).await.unwrap();
    let endpoints = cluster.endpoints();
    let owner = cluster.owner_of(group_of("reader")).await.unwrap();
    let others: Vec<_> = (0..3).filter(|number| *number != owner).collect();
    Subscriber::start(&endpoints[others[0]], "orders/#", 1, &PERSISTENT).await.unwrap().kill().await.unwrap();

    publish(&endpoints[owner], "orders/1", "kept", 1, &[]).await.unwrap();
    cluster.brokers[owner].kill().await.unwrap();

    let resumed =
        tidemill_e2e::wait::until("the session at another broker", Duration::from_secs(60), || async {
            Subscriber::start(&endpoints[others[1]], "orders/#", 1, &PERSISTENT).await.map(Some)
        });
    assert_eq!(resumed.await.unwrap().next_message().await.unwrap(), "orders/1 kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_id_has_one_connection_in_the_whole_cluster() {
    let cluster = Processes::start(&unique("takeover"), 3).await.unwrap();
    let endpoints = cluster.endpoints();
    let mut options = MqttOptions::new("one", &endpoints[0].host, endpoints[0].port);
    options.set_keep_alive(Duration::from_secs(60));
    let (_first, mut events) = AsyncClient::new(options, 10);
    let connected = events.poll().await.unwrap();
    assert!(matches!(connected, Event::Incoming(Packet::ConnAck(_))), "{connected:?}");

    let mut second = Subscriber::start(&endpoints[1], "t", 1, &["-i", "one"]).await.unwrap();

    let ended = async {
        loop {
            match events.poll().await {
                Ok(_) => {}
                Err(ConnectionError::MqttState(StateError::ServerDisconnect { reason_code, .. })) => {
                    break reason_code;
                }
                Err(error) => panic!("closed without a word: {error}"),
            }
        }
    };
    let reason = tokio::time::timeout(Duration::from_secs(30), ended).await.unwrap();
    assert_eq!(reason, DisconnectReasonCode::SessionTakenOver);
    publish(&endpoints[2], "t", "once", 1, &[]).await.unwrap();

    assert_eq!(second.next_message().await.unwrap(), "t once");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_acknowledged_message_is_lost_when_brokers_are_killed_under_load() {
    let mut cluster = Processes::start(&unique("audit"), 3).await.unwrap();
    let load = Load { name: "processes".into(), publishers: 6, pause: Duration::from_millis(5) };
    let audit = Audit::start(cluster.endpoints(), load).await.unwrap();

    let rounds = if is_soak() { 20 } else { 2 };
    for round in 0..rounds {
        audit.wait_for_progress(100, Duration::from_secs(90)).await.unwrap();
        let victim = round % 3;
        cluster.brokers[victim].kill().await.unwrap();
        audit.wait_for_progress(100, Duration::from_secs(90)).await.unwrap();
        cluster.brokers[victim].restart().await.unwrap();
    }
    let verdict = audit.finish(Duration::from_secs(40)).await.unwrap();

    println!("audit: {verdict:?}");
    assert_eq!(verdict.lost, []);
    assert_eq!(verdict.reordered, []);
}

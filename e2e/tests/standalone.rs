//! `make run` on one machine: what was acknowledged survives `kill -9` and restart on the embedded log.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;
use tidemill_contract::config::Config;
use tidemill_e2e::audit::{Audit, Load};
use tidemill_e2e::broker::Broker;
use tidemill_e2e::environment::is_soak;
use tidemill_e2e::mosquitto::{Subscriber, publish};

const PERSISTENT: [&str; 3] = ["-i", "reader", "-c"];

#[tokio::test(flavor = "multi_thread")]
async fn a_message_passes_from_publisher_to_subscriber() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(folder.path(), Config::default(), &[]).await.unwrap();
    let mut subscriber = Subscriber::start(broker.mqtt(), "plant/+/temperature", 0, &[]).await.unwrap();

    publish(broker.mqtt(), "plant/7/temperature", "21.5", 0, &[]).await.unwrap();
    publish(broker.mqtt(), "plant/8/temperature", "19", 1, &["-V", "5"]).await.unwrap();

    assert_eq!(subscriber.next_message().await.unwrap(), "plant/7/temperature 21.5");
    assert_eq!(subscriber.next_message().await.unwrap(), "plant/8/temperature 19");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_that_was_away_gets_its_message_although_the_broker_was_killed_in_between() {
    let folder = tempfile::tempdir().unwrap();
    let mut broker = Broker::start(folder.path(), Config::default(), &[]).await.unwrap();
    let subscriber = Subscriber::start(broker.mqtt(), "orders/#", 1, &PERSISTENT).await.unwrap();
    subscriber.kill().await.unwrap();

    publish(broker.mqtt(), "orders/1", "kept", 1, &[]).await.unwrap();
    broker.kill().await.unwrap();
    broker.restart().await.unwrap();

    let mut subscriber = Subscriber::start(broker.mqtt(), "orders/#", 1, &PERSISTENT).await.unwrap();
    assert_eq!(subscriber.next_message().await.unwrap(), "orders/1 kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_acknowledged_message_is_lost_over_kill_9_and_restart_under_load() {
    let folder = tempfile::tempdir().unwrap();
    let mut broker = Broker::start(folder.path(), Config::default(), &[]).await.unwrap();
    let load = Load { name: "kill".into(), publishers: 8, pause: Duration::ZERO };
    let audit = Audit::start(vec![broker.mqtt().clone()], load).await.unwrap();

    let rounds = if is_soak() { 50 } else { 5 };
    for _ in 0..rounds {
        audit.wait_for_progress(200, Duration::from_secs(60)).await.unwrap();
        broker.kill().await.unwrap();
        broker.restart().await.unwrap();
    }
    audit.wait_for_progress(200, Duration::from_secs(60)).await.unwrap();
    let verdict = audit.finish(Duration::from_secs(20)).await.unwrap();

    println!("audit: {verdict:?}");
    assert!(verdict.acknowledged >= 200 * (rounds + 1));
    assert_eq!(verdict.lost, []);
    assert_eq!(verdict.reordered, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_ends_the_broker_with_status_0_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut broker = Broker::start(folder.path(), Config::default(), &[]).await.unwrap();
    Subscriber::start(broker.mqtt(), "t", 1, &PERSISTENT).await.unwrap().kill().await.unwrap();
    publish(broker.mqtt(), "t", "before", 1, &[]).await.unwrap();

    broker.terminate().await.unwrap();
    broker.restart().await.unwrap();

    let mut subscriber = Subscriber::start(broker.mqtt(), "t", 1, &PERSISTENT).await.unwrap();
    assert_eq!(subscriber.next_message().await.unwrap(), "t before");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_broker_on_the_same_data_directory_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(folder.path(), Config::default(), &[]).await.unwrap();

    let second = Broker::start(folder.path(), Config::default(), &[]).await;

    let error = second.err().expect("the data directory is locked").to_string();
    assert!(error.contains("data"), "names the directory: {error}");
    drop(broker);
}

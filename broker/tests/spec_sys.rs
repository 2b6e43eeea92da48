//! `$SYS/broker/...`, over real sockets.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "fixture/broker.rs"]
mod broker;
#[path = "fixture/client.rs"]
mod client;

use broker::Broker;
use client::Client;
use std::collections::BTreeMap;
use tidemill_core::packet::{QoS, Version};

/// The figures as they are published until `is_enough`.
async fn figures(
    watcher: &mut Client,
    is_enough: impl Fn(&BTreeMap<String, String>) -> bool,
) -> BTreeMap<String, String> {
    let mut figures = BTreeMap::new();
    // A figure that never comes must not hang the test.
    for _ in 0..1_000 {
        if is_enough(&figures) {
            return figures;
        }
        let (topic, _, payload) = watcher.receive().await.message();
        let name = topic.strip_prefix("$SYS/broker/").expect("only $SYS/broker was subscribed").to_owned();
        figures.insert(name, String::from_utf8(payload).unwrap());
    }
    panic!("not there yet: {figures:?}")
}

/// Those that the test below reads.
const FIGURES: [&str; 15] = [
    "version",
    "uptime",
    "clients/connected",
    "clients/maximum",
    "publish/messages/received",
    "publish/bytes/received",
    "publish/messages/sent",
    "publish/messages/dropped",
    "subscriptions/count",
    "messages/received",
    "bytes/received",
    "messages/sent",
    "bytes/sent",
    "retained messages/count",
    "load/publish/sent/15min",
];

#[tokio::test]
async fn the_broker_says_what_it_counts_in_the_names_of_mosquitto() {
    let broker = Broker::start_with("mqtt: {sysIntervalSecs: 1}").await;
    let mut busy = Client::connect(broker.address(), Version::V3_1_1, "busy").await;
    busy.subscribe(&[("t", QoS::AtMostOnce)]).await;
    for _ in 0..3 {
        busy.publish("t", b"12345", None).await;
    }
    assert_eq!(busy.ping().await.len(), 3);
    let mut watcher = Client::connect(broker.address(), Version::V3_1_1, "watcher").await;
    watcher.subscribe(&[("$SYS/#", QoS::AtLeastOnce)]).await;

    let figures = figures(&mut watcher, |figures| {
        // They come one by one, and what does not change comes once.
        let is_whole = FIGURES.iter().all(|name| figures.contains_key(*name));
        let is = |name: &str, count: &str| figures.get(name).is_some_and(|figure| figure == count);
        // The first figures were read before any of them was retained.
        let is_later = !is("retained messages/count", "0");
        is_whole && is_later && is("messages/received", "8") && is("subscriptions/count", "2")
    })
    .await;

    let number = |name: &str| figures[name].parse::<u64>().unwrap();
    assert_eq!(figures["version"], format!("tidemill version {}", env!("CARGO_PKG_VERSION")));
    assert!(figures["uptime"].ends_with(" seconds"));
    assert_eq!((number("clients/connected"), number("clients/maximum")), (2, 2));
    assert_eq!((number("publish/messages/received"), number("publish/bytes/received")), (3, 15));
    assert!(number("publish/messages/sent") >= 3);
    assert_eq!(number("publish/messages/dropped"), 0);
    assert_eq!(number("subscriptions/count"), 2);
    // Two CONNECT, two SUBSCRIBE, three PUBLISH, one PINGREQ.
    assert_eq!(number("messages/received"), 8);
    let connects = 2 * (2 + 10 + 2) + "busy".len() + "watcher".len();
    let subscribes = 2 * (2 + 2 + 2 + 1) + "t".len() + "$SYS/#".len();
    let publishes = 3 * (2 + 2 + 1 + 5);
    assert_eq!(number("bytes/received"), u64::try_from(connects + subscribes + publishes + 2).unwrap());
    assert!(number("messages/sent") >= 8 && number("bytes/sent") >= 40);
    assert!(number("retained messages/count") >= 30, "these themselves");
}

#[tokio::test]
async fn a_new_subscriber_gets_the_present_figures_at_once_and_then_what_changes() {
    let broker = Broker::start_with("mqtt: {sysIntervalSecs: 3600}").await;
    let mut watcher = Client::connect(broker.address(), Version::V3_1_1, "watcher").await;
    // The first figures are published at the start, perhaps after the first client is there.
    broker.until(|broker| broker.data_path.metrics.totals().retained > 0).await;

    watcher.subscribe(&[("$SYS/broker/version", QoS::AtMostOnce)]).await;

    let received = watcher.receive().await;
    assert_eq!(received.first_byte, 0x31, "with the retain flag");
    assert_eq!(received.message().0, "$SYS/broker/version");
}

/// MQTT-4.7.2-1, and the topics are the broker's alone.
#[tokio::test]
async fn nobody_gets_sys_by_a_wildcard_at_the_first_level() {
    let broker = Broker::start_with("mqtt: {sysIntervalSecs: 1}").await;
    let mut everything = Client::connect(broker.address(), Version::V3_1_1, "everything").await;
    everything.subscribe(&[("#", QoS::AtMostOnce), ("+/broker/uptime", QoS::AtMostOnce)]).await;
    let mut watcher = Client::connect(broker.address(), Version::V3_1_1, "watcher").await;
    watcher.subscribe(&[("$SYS/broker/uptime", QoS::AtMostOnce)]).await;

    figures(&mut watcher, |figures| figures.contains_key("uptime")).await;

    assert_eq!(everything.ping().await, []);
}

#[tokio::test]
async fn peers_and_the_log_hear_nothing_of_sys() {
    let broker = Broker::start_with("mqtt: {sysIntervalSecs: 1}").await;
    let router = &broker.data_path.router;
    let filter = tidemill_core::topic::TopicFilter::parse("$SYS/#").unwrap();
    let class = tidemill_broker::cluster::LiveClass::AnyQos;
    let route = tidemill_broker::cluster::Route::Live { filter: filter.clone(), class };
    let peer = tidemill_core::member::MemberId::new("peer-1");
    router.apply_peer_routes(&peer, &[tidemill_broker::cluster::RouteChange::Add(route)]);
    router.apply_durable(tidemill_core::partition::Partition(0), &[filter], &[]);
    let mut watcher = Client::connect(broker.address(), Version::V3_1_1, "watcher").await;
    watcher.subscribe(&[("$SYS/broker/uptime", QoS::AtMostOnce)]).await;

    figures(&mut watcher, |figures| figures.contains_key("uptime")).await;

    assert!(broker.peers.forwards().is_empty() && broker.log.records(0).is_empty());
}

//! Wills: when they are published, and when not (MQTT 5.0 sections 3.1.2.5, 3.1.3.2 and 3.14.4), over real sockets.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "fixture/broker.rs"]
mod broker;
#[path = "fixture/client.rs"]
mod client;

use broker::Broker;
use client::{Client, connect, will};
use tidemill_core::packet::{Connect, Disconnect, Packet, QoS, ReasonCode, Version};

/// A 5.0 client with a will on `topic` and a session that outlives the connection.
fn with_will(topic: &str, delay_secs: u32, session_expiry_secs: u32) -> Connect {
    let mut connect = connect(Version::V5, "willing");
    connect.clean_start = false;
    connect.session_expiry_secs = Some(session_expiry_secs).filter(|secs| *secs > 0);
    connect.will = will(topic, delay_secs);
    connect
}

async fn watcher(broker: &Broker) -> Client {
    let mut watcher = Client::connect(broker.address(), Version::V3_1_1, "watcher").await;
    watcher.subscribe(&[("will/#", QoS::AtMostOnce)]).await;
    watcher
}

async fn until_gone(broker: &Broker) {
    broker.until(|broker| broker.data_path.registry.find("willing").is_none()).await;
}

/// MQTT-3.1.3-9 with section 3.1.2.5: the session ends with the connection, so the delay does not run.
#[tokio::test]
async fn a_will_delay_ends_with_the_session() {
    let broker = Broker::start().await;
    let mut watcher = watcher(&broker).await;
    let (clean, _) = Client::connect_with(broker.address(), with_will("will/clean", 3_600, 0)).await;
    drop(clean);
    assert_eq!(watcher.receive().await.message().0, "will/clean");

    let (mut ends, _) = Client::connect_with(broker.address(), with_will("will/ends", 3_600, 3_600)).await;
    // 0x04, and the session ends now.
    ends.send_raw(b"\xe0\x07\x04\x05\x11\0\0\0\0").await;
    assert_eq!(watcher.receive().await.message().0, "will/ends");

    let (short, _) = Client::connect_with(broker.address(), with_will("will/short", 3_600, 1)).await;
    drop(short);
    assert_eq!(watcher.receive().await.message().0, "will/short");
}

/// MQTT 5.0 section 3.1.3.2.2: the delay runs, then the will is published.
#[tokio::test]
async fn a_will_is_published_after_its_delay() {
    let broker = Broker::start().await;
    let mut watcher = watcher(&broker).await;

    let (client, _) = Client::connect_with(broker.address(), with_will("will/late", 1, 3_600)).await;
    drop(client);
    until_gone(&broker).await;

    assert_eq!(watcher.ping().await, [], "the delay runs");
    assert_eq!(watcher.receive().await.message().0, "will/late");
}

/// MQTT-3.1.4-3 with section 3.1.3.2.2: the old will goes out when the old connection closes; with a delay it is not
/// sent if the session goes on, and sent if the new connection starts anew. The new will is never sent.
#[tokio::test]
async fn a_takeover_publishes_the_old_will_unless_its_delay_runs_into_the_resumed_session() {
    let broker = Broker::start().await;
    let mut watcher = watcher(&broker).await;
    let (mut first, _) = Client::connect_with(broker.address(), with_will("will/1", 0, 3_600)).await;
    let (mut second, _) = Client::connect_with(broker.address(), with_will("will/2", 60, 3_600)).await;
    assert_eq!(first.farewell().await, 0x8E);
    assert_eq!(watcher.receive().await.message().0, "will/1");

    let (mut third, _) = Client::connect_with(broker.address(), with_will("will/3", 60, 3_600)).await;
    assert_eq!(second.farewell().await, 0x8E);
    let mut anew = with_will("will/4", 60, 3_600);
    anew.clean_start = true;
    let (_fourth, _) = Client::connect_with(broker.address(), anew).await;
    assert_eq!(third.farewell().await, 0x8E);

    assert_eq!(watcher.receive().await.message().0, "will/3", "will/2 was called off");
    assert_eq!(watcher.ping().await, []);
}

/// MQTT-3.1.2-8, MQTT-3.14.4-3: a client that is closed for what it sent, or that says anything but a normal end.
#[tokio::test]
async fn a_protocol_error_and_any_failing_disconnect_publish_the_will() {
    let broker = Broker::start().await;
    let mut watcher = watcher(&broker).await;
    let ends: [(&str, &[u8]); 4] = [
        ("will/second-connect", b"\x10\x0e\0\x04MQTT\x05\x02\0\x3c\0\0\x01c"),
        ("will/alias", b"\x30\x07\0\0\x03\x23\0\x01m"),
        ("will/too-large", b"\x30\xff\xff\xff\x7f"),
        ("will/quota", b"\xe0\x01\x97"),
    ];

    for (topic, bytes) in ends {
        let (mut client, _) = Client::connect_with(broker.address(), with_will(topic, 0, 0)).await;
        client.send_raw(bytes).await;
        assert_eq!(watcher.receive().await.message().0, topic);
    }
}

/// A deviation of this broker: docs/decisions/0009-wills-of-connections-the-broker-closes.md.
#[tokio::test]
async fn a_will_is_called_off_when_a_client_that_the_broker_closed_comes_back() {
    let broker = Broker::start().await;
    let (mut client, _) = Client::connect_with(broker.address(), with_will("will/called-off", 0, 0)).await;
    broker.validity.set(0);
    assert_eq!(client.farewell().await, 0x8B);
    until_gone(&broker).await;
    broker.validity.set(u64::MAX);
    let mut watcher = watcher(&broker).await;

    let mut back = with_will("will/back", 0, 0);
    back.clean_start = true;
    let (back, _) = Client::connect_with(broker.address(), back).await;
    drop(back);

    assert_eq!(watcher.receive().await.message().0, "will/back");
    assert_eq!(watcher.ping().await, []);
}

#[tokio::test]
async fn a_will_that_cannot_be_published_as_asked_is_refused() {
    let broker = Broker::start_with(broker::CLUSTER).await;
    let mut exactly_once = connect(Version::V5, "c");
    exactly_once.will = will("w", 0);
    exactly_once.will.as_mut().unwrap().qos = QoS::ExactlyOnce;

    let mut retained = connect(Version::V5, "c");
    retained.will = will("w", 0);
    retained.will.as_mut().unwrap().retain = true;

    for (refused, code) in [(exactly_once, 0x9B), (retained, 0x9A)] {
        let (mut client, connack) = Client::connect_with(broker.address(), refused).await;

        assert_eq!(connack.body[1], code);
        assert_eq!(client.receive_or_end().await, None);
    }
}

#[tokio::test]
async fn the_will_is_published_on_an_abnormal_end_and_on_0x04_but_not_on_a_normal_one() {
    let broker = Broker::start().await;
    let mut watcher = Client::connect(broker.address(), Version::V3_1_1, "watcher").await;
    watcher.subscribe(&[("will/#", QoS::AtLeastOnce)]).await;
    let with_will = |topic: &str| {
        let mut connect = connect(Version::V5, topic);
        connect.will = will(topic, 0);
        connect
    };

    let (mut normal, _) = Client::connect_with(broker.address(), with_will("will/normal")).await;
    normal.send(Packet::Disconnect(Disconnect::new(ReasonCode::SUCCESS))).await;
    assert_eq!(normal.receive_or_end().await, None);
    let (mut asking, _) = Client::connect_with(broker.address(), with_will("will/asked")).await;
    asking.send_raw(&[0xE0, 1, 4]).await;
    assert_eq!(asking.receive_or_end().await, None);
    assert_eq!(watcher.receive().await.message().0, "will/asked");
    let (lost, _) = Client::connect_with(broker.address(), with_will("will/lost")).await;
    drop(lost);
    assert_eq!(watcher.receive().await.message().0, "will/lost");
    let (mut bad, _) = Client::connect_with(broker.address(), with_will("will/malformed")).await;
    bad.send_raw(&[0xFF, 0]).await;
    assert_eq!(watcher.receive().await.message().0, "will/malformed");
}

#[tokio::test]
async fn a_will_with_a_delay_is_cancelled_by_a_reconnect_and_published_by_a_clean_start() {
    let broker = Broker::start().await;
    let mut watcher = Client::connect(broker.address(), Version::V3_1_1, "watcher").await;
    watcher.subscribe(&[("will/#", QoS::AtMostOnce)]).await;
    let session = |clean_start, topic: Option<&str>| {
        let mut connect = connect(Version::V5, "delayed");
        connect.clean_start = clean_start;
        connect.session_expiry_secs = Some(3_600);
        connect.will = topic.and_then(|topic| will(topic, 3_600));
        connect
    };

    let (first, _) = Client::connect_with(broker.address(), session(true, Some("will/cancelled"))).await;
    drop(first);
    broker.until(|broker| broker.data_path.registry.find("delayed").is_none()).await;
    let (second, connack) = Client::connect_with(broker.address(), session(false, Some("will/clean"))).await;
    assert_eq!(connack.body[0], 1, "the session is present");
    drop(second);
    broker.until(|broker| broker.data_path.registry.find("delayed").is_none()).await;
    let (_third, connack) = Client::connect_with(broker.address(), session(true, None)).await;

    assert_eq!(connack.body[0], 0);
    assert_eq!(watcher.receive().await.message().0, "will/clean");
}

/// An empty user property takes 5 bytes of CONNECT and 64 of the broker's memory, for as long as the client is there.
#[tokio::test]
async fn a_will_that_would_take_far_more_memory_than_its_packet_had_bytes_is_refused() {
    let broker = Broker::start().await;
    for (count, reason) in [(1_000, 0x00), (40_000, 0x97)] {
        let mut connect = with_will("will/large", 0, 0);
        let will = connect.will.as_mut().unwrap();
        let properties = will.properties.get_or_insert_default();
        properties.user_properties = (0..count).map(|_| ("".into(), "".into())).collect();

        let (_client, connack) = Client::connect_with(broker.address(), connect).await;

        assert_eq!(connack.body[1], reason, "{count} user properties");
    }
}

#[tokio::test]
async fn a_silent_client_is_closed_after_its_keep_alive_with_0x8d_and_its_will_is_published() {
    let broker = Broker::start().await;
    let mut watcher = Client::connect(broker.address(), Version::V3_1_1, "watcher").await;
    watcher.subscribe(&[("will/#", QoS::AtMostOnce)]).await;
    let mut silent = connect(Version::V5, "silent");
    silent.keep_alive_secs = 1;
    silent.will = will("will/silent", 0);

    let (mut silent, _) = Client::connect_with(broker.address(), silent).await;

    assert_eq!(silent.farewell().await, 0x8D);
    assert_eq!(watcher.receive().await.message().0, "will/silent");
}

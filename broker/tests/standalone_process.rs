//! The process with its own owner and log: signals, races for a client id, and what it says about its sessions.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "fixture/client.rs"]
mod client;
#[path = "fixture/process.rs"]
mod process;

use client::{Client, connect, will};
use process::Process;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use tidemill_core::packet::{Connect, Disconnect, Packet, QoS, ReasonCode, Version};

fn session(client_id: &str) -> Connect {
    let mut connect = connect(Version::V3_1_1, client_id);
    connect.clean_start = false;
    connect
}

/// Subscribes a persistent session and leaves.
async fn leave_a_subscription(address: SocketAddr, client_id: &str, filter: &str) {
    let (mut client, _) = Client::connect_with(address, session(client_id)).await;
    client.subscribe(&[(filter, QoS::AtLeastOnce)]).await;
    client.send(Packet::Disconnect(Disconnect::new(ReasonCode::SUCCESS))).await;
    assert_eq!(client.receive_or_end().await, None);
}

#[tokio::test]
async fn sigterm_writes_what_is_queued_tells_5_0_clients_0x8b_and_exits_with_0() {
    for signal in [Signal::TERM, Signal::INT] {
        let data = tempfile::tempdir().unwrap();
        let (broker, address) = Process::start(data.path()).await;
        let mut subscriber = Client::connect(address, Version::V5, "subscriber").await;
        subscriber.subscribe(&[("t", QoS::AtMostOnce)]).await;
        let mut publisher = Client::connect(address, Version::V3_1_1, "publisher").await;
        publisher.publish("t", &vec![b'x'; 900_000], None).await;
        publisher.ping().await;

        broker.signal(signal);

        assert_eq!(subscriber.receive().await.body.len(), 900_004);
        let told = subscriber.receive().await;
        assert_eq!((told.first_byte, told.body[0]), (0xE0, 0x8B));
        assert_eq!(subscriber.receive_or_end().await, None);
        assert_eq!(publisher.receive_or_end().await, None);
        drop((subscriber, publisher));
        assert!(broker.wait().await.success());
        assert!(tokio::net::TcpStream::connect(address).await.is_err());
    }
}

#[tokio::test]
async fn a_second_signal_ends_the_broker_at_once_with_1() {
    let data = tempfile::tempdir().unwrap();
    let (mut broker, address) = Process::start(data.path()).await;
    // It neither reads nor closes, so that the broker waits for it.
    let _silent = Client::connect(address, Version::V5, "silent").await;

    broker.signal(Signal::TERM);
    broker.line_with("stopping").await;
    broker.signal(Signal::TERM);

    assert_eq!(broker.wait().await.code(), Some(1));
}

#[tokio::test]
async fn a_signal_ends_a_broker_that_still_waits_for_kafka() {
    let data = tempfile::tempdir().unwrap();
    let kafka = "kafka={bootstrapServers: '127.0.0.1:1'}";
    let mut broker = Process::spawn(data.path(), &["--set", kafka]);
    broker.line_with("waiting for Kafka").await;

    assert!(broker.end(Signal::TERM).await.success());
}

/// docs/decisions/0009-wills-of-connections-the-broker-closes.md
#[tokio::test]
async fn the_will_of_a_broker_that_stops_is_called_off_by_a_client_that_comes_back_to_the_next_one() {
    let data = tempfile::tempdir().unwrap();
    let (broker, address) = Process::start(data.path()).await;
    leave_a_subscription(address, "mourner", "will/#").await;
    let willing = |topic: &str, delay_secs| {
        let mut willing = connect(Version::V5, "willing");
        willing.session_expiry_secs = Some(3_600);
        willing.will = will(topic, delay_secs);
        willing.will.as_mut().unwrap().qos = QoS::AtLeastOnce;
        willing
    };
    let (first, _) = Client::connect_with(address, willing("will/first", 0)).await;

    assert!(broker.end(Signal::TERM).await.success());
    drop(first);
    let (broker, address) = Process::start(data.path()).await;
    let (second, _) = Client::connect_with(address, willing("will/second", 0)).await;
    drop(second);

    let (mut mourner, _) = Client::connect_with(address, session("mourner")).await;
    assert_eq!(mourner.receive().await.message().0, "will/second", "that of a client that is gone");
    assert_eq!(mourner.ping().await, []);
    assert!(broker.end(Signal::TERM).await.success());
}

/// MQTT-3.1.4-3: one connection of a client id stays. Whoever loses the race hears it in the way of its state: 0x8E
/// after CONNACK, or 0x89 instead of it.
#[tokio::test]
async fn of_many_connections_that_race_for_a_client_id_one_stays_and_the_others_are_told() {
    let data = tempfile::tempdir().unwrap();
    let (broker, address) = Process::start(data.path()).await;

    let racing = (0..12).map(|_| Client::connect_with(address, connect(Version::V5, "wanted")));
    let racers = futures::future::join_all(racing).await;

    let mut staying = 0;
    for (mut racer, connack) in racers {
        if connack.body[1] != 0 {
            assert_eq!(connack.body[1], 0x89);
            assert_eq!(racer.receive_or_end().await, None);
            continue;
        }
        racer.send(Packet::PingReq).await;
        let mut last = None;
        let mut is_served = false;
        while let Some(received) = racer.receive_or_end().await {
            if received.first_byte == 0xD0 {
                // The connection that stays answers once more, when all others are gone.
                is_served = !is_served;
                if !is_served {
                    break;
                }
                racer.send(Packet::PingReq).await;
                continue;
            }
            last = Some((received.first_byte, received.body[0]));
        }
        match last {
            None => staying += 1,
            Some(told) => assert_eq!(told, (0xE0, 0x8E)),
        }
    }
    assert_eq!(staying, 1);
    assert!(broker.end(Signal::TERM).await.success());
}

#[tokio::test]
async fn sys_counts_the_sessions_of_clients_that_are_away() {
    let data = tempfile::tempdir().unwrap();
    let (broker, address) = Process::start_with(data.path(), &["--set", "mqtt.sysIntervalSecs=1"]).await;
    for client_id in ["away-1", "away-2"] {
        leave_a_subscription(address, client_id, "t").await;
    }
    let (_here, _) = Client::connect_with(address, session("here")).await;
    let mut watcher = Client::connect(address, Version::V3_1_1, "watcher").await;
    watcher.subscribe(&[("$SYS/broker/clients/+", QoS::AtMostOnce)]).await;

    let mut figures = BTreeMap::new();
    // The owner hears of a client's end a moment after the client.
    while figures.get("$SYS/broker/clients/disconnected") != Some(&"2".to_owned())
        || !figures.contains_key("$SYS/broker/clients/expired")
    {
        let (topic, _, payload) = watcher.receive().await.message();
        figures.insert(topic, String::from_utf8(payload).unwrap());
    }

    assert_eq!(figures["$SYS/broker/clients/connected"], "2");
    assert_eq!(figures["$SYS/broker/clients/expired"], "0");
    assert!(broker.end(Signal::TERM).await.success());
}

/// MQTT-3.14.2-2 and section 3.1.2.11.2: DISCONNECT has the last word on how long the session lives.
#[tokio::test]
async fn a_disconnect_may_end_a_session_that_connect_wanted_kept() {
    let data = tempfile::tempdir().unwrap();
    let (broker, address) = Process::start(data.path()).await;
    let kept = || {
        let mut kept = connect(Version::V5, "kept");
        kept.clean_start = false;
        kept.session_expiry_secs = Some(3_600);
        kept
    };

    for (bytes, is_present) in [(&b"\xe0\0"[..], 1), (b"\xe0\x07\0\x05\x11\0\0\0\0", 0)] {
        let (mut client, _) = Client::connect_with(address, kept()).await;
        client.send_raw(bytes).await;
        assert_eq!(client.receive_or_end().await, None);
        let (mut back, connack) = Client::connect_with(address, kept()).await;
        assert_eq!(connack.body[..2], [is_present, 0]);
        back.send_raw(b"\xe0\0").await;
        assert_eq!(back.receive_or_end().await, None);
    }
    assert!(broker.end(Signal::TERM).await.success());
}

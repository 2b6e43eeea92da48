//! What one client does wrong costs only that client.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "fixture/broker.rs"]
mod broker;
#[path = "fixture/client.rs"]
mod client;

use broker::Broker;
use client::{Client, connect};
use std::sync::atomic::Ordering;
use tidemill_broker::log::AppendError;
use tidemill_core::packet::{QoS, Version};
use tidemill_core::partition::Partition;
use tidemill_core::topic::TopicFilter;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const KIB: usize = 1_024;

async fn get(broker: &Broker, path: &str) -> String {
    let mut socket = tokio::net::TcpStream::connect(broker.running.admin_address()).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    answer
}

fn figure(metrics: &str, name: &str) -> u64 {
    let line = metrics.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_stalled_qos_0_subscriber_loses_messages_and_nobody_else_does() {
    let broker = Broker::start_with("limits: {mailboxMessages: 100, mailboxBytes: 262144}\n").await;
    let mut stalled = Client::connect(broker.address(), Version::V3_1_1, "stalled").await;
    let mut reader = Client::connect(broker.address(), Version::V3_1_1, "reader").await;
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "publisher").await;
    for client in [&mut stalled, &mut reader] {
        client.subscribe(&[("t", QoS::AtMostOnce)]).await;
    }

    // Far more than socket buffers and mailbox together hold.
    for number in 0..2_000_u32 {
        let mut payload = vec![0; 16 * KIB];
        payload[..4].copy_from_slice(&number.to_be_bytes());
        publisher.publish("t", &payload, None).await;
        assert_eq!(reader.receive().await.message().2, payload);
    }

    let metrics = get(&broker, "/metrics").await;
    let dropped = figure(&metrics, "tidemill_messages_dropped_total{reason=\"mailbox_full\"}");
    assert!(dropped > 0);
    let received = stalled.ping().await;
    assert_eq!(u64::try_from(received.len()).unwrap() + dropped, 2_000);
    let numbers: Vec<_> = received.iter().map(|packet| packet.message().2[..4].to_vec()).collect();
    assert!(numbers.is_sorted(), "what arrives is in order");
}

/// The bound is for what a client does not take, not for what one read from a publisher brings.
#[tokio::test]
async fn a_burst_beyond_the_bound_reaches_every_client_that_takes_it() {
    const BURST: u16 = 5_000;
    let broker = Broker::start_with("limits: {mailboxMessages: 50}\n").await;
    let mut plain = Client::connect(broker.address(), Version::V3_1_1, "plain").await;
    plain.subscribe(&[("t", QoS::AtMostOnce)]).await;
    let mut member = Client::connect(broker.address(), Version::V3_1_1, "member").await;
    member.subscribe(&[("$share/g/t", QoS::AtMostOnce)]).await;
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "publisher").await;
    let publish = |number: u16| [&[0x30, 5, 0, 1, b't'][..], &number.to_be_bytes()].concat();

    publisher.send_raw(&(0..BURST).flat_map(publish).collect::<Vec<_>>()).await;

    for client in [&mut plain, &mut member] {
        for number in 0..BURST {
            assert_eq!(client.receive().await.message().2, number.to_be_bytes());
        }
    }
}

#[tokio::test]
async fn a_stalled_qos_1_subscriber_is_closed_and_the_publisher_goes_on() {
    let broker = Broker::start_with("limits: {mailboxMessages: 50}\n").await;
    let mut stalled = connect(Version::V5, "stalled");
    stalled.receive_maximum = std::num::NonZeroU16::new(1);
    let (mut stalled, _) = Client::connect_with(broker.address(), stalled).await;
    stalled.subscribe(&[("t", QoS::AtLeastOnce)]).await;
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "publisher").await;

    for id in 1..=100_u16 {
        publisher.publish("t", b"x", Some(id)).await;
        assert_eq!(publisher.receive().await.body, id.to_be_bytes());
    }

    assert_eq!(stalled.receive().await.first_byte, 0x32);
    let disconnect = stalled.receive().await;
    assert_eq!((disconnect.first_byte, disconnect.body[0]), (0xE0, 0x97));
    assert_eq!(stalled.receive_or_end().await, None);
}

#[tokio::test]
async fn a_refused_append_closes_its_publisher_with_0x97_and_never_acknowledges() {
    let broker = Broker::start().await;
    let filter = TopicFilter::parse("d").unwrap();
    broker.data_path.router.apply_durable(Partition(0), &[filter], &[]);
    broker.log.is_holding.store(true, Ordering::SeqCst);
    let mut publisher = Client::connect(broker.address(), Version::V5, "publisher").await;
    let mut other = Client::connect(broker.address(), Version::V3_1_1, "other").await;
    publisher.publish("d", b"x", Some(1)).await;
    publisher.ping().await;

    broker.log.fail_waiting(&AppendError::Refused { partition: 0, bytes: 1, reason: "too large".into() });

    let disconnect = publisher.receive().await;
    assert_eq!((disconnect.first_byte, disconnect.body[0]), (0xE0, 0x97));
    assert_eq!(publisher.receive_or_end().await, None);
    assert_eq!(other.ping().await, []);
}

#[tokio::test]
async fn a_5_0_client_beyond_its_receive_maximum_is_closed_and_a_3_x_client_waits() {
    let broker = Broker::start_with("limits: {receiveMaximum: 2}\n").await;
    let filter = TopicFilter::parse("d").unwrap();
    broker.data_path.router.apply_durable(Partition(0), &[filter], &[]);
    broker.log.is_holding.store(true, Ordering::SeqCst);
    let mut v5 = Client::connect(broker.address(), Version::V5, "v5").await;
    let mut v3 = Client::connect(broker.address(), Version::V3_1_1, "v3").await;

    for id in 1..=3 {
        v5.publish("d", b"x", Some(id)).await;
    }
    let disconnect = v5.receive().await;
    assert_eq!((disconnect.first_byte, disconnect.body[0]), (0xE0, 0x93));
    assert_eq!(v5.receive_or_end().await, None);
    for id in 1..=5 {
        v3.publish("d", b"x", Some(id)).await;
    }
    broker.until(|broker| broker.log.waiting_count() == 4).await;

    broker.log.is_holding.store(false, Ordering::SeqCst);
    broker.log.commit_waiting(false);
    let mut acked = Vec::new();
    while acked.len() < 5 {
        acked.push(v3.receive().await.body[1]);
    }
    assert_eq!(acked, [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn what_needs_a_congested_log_waits_for_it_and_everything_else_goes_on() {
    let broker = Broker::start().await;
    let filter = TopicFilter::parse("d").unwrap();
    broker.data_path.router.apply_durable(Partition(0), &[filter], &[]);
    let mut publisher = Client::connect(broker.address(), Version::V5, "publisher").await;
    let mut other = Client::connect(broker.address(), Version::V3_1_1, "other").await;
    other.subscribe(&[("t", QoS::AtMostOnce), ("d", QoS::AtMostOnce)]).await;
    broker.log.set_congested(true);

    publisher.publish("d", b"held", Some(1)).await;
    publisher.publish("t", b"behind it", Some(2)).await;
    other.publish("t", b"free", Some(1)).await;
    let mut received = [other.receive().await, other.receive().await];
    received.sort_by_key(|packet| packet.first_byte);
    assert_eq!(received[0].message().2, b"free");
    assert_eq!(received[1].first_byte, 0x40);
    assert_eq!(other.ping().await, []);
    broker.log.set_congested(false);

    assert_eq!(other.receive().await.message().2, b"held");
    assert_eq!(other.receive().await.message().2, b"behind it", "a publisher's order is kept");
    for _ in 0..2 {
        assert_eq!(publisher.receive().await.first_byte, 0x40);
    }
}

#[tokio::test]
async fn many_connections_come_and_go_and_the_limit_holds() {
    let broker = Broker::start_with("limits: {connections: 150}\n").await;
    for round in 0..3 {
        let mut clients = Vec::new();
        for number in 0..150 {
            let id = format!("c-{round}-{number}");
            let mut client = Client::connect(broker.address(), Version::V3_1_1, &id).await;
            client.subscribe(&[("all", QoS::AtMostOnce)]).await;
            clients.push(client);
        }
        let mut beyond = Client::open(broker.address(), Version::V3_1_1).await;
        assert_eq!(beyond.receive_or_end().await, None, "beyond the limit");
        clients[0].publish("all", b"x", None).await;
        for client in &mut clients {
            assert_eq!(client.receive().await.message().2, b"x");
        }
        drop(clients);
        broker.until(|broker| broker.data_path.metrics.connections() == 0).await;
        broker.until(|broker| broker.running.connection_count() == 0).await;
    }
    assert_eq!(broker.data_path.router.announced_live(), []);
}

#[tokio::test]
async fn the_admin_port_tells_health_readiness_metrics_and_status() {
    let broker = Broker::start().await;
    let _client = Client::connect(broker.address(), Version::V3_1_1, "c").await;

    assert!(get(&broker, "/healthz").await.starts_with("HTTP/1.1 200"));
    assert!(get(&broker, "/readyz").await.starts_with("HTTP/1.1 200"));
    assert_eq!(figure(&get(&broker, "/metrics").await, "tidemill_connections "), 1);
    let status = get(&broker, "/v1/status").await;
    assert!(status.contains("\"connections\":1") && status.contains("\"ready\":true"), "{status}");
    let missing = get(&broker, "/v1/nothing").await;
    assert!(missing.starts_with("HTTP/1.1 404"), "{missing}");
    assert!(missing.contains("application/problem+json") && missing.contains("\"status\":404"), "{missing}");

    broker.data_path.router.forget_partition_routes(Partition(1));
    let waiting = get(&broker, "/readyz").await;
    assert!(waiting.starts_with("HTTP/1.1 503") && waiting.contains("routes of 1 partitions"), "{waiting}");
}

//! CONNECT, its answers, takeover, wills and the end of a connection, over real sockets.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "fixture/broker.rs"]
mod broker;
#[path = "fixture/client.rs"]
mod client;

use broker::Broker;
use bytes::BytesMut;
use client::{Client, connect, will};
use std::num::NonZeroU32;
use tidemill_codec::Encoder;
use tidemill_core::packet::{Disconnect, Packet, QoS, ReasonCode, Version};

/// Last packet of a 5.0 client and its reason code, after which the broker must have closed.
async fn farewell(client: &mut Client) -> u8 {
    let disconnect = client.receive().await;
    assert_eq!(disconnect.first_byte, 0xE0, "{disconnect:?} is no DISCONNECT");
    assert_eq!(client.receive_or_end().await, None);
    disconnect.body.first().copied().unwrap_or(0)
}

#[tokio::test]
async fn connack_tells_a_5_0_client_what_is_not_served() {
    let broker = Broker::start_with(broker::CLUSTER).await;

    let (_client, connack) = Client::connect_with(broker.address(), connect(Version::V5, "c")).await;

    assert_eq!(connack.body[..2], [0, 0]);
    let properties = &connack.body[3..];
    for expected in [&[0x24, 1][..], &[0x25, 0], &[0x2A, 0], &[0x21, 0x03, 0xE8]] {
        assert!(properties.windows(expected.len()).any(|window| window == expected), "{expected:02x?}");
    }
}

#[tokio::test]
async fn an_empty_client_id_is_assigned_in_5_0_and_needs_a_clean_session_before() {
    let broker = Broker::start().await;

    let (_client, connack) = Client::connect_with(broker.address(), connect(Version::V5, "")).await;
    assert!(String::from_utf8_lossy(&connack.body).contains("auto-"), "{connack:?}");

    let (_client, connack) = Client::connect_with(broker.address(), connect(Version::V3_1_1, "")).await;
    assert_eq!(connack.body, [0, 0]);

    let mut client = Client::open(broker.address(), Version::V3_1_1).await;
    client.send_raw(&[0x10, 12, 0, 4, b'M', b'Q', b'T', b'T', 4, 0, 0, 0, 0, 0]).await;
    assert_eq!(client.receive().await.body, [0, 2]);
    assert_eq!(client.receive_or_end().await, None);
}

#[tokio::test]
async fn an_unknown_protocol_version_is_answered_and_closed() {
    let broker = Broker::start().await;
    let mut client = Client::open(broker.address(), Version::V3_1_1).await;

    client.send_raw(&[0x10, 13, 0, 4, b'M', b'Q', b'T', b'T', 9, 2, 0, 0, 0, 1, b'x']).await;

    let answer = client.receive().await;
    assert_eq!((answer.first_byte, answer.body.get(1).copied()), (0x20, Some(1)), "{answer:?}");
    assert_eq!(client.receive_or_end().await, None);
}

#[tokio::test]
async fn a_will_that_cannot_be_published_as_asked_is_refused() {
    let broker = Broker::start_with(broker::CLUSTER).await;
    let mut retained = connect(Version::V5, "c");
    retained.will = will("w", 0);
    retained.will.as_mut().unwrap().retain = true;
    let mut exactly_once = connect(Version::V5, "c");
    exactly_once.will = will("w", 0);
    exactly_once.will.as_mut().unwrap().qos = QoS::ExactlyOnce;

    for (connect, reason) in [(retained, 0x9A), (exactly_once, 0x9B)] {
        let (mut client, connack) = Client::connect_with(broker.address(), connect).await;
        assert_eq!(connack.body[1], reason);
        assert_eq!(client.receive_or_end().await, None);
    }
}

#[tokio::test]
async fn an_authentication_method_is_refused() {
    let broker = Broker::start().await;
    let mut connect = connect(Version::V5, "c");
    connect.authentication_method = Some("SCRAM-SHA-256".into());

    let (_client, connack) = Client::connect_with(broker.address(), connect).await;

    assert_eq!(connack.body[1], 0x8C);
}

#[tokio::test]
async fn a_newer_connection_takes_over_and_the_old_will_is_published() {
    let broker = Broker::start().await;
    let mut watcher = Client::connect(broker.address(), Version::V3_1_1, "watcher").await;
    watcher.subscribe(&[("will/#", QoS::AtMostOnce)]).await;
    let mut first = connect(Version::V5, "same");
    first.will = will("will/first", 0);
    let (mut first, _) = Client::connect_with(broker.address(), first).await;
    first.subscribe(&[("t", QoS::AtMostOnce)]).await;

    let mut second = Client::connect(broker.address(), Version::V5, "same").await;

    assert_eq!(farewell(&mut first).await, 0x8E);
    assert_eq!(watcher.receive().await.message().0, "will/first");
    second.publish("t", b"x", None).await;
    assert_eq!(second.ping().await, [], "the new session has none of the old subscriptions");
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

#[tokio::test]
async fn a_silent_client_is_closed_after_its_keep_alive_with_0x8d_and_its_will_is_published() {
    let broker = Broker::start().await;
    let mut watcher = Client::connect(broker.address(), Version::V3_1_1, "watcher").await;
    watcher.subscribe(&[("will/#", QoS::AtMostOnce)]).await;
    let mut silent = connect(Version::V5, "silent");
    silent.keep_alive_secs = 1;
    silent.will = will("will/silent", 0);

    let (mut silent, _) = Client::connect_with(broker.address(), silent).await;

    assert_eq!(farewell(&mut silent).await, 0x8D);
    assert_eq!(watcher.receive().await.message().0, "will/silent");
}

#[tokio::test]
async fn malformed_input_closes_that_connection_with_its_code_and_no_other() {
    let broker = Broker::start().await;
    let mut other = Client::connect(broker.address(), Version::V5, "other").await;
    other.subscribe(&[("t", QoS::AtMostOnce)]).await;
    let cases: [(&[u8], u8); 6] = [
        (&[0x00, 0], 0x81),
        (&[0x36, 0], 0x81),
        (&[0x10, 0], 0x82),
        (&[0x82, 0], 0x81),
        (&[0x30, 0xFF, 0xFF, 0xFF, 0x7F], 0x95),
        (&[0x30, 5, 0, 2, b'a', b'#', 0], 0x90),
    ];

    for (number, (bytes, reason)) in cases.into_iter().enumerate() {
        let mut bad = Client::connect(broker.address(), Version::V5, &format!("bad-{number}")).await;
        bad.send_raw(bytes).await;
        assert_eq!(farewell(&mut bad).await, reason, "{bytes:02x?}");
    }
    for bytes in [&[0x30, 0, 0][..], &[0xC0, 0], b"GET / HTTP/1.1\r\n\r\n"] {
        let mut bad = Client::open(broker.address(), Version::V3_1_1).await;
        bad.send_raw(bytes).await;
        assert_eq!(bad.receive_or_end().await, None, "{bytes:02x?} is no CONNECT");
    }

    other.publish("t", b"still here", None).await;
    assert_eq!(other.receive().await.body.last(), Some(&b'e'));
}

#[tokio::test]
async fn packets_may_follow_connect_at_once_and_come_byte_by_byte() {
    let broker = Broker::start().await;
    let mut client = Client::open(broker.address(), Version::V3_1_1).await;
    let mut bytes = BytesMut::new();
    let encoder = Encoder::new(Version::V3_1_1, None);
    encoder.encode(&Packet::Connect(Box::new(connect(Version::V3_1_1, "eager"))), &mut bytes).unwrap();
    for number in 0..20_u8 {
        encoder.encode(&Packet::PingReq, &mut bytes).unwrap();
        let publish = client::publish("t", &[number; 100], Some(u16::from(number) + 1));
        encoder.encode(&Packet::Publish(publish), &mut bytes).unwrap();
    }

    for byte in bytes {
        client.send_raw(&[byte]).await;
    }

    assert_eq!(client.receive().await.first_byte, 0x20);
    for number in 1..=20 {
        assert_eq!(client.receive().await.first_byte, 0xD0);
        assert_eq!(client.receive().await.body, [0, number]);
    }
}

#[tokio::test]
async fn a_message_too_large_for_a_subscriber_is_dropped_for_it_alone() {
    let broker = Broker::start().await;
    let mut small = connect(Version::V5, "small");
    small.maximum_packet_bytes = NonZeroU32::new(100);
    let (mut small, _) = Client::connect_with(broker.address(), small).await;
    let mut large = Client::connect(broker.address(), Version::V3_1_1, "large").await;
    for client in [&mut small, &mut large] {
        client.subscribe(&[("t", QoS::AtLeastOnce)]).await;
    }
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "publisher").await;

    publisher.publish("t", &[b'x'; 20_000], Some(1)).await;
    publisher.publish("t", b"small", Some(2)).await;

    assert_eq!(large.receive().await.message().2.len(), 20_000);
    assert_eq!(large.receive().await.message().2, b"small");
    let received = small.receive().await;
    assert!(received.body.ends_with(b"small"), "{received:?}");
}

#[tokio::test]
async fn nobody_is_let_in_or_acknowledged_without_a_valid_membership() {
    let broker = Broker::start().await;
    let mut client = Client::connect(broker.address(), Version::V5, "c").await;

    broker.validity.set(0);

    client.publish("t", b"x", Some(1)).await;
    assert_eq!(farewell(&mut client).await, 0x8B, "no PUBACK comes before");
    let (mut refused, connack) = Client::connect_with(broker.address(), connect(Version::V5, "d")).await;
    assert_eq!(connack.body[1], 0x88);
    assert_eq!(refused.receive_or_end().await, None);
}

#[tokio::test]
async fn stopping_tells_5_0_clients_0x8b_and_writes_what_is_queued() {
    let broker = Broker::start().await;
    let mut subscriber = Client::connect(broker.address(), Version::V5, "s").await;
    subscriber.subscribe(&[("t", QoS::AtMostOnce)]).await;
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;
    publisher.publish("t", &vec![b'x'; 900_000], None).await;
    publisher.ping().await;
    let address = broker.address();

    let (_, ()) = tokio::join!(
        async {
            assert_eq!(subscriber.receive().await.first_byte, 0x30);
            assert_eq!(farewell(&mut subscriber).await, 0x8B);
            assert_eq!(publisher.receive_or_end().await, None);
            drop((subscriber, publisher));
        },
        broker.running.stop()
    );

    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "nobody listens any more");
}

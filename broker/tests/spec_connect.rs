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
use tidemill_core::attach::OwnerError;
use tidemill_core::packet::{Connect, Disconnect, Packet, QoS, ReasonCode, Version};

#[tokio::test]
async fn connack_tells_a_5_0_client_what_is_not_served() {
    let broker = Broker::start_with(broker::CLUSTER).await;

    let (_client, connack) = Client::connect_with(broker.address(), connect(Version::V5, "c")).await;

    assert_eq!(connack.body[..2], [0, 0]);
    let properties = &connack.body[3..];
    for expected in [&[0x24, 1][..], &[0x2A, 0], &[0x21, 0x03, 0xE8]] {
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
async fn an_authentication_method_is_refused() {
    let broker = Broker::start().await;
    let mut connect = connect(Version::V5, "c");
    connect.authentication_method = Some("SCRAM-SHA-256".into());

    let (_client, connack) = Client::connect_with(broker.address(), connect).await;

    assert_eq!(connack.body[1], 0x8C);
}

/// MQTT-3.1.2-24 and MQTT-3.2.0-1.
#[tokio::test]
async fn a_client_that_accepts_no_connack_is_closed_and_told_nothing_else() {
    let broker = Broker::start().await;
    let mut client = Client::open(broker.address(), Version::V5).await;
    let connect = Connect { maximum_packet_bytes: NonZeroU32::new(8), ..connect(Version::V5, "c") };

    client.send(Packet::Connect(Box::new(connect))).await;

    assert_eq!(client.receive_or_end().await, None);
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

    assert_eq!(first.farewell().await, 0x8E);
    assert_eq!(watcher.receive().await.message().0, "will/first");
    second.publish("t", b"x", None).await;
    assert_eq!(second.ping().await, [], "the new session has none of the old subscriptions");
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
    assert_eq!(client.farewell().await, 0x8B, "no PUBACK comes before");
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
            assert_eq!(subscriber.farewell().await, 0x8B);
            assert_eq!(publisher.receive_or_end().await, None);
            drop((subscriber, publisher));
        },
        broker.running.stop()
    );

    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "nobody listens any more");
}

/// MQTT 5.0 section 3.2.2.2, MQTT 3.1.1 section 3.2.2.3: each version has its own numbers for the same refusal. 4 is
/// for wrong credentials, which nobody looks at yet.
#[tokio::test]
async fn a_refused_connect_has_the_code_of_its_version_and_the_connection_is_closed() {
    let broker = Broker::start().await;
    let cases = [
        (OwnerError::Unavailable, 0x88, 3),
        (OwnerError::NotAuthorized, 0x87, 5),
        (OwnerError::TakenOver, 0x89, 3),
        (OwnerError::QuotaExceeded, 0x97, 3),
    ];

    for (error, reason, return_code) in cases {
        *broker.owner.refusal.lock() = Some(error);
        for version in [Version::V3_1, Version::V3_1_1, Version::V5] {
            let (mut refused, connack) = Client::connect_with(broker.address(), connect(version, "c")).await;
            let expected = if version.is_v5() { reason } else { return_code };
            assert_eq!(connack.body[..2], [0, expected], "{error:?} in {version:?}");
            assert_eq!(refused.receive_or_end().await, None);
        }
    }
}

/// MQTT 3.1 sections 3.1 and 3.2: its own name and level, client ids that are never empty, no session present. It
/// allows 23 characters; more are served.
#[tokio::test]
async fn a_3_1_client_is_served_as_3_1_says() {
    let broker = Broker::start().await;
    let mut subscriber = Client::open(broker.address(), Version::V3_1).await;
    subscriber.send_raw(b"\x10\x13\0\x06MQIsdp\x03\0\0\x3c\0\x05three").await;
    assert_eq!(subscriber.receive().await.body, [0, 0]);
    subscriber.send(Packet::Disconnect(Disconnect::new(ReasonCode::SUCCESS))).await;
    assert_eq!(subscriber.receive_or_end().await, None);

    let mut again = connect(Version::V3_1, "three");
    again.clean_start = false;
    let (mut again, connack) = Client::connect_with(broker.address(), again).await;
    assert_eq!(connack.body, [0, 0], "3.1 has no session present");
    assert_eq!(again.subscribe(&[("t", QoS::AtMostOnce)]).await.body, [0, 1, 0]);
    let long = Client::connect_with(broker.address(), connect(Version::V3_1, &"x".repeat(100))).await;
    assert_eq!(long.1.body, [0, 0]);
    let mut empty = Client::open(broker.address(), Version::V3_1).await;
    empty.send_raw(b"\x10\x0e\0\x06MQIsdp\x03\x02\0\x3c\0\0").await;
    assert_eq!(empty.receive().await.body, [0, 2]);
    assert_eq!(empty.receive_or_end().await, None);
}

/// MQTT 5.0 section 3.1.2.11.4: no packet may be larger than the client accepts, so there is nothing to say.
#[tokio::test]
async fn a_client_that_accepts_no_connack_is_closed_without_a_word_and_has_no_session() {
    let broker = Broker::start().await;
    for maximum in 1..=12 {
        let mut tiny = connect(Version::V5, "tiny");
        tiny.maximum_packet_bytes = NonZeroU32::new(maximum);
        let mut client = Client::open(broker.address(), Version::V5).await;

        client.send(Packet::Connect(Box::new(tiny))).await;

        assert_eq!(client.receive_or_end().await, None, "at {maximum} bytes");
        assert_eq!(broker.owner.connection_of("tiny"), None);
    }
}

/// MQTT-3.1.0-1, MQTT-3.1.4-1: nothing that is not a CONNECT is answered first.
#[tokio::test]
async fn whoever_does_not_begin_with_connect_is_closed_without_a_word() {
    let broker = Broker::start().await;

    for bytes in [&[0x30, 0, 0][..], &[0xC0, 0], b"GET / HTTP/1.1\r\n\r\n"] {
        let mut bad = Client::open(broker.address(), Version::V3_1_1).await;
        bad.send_raw(bytes).await;
        assert_eq!(bad.receive_or_end().await, None, "{bytes:02x?} is no CONNECT");
    }
}

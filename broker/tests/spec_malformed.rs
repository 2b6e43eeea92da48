//! Malformed and forbidden input over real sockets: the right answer, the end of that connection, and nobody else is
//! disturbed (MQTT 5.0 section 4.13, MQTT 3.1.1 section 4.8).
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "fixture/broker.rs"]
mod broker;
#[path = "fixture/client.rs"]
mod client;
#[path = "../codec/tests/codec/rows.rs"]
mod rows;

use broker::Broker;
use client::{Client, Received, connect};
use rows::Row;
use tidemill_core::packet::{Packet, QoS, ReasonCode, Version};

/// First byte and code of what the broker says to a forbidden packet before it closes; `None` when MQTT has no words.
fn expected_answer((_, after, bytes, reason): &Row) -> Option<(u8, u8)> {
    let reason = (*reason)?;
    let is_5_0 = || bytes.windows(5).any(|window| window == b"MQTT\x05");
    match after {
        Some(Version::V5) => Some((0xE0, reason.0)),
        Some(Version::V3_1 | Version::V3_1_1) => None,
        None if reason == ReasonCode::UNSUPPORTED_PROTOCOL_VERSION => Some((0x20, 1)),
        None if reason == ReasonCode::CLIENT_IDENTIFIER_NOT_VALID => Some((0x20, 2)),
        None if is_5_0() => Some((0x20, reason.0)),
        None => None,
    }
}

fn code_of(received: &Received) -> (u8, u8) {
    // CONNACK has its flags first.
    let place = if received.first_byte == 0x20 { 1 } else { 0 };
    (received.first_byte, received.body[place])
}

/// The table of the codec's tests, every forbidden row of it.
#[tokio::test]
async fn every_forbidden_packet_is_answered_with_its_code_closed_and_disturbs_nobody() {
    let broker = Broker::start().await;
    let mut other = Client::connect(broker.address(), Version::V5, "other").await;
    other.subscribe(&[("still/here", QoS::AtMostOnce)]).await;
    let mut wrong = Vec::new();

    for row in rows::all().filter(|row| row.3.is_some()) {
        let (what, after, bytes, _) = row;
        let mut bad = match after {
            Some(version) => Client::connect(broker.address(), *version, "bad").await,
            None => Client::open(broker.address(), Version::V3_1_1).await,
        };
        bad.send_raw(bytes).await;
        // What is cut off short of its length would wait for the rest.
        bad.finish().await;
        let answer = bad.receive_or_end().await;
        let is_closed = answer.is_none() || bad.receive_or_end().await.is_none();
        let answer = answer.as_ref().map(code_of);
        if answer != expected_answer(row) || !is_closed {
            wrong.push(format!("{what} after {after:?}: {answer:02x?}, closed: {is_closed}"));
        }
    }

    assert!(wrong.is_empty(), "{} rows are wrong:\n{}", wrong.len(), wrong.join("\n"));
    other.publish("still/here", b"x", None).await;
    assert_eq!(other.receive().await.first_byte, 0x30);
}

/// MQTT-3.1.0-2: a second CONNECT is a protocol error, in every version.
#[tokio::test]
async fn a_second_connect_ends_the_connection() {
    let broker = Broker::start().await;
    for version in [Version::V3_1, Version::V3_1_1, Version::V5] {
        let mut client = Client::connect(broker.address(), version, "twice").await;

        client.send(Packet::Connect(Box::new(connect(version, "twice")))).await;

        let answer = client.receive_or_end().await;
        assert_eq!(answer.as_ref().map(code_of), version.is_v5().then_some((0xE0, 0x82)));
        assert!(answer.is_none() || client.receive_or_end().await.is_none());
    }
}

/// MQTT-4.12.0-6: a client that named no authentication method sends no AUTH.
#[tokio::test]
async fn auth_without_a_method_in_connect_is_a_protocol_error() {
    let broker = Broker::start().await;
    for auth in [&b"\xf0\x06\x18\x04\x15\0\x01m"[..], b"\xf0\x06\x19\x04\x15\0\x01m", b"\xf0\x02\x19\0"] {
        let mut client = Client::connect(broker.address(), Version::V5, "auth").await;

        client.send_raw(auth).await;

        assert_eq!(code_of(&client.receive().await), (0xE0, 0x82));
        assert_eq!(client.receive_or_end().await, None);
    }
}

/// MQTT 5.0 section 3.14.2.2.2: no session expiry above 0 in DISCONNECT when CONNECT said 0.
#[tokio::test]
async fn a_session_expiry_in_disconnect_after_none_in_connect_is_a_protocol_error() {
    let broker = Broker::start().await;
    let mut client = Client::connect(broker.address(), Version::V5, "clean").await;

    client.send_raw(b"\xe0\x07\0\x05\x11\0\0\0\x3c").await;

    assert_eq!(code_of(&client.receive().await), (0xE0, 0x82));
    assert_eq!(client.receive_or_end().await, None);
}

/// The reason in words is about the very bytes that came (MQTT 5.0 section 3.14.2.2.3).
#[tokio::test]
async fn a_5_0_client_is_told_in_words_what_was_wrong() {
    let broker = Broker::start().await;
    let mut client = Client::connect(broker.address(), Version::V5, "c").await;
    client.send_raw(b"\xc0\x01x").await;
    let told = client.receive().await;
    assert!(String::from_utf8_lossy(&told.body).ends_with("PINGREQ with a body"), "{told:?}");

    let mut client = Client::open(broker.address(), Version::V5).await;
    client.send_raw(b"\x10\x0e\0\x04MQTT\x05\x03\0\x3c\0\0\x01c").await;
    let told = client.receive().await;
    assert!(String::from_utf8_lossy(&told.body).ends_with("flags of CONNECT"), "{told:?}");
}

/// MQTT 5.0 section 3.2.2.3.6: found by the header alone, before the rest has come.
#[tokio::test]
async fn a_packet_beyond_the_maximum_is_answered_with_0x95_before_it_has_come() {
    let broker = Broker::start_with("limits: {maximumPacketBytes: 200}").await;
    let (mut client, connack) = Client::connect_with(broker.address(), connect(Version::V5, "c")).await;
    assert!(connack.body.windows(5).any(|window| window == [0x27, 0, 0, 0, 200]), "{connack:?}");
    client.publish("t", &[b'x'; 193], None).await;
    assert_eq!(client.ping().await, [], "200 bytes are allowed");

    client.send_raw(&[0x30, 0xC7, 0x01]).await;

    assert_eq!(code_of(&client.receive().await), (0xE0, 0x95));
    assert_eq!(client.receive_or_end().await, None);
}

/// A client has 10 s for its CONNECT. MQTT 5.0 section 3.1: "within a reasonable amount of time".
#[tokio::test]
async fn a_socket_on_which_no_connect_comes_is_closed() {
    let broker = Broker::start().await;
    let mut silent = Client::open(broker.address(), Version::V3_1_1).await;
    let mut slow = Client::open(broker.address(), Version::V3_1_1).await;
    slow.send_raw(b"\x10\x0d\0\x04MQ").await;

    assert_eq!(silent.receive_or_end().await, None);
    assert_eq!(slow.receive_or_end().await, None);
}

//! What expires while it is stored, over `kill -9` of the binary. The exact deadlines are tested with a clock of the
//! test's own, in `owner_promises`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "fixture/client.rs"]
mod client;
#[path = "fixture/process.rs"]
mod process;

use client::{Client, connect, publish};
use process::Process;
use rustix::process::Signal;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tidemill_core::packet::{Connect, Disconnect, Packet, PublishProperties, QoS, ReasonCode, Version};

fn session(client_id: &str, expiry_secs: u32) -> Connect {
    let mut connect = connect(Version::V5, client_id);
    (connect.clean_start, connect.session_expiry_secs) = (false, Some(expiry_secs));
    connect
}

/// Subscribes to `t` and leaves.
async fn subscribe_and_leave(address: SocketAddr, session: Connect) {
    let (mut client, _) = Client::connect_with(address, session).await;
    assert_eq!(client.subscribe(&[("t", QoS::AtLeastOnce)]).await.body.last(), Some(&1));
    client.send(Packet::Disconnect(Disconnect::new(ReasonCode::SUCCESS))).await;
    assert_eq!(client.receive_or_end().await, None);
}

async fn publish_stored(address: SocketAddr, payload: &[u8], expiry_secs: Option<u32>) {
    let mut publisher = Client::connect(address, Version::V5, "publisher").await;
    let mut packet = publish("t", payload, Some(1));
    packet.properties = expiry_secs.map(|secs| {
        Box::new(PublishProperties { message_expiry_secs: Some(secs), ..PublishProperties::default() })
    });
    publisher.send(Packet::Publish(packet)).await;
    assert_eq!(publisher.receive().await.first_byte, 0x40);
}

#[tokio::test]
async fn a_message_that_expires_while_it_is_stored_is_not_delivered_and_of_a_longer_expiry_the_rest_is_told()
{
    let data = tempfile::tempdir().unwrap();
    let (broker, address) = Process::start(data.path()).await;
    subscribe_and_leave(address, session("keeper", 3_600)).await;
    publish_stored(address, b"short", Some(1)).await;
    publish_stored(address, b"long", Some(3_600)).await;
    let stored = Instant::now();

    broker.end(Signal::KILL).await;
    // The expiry is time that passes, also while no broker runs.
    tokio::time::sleep_until((stored + Duration::from_millis(1_100)).into()).await;
    let (broker, address) = Process::start(data.path()).await;
    let (mut keeper, connack) = Client::connect_with(address, session("keeper", 3_600)).await;

    assert_eq!(connack.body[..2], [1, 0]);
    let message = keeper.receive().await;
    assert!(message.body.ends_with(b"long"), "{message:?}");
    // Topic of one byte, packet id, five bytes of properties: the message expiry.
    assert_eq!(message.body[5..7], [5, 0x02]);
    let left = u32::from_be_bytes(message.body[7..11].try_into().unwrap());
    assert!((3_000..3_600).contains(&left), "{left} s are left");
    assert_eq!(keeper.ping().await, []);
    assert!(broker.end(Signal::TERM).await.success());
}

#[tokio::test]
async fn a_session_ends_at_its_expiry_also_when_the_broker_was_killed_meanwhile() {
    let data = tempfile::tempdir().unwrap();
    let (broker, address) = Process::start(data.path()).await;
    subscribe_and_leave(address, session("short", 1)).await;
    subscribe_and_leave(address, session("long", 3_600)).await;
    publish_stored(address, b"kept", None).await;

    broker.end(Signal::KILL).await;
    let (mut broker, address) = Process::start(data.path()).await;
    broker.line_with("session expired").await;

    let (mut long, connack) = Client::connect_with(address, session("long", 3_600)).await;
    assert_eq!(connack.body[..2], [1, 0]);
    assert!(long.receive().await.body.ends_with(b"kept"));
    let (mut short, connack) = Client::connect_with(address, session("short", 1)).await;
    assert_eq!(connack.body[..2], [0, 0]);
    assert_eq!(short.ping().await, [], "neither messages nor subscription are left");
    publish_stored(address, b"later", None).await;
    assert_eq!(short.ping().await, []);
    assert!(broker.end(Signal::TERM).await.success());
}

//! A persistent session gets all retained messages of its subscriptions, although its connection or the broker ends
//! meanwhile. With the binary as a user runs it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "fixture/client.rs"]
mod client;
#[path = "fixture/message.rs"]
mod message;
#[path = "fixture/process.rs"]
mod process;

use client::{Client, connect, publish};
use message::Seen;
use process::Process;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use tidemill_core::packet::{AckKind, Packet, PublishPacket, QoS, Version};

/// More than the window of a client, so that they do not go out at once.
const MESSAGES: usize = 250;

async fn retain_all(address: SocketAddr, qos: QoS) -> BTreeSet<String> {
    let mut publisher = Client::connect(address, Version::V5, "publisher").await;
    let mut topics = BTreeSet::new();
    for number in 0..MESSAGES {
        let topic = format!("r/{number:03}");
        let packet = PublishPacket { retain: true, qos, ..publish(&topic, b"state", Some(1)) };
        publisher.send(Packet::Publish(packet)).await;
        publisher.receive().await;
        if qos == QoS::ExactlyOnce {
            publisher.ack(AckKind::PubRel, 1).await;
            publisher.receive().await;
        }
        topics.insert(topic);
    }
    topics
}

/// The client of the session; whether it was there.
async fn resume(address: SocketAddr, version: Version) -> (Client, bool) {
    resume_as(address, version, "subscriber").await
}

async fn resume_as(address: SocketAddr, version: Version, client_id: &str) -> (Client, bool) {
    let mut session = connect(version, client_id);
    session.clean_start = false;
    session.session_expiry_secs = version.is_v5().then_some(3_600);
    let (client, connack) = Client::connect_with(address, session).await;
    (client, connack.body[0] == 1)
}

/// What a client keeps of its session, and what it got.
#[derive(Default)]
struct Receiver {
    /// Packet ids at QoS 2 between PUBLISH and PUBREL.
    received: BTreeSet<u16>,
    seen: Vec<Seen>,
}

impl Receiver {
    /// Takes what comes and acknowledges it, until there are `count` messages more or nothing comes.
    async fn take(&mut self, client: &mut Client, count: usize) {
        let until = self.seen.len().saturating_add(count);
        while self.seen.len() < until {
            // What comes before PINGRESP is what the broker had room for.
            let packets = client.ping().await;
            if packets.is_empty() {
                return;
            }
            for packet in packets {
                if packet.first_byte == 0x62 {
                    let id = u16::from_be_bytes([packet.body[0], packet.body[1]]);
                    self.received.remove(&id);
                    client.ack(AckKind::PubComp, id).await;
                } else if self.seen.len() < until {
                    self.take_message(client, Seen::of(&packet, client.version)).await;
                }
            }
        }
    }

    async fn take_message(&mut self, client: &mut Client, seen: Seen) {
        let id = seen.id.unwrap();
        let is_exactly_once = seen.qos == 2;
        client.ack(if is_exactly_once { AckKind::PubRec } else { AckKind::PubAck }, id).await;
        if !is_exactly_once || self.received.insert(id) {
            self.seen.push(seen);
        }
    }

    fn topics(&self) -> BTreeSet<String> {
        self.seen.iter().map(|one| one.topic.clone()).collect()
    }
}

async fn taken(client: &mut Client, count: usize) -> Receiver {
    let mut receiver = Receiver::default();
    receiver.take(client, count).await;
    receiver
}

#[tokio::test]
async fn after_kill_9_or_a_stop_a_session_at_qos_1_gets_all_that_it_has_not_acknowledged() {
    for (version, signal) in [(Version::V3_1_1, Signal::KILL), (Version::V5, Signal::TERM)] {
        let data = tempfile::tempdir().unwrap();
        let (broker, address) = Process::start(data.path()).await;
        let all = retain_all(address, QoS::AtLeastOnce).await;
        let (mut client, _) = resume(address, version).await;
        client.subscribe(&[("r/#", QoS::AtLeastOnce)]).await;
        assert_eq!(taken(&mut client, 20).await.seen.len(), 20);
        broker.end(signal).await;

        let (broker, address) = Process::start(data.path()).await;
        let (mut client, is_present) = resume(address, version).await;
        assert!(is_present);
        let again = taken(&mut client, usize::MAX).await;
        assert!(again.seen.iter().all(|seen| seen.retain && seen.qos == 1));
        assert_eq!(again.topics(), all);
        assert_eq!(again.seen.len(), all.len(), "each once on this connection");

        // A SUBSCRIBE is stored with all that was reported before it.
        client.subscribe(&[("other", QoS::AtLeastOnce)]).await;
        broker.end(signal).await;
        let (broker, address) = Process::start(data.path()).await;
        let (mut client, is_present) = resume(address, version).await;
        assert!(is_present);
        assert_eq!(taken(&mut client, usize::MAX).await.topics(), BTreeSet::new(), "it has them all");
        broker.end(Signal::KILL).await;
    }
}

#[tokio::test]
async fn a_new_connection_of_a_session_goes_on_with_the_retained_messages_and_none_comes_twice_at_qos_2() {
    for version in [Version::V3_1_1, Version::V5] {
        for (qos, number) in [(QoS::AtLeastOnce, 1), (QoS::ExactlyOnce, 2)] {
            let data = tempfile::tempdir().unwrap();
            let (broker, address) = Process::start(data.path()).await;
            let all = retain_all(address, qos).await;
            let (mut client, _) = resume(address, version).await;
            client.subscribe(&[("r/#", qos)]).await;
            let mut receiver = taken(&mut client, 30).await;
            drop(client);

            for _ in 0..MESSAGES {
                let (mut client, is_present) = resume(address, version).await;
                assert!(is_present);
                receiver.take(&mut client, 60).await;
                if receiver.topics() == all && receiver.received.is_empty() {
                    break;
                }
            }

            assert_eq!(receiver.topics(), all);
            assert!(receiver.seen.iter().all(|seen| seen.retain && seen.qos == number));
            // At QoS 1 the last acknowledgements of a connection may be lost with it.
            let twice = receiver.seen.len() - all.len();
            assert!(twice == 0 || qos == QoS::AtLeastOnce, "{twice} of {}", all.len());
            broker.end(Signal::KILL).await;
        }
    }
}

/// The acknowledgement of what a first SUBSCRIBE brought comes while a second one, which asks for it again, is being stored.
#[tokio::test]
async fn what_a_second_subscribe_asks_for_is_not_taken_for_what_the_first_one_brought() {
    const SESSIONS: u16 = 16;

    let data = tempfile::tempdir().unwrap();
    let (broker, address) = Process::start(data.path()).await;
    retain_all(address, QoS::AtLeastOnce).await;
    let mut clients = Vec::new();
    for number in 0..SESSIONS {
        let (mut client, _) = resume_as(address, Version::V3_1_1, &format!("subscriber-{number}")).await;
        client.subscribe(&[("r/000", QoS::AtLeastOnce)]).await;
        let first = Seen::of(&client.receive().await, client.version);
        client.send_raw(b"\x82\x0a\x00\x02\x00\x05r/000\x01").await;
        client.puback(first.id.unwrap()).await;
        assert_eq!(client.receive().await.first_byte, 0x90);
        assert_eq!(client.ping().await.len(), 1);
        clients.push(client);
    }
    // Stored with all that was reported before it.
    for client in &mut clients {
        client.subscribe(&[("other", QoS::AtLeastOnce)]).await;
    }
    broker.end(Signal::KILL).await;

    let (broker, address) = Process::start(data.path()).await;
    for number in 0..SESSIONS {
        let (mut client, _) = resume_as(address, Version::V3_1_1, &format!("subscriber-{number}")).await;
        let topics = taken(&mut client, usize::MAX).await.topics();
        assert_eq!(topics, BTreeSet::from(["r/000".to_owned()]), "{number}");
    }
    broker.end(Signal::KILL).await;
}

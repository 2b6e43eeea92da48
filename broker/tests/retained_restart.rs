//! Retained messages and the end of the broker, with the binary as a user runs it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "fixture/client.rs"]
mod client;
#[path = "fixture/message.rs"]
mod message;
#[path = "fixture/process.rs"]
mod process;

use client::{Client, options, publish};
use message::Seen;
use parking_lot::Mutex;
use process::Process;
use rustix::process::Signal;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use tidemill_core::packet::{
    Ack, AckKind, Packet, PacketId, PublishPacket, PublishProperties, QoS, ReasonCode, Subscribe,
    SubscribeEntry, Version,
};
use tokio::sync::watch;
use tokio::task::JoinSet;

const PUBLISHERS: usize = 4;
const TOPICS_EACH: usize = 3;
/// Publishes of one publisher that are not acknowledged.
const WINDOW: usize = 10;
/// Every so manieth version of a topic clears it.
const CLEARS: u64 = 7;

/// What is known of one topic. Its versions are numbers; the empty ones are not seen by subscribers.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    sent: u64,
    acknowledged: u64,
}

impl Known {
    /// Whether a subscriber may find this, `None` for no message.
    fn allows(self, found: Option<u64>) -> bool {
        let mut possible = self.acknowledged..=self.sent;
        match found {
            Some(version) => possible.contains(&version),
            None => possible.any(|version| version.is_multiple_of(CLEARS)),
        }
    }
}

#[derive(Default)]
struct Ledger {
    topics: Mutex<BTreeMap<String, Known>>,
    acknowledged: watch::Sender<u64>,
}

impl Ledger {
    fn next(&self, topic: &str) -> u64 {
        let mut topics = self.topics.lock();
        let known = topics.entry(topic.to_owned()).or_default();
        known.sent += 1;
        known.sent
    }

    fn acknowledge(&self, topic: &str, version: u64) {
        self.topics.lock().get_mut(topic).unwrap().acknowledged = version;
        self.acknowledged.send_modify(|count| *count += 1);
    }
}

/// Publishes versions of its own topics until the broker is gone.
async fn publish_versions(address: SocketAddr, number: usize, ledger: Arc<Ledger>) {
    let version = if number.is_multiple_of(2) { Version::V3_1_1 } else { Version::V5 };
    let qos = if number < PUBLISHERS / 2 { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
    let mut client = Client::connect(address, version, &format!("publisher-{number}")).await;
    let mut in_flight = HashMap::new();
    for round in 0_usize.. {
        let topic = format!("r/{number}/{}", round % TOPICS_EACH);
        let id = u16::try_from(round % 60_000).unwrap() + 1;
        let version = ledger.next(&topic);
        let payload = if version.is_multiple_of(CLEARS) { String::new() } else { version.to_string() };
        in_flight.insert(id, (topic.clone(), version));
        let packet = PublishPacket { retain: true, qos, ..publish(&topic, payload.as_bytes(), Some(id)) };
        if !client.try_send(Packet::Publish(packet)).await {
            return;
        }
        while in_flight.len() >= WINDOW {
            let Some(answer) = client.receive_or_end().await else { return };
            if answer.first_byte == 0xE0 {
                return;
            }
            let id = u16::from_be_bytes([answer.body[0], answer.body[1]]);
            match answer.first_byte {
                0x40 | 0x50 => {
                    let (topic, version) = in_flight.remove(&id).unwrap();
                    ledger.acknowledge(&topic, version);
                }
                0x70 => {}
                other => panic!("{other:#x}"),
            }
            if answer.first_byte == 0x50 {
                let release = Ack::new(AckKind::PubRel, PacketId::new(id).unwrap(), ReasonCode::SUCCESS);
                if !client.try_send(Packet::Ack(release)).await {
                    return;
                }
            }
        }
    }
}

/// Subscribes again and again while versions are published, until the broker is gone: no version comes after a newer
/// one. Answers the last of each topic.
async fn watch_versions(address: SocketAddr) -> BTreeMap<String, u64> {
    let mut client = Client::connect(address, Version::V3_1_1, "watcher").await;
    let mut last = BTreeMap::new();
    loop {
        let entry = SubscribeEntry { filter: "r/#".into(), options: options(QoS::AtMostOnce) };
        let packet_id = PacketId::MIN;
        let subscribe =
            Subscribe { packet_id, identifier: None, entries: vec![entry], user_properties: Vec::new() };
        if !client.try_send(Packet::Subscribe(subscribe)).await {
            return last;
        }
        loop {
            let Some(packet) = client.receive_or_end().await else { return last };
            if packet.first_byte == 0x90 {
                break;
            }
            let seen = Seen::of(&packet, Version::V3_1_1);
            if let Ok(version) = seen.payload.parse() {
                let before = last.insert(seen.topic.clone(), version).unwrap_or(0);
                assert!(version >= before, "{version} of {} after {before}", seen.topic);
            }
        }
    }
}

/// Everything retained that a new client finds.
async fn find(address: SocketAddr, filter: &str) -> Vec<Seen> {
    let mut client = Client::connect(address, Version::V5, "finder").await;
    client.subscribe(&[(filter, QoS::AtMostOnce)]).await;
    client.ping().await.iter().map(|packet| Seen::of(packet, Version::V5)).collect()
}

async fn found_versions(address: SocketAddr) -> BTreeMap<String, u64> {
    find(address, "r/#").await.into_iter().map(|seen| (seen.topic, seen.payload.parse().unwrap())).collect()
}

/// Runs everybody until `publishes` were acknowledged, then ends the broker with `signal`. Answers what the watcher saw
/// last.
async fn run_until_the_end(
    (broker, address): (Process, SocketAddr),
    ledger: &Arc<Ledger>,
    (publishes, signal): (u64, Signal),
) -> BTreeMap<String, u64> {
    let goal = *ledger.acknowledged.borrow() + publishes;
    let watching = tokio::spawn(watch_versions(address));
    let mut publishing = JoinSet::new();
    for number in 0..PUBLISHERS {
        publishing.spawn(publish_versions(address, number, Arc::clone(ledger)));
    }
    ledger.acknowledged.subscribe().wait_for(|count| *count >= goal).await.unwrap();
    broker.end(signal).await;
    while let Some(ended) = publishing.join_next().await {
        ended.unwrap();
    }
    watching.await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_kill_9_every_topic_has_its_last_acknowledged_version_or_a_newer_one() {
    let data = tempfile::tempdir().unwrap();
    let ledger = Arc::new(Ledger::default());
    for round in 0..6 {
        let started = Process::start(data.path()).await;
        run_until_the_end(started, &ledger, (150 + 97 * round, Signal::KILL)).await;

        let (broker, address) = Process::start(data.path()).await;
        let found = found_versions(address).await;

        let mut topics = ledger.topics.lock().clone();
        assert_eq!(topics.len(), PUBLISHERS * TOPICS_EACH);
        for (topic, known) in &mut topics {
            let version = found.get(topic).copied();
            assert!(known.allows(version), "round {round}: {topic} has {version:?}, known is {known:?}");
            // Nobody publishes what was lost, so the next round goes on behind it.
            known.acknowledged = version.unwrap_or(known.acknowledged);
        }
        broker.end(Signal::KILL).await;
        let (broker, address) = Process::start(data.path()).await;
        assert_eq!(found_versions(address).await, found, "what was found once stays");
        *ledger.topics.lock() = topics;
        broker.end(Signal::KILL).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_clean_stop_nothing_is_older_than_what_a_subscriber_saw() {
    let data = tempfile::tempdir().unwrap();
    let ledger = Arc::new(Ledger::default());
    for round in 0..4 {
        let started = Process::start(data.path()).await;
        let seen = run_until_the_end(started, &ledger, (300 + 61 * round, Signal::TERM)).await;

        let (broker, address) = Process::start(data.path()).await;
        let found = found_versions(address).await;

        for (topic, known) in &*ledger.topics.lock() {
            let version = found.get(topic).copied();
            assert!(known.allows(version), "round {round}: {topic} has {version:?}, known is {known:?}");
            let at_least = seen.get(topic).copied().unwrap_or(0);
            let since = Known { acknowledged: at_least, ..*known };
            assert!(since.allows(version), "round {round}: {topic} has {version:?} after {at_least}");
        }
        assert!(broker.end(Signal::TERM).await.success());
    }
}

#[tokio::test]
async fn properties_survive_kill_9_and_expiry_goes_on() {
    let data = tempfile::tempdir().unwrap();
    let (broker, address) = Process::start(data.path()).await;
    let mut publisher = Client::connect(address, Version::V5, "p").await;
    for (topic, expiry_secs, qos) in [("e/long", 1_000, QoS::AtLeastOnce), ("e/short", 1, QoS::ExactlyOnce)] {
        let properties = PublishProperties {
            message_expiry_secs: Some(expiry_secs),
            content_type: Some("text/plain".into()),
            user_properties: vec![("k".into(), "v".into())],
            ..PublishProperties::default()
        };
        let properties = Some(Box::new(properties));
        let packet = PublishPacket { retain: true, qos, properties, ..publish(topic, b"x", Some(1)) };
        publisher.send(Packet::Publish(packet)).await;
        publisher.receive().await;
    }
    broker.end(Signal::KILL).await;

    // Until the short one is over.
    loop {
        let (broker, address) = Process::start(data.path()).await;
        let mut client = Client::connect(address, Version::V5, "c").await;
        client.subscribe(&[("e/#", QoS::AtLeastOnce)]).await;
        let packets = client.ping().await;
        broker.end(Signal::KILL).await;
        let found: Vec<_> = packets.iter().map(|packet| Seen::of(packet, Version::V5)).collect();
        assert_eq!(found[0].short(), ("e/long", "x", 1, true));
        assert!(matches!(found[0].expiry_secs, Some(900..1_000)) || found.len() == 2);
        let has = |bytes: &[u8]| packets[0].body.windows(bytes.len()).any(|window| window == bytes);
        assert!(has(b"\x03\x00\x0atext/plain") && has(b"\x26\x00\x01k\x00\x01v"));
        if found.len() == 1 {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_are_all_there_after_kill_9_and_a_lower_bound_holds() {
    const MESSAGES: usize = 100_000;

    let data = tempfile::tempdir().unwrap();
    let (broker, address) = Process::start(data.path()).await;
    let mut publisher = Client::connect(address, Version::V3_1_1, "p").await;
    for number in 0..MESSAGES {
        let topic = format!("site/{}/device-{number:06}", number % 50);
        let id = (number + 1 == MESSAGES).then_some(1);
        let packet = PublishPacket { retain: true, ..publish(&topic, number.to_string().as_bytes(), id) };
        publisher.send(Packet::Publish(packet)).await;
        if number % 2_000 == 0 {
            // The broker may have to wait for its disk meanwhile.
            publisher.ping().await;
        }
    }
    // They share a store, so the last one is stored behind all others.
    assert_eq!(publisher.receive().await.first_byte, 0x40);
    broker.end(Signal::KILL).await;

    let (broker, address) = Process::start(data.path()).await;

    let mut client = Client::connect(address, Version::V3_1_1, "c").await;
    client.subscribe(&[("site/#", QoS::AtMostOnce)]).await;
    for _ in 0..MESSAGES {
        let seen = Seen::of(&client.receive().await, Version::V3_1_1);
        let number: usize = seen.payload.parse().unwrap();
        assert_eq!(seen.topic, format!("site/{}/device-{number:06}", number % 50));
    }
    assert_eq!(client.ping().await, [], "each once");
    broker.end(Signal::KILL).await;

    let mut broker = Process::spawn(data.path(), &["--set", "limits.retainedBytes=1000000"]);
    let said = broker.line_with("limits.retainedBytes is too low").await;
    assert!(said.contains("\"messages\":9"), "most of them: {said}");
    broker.end(Signal::KILL).await;
}

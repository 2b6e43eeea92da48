//! Retained messages that outlive the broker: what waits for their store, and what is found at the next start.

use super::*;
use bytestring::ByteString;
use std::sync::Arc;
use tidemill_broker::log::Log;
use tidemill_broker::log::memory::{MemoryLog, MemoryRetained, Offsets};
use tidemill_broker::log::retained::RetainedLog;
use tidemill_core::message::Message;
use tidemill_core::partition::Partitioning;
use tidemill_core::retained::stored;

fn storage() -> (MemoryLog, Arc<MemoryRetained>) {
    let log = MemoryLog::new(Partitioning::new(4, 2).unwrap(), Offsets::Contiguous);
    let retained = log.retained();
    (log, retained)
}

async fn start_on(log: &MemoryLog, yaml: &str) -> Broker {
    Broker::start_retaining(yaml, Some(log.retained())).await
}

/// Topic and payload of what is stored, where it can be read.
async fn stored_messages(log: &MemoryLog) -> Vec<(String, String)> {
    let entries = log.retained().load(None).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let pair = |topic: TopicName, message| {
        let message = stored::decode(topic, message).ok()?;
        Some((message.topic.to_string(), text(&message.payload)))
    };
    let topic = |bytes| TopicName::parse(ByteString::try_from(bytes).unwrap()).unwrap();
    entries.into_iter().filter_map(|entry| pair(topic(entry.topic), entry.message)).collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(topic, payload)| ((*topic).to_owned(), (*payload).to_owned())).collect()
}

fn retained_at(qos: QoS, topic: &str, payload: &str) -> PublishPacket {
    let id = (qos > QoS::AtMostOnce).then_some(1);
    PublishPacket { qos, ..retained(topic, payload, id) }
}

#[tokio::test]
async fn an_acknowledgement_waits_for_the_store_and_subscribers_do_not() {
    for (qos, acknowledgement) in [(QoS::AtLeastOnce, 0x40), (QoS::ExactlyOnce, 0x50)] {
        let (_log, storage) = storage();
        let broker = Broker::start_retaining("", Some(Arc::clone(&storage) as _)).await;
        let mut publisher = Client::connect(broker.address(), Version::V5, "p").await;
        let mut present = Client::connect(broker.address(), Version::V5, "present").await;
        present.subscribe(&[("t", QoS::AtMostOnce)]).await;
        storage.hold();

        publisher.send(Packet::Publish(retained_at(qos, "t", "new"))).await;

        assert_eq!(publisher.ping().await, [], "no acknowledgement before it is stored");
        assert_eq!(short(&seen(&mut present).await), [("t", "new", 0, false)]);
        let mut later = Client::connect(broker.address(), Version::V5, "later").await;
        let found = subscribe(&mut later, "t", QoS::AtMostOnce).await;
        assert_eq!(short(&found), [("t", "new", 0, true)], "visible before the acknowledgement");
        storage.release();
        assert_eq!(publisher.receive().await.first_byte, acknowledgement);
    }
}

/// The same for a clear, for one that clears nothing (its predecessor may not be stored yet), and for QoS 0.
#[tokio::test]
async fn a_clear_waits_for_the_store_and_qos_0_for_nothing() {
    let (log, storage) = storage();
    let broker = Broker::start_retaining("", Some(Arc::clone(&storage) as _)).await;
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;
    retain(&mut publisher, &[("t", "old"), ("u", "old")]).await;
    storage.hold();

    publisher.send(Packet::Publish(retained("t", "", None))).await;
    publisher.send(Packet::Publish(retained("t", "", Some(1)))).await;
    publisher.send(Packet::Publish(retained("u", "new", None))).await;

    assert_eq!(publisher.ping().await, []);
    assert_eq!(storage.waiting_count(), 3);
    storage.release();
    assert_eq!(publisher.receive().await.first_byte, 0x40);
    assert_eq!(stored_messages(&log).await, pairs(&[("u", "new")]));
}

#[tokio::test]
async fn a_publisher_without_subscribers_is_still_told_so() {
    let (log, _) = storage();
    let broker = start_on(&log, "").await;
    let mut publisher = Client::connect(broker.address(), Version::V5, "p").await;

    publisher.send(Packet::Publish(retained("t", "x", Some(7)))).await;

    assert_eq!(publisher.receive().await.body, [0, 7, 0x10]);
}

/// Nothing is acknowledged that is not stored.
#[tokio::test]
async fn a_store_that_has_closed_closes_the_publisher() {
    let (log, _) = storage();
    let broker = start_on(&log, "").await;
    let mut publisher = Client::connect(broker.address(), Version::V5, "p").await;
    log.close().await;

    publisher.send(Packet::Publish(retained("t", "x", Some(1)))).await;

    assert_eq!(publisher.farewell().await, 0x8B, "server shutting down");
}

#[tokio::test]
async fn a_store_that_is_behind_pauses_who_publishes_retained_messages_and_nobody_else() {
    const FLOOD: usize = 20_000;

    let (log, storage) = storage();
    let broker = Broker::start_retaining("", Some(Arc::clone(&storage) as _)).await;
    let mut flooding = Client::connect(broker.address(), Version::V3_1_1, "flooding").await;
    let mut other = Client::connect(broker.address(), Version::V3_1_1, "other").await;
    storage.hold();

    for number in 0..FLOOD {
        flooding.send(Packet::Publish(retained(&format!("t/{number}"), "x", None))).await;
    }
    broker.until(|_| storage.is_congested()).await;
    other.publish("u", b"", Some(1)).await;
    assert_eq!(other.receive().await.first_byte, 0x40);
    let waiting = storage.waiting_count();
    assert!((16_384..FLOOD).contains(&waiting), "{waiting} are held in front of the store");

    storage.release();
    flooding.ping().await;
    let mut count = 0;
    let mut after = None;
    loop {
        let piece = log.retained().load(after).await.unwrap();
        let Some(last) = piece.last() else { break };
        after = Some(last.topic.clone());
        count += piece.len();
    }
    assert_eq!(count, FLOOD);
}

#[tokio::test]
async fn what_the_next_broker_finds_is_what_the_last_one_had() {
    let (log, _) = storage();
    let properties = PublishProperties {
        payload_is_utf8: Some(true),
        message_expiry_secs: Some(3_600),
        content_type: Some("text/plain".into()),
        response_topic: Some("answers".into()),
        correlation_data: Some(b"id".as_slice().into()),
        user_properties: vec![("k".into(), "v".into()), ("k".into(), "w".into())],
        ..PublishProperties::default()
    };
    let broker = start_on(&log, "").await;
    let mut publisher = Client::connect(broker.address(), Version::V5, "p").await;
    let all = PublishPacket { properties: Some(Box::new(properties)), ..retained("a", "x", Some(1)) };
    publisher.send(Packet::Publish(all)).await;
    publisher.receive().await;
    retain(&mut publisher, &[("b", "1"), ("b", "2"), ("c", "1"), ("c", "")]).await;
    publisher.send(Packet::Publish(retained_at(QoS::ExactlyOnce, "d", "x"))).await;
    publisher.receive().await;
    let kept = |broker: &Broker, topic: &str| {
        broker.data_path.router.find_retained(&TopicName::parse(topic).unwrap())
    };
    let before = ["a", "b", "c", "d"].map(|topic| kept(&broker, topic));
    broker.running.stop().await;

    let broker = start_on(&log, "").await;

    let after = ["a", "b", "c", "d"].map(|topic| kept(&broker, topic));
    assert_eq!(after, before, "payload, QoS, properties, publisher and publish time");
    assert!(after[2].is_none() && after[0].is_some());
    let mut later = Client::connect(broker.address(), Version::V5, "later").await;
    let found = subscribe(&mut later, "#", QoS::ExactlyOnce).await;
    assert_eq!(short(&found), [("a", "x", 1, true), ("b", "2", 1, true), ("d", "x", 2, true)]);
    assert!(matches!(found[0].expiry_secs, Some(3_500..=3_600)));
}

/// A message of `topic` that was published so long ago.
fn aged(topic: &str, age_secs: u64, expiry_secs: u32) -> Message {
    let properties =
        PublishProperties { message_expiry_secs: Some(expiry_secs), ..PublishProperties::default() };
    Message {
        topic: TopicName::parse(topic).unwrap(),
        payload: "x".into(),
        qos: QoS::AtMostOnce,
        retain: true,
        properties: Some(Box::new(properties)),
        publisher: "p".into(),
        publish_time_ms: unix_ms() - age_secs * 1_000,
    }
}

#[tokio::test]
async fn expiry_counts_while_the_broker_is_down_and_what_has_expired_goes_from_the_store() {
    let (log, storage) = storage();
    for message in [aged("a", 100, 60), aged("b", 100, 600)] {
        storage.store(message.topic.text(), Some(stored::encode(&message)), None);
    }

    let broker = start_on(&log, "").await;

    let mut client = Client::connect(broker.address(), Version::V5, "c").await;
    let found = subscribe(&mut client, "#", QoS::AtMostOnce).await;
    assert_eq!(short(&found), [("b", "x", 0, true)]);
    assert!(matches!(found[0].expiry_secs, Some(490..=500)));
    assert_eq!(stored_messages(&log).await, pairs(&[("b", "x")]));
    broker.data_path.router.sweep_retained(unix_ms() + 3_600_000);
    assert_eq!(stored_messages(&log).await, []);
}

#[tokio::test]
async fn a_lower_bound_loads_what_fits_and_leaves_the_rest_in_the_store() {
    let (log, _) = storage();
    let broker = start_on(&log, "").await;
    let mut publisher = Client::connect(broker.address(), Version::V5, "p").await;
    let large = "x".repeat(700);
    retain(&mut publisher, &[("a", &large), ("b", &large), ("c", &large), ("d", "small")]).await;
    broker.running.stop().await;

    let broker = start_on(&log, "limits: {retainedBytes: 1900}\n").await;

    let mut client = Client::connect(broker.address(), Version::V5, "c").await;
    let found = subscribe(&mut client, "#", QoS::AtMostOnce).await;
    let topics: Vec<_> = found.iter().map(|seen| seen.topic.as_str()).collect();
    assert_eq!(topics, ["a", "d"], "in the order of topics, each that fits");
    assert_eq!(metric(&broker, "retained_not_loaded"), 2);
    assert!(metric(&broker, "retained_bytes") <= 1_900);
    let mut publisher = Client::connect(broker.address(), Version::V5, "p").await;
    retain(&mut publisher, &[("b", "")]).await;
    broker.running.stop().await;
    let kept = pairs(&[("a", &large), ("c", &large), ("d", "small")]);
    assert_eq!(stored_messages(&log).await, kept, "what was cleared meanwhile is gone");
    let broker = start_on(&log, "").await;
    assert_eq!(metric(&broker, "retained_messages"), 3);
}

#[tokio::test]
async fn a_message_without_room_whose_publisher_cannot_be_told_is_cleared_in_the_store_too() {
    let (log, _) = storage();
    let broker = start_on(&log, "limits: {retainedBytes: 1500}\n").await;
    for version in [Version::V3_1_1, Version::V5] {
        let mut publisher = Client::connect(broker.address(), version, "p").await;
        retain(&mut publisher, &[("t", "fits")]).await;

        publisher.send(Packet::Publish(retained("t", &"x".repeat(2_000), Some(9)))).await;
        publisher.receive().await;

        let left = if version.is_v5() { pairs(&[("t", "fits")]) } else { Vec::new() };
        assert_eq!(stored_messages(&log).await, left, "{version:?}");
    }
}

#[tokio::test]
async fn damaged_messages_are_counted_and_stay_until_something_newer_comes() {
    let (log, storage) = storage();
    log.damage_retained(b"a", b"");
    log.damage_retained(b"b", &[99, 1, 2]);
    log.damage_retained(b"c/#", b"no topic");
    log.damage_retained(&[0xFF], b"no text");
    storage.store(&"d".into(), Some(stored::encode(&aged("d", 0, 600))), None);

    let broker = start_on(&log, "").await;

    assert_eq!(metric(&broker, "retained_damaged"), 4);
    assert_eq!(metric(&broker, "retained_messages"), 1);
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;
    retain(&mut publisher, &[("b", "new")]).await;
    let entries = storage.load(None).await.unwrap();
    let topics: Vec<_> = entries.iter().map(|entry| &entry.topic[..]).collect();
    assert_eq!(topics, [&b"a"[..], b"b", b"c/#", b"d", &[0xFF]]);
    assert_eq!(entries[0].message[..], *b"");
    assert_eq!(stored_messages_of(&entries[1].message), "new");
}

fn stored_messages_of(message: &bytes::Bytes) -> String {
    let message = stored::decode(TopicName::parse("b").unwrap(), message.clone()).unwrap();
    String::from_utf8(message.payload.to_vec()).unwrap()
}

#[tokio::test]
async fn what_the_broker_says_of_itself_is_never_stored() {
    let (log, _) = storage();
    let broker = start_on(&log, "").await;
    let topic = TopicName::parse("$SYS/broker/uptime").unwrap();

    broker.data_path.router.publish_own(topic.clone(), "1".into());

    assert!(broker.data_path.router.find_retained(&topic).is_some());
    assert_eq!(log.retained().load(None).await.unwrap(), []);
}

//! Retained messages, over real sockets.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "spec_retained/bound.rs"]
mod bound;
#[path = "fixture/broker.rs"]
mod broker;
#[path = "fixture/client.rs"]
mod client;
#[path = "spec_retained/durable.rs"]
mod durable;
#[path = "spec_retained/flood.rs"]
mod flood;
#[path = "fixture/message.rs"]
mod message;
#[path = "spec_retained/order.rs"]
mod order;
#[path = "spec_retained/subscribe.rs"]
mod subscribe;

use broker::Broker;
use client::{Client, connect, options, publish, record, will};
use message::Seen;
use std::time::{SystemTime, UNIX_EPOCH};
use tidemill_broker::mailbox::Turn;
use tidemill_broker::router::{Publisher, RouteCache};
use tidemill_core::packet::{
    Packet, PacketId, PublishPacket, PublishProperties, QoS, Subscribe, SubscribeEntry, SubscriptionOptions,
    Version,
};
use tidemill_core::topic::TopicName;

fn retained(topic: &str, payload: &str, id: Option<u16>) -> PublishPacket {
    PublishPacket { retain: true, ..publish(topic, payload.as_bytes(), id) }
}

/// Publishes retained messages at QoS 1 and waits until all are acknowledged.
async fn retain(publisher: &mut Client, messages: &[(&str, &str)]) {
    for (topic, payload) in messages {
        publisher.send(Packet::Publish(retained(topic, payload, Some(1)))).await;
        assert_eq!(publisher.receive().await.first_byte, 0x40);
    }
}

fn entry(filter: &str, options: SubscriptionOptions) -> SubscribeEntry {
    SubscribeEntry { filter: filter.into(), options }
}

/// What came before the answer to a PINGREQ.
async fn seen(client: &mut Client) -> Vec<Seen> {
    client.ping().await.iter().map(|packet| Seen::of(packet, client.version)).collect()
}

/// Subscribes; everything that comes until the retained messages are there for which there is room at once.
async fn subscribe(client: &mut Client, filter: &str, qos: QoS) -> Vec<Seen> {
    subscribe_with(client, entry(filter, options(qos)), None).await
}

/// Like [`subscribe`]; the client may get messages of other subscriptions before the SUBACK.
async fn subscribe_with(client: &mut Client, entry: SubscribeEntry, identifier: Option<u32>) -> Vec<Seen> {
    let packet_id = PacketId::MIN;
    let subscribe = Subscribe { packet_id, identifier, entries: vec![entry], user_properties: Vec::new() };
    client.send(Packet::Subscribe(subscribe)).await;
    let mut before = Vec::new();
    loop {
        let packet = client.receive().await;
        if packet.first_byte == 0x90 {
            break;
        }
        before.push(Seen::of(&packet, client.version));
    }
    before.extend(seen(client).await);
    before
}

fn short(seen: &[Seen]) -> Vec<(&str, &str, u8, bool)> {
    seen.iter().map(Seen::short).collect()
}

/// One figure of `/metrics`.
fn metric(broker: &Broker, name: &str) -> u64 {
    let text = String::from_utf8(broker.data_path.metrics.render().unwrap()).unwrap();
    let line = text.lines().find(|line| line.starts_with(&format!("tidemill_{name} "))).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn unix_ms() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

/// MQTT-3.3.1-5, MQTT-3.3.1-8: kept whether or not somebody is subscribed, and replaced by the next one. MQTT-3.3.1-12,
/// -13: the flag is set for a new subscription; for one that stands only if it asks for the flag as published.
#[tokio::test]
async fn the_last_retained_message_goes_to_later_subscriptions_with_the_flag_and_to_present_ones_without() {
    let broker = Broker::start().await;
    for version in [Version::V3_1_1, Version::V5] {
        let mut publisher = Client::connect(broker.address(), version, "p").await;
        retain(&mut publisher, &[("a/b", "nobody is there")]).await;
        let mut present = Client::connect(broker.address(), version, "present").await;
        let before = subscribe(&mut present, "a/+", QoS::AtLeastOnce).await;
        let mut as_published = Client::connect(broker.address(), Version::V5, "as published").await;
        let flag = SubscriptionOptions { retain_as_published: true, ..options(QoS::AtMostOnce) };
        as_published.subscribe_with(vec![entry("a/#", flag)], None).await;
        as_published.ping().await;

        retain(&mut publisher, &[("a/b", "last")]).await;
        publisher.publish("a/b", b"not retained", Some(2)).await;
        publisher.receive().await;

        assert_eq!(short(&before), [("a/b", "nobody is there", 1, true)]);
        let live = seen(&mut present).await;
        assert_eq!(short(&live), [("a/b", "last", 1, false), ("a/b", "not retained", 1, false)]);
        let flags = seen(&mut as_published).await;
        assert_eq!(short(&flags), [("a/b", "last", 0, true), ("a/b", "not retained", 0, false)]);
        let mut later = Client::connect(broker.address(), version, "later").await;
        let found = subscribe(&mut later, "a/b", QoS::AtMostOnce).await;
        assert_eq!(short(&found), [("a/b", "last", 0, true)], "QoS is the lower of both");
    }
}

/// MQTT-3.3.1-6, MQTT-3.3.1-7 (5.0), MQTT-3.3.1-10 and -11 (3.1.1).
#[tokio::test]
async fn an_empty_retained_message_clears_the_topic_and_is_itself_delivered() {
    let broker = Broker::start().await;
    for version in [Version::V3_1_1, Version::V5] {
        let mut publisher = Client::connect(broker.address(), version, "p").await;
        let mut present = Client::connect(broker.address(), version, "present").await;
        subscribe(&mut present, "t", QoS::AtMostOnce).await;
        retain(&mut publisher, &[("t", "kept"), ("u", "another")]).await;

        publisher.publish("t", b"", None).await;
        publisher.ping().await;
        let mut later = Client::connect(broker.address(), version, "later").await;
        let kept = subscribe(&mut later, "t", QoS::AtMostOnce).await;
        assert_eq!(
            short(&kept),
            [("t", "kept", 0, true)],
            "an empty message without the flag changes nothing"
        );

        retain(&mut publisher, &[("t", "")]).await;
        let cleared = subscribe(&mut later, "+", QoS::AtMostOnce).await;
        assert_eq!(short(&cleared), [("t", "", 0, false), ("u", "another", 0, true)]);
        let live = seen(&mut present).await;
        assert_eq!(short(&live), [("t", "kept", 0, false), ("t", "", 0, false), ("t", "", 0, false)]);
        retain(&mut publisher, &[("u", ""), ("was never there", "")]).await;
        assert_eq!((metric(&broker, "retained_messages"), metric(&broker, "retained_bytes")), (0, 0));
    }
}

/// MQTT-4.7.2-1.
#[tokio::test]
async fn wildcards_at_the_first_level_find_no_dollar_topics() {
    let broker = Broker::start().await;
    let mut client = Client::connect(broker.address(), Version::V5, "c").await;
    retain(&mut client, &[("$own/x", "reserved"), ("own/x", "plain")]).await;

    for (filter, expected) in [("#", "plain"), ("+/x", "plain"), ("$own/#", "reserved")] {
        let found = subscribe(&mut client, filter, QoS::AtMostOnce).await;
        assert_eq!(found.len(), 1, "{filter}");
        assert_eq!(found[0].payload, expected, "{filter}");
    }
}

/// MQTT-3.3.2-6: the expiry that is sent is what is left of it. MQTT-3.3.2-5: what has expired is not sent.
#[tokio::test]
async fn what_is_left_of_the_expiry_is_sent_each_time_until_the_message_is_gone() {
    let broker = Broker::start().await;
    let router = &broker.data_path.router;
    let properties = PublishProperties { message_expiry_secs: Some(1_000), ..PublishProperties::default() };
    let mut message = record("t", "ages").message;
    message.retain = true;
    message.properties = Some(Box::new(properties));
    let mut reader = Client::connect(broker.address(), Version::V5, "r").await;
    let mut old = Client::connect(broker.address(), Version::V3_1_1, "old").await;
    let publish = |age_secs: u64| {
        message.publish_time_ms = unix_ms() - age_secs * 1_000;
        let mut turn = Turn::begin(router.metrics());
        let message = std::sync::Arc::new(message.clone());
        let done = tidemill_broker::router::PublishDone::Nobody;
        router.publish(&message, &mut RouteCache::new(Publisher::Other), done, &mut turn);
        turn.finish();
    };
    let mut publish = publish;

    for (age_secs, most) in [(0, 1_000), (600, 400), (999, 1)] {
        publish(age_secs);
        for _ in 0..2 {
            let found = subscribe(&mut reader, "t", QoS::AtMostOnce).await;
            // The last one may have expired by now.
            let left = found.iter().filter(|seen| seen.retain).filter_map(|seen| seen.expiry_secs).next();
            assert!(left.is_some_and(|left| left <= most) || age_secs == 999, "{left:?} of {most}");
        }
        let found = subscribe(&mut old, "t", QoS::AtMostOnce).await;
        assert!(found.iter().any(|seen| seen.retain) || age_secs == 999, "3.x is not told the expiry");
    }
    broker.until(|broker| metric(broker, "retained_messages") == 0).await;
    assert!(!subscribe(&mut reader, "t", QoS::AtMostOnce).await.iter().any(|seen| seen.retain));
    publish(5_000);
    assert!(!subscribe(&mut reader, "t", QoS::AtMostOnce).await.iter().any(|seen| seen.retain));
}

/// MQTT-3.1.2-17: a will with the retain flag is published as a retained message.
#[tokio::test]
async fn a_retained_will_is_kept() {
    let broker = Broker::start().await;
    for version in [Version::V3_1_1, Version::V5] {
        let mut dying = connect(version, "dying");
        dying.will = will("will/dying", 0);
        dying.will.as_mut().unwrap().retain = true;
        let (dying, _) = Client::connect_with(broker.address(), dying).await;
        drop(dying);
        broker.until(|broker| metric(broker, "retained_messages") == 1).await;

        let mut later = Client::connect(broker.address(), version, "later").await;
        let found = subscribe(&mut later, "will/#", QoS::AtLeastOnce).await;

        assert_eq!(short(&found), [("will/dying", "gone", 0, true)]);
        let mut clearer = Client::connect(broker.address(), version, "clearer").await;
        retain(&mut clearer, &[("will/dying", "")]).await;
    }
}

#[tokio::test]
async fn a_message_with_every_property_goes_to_an_old_client_without_them() {
    let broker = Broker::start().await;
    let mut publisher = Client::connect(broker.address(), Version::V5, "p").await;
    let properties = PublishProperties {
        payload_is_utf8: Some(true),
        message_expiry_secs: Some(600),
        content_type: Some("text/plain".into()),
        response_topic: Some("answers".into()),
        correlation_data: Some("1".into()),
        subscription_identifiers: Vec::new(),
        user_properties: vec![("a".into(), "1".into()), ("a".into(), "2".into())],
    };
    let packet = PublishPacket { properties: Some(Box::new(properties)), ..retained("t", "x", Some(1)) };
    publisher.send(Packet::Publish(packet)).await;
    publisher.receive().await;

    let mut old = Client::connect(broker.address(), Version::V3_1_1, "old").await;
    let mut new = Client::connect(broker.address(), Version::V5, "new").await;

    assert_eq!(short(&subscribe(&mut old, "t", QoS::AtMostOnce).await), [("t", "x", 0, true)]);
    new.subscribe(&[("t", QoS::AtMostOnce)]).await;
    let body = new.receive().await.body;
    for part in [&b"text/plain"[..], b"answers", b"\x26\0\x01a\0\x011\x26\0\x01a\0\x012"] {
        assert!(body.windows(part.len()).any(|window| window == part), "{part:?} in {body:?}");
    }
}

#[tokio::test]
async fn what_a_peer_forwards_with_the_flag_is_retained_here() {
    let broker = Broker::start().await;
    let router = &broker.data_path.router;
    let mut forwarded = record("t", "from afar");
    forwarded.message.retain = true;
    {
        let mut turn = Turn::begin(router.metrics());
        router.deliver_forwarded(&forwarded, &mut RouteCache::new(Publisher::Other), &mut turn);
        turn.finish();
    }

    let mut client = Client::connect(broker.address(), Version::V5, "c").await;

    let found = subscribe(&mut client, "t", QoS::AtLeastOnce).await;
    assert_eq!(short(&found), [("t", "from afar", 1, true)]);
}

#[tokio::test]
async fn the_broker_publishes_retained_messages_of_its_own() {
    let broker = Broker::start_with("limits: {retainedBytes: 1}\n").await;
    let router = &broker.data_path.router;
    let topic = || TopicName::parse("$SYS/broker/version").unwrap();
    let mut present = Client::connect(broker.address(), Version::V5, "present").await;
    subscribe(&mut present, "$SYS/#", QoS::AtMostOnce).await;

    router.publish_own(topic(), "1".into());
    router.publish_own(topic(), "2".into());

    let live = seen(&mut present).await;
    let topic_text = "$SYS/broker/version";
    assert_eq!(short(&live), [(topic_text, "1", 0, false), (topic_text, "2", 0, false)]);
    let mut later = Client::connect(broker.address(), Version::V3_1_1, "later").await;
    let found = subscribe(&mut later, "$SYS/broker/+", QoS::AtLeastOnce).await;
    assert_eq!(short(&found), [(topic_text, "2", 0, true)]);
    router.publish_own(topic(), "".into());
    assert_eq!(subscribe(&mut later, "$SYS/+/version", QoS::AtLeastOnce).await.len(), 1, "the empty one");
    assert_eq!(metric(&broker, "retained_messages"), 0);
}

//! What 5.0 properties and the section `mqtt` of the config file say to each other, over real sockets.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "fixture/broker.rs"]
mod broker;
#[path = "fixture/client.rs"]
mod client;

use broker::Broker;
use client::{Client, Received, connect, publish};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use tidemill_broker::mailbox::Turn;
use tidemill_broker::router::{Publisher, RouteCache};
use tidemill_core::packet::{Connect, Packet, PublishPacket, PublishProperties, QoS, Version};

fn contains(received: &Received, bytes: &[u8]) -> bool {
    received.body.windows(bytes.len()).any(|window| window == bytes)
}

/// Topic as written, alias, and payload of a QoS 0 PUBLISH without other properties.
fn publish_of(received: &Received) -> (String, Option<u16>, Vec<u8>) {
    assert_eq!(received.first_byte, 0x30);
    let body = &received.body;
    let topic_end = 2 + usize::from(u16::from_be_bytes([body[0], body[1]]));
    let topic = String::from_utf8(body[2..topic_end].to_vec()).unwrap();
    let properties_end = topic_end + 1 + usize::from(body[topic_end]);
    let alias = match &body[topic_end + 1..properties_end] {
        [] => None,
        [0x23, high, low] => Some(u16::from_be_bytes([*high, *low])),
        other => panic!("unexpected properties {other:02x?}"),
    };
    (topic, alias, body[properties_end..].to_vec())
}

/// A client that resolves aliases as MQTT 5.0 section 3.3.2.3.4 says.
#[derive(Default)]
struct Resolver(BTreeMap<u16, String>);

impl Resolver {
    fn resolve(&mut self, topic: String, alias: Option<u16>) -> String {
        let Some(alias) = alias else { return topic };
        if !topic.is_empty() {
            self.0.insert(alias, topic);
        }
        self.0[&alias].clone()
    }
}

fn with_aliases(client_id: &str, maximum: u16) -> Connect {
    let mut connect = connect(Version::V5, client_id);
    connect.topic_alias_maximum = maximum;
    connect
}

/// MQTT-3.3.2-8 to -12: aliases within the client's maximum, and never without the client's leave.
#[tokio::test]
async fn a_topic_that_comes_again_is_named_by_an_alias_where_the_client_accepts_one() {
    let broker = Broker::start().await;
    let (mut plain, _) = Client::connect_with(broker.address(), with_aliases("plain", 0)).await;
    let (mut two, _) = Client::connect_with(broker.address(), with_aliases("two", 2)).await;
    for client in [&mut plain, &mut two] {
        client.subscribe(&[("plant/#", QoS::AtMostOnce)]).await;
    }
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "publisher").await;
    let mut resolver = Resolver::default();
    let mut shortened = 0;

    for round in 0..10_u8 {
        for number in 0..3_u8 {
            let topic = format!("plant/{number}");
            publisher.publish(&topic, &[round, number], None).await;
            assert_eq!(publish_of(&plain.receive().await), (topic.clone(), None, vec![round, number]));
            let (name, alias, payload) = publish_of(&two.receive().await);
            assert!(alias.is_none_or(|alias| (1..=2).contains(&alias)));
            shortened += usize::from(name.is_empty());
            assert_eq!((resolver.resolve(name, alias), payload), (topic, vec![round, number]));
        }
    }

    assert_eq!(shortened, 16, "two topics, from the third round on");
}

/// MQTT 5.0 section 3.1.2.11.4: what counts is the packet as it would be sent.
#[tokio::test]
async fn an_alias_never_makes_a_packet_too_large_and_lets_a_larger_one_through() {
    let broker = Broker::start().await;
    let mut small = with_aliases("small", 10);
    small.maximum_packet_bytes = NonZeroU32::new(60);
    let (mut small, _) = Client::connect_with(broker.address(), small).await;
    small.subscribe(&[("plant/temperature", QoS::AtMostOnce)]).await;
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "publisher").await;
    // A fixed header of 2, a topic field of 19, a property length of 1.
    let (exact, larger) = (60 - 22, 60 - 22 + 10);

    for (len, expected) in [
        (exact, Some(("plant/temperature", None))),
        (exact, Some(("plant/temperature", None))), // The alias would take three bytes.
        (larger, None),
        (1, Some(("plant/temperature", Some(1)))),
        (larger, Some(("", Some(1)))),
    ] {
        publisher.publish("plant/temperature", &vec![b'x'; len], None).await;
        publisher.ping().await;
        let received: Vec<_> = small.ping().await.iter().map(publish_of).collect();
        let expected = expected.map(|(topic, alias)| (topic.to_owned(), alias, vec![b'x'; len]));
        assert_eq!(received, expected.into_iter().collect::<Vec<_>>(), "{len} bytes");
    }
}

/// MQTT-3.3.2-7 to -9, section 3.3.4: aliases from the client, within the maximum of CONNACK.
#[tokio::test]
async fn a_client_may_use_aliases_that_it_gave_up_to_the_brokers_maximum() {
    let broker = Broker::start().await;
    let mut subscriber = Client::connect(broker.address(), Version::V3_1_1, "s").await;
    subscriber.subscribe(&[("t/#", QoS::AtMostOnce)]).await;
    let aliased = |topic: &str, alias| PublishPacket {
        topic_alias: std::num::NonZeroU16::new(alias),
        ..publish(topic, b"x", None)
    };
    let (mut client, connack) = Client::connect_with(broker.address(), connect(Version::V5, "c")).await;
    assert!(contains(&connack, &[0x22, 0, 32]), "{connack:?}");

    for (topic, alias, expected) in [("t/1", 32, "t/1"), ("", 32, "t/1"), ("t/2", 32, "t/2"), ("", 32, "t/2")]
    {
        client.send(Packet::Publish(aliased(topic, alias))).await;
        assert_eq!(subscriber.receive().await.message().0, expected);
    }
    client.send(Packet::Publish(aliased("t/3", 33))).await;
    assert_eq!(client.receive().await.body[0], 0x94);
    assert_eq!(client.receive_or_end().await, None);
    let mut client = Client::connect(broker.address(), Version::V5, "c").await;
    client.send(Packet::Publish(aliased("", 32))).await;
    assert_eq!(client.receive().await.body[0], 0x82, "aliases end with their connection");
    assert_eq!(client.receive_or_end().await, None);
}

/// MQTT-3.3.2-5, -6: what a message has waited is taken off, and what has waited too long is not sent.
#[tokio::test]
async fn the_message_expiry_is_counted_down_and_what_has_expired_is_not_sent() {
    let broker = Broker::start().await;
    let mut subscriber = Client::connect(broker.address(), Version::V5, "s").await;
    subscriber.subscribe(&[("t", QoS::AtMostOnce)]).await;
    let router = &broker.data_path.router;
    let waited = |secs: u64, expiry_secs: u32| {
        let mut record = client::record("t", "x");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        record.message.publish_time_ms = u64::try_from(now.as_millis()).unwrap() - secs * 1_000;
        let properties =
            PublishProperties { message_expiry_secs: Some(expiry_secs), ..PublishProperties::default() };
        record.message.properties = Some(Box::new(properties));
        record
    };

    {
        let mut cache = RouteCache::new(Publisher::Other);
        let mut turn = Turn::begin(router.metrics());
        for record in [waited(100, 100), waited(1, 0), waited(100, 1_100)] {
            router.deliver_forwarded(&record, &mut cache, &mut turn);
        }
        turn.finish();
    }

    let received = subscriber.receive().await;
    let left = received.body.windows(5).find(|window| window[..3] == [0x02, 0, 0]).unwrap();
    let left = u32::from_be_bytes([0, 0, left[3], left[4]]);
    assert!((990..=1_000).contains(&left), "{left} s are left");
    assert_eq!(subscriber.ping().await, []);
}

/// MQTT-3.1.2-21 and section 3.2.2.3.14.
#[tokio::test]
async fn a_keep_alive_that_is_too_long_is_answered_with_the_brokers_and_enforced() {
    let broker = Broker::start_with("mqtt: {maximumKeepAliveSecs: 1}").await;
    let keeping = |version, client_id: &str, secs| {
        let mut connect = connect(version, client_id);
        connect.keep_alive_secs = secs;
        connect
    };

    let (mut none, connack) = Client::connect_with(broker.address(), keeping(Version::V5, "none", 0)).await;
    assert!(contains(&connack, &[0x13, 0, 1]), "{connack:?}");
    let (_long, connack) = Client::connect_with(broker.address(), keeping(Version::V5, "long", 60)).await;
    assert!(contains(&connack, &[0x13, 0, 1]), "{connack:?}");
    let (_short, connack) = Client::connect_with(broker.address(), keeping(Version::V5, "short", 1)).await;
    assert!(!contains(&connack, &[0x13, 0]), "{connack:?}");
    let (mut old, _) = Client::connect_with(broker.address(), keeping(Version::V3_1_1, "old", 0)).await;

    assert_eq!(none.receive().await.body[0], 0x8D);
    assert_eq!(none.receive_or_end().await, None);
    assert_eq!(old.ping().await, [], "3.x clients cannot be told, so they keep theirs");
}

/// MQTT-3.1.2-28: only who asks is told.
#[tokio::test]
async fn response_information_goes_to_those_who_ask_with_their_client_id_in_it() {
    let broker = Broker::start_with("mqtt: {responseInformation: 'answers/{clientId}/#'}").await;
    let asking = |is_asking| {
        let mut connect = connect(Version::V5, "c7");
        connect.request_response_information = is_asking;
        connect
    };

    let (_client, told) = Client::connect_with(broker.address(), asking(true)).await;
    let (_client, silent) = Client::connect_with(broker.address(), asking(false)).await;

    assert!(contains(&told, b"\x1a\0\x0canswers/c7/#"), "{told:?}");
    assert!(!contains(&silent, b"answers"));
    let without = Broker::start().await;
    let (_client, silent) = Client::connect_with(without.address(), asking(true)).await;
    assert!(!contains(&silent, &[0x1a, 0]), "nothing is configured");
}

fn says_utf8(id: Option<u16>, payload: &[u8]) -> PublishPacket {
    let properties = PublishProperties { payload_is_utf8: Some(true), ..PublishProperties::default() };
    PublishPacket { properties: Some(Box::new(properties)), ..publish("t", payload, id) }
}

/// MQTT 5.0 section 3.3.2.3.2: the broker may look, and answers with 0x99.
#[tokio::test]
async fn a_payload_that_says_it_is_utf_8_and_is_not_is_refused_where_payloads_are_checked() {
    let broker = Broker::start_with("mqtt: {checkPayloadFormat: true}").await;
    let mut client = Client::connect(broker.address(), Version::V5, "c").await;

    client.send(Packet::Publish(says_utf8(Some(1), b"fine"))).await;
    assert_eq!(client.receive().await.body, [0, 1, 0x10]);
    client.send(Packet::Publish(says_utf8(Some(2), b"\xff"))).await;
    let puback = client.receive().await;
    assert_eq!((puback.first_byte, &puback.body[..3]), (0x40, &[0, 2, 0x99][..]));
    assert!(contains(&puback, b"UTF-8"), "in words, too");
    client.send(Packet::Publish(says_utf8(None, b"\xff"))).await;
    assert_eq!(client.receive().await.body[0], 0x99);
    assert_eq!(client.receive_or_end().await, None);

    let mut willing = connect(Version::V5, "w");
    willing.will = client::will("w", 0);
    let will = willing.will.as_mut().unwrap();
    will.payload = b"\xff".as_slice().into();
    will.properties = says_utf8(None, b"").properties;
    let (_refused, connack) = Client::connect_with(broker.address(), willing).await;
    assert_eq!(connack.body[1], 0x99);

    let trusting = Broker::start().await;
    let mut client = Client::connect(trusting.address(), Version::V5, "c").await;
    client.send(Packet::Publish(says_utf8(Some(2), b"\xff"))).await;
    assert_eq!(client.receive().await.body, [0, 2, 0x10]);
}

/// MQTT-3.1.2-29: reason strings on CONNACK and DISCONNECT in any case, on anything else only with the client's leave.
#[tokio::test]
async fn a_client_that_wants_no_problem_information_gets_words_only_where_it_must() {
    let broker = Broker::start().await;
    let too_deep = "/".repeat(200);
    for (is_wanted, client_id) in [(true, "wanted"), (false, "unwanted")] {
        let mut connect = connect(Version::V5, client_id);
        connect.request_problem_information = is_wanted;
        let (mut client, _) = Client::connect_with(broker.address(), connect).await;

        client.publish("$SYS/x", b"", Some(1)).await;
        let puback = client.receive().await;
        let suback = client.subscribe(&[(&too_deep, QoS::AtMostOnce)]).await;
        client.publish("$SYS/x", b"", None).await;
        let disconnect = client.receive().await;

        assert_eq!(contains(&puback, b"$SYS"), is_wanted, "{puback:?}");
        assert_eq!(contains(&suback, b"128 levels"), is_wanted, "{suback:?}");
        assert!(contains(&disconnect, b"$SYS"), "{disconnect:?}");
    }
}

/// MQTT-3.3.2-4, -15 to -18: the properties of a message are the publisher's, to the last bit and in their order.
#[tokio::test]
async fn properties_of_a_message_pass_through_unchanged_and_in_order() {
    let broker = Broker::start().await;
    let mut subscriber = Client::connect(broker.address(), Version::V5, "s").await;
    subscriber.subscribe(&[("t", QoS::AtMostOnce)]).await;
    let mut publisher = Client::connect(broker.address(), Version::V5, "p").await;
    let user = |name: &str, value: &str| (name.into(), value.into());
    let properties = PublishProperties {
        payload_is_utf8: Some(true),
        content_type: Some("text/plain".into()),
        response_topic: Some("answers/1".into()),
        correlation_data: Some(b"\0\xff".as_slice().into()),
        user_properties: vec![user("b", "1"), user("a", "2"), user("b", "1"), user("", "")],
        ..PublishProperties::default()
    };
    let sent = PublishPacket { properties: Some(Box::new(properties)), ..publish("t", b"x", None) };
    let mut expected = bytes::BytesMut::new();
    let packet = Packet::Publish(sent.clone());
    tidemill_codec::Encoder::new(Version::V5, None).encode(&packet, &mut expected).unwrap();

    publisher.send(packet).await;

    assert_eq!(subscriber.receive().await.body, expected[2..]);
}

//! What may be subscribed to, and what is answered else.

use crate::broker::{Broker, CLUSTER};
use crate::client::{Client, options};
use crate::world::{VERSIONS, entry, member, number, numbers, publish};
use tidemill_core::packet::{Packet, PacketId, QoS, Subscribe, SubscriptionOptions, Version};

// MQTT-4.8.2-1, MQTT-4.8.2-2.
#[tokio::test]
async fn a_share_without_name_or_filter_or_with_a_wildcard_in_its_name_is_refused_with_0x8f() {
    let broker = Broker::start().await;
    for filter in [
        "$share/g",
        "$share/",
        "$share//t",
        "$share/g/",
        "$share/g+/t",
        "$share/#/t",
        "$queue/",
        "$share/g/a#",
    ] {
        let mut client = Client::connect(broker.address(), Version::V5, "c").await;
        let subscribe = Subscribe {
            packet_id: PacketId::MIN,
            identifier: None,
            entries: vec![entry(filter, options(QoS::AtMostOnce))],
            user_properties: Vec::new(),
        };

        client.send(Packet::Subscribe(subscribe)).await;

        let disconnect = client.receive().await;
        assert_eq!((disconnect.first_byte, disconnect.body.first()), (0xE0, Some(&0x8F)), "{filter}");
    }
}

// MQTT-3.8.3-4.
#[tokio::test]
async fn no_local_on_a_shared_subscription_is_a_protocol_error() {
    let broker = Broker::start().await;
    for filter in ["$share/g/t", "$queue/t"] {
        let mut client = Client::connect(broker.address(), Version::V5, "c").await;
        let no_local = SubscriptionOptions { no_local: true, ..options(QoS::AtMostOnce) };
        let subscribe = Subscribe {
            packet_id: PacketId::MIN,
            identifier: None,
            entries: vec![entry(filter, no_local)],
            user_properties: Vec::new(),
        };

        client.send(Packet::Subscribe(subscribe)).await;

        let disconnect = client.receive().await;
        assert_eq!((disconnect.first_byte, disconnect.body.first()), (0xE0, Some(&0x82)), "{filter}");
    }
}

#[tokio::test]
async fn queue_is_an_alias_of_the_group_named_queue() {
    for version in VERSIONS {
        let broker = Broker::start().await;
        let mut one = member(&broker, version, "one", "$queue/a/+").await;
        let mut two = member(&broker, version, "two", "$share/$queue/a/+").await;
        let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;

        publish(&mut publisher, "a/b", 1..=4).await;

        assert_eq!((numbers(&mut one).await, numbers(&mut two).await), (vec![1, 3], vec![2, 4]));
        one.unsubscribe(&["$share/$queue/a/+"]).await;
        publish(&mut publisher, "a/b", 5..=6).await;
        assert_eq!((numbers(&mut one).await, numbers(&mut two).await), (vec![], vec![5, 6]));
    }
}

#[tokio::test]
async fn a_member_that_has_unsubscribed_gets_nothing_and_every_entry_has_its_answer() {
    let broker = Broker::start().await;
    let mut client = member(&broker, Version::V5, "c", "$share/g/t").await;
    assert_eq!(client.subscribe(&[("t", QoS::AtMostOnce)]).await.body.last(), Some(&0));

    let unsuback = client.unsubscribe(&["$share/h/t", "$share/g/t", "$share/g/t", "t"]).await;
    client.publish("t", &[1], Some(1)).await;

    assert_eq!(unsuback.body, [0, 1, 0, 0x11, 0, 0x11, 0]);
    assert_eq!(client.receive().await.body, [0, 1, 0x10], "no matching subscribers");
    assert_eq!(client.ping().await, []);
}

#[tokio::test]
async fn shared_subscriptions_count_toward_the_limit() {
    let broker = Broker::start_with("limits: {subscriptions: 2}\n").await;
    let mut client = Client::connect(broker.address(), Version::V5, "c").await;
    let asked = ["t", "$share/g/t", "$share/h/t", "$share/g/t"].map(|filter| (filter, QoS::AtMostOnce));

    assert_eq!(client.subscribe(&asked).await.body[3..], [0, 0, 0x97, 0]);
    client.unsubscribe(&["$share/g/t"]).await;
    assert_eq!(client.subscribe(&[("$share/h/t", QoS::AtMostOnce)]).await.body[3..], [0]);
}

// MQTT-3.2.2-20: Shared Subscription Available.
#[tokio::test]
async fn a_broker_that_is_not_alone_says_that_it_has_none_and_refuses_them() {
    let connack = |broker: &Broker| {
        let address = broker.address();
        async move { Client::connect_with(address, crate::client::connect(Version::V5, "c")).await }
    };
    let alone = Broker::start().await;
    let (_, available) = connack(&alone).await;
    assert!(!available.body.windows(2).any(|property| property == [0x2A, 0]), "{available:?}");

    let broker = Broker::start_with(CLUSTER).await;
    let (mut v5, unavailable) = connack(&broker).await;
    assert!(unavailable.body.windows(2).any(|property| property == [0x2A, 0]), "{unavailable:?}");
    let mut v3 = Client::connect(broker.address(), Version::V3_1_1, "v3").await;
    let asked = ["$share/g/t", "$queue/t", "t"].map(|filter| (filter, QoS::AtMostOnce));
    assert_eq!(v5.subscribe(&asked).await.body[3..], [0x9E, 0x9E, 0]);
    assert_eq!(v3.subscribe(&asked).await.body[2..], [0x80, 0x80, 0]);
    assert_eq!(v5.unsubscribe(&["$share/g/t"]).await.body[3..], [0x11]);
    v3.publish("t", &[7], None).await;
    assert_eq!(number(&v5.receive().await), 7);
    assert_eq!(v5.ping().await, []);
}

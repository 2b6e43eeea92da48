//! PUBLISH and its acknowledgement, over real sockets.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "fixture/broker.rs"]
mod broker;
#[path = "fixture/client.rs"]
mod client;

use broker::Broker;
use client::Client;
use rumqttc::{AsyncClient, Event, Incoming, MqttOptions};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidemill_broker::cluster::{LiveClass, Route, RouteChange};
use tidemill_broker::log::Log;
use tidemill_broker::log::memory::{MemoryLog, Offsets};
use tidemill_broker::mailbox::Turn;
use tidemill_broker::metrics::Metrics;
use tidemill_broker::router::{PublishDone, Publisher, RouteCache, Router};
use tidemill_core::member::{Incarnation, Member, MemberId};
use tidemill_core::packet::{QoS, Version, Will};
use tidemill_core::partition::{Partition, Partitioning};
use tidemill_core::topic::TopicFilter;

#[tokio::test]
async fn a_message_reaches_every_subscriber_at_the_lower_of_both_qos() {
    let broker = Broker::start().await;
    let mut qos0 = Client::connect(broker.address(), Version::V3_1_1, "qos0").await;
    let mut qos1 = Client::connect(broker.address(), Version::V3_1_1, "qos1").await;
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "publisher").await;
    assert_eq!(qos0.subscribe(&[("a/+", QoS::AtMostOnce)]).await.body, [0, 1, 0]);
    assert_eq!(qos1.subscribe(&[("a/b", QoS::AtLeastOnce)]).await.body, [0, 1, 1]);

    publisher.publish("a/b", b"one", Some(7)).await;
    publisher.publish("a/b", b"zero", None).await;

    let puback = publisher.receive().await;
    assert_eq!((puback.first_byte, puback.body), (0x40, vec![0, 7]));
    assert_eq!(qos0.receive().await.message(), ("a/b".into(), None, b"one".to_vec()));
    assert_eq!(qos0.receive().await.message(), ("a/b".into(), None, b"zero".to_vec()));
    assert_eq!(qos1.receive().await.message(), ("a/b".into(), Some(1), b"one".to_vec()));
    assert_eq!(qos1.receive().await.message(), ("a/b".into(), None, b"zero".to_vec()));
}

#[tokio::test]
async fn puback_leaves_only_after_the_commit_and_in_order_of_receipt() {
    let broker = Broker::start().await;
    let filter = TopicFilter::parse("durable/#").unwrap();
    for partition in [1, 3] {
        broker.data_path.router.apply_durable(Partition(partition), std::slice::from_ref(&filter), &[]);
    }
    broker.log.is_holding.store(true, Ordering::SeqCst);
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "publisher").await;

    for id in 1..=3 {
        publisher.publish("durable/x", b"keep", Some(id)).await;
    }
    publisher.publish("elsewhere", b"nobody", Some(4)).await;
    assert_eq!(publisher.ping().await, [], "nothing is committed yet");
    assert_eq!(broker.log.waiting_count(), 6, "one append for each partition");

    broker.log.commit_waiting(true);
    let mut acked = Vec::new();
    for _ in 0..4 {
        acked.push(publisher.receive().await.body[1]);
    }
    assert_eq!(acked, [1, 2, 3, 4]);
    let sequences: Vec<_> = broker.log.records(1).iter().map(|record| record.origin.sequence).collect();
    assert_eq!(sequences, [0, 1, 2]);
    assert_eq!(broker.log.records(3)[0].message.payload, "keep");
}

#[tokio::test]
async fn puback_waits_until_every_peer_with_a_live_route_has_the_message() {
    let broker = Broker::start().await;
    let router = &broker.data_path.router;
    let add = |filter: &str, class| {
        RouteChange::Add(Route::Live { filter: TopicFilter::parse(filter).unwrap(), class })
    };
    let any = [add("t/#", LiveClass::AnyQos), add("t/x", LiveClass::AnyQos)];
    router.apply_peer_routes(&MemberId::new("peer-1"), &any);
    router.apply_peer_routes(&MemberId::new("peer-2"), &[add("t/+", LiveClass::QosZeroOnly)]);
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "publisher").await;

    publisher.publish("t/x", b"both", None).await;
    publisher.publish("t/x", b"one", Some(1)).await;
    assert_eq!(publisher.ping().await, [], "peer-1 has not answered");

    let sent: Vec<_> =
        broker.peers.forwards().iter().map(|(to, payload, _)| (to.clone(), payload.clone())).collect();
    let expected = [("peer-1", "both"), ("peer-2", "both"), ("peer-1", "one")];
    assert_eq!(
        sent,
        expected.map(|(to, payload)| (to.to_owned(), payload.to_owned())),
        "one frame for each peer"
    );
    broker.peers.answer_all();
    assert_eq!(publisher.receive().await.body, [0, 1]);

    router.set_peer_routes(&MemberId::new("peer-1"), [].into());
    publisher.publish("t/x", b"nobody", Some(2)).await;
    assert_eq!(publisher.receive().await.body, [0, 2], "a peer that is gone is not waited for");
}

#[tokio::test]
async fn a_forwarded_message_is_delivered_here_and_never_forwarded_again() {
    let broker = Broker::start().await;
    let router = &broker.data_path.router;
    let route = Route::Live { filter: TopicFilter::parse("t").unwrap(), class: LiveClass::AnyQos };
    router.apply_peer_routes(&MemberId::new("peer-1"), &[RouteChange::Add(route)]);
    router.apply_durable(Partition(0), &[TopicFilter::parse("t").unwrap()], &[]);
    let mut subscriber = Client::connect(broker.address(), Version::V3_1_1, "subscriber").await;
    subscriber.subscribe(&[("t", QoS::AtLeastOnce)]).await;

    let record = client::record("t", "forwarded");
    let mut cache = RouteCache::new(Publisher::Other);
    {
        let mut turn = Turn::begin(router.metrics());
        router.deliver_forwarded(&record, &mut cache, &mut turn);
        turn.finish();
    }

    assert_eq!(subscriber.receive().await.message(), ("t".into(), Some(1), b"forwarded".to_vec()));
    assert!(broker.peers.forwards().is_empty() && broker.log.records(0).is_empty());
}

#[tokio::test]
async fn a_partition_whose_routes_are_unknown_counts_as_matching_everything() {
    let broker = Broker::start().await;
    broker.data_path.router.forget_partition_routes(Partition(2));
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "publisher").await;

    publisher.publish("t", b"kept", Some(1)).await;
    publisher.receive().await;
    publisher.publish("t", b"not kept", None).await;
    publisher.ping().await;
    broker.data_path.router.set_partition_routes(Partition(2), [].into());
    publisher.publish("t", b"nobody", Some(2)).await;
    publisher.receive().await;

    assert_eq!(broker.log.records(2).len(), 1);
}

/// The routes of a partition become known while messages are published: each one is appended, for the one reason or the other.
#[tokio::test]
async fn no_publish_falls_between_unknown_and_known_routes() {
    let partitioning = Partitioning::new(4, 2).unwrap();
    let filter = TopicFilter::parse("t").unwrap();
    let message = Arc::new(client::record("t", "m").message);
    for _ in 0..200 {
        let log = Arc::new(MemoryLog::new(partitioning, Offsets::Contiguous));
        let reader = log.another_broker();
        let metrics = Metrics::new().unwrap();
        let own = Member { id: MemberId::new("own"), incarnation: Incarnation(1) };
        let router = Router::new(own, partitioning, log.clone(), metrics);
        for partition in [0, 2, 3] {
            router.set_partition_routes(Partition(partition), [].into());
        }

        std::thread::scope(|threads| {
            threads.spawn(|| router.set_partition_routes(Partition(1), [filter.clone()].into()));
            let mut turn = Turn::begin(router.metrics());
            let mut cache = RouteCache::new(Publisher::Other);
            for _ in 0..50 {
                router.publish(&message, &mut cache, PublishDone::Nobody, &mut turn);
            }
            turn.finish();
        });

        log.close().await;
        assert_eq!(reader.bounds(Partition(1)).await.unwrap().end, 50);
    }
}

#[tokio::test]
async fn a_will_above_qos_0_asks_the_peer_for_its_word_like_any_publish() {
    let broker = Broker::start().await;
    let route = Route::Live { filter: TopicFilter::parse("gone").unwrap(), class: LiveClass::AnyQos };
    broker.data_path.router.apply_peer_routes(&MemberId::new("peer-1"), &[RouteChange::Add(route)]);
    let mut connect = client::connect(Version::V3_1_1, "c");
    connect.will = client::will("gone", 0).map(|will| Box::new(Will { qos: QoS::AtLeastOnce, ..*will }));
    let (client, _) = Client::connect_with(broker.address(), connect).await;

    drop(client);

    broker.until(|broker| !broker.peers.forwards().is_empty()).await;
    let (to, _, is_asked) = broker.peers.forwards().remove(0);
    assert_eq!((to.as_str(), is_asked), ("peer-1", true));
}

#[tokio::test]
async fn rumqttc_publishes_and_receives() {
    let broker = Broker::start().await;
    let mut options = MqttOptions::new("rumqttc", "127.0.0.1", broker.address().port());
    options.set_clean_session(true);
    let (client, mut events) = AsyncClient::new(options, 10);
    client.subscribe("r/#", rumqttc::QoS::AtLeastOnce).await.unwrap();

    let mut received = Vec::new();
    while received.len() < 5 {
        match events.poll().await.unwrap() {
            Event::Incoming(Incoming::SubAck(_)) => {
                for number in 0..5_u8 {
                    client.publish("r/x", rumqttc::QoS::AtLeastOnce, false, [number]).await.unwrap();
                }
            }
            Event::Incoming(Incoming::Publish(publish)) => received.push(publish.payload[0]),
            Event::Incoming(_) | Event::Outgoing(_) => {}
        }
    }

    assert_eq!(received, [0, 1, 2, 3, 4]);
}

#[tokio::test]
async fn a_message_that_no_log_takes_closes_its_publisher_at_once_and_reaches_nobody() {
    let broker = Broker::start().await;
    let topic = "t".repeat(65_000);
    let mut subscriber = Client::connect(broker.address(), Version::V3_1_1, "subscriber").await;
    subscriber.subscribe(&[("#", QoS::AtLeastOnce)]).await;
    for id in [None, Some(2)] {
        let (mut publisher, _) =
            Client::connect_with(broker.address(), client::connect(Version::V5, "publisher")).await;
        let alias = |topic: &str, payload: &[u8], id| {
            let mut publish = client::publish(topic, payload, id);
            publish.topic_alias = std::num::NonZeroU16::new(1);
            tidemill_core::packet::Packet::Publish(publish)
        };
        publisher.send(alias(&topic, b"names it", None)).await;
        assert_eq!(subscriber.receive().await.message().2, b"names it");

        publisher.send(alias("", &vec![b'x'; (1 << 20) - 100], id)).await;

        let farewell = publisher.receive().await;
        assert_eq!((farewell.first_byte, farewell.body[0]), (0xE0, 0x97));
        assert!(publisher.receive_or_end().await.is_none());
    }
    assert_eq!(subscriber.ping().await, []);
}

//! What clients publish at QoS 2.

use crate::broker::{Broker, CLUSTER};
use crate::client::{Client, connect, will};
use crate::{BOTH, DISCONNECT, PUBACK, PUBCOMP, PUBREC, delivered};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use tidemill_core::packet::{AckKind, QoS, ReasonCode, Version};
use tidemill_core::partition::Partition;
use tidemill_core::topic::TopicFilter;

#[tokio::test]
async fn a_message_is_acknowledged_in_four_steps_on_both_sides() {
    // MQTT-4.3.3
    for version in BOTH {
        let broker = Broker::start().await;
        let mut subscriber = Client::connect(broker.address(), version, "subscriber").await;
        assert_eq!(subscriber.subscribe(&[("t", QoS::ExactlyOnce)]).await.body.last(), Some(&2));
        let mut publisher = Client::connect(broker.address(), version, "publisher").await;

        publisher.complete_exactly_once("t", "once", 7).await;

        assert_eq!(subscriber.receive_message().await, delivered(2, 1, "once"));
        subscriber.ack(AckKind::PubRec, 1).await;
        assert_eq!(subscriber.receive_ack().await, (crate::PUBREL, 1, 0));
        subscriber.ack(AckKind::PubComp, 1).await;
        assert_eq!(subscriber.ping().await, []);
    }
}

#[tokio::test]
async fn a_repeated_publish_is_answered_again_and_delivered_once() {
    // MQTT-4.3.3-10
    for version in BOTH {
        let broker = Broker::start().await;
        let mut subscriber = Client::connect(broker.address(), version, "subscriber").await;
        subscriber.subscribe(&[("t", QoS::AtMostOnce)]).await;
        let mut publisher = Client::connect(broker.address(), version, "publisher").await;
        publisher.publish_exactly_once("t", "first", 7).await;
        assert_eq!(publisher.receive_ack().await, (PUBREC, 7, 0));

        publisher.repeat_exactly_once("t", "first", 7).await;
        assert_eq!(publisher.receive_ack().await, (PUBREC, 7, 0));
        publisher.publish_exactly_once("t", "without DUP, and still a repeat", 7).await;
        assert_eq!(publisher.receive_ack().await, (PUBREC, 7, 0));
        publisher.ack(AckKind::PubRel, 7).await;
        assert_eq!(publisher.receive_ack().await, (PUBCOMP, 7, 0));
        publisher.publish_exactly_once("t", "second", 7).await;
        assert_eq!(publisher.receive_ack().await, (PUBREC, 7, 0));

        assert_eq!(subscriber.receive_message().await.text, "first");
        assert_eq!(subscriber.receive_message().await.text, "second");
        assert_eq!(subscriber.ping().await, []);
    }
}

#[tokio::test]
async fn pubrec_leaves_after_the_commit_and_in_order_and_records_carry_the_id_of_their_publish() {
    let broker = Broker::start().await;
    let filter = TopicFilter::parse("durable").unwrap();
    for partition in [1, 3] {
        broker.data_path.router.apply_durable(Partition(partition), std::slice::from_ref(&filter), &[]);
    }
    broker.log.is_holding.store(true, Ordering::SeqCst);
    let mut publisher = Client::connect(broker.address(), Version::V5, "publisher").await;

    publisher.publish_exactly_once("durable", "a", 1).await;
    publisher.publish("durable", b"b", Some(2)).await;
    publisher.publish_exactly_once("durable", "c", 3).await;
    publisher.repeat_exactly_once("durable", "a", 1).await;
    publisher.publish_exactly_once("elsewhere", "d", 4).await;
    assert_eq!(publisher.ping().await, [], "nothing is committed yet");
    assert_eq!(broker.log.waiting_count(), 6, "three messages for two partitions");
    broker.log.commit_waiting(true);

    assert_eq!(publisher.receive_ack().await, (PUBREC, 1, 0));
    assert_eq!(publisher.receive_ack().await, (PUBACK, 2, 0));
    assert_eq!(publisher.receive_ack().await, (PUBREC, 3, 0));
    assert_eq!(publisher.receive_ack().await, (PUBREC, 4, 0x10), "nobody is interested");
    assert_eq!(publisher.ping().await, [], "the first PUBREC answered the repeat, too");
    let ids = |partition| broker.log.records(partition).into_iter().map(|record| record.unique_id);
    let [a, b, c] = ids(1).collect::<Vec<_>>()[..] else { panic!("three records") };
    assert_eq!(ids(3).collect::<Vec<_>>(), [a, b, c]);
    assert_eq!((b, BTreeSet::from([a, b, c]).len()), (None, 3), "only QoS 2 has one");
}

#[tokio::test]
async fn pubrel_is_always_answered() {
    // MQTT-4.3.3-11; 3.x has no code for a packet id that is not known.
    for (version, not_found) in [(Version::V3_1_1, 0), (Version::V5, 0x92)] {
        let broker = Broker::start().await;
        let mut publisher = Client::connect(broker.address(), version, "publisher").await;
        publisher.complete_exactly_once("t", "x", 7).await;

        for _ in 0..2 {
            publisher.ack(AckKind::PubRel, 7).await;
            assert_eq!(publisher.receive_ack().await, (PUBCOMP, 7, not_found));
        }
        // A session that the client lost on its side: it releases what it does not know.
        publisher.publish_exactly_once("t", "y", 8).await;
        publisher.receive_ack().await;
        publisher.ack_with(AckKind::PubRel, 8, ReasonCode::PACKET_IDENTIFIER_NOT_FOUND).await;
        assert_eq!(publisher.receive_ack().await, (PUBCOMP, 8, 0));
    }
}

#[tokio::test]
async fn pubrel_with_reason_and_properties_releases() {
    let broker = Broker::start().await;
    let mut publisher = Client::connect(broker.address(), Version::V5, "publisher").await;
    publisher.publish_exactly_once("t", "x", 0x0102).await;
    publisher.receive_ack().await;

    // Reason string "no" and user property "k" = "v".
    let properties = [0x1F, 0, 2, b'n', b'o', 0x26, 0, 1, b'k', 0, 1, b'v'];
    let mut pubrel = vec![0x62, 16, 1, 2, 0x92, 12];
    pubrel.extend(properties);
    publisher.send_raw(&pubrel).await;

    assert_eq!(publisher.receive_ack().await, (PUBCOMP, 0x0102, 0));
}

#[tokio::test]
async fn a_5_0_client_has_its_quota_from_publish_to_pubcomp() {
    // MQTT-3.3.4-9, section 4.9
    let broker = Broker::start_with("limits: {receiveMaximum: 2}\n").await;
    let mut publisher = Client::connect(broker.address(), Version::V5, "publisher").await;
    for id in [1, 2] {
        publisher.publish_exactly_once("t", "x", id).await;
        assert_eq!(publisher.receive_ack().await.0, PUBREC);
    }
    publisher.ack(AckKind::PubRel, 1).await;
    assert_eq!(publisher.receive_ack().await.0, PUBCOMP);
    publisher.publish("t", b"there is room", Some(3)).await;
    assert_eq!(publisher.receive_ack().await.0, PUBACK);
    publisher.publish_exactly_once("t", "now as well", 4).await;
    assert_eq!(publisher.receive_ack().await.0, PUBREC);

    publisher.publish_exactly_once("t", "too much", 5).await;

    assert_eq!(publisher.receive().await.body.first(), Some(&0x93));
    assert_eq!(publisher.receive_or_end().await, None);
}

#[tokio::test]
async fn a_3_x_client_that_publishes_on_before_it_releases_is_served() {
    // What it is held for must not be what stands behind it in the socket.
    let broker = Broker::start_with("limits: {receiveMaximum: 2}\n").await;
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "publisher").await;

    for id in 1..=20 {
        publisher.publish_exactly_once("t", "x", id).await;
    }
    for id in 1..=20 {
        publisher.ack(AckKind::PubRel, id).await;
    }

    let acks: Vec<_> = publisher.ping().await.iter().map(|ack| (ack.first_byte, ack.body[1])).collect();
    let expected = (1..=20).map(|id| (PUBREC, id)).chain((1..=20).map(|id| (PUBCOMP, id)));
    assert_eq!(acks, expected.collect::<Vec<_>>());
}

#[tokio::test]
async fn a_pubrec_that_refuses_frees_the_packet_id() {
    // Section 3.5.2.1: 0x80 and above
    let broker = Broker::start_with("limits: {receiveMaximum: 1}\n").await;
    let mut publisher = Client::connect(broker.address(), Version::V5, "publisher").await;

    for _ in 0..2 {
        publisher.publish_exactly_once("$SYS/x", "x", 7).await;
        assert_eq!(publisher.receive_ack().await, (PUBREC, 7, 0x90));
    }

    publisher.ack(AckKind::PubRel, 7).await;
    assert_eq!(publisher.receive_ack().await, (PUBCOMP, 7, 0x92));
    publisher.complete_exactly_once("t", "x", 7).await;
}

#[tokio::test]
async fn a_qos_1_publish_under_a_packet_id_of_qos_2_is_refused_in_5_0_and_taken_in_3_x() {
    // MQTT-2.2.1-3
    for (version, reason, texts) in
        [(Version::V3_1_1, 0, &["first", "second"][..]), (Version::V5, 0x91, &["first"])]
    {
        let broker = Broker::start().await;
        let mut subscriber = Client::connect(broker.address(), version, "subscriber").await;
        subscriber.subscribe(&[("t", QoS::AtMostOnce)]).await;
        let mut publisher = Client::connect(broker.address(), version, "publisher").await;
        publisher.publish_exactly_once("t", "first", 7).await;
        publisher.receive_ack().await;

        publisher.publish("t", b"second", Some(7)).await;

        assert_eq!(publisher.receive_ack().await, (PUBACK, 7, reason));
        publisher.ack(AckKind::PubRel, 7).await;
        assert_eq!(publisher.receive_ack().await, (PUBCOMP, 7, 0));
        for text in texts {
            assert_eq!(subscriber.receive_message().await.text, *text);
        }
        assert_eq!(subscriber.ping().await, []);
    }
}

#[tokio::test]
async fn a_will_is_published_at_qos_2() {
    let broker = Broker::start().await;
    let mut subscriber = Client::connect(broker.address(), Version::V5, "subscriber").await;
    subscriber.subscribe(&[("will", QoS::ExactlyOnce)]).await;
    let mut connect = connect(Version::V5, "c");
    connect.will = will("will", 0);
    connect.will.as_mut().unwrap().qos = QoS::ExactlyOnce;

    let (client, connack) = Client::connect_with(broker.address(), connect).await;
    assert_eq!(connack.body[1], 0);
    drop(client);

    assert_eq!(subscriber.receive_message().await, delivered(2, 1, "gone"));
}

#[tokio::test]
async fn connack_names_no_maximum_qos_where_qos_2_is_served_and_refuses_it_across_brokers() {
    // MQTT-3.2.2-9, -11
    let maximum_qos = |body: &[u8]| body.windows(2).any(|window| window == [0x24, 1]);
    let broker = Broker::start().await;
    let (_client, connack) = Client::connect_with(broker.address(), connect(Version::V5, "c")).await;
    assert!(!maximum_qos(&connack.body[3..]));

    let broker = Broker::start_with(CLUSTER).await;
    let (mut client, connack) = Client::connect_with(broker.address(), connect(Version::V5, "c")).await;
    assert!(maximum_qos(&connack.body[3..]));
    assert_eq!(client.subscribe(&[("t", QoS::ExactlyOnce)]).await.body.last(), Some(&1));
    client.publish_exactly_once("t", "x", 1).await;
    let disconnect = client.receive().await;
    assert_eq!((disconnect.first_byte, disconnect.body[0]), (DISCONNECT, 0x9B));
    let mut old = Client::connect(broker.address(), Version::V3_1_1, "old").await;
    old.publish_exactly_once("t", "x", 1).await;
    assert_eq!(old.receive_or_end().await, None);
}

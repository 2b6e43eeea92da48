//! What goes on after a reconnect, and under which packet ids.

use crate::broker::Broker;
use crate::client::{Client, Received, connect};
use crate::standalone::Standalone;
use crate::{BOTH, PUBCOMP, PUBREC, PUBREL, delivered, delivered_again, exactly_once};
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidemill_broker::log::AppendError;
use tidemill_broker::mailbox::{LiveDelivery, Turn};
use tidemill_core::packet::{AckKind, Connect, Disconnect, Packet, PublishPacket, QoS, ReasonCode, Version};
use tidemill_core::partition::Partition;
use tidemill_core::session::exactly_once::OWNER_IDS_FROM;
use tidemill_core::topic::TopicFilter;

fn persistent(version: Version, client_id: &str) -> Connect {
    let session_expiry_secs = version.is_v5().then_some(60);
    Connect { clean_start: false, session_expiry_secs, ..connect(version, client_id) }
}

/// A connection of a persistent session, which is there or not.
async fn attach(address: SocketAddr, connect: Connect, is_present: bool) -> Client {
    let (client, connack) = Client::connect_with(address, connect).await;
    assert_eq!(connack.body[..2], [u8::from(is_present), 0]);
    client
}

/// How the old connection ends: the client is gone, or the new one comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Gone,
    TakenOver,
}

impl End {
    /// The next connection of the session.
    async fn next(self, old: Client, address: SocketAddr, connect: Connect) -> Client {
        match self {
            Self::Gone => {
                drop(old);
                attach(address, connect, true).await
            }
            Self::TakenOver => {
                let client = attach(address, connect, true).await;
                drop(old);
                client
            }
        }
    }
}

fn cases() -> impl Iterator<Item = (Version, End)> {
    BOTH.into_iter().flat_map(|version| [(version, End::Gone), (version, End::TakenOver)])
}

#[tokio::test]
async fn what_was_sent_comes_again_with_dup_under_its_packet_id_and_in_order() {
    // MQTT-4.4.0-1, MQTT-3.3.1-1
    let broker = Standalone::start().await;
    for (number, (version, end)) in cases().enumerate() {
        let connect = persistent(version, &format!("subscriber-{number}"));
        let mut subscriber = attach(broker.address(), connect.clone(), false).await;
        let topic = format!("t/{number}");
        subscriber.subscribe(&[(&topic, QoS::ExactlyOnce)]).await;
        let mut publisher = Client::connect(broker.address(), version, "publisher").await;
        let (first, second, third) = (OWNER_IDS_FROM, OWNER_IDS_FROM + 1, OWNER_IDS_FROM + 2);
        for (number, qos, id) in [
            (1, QoS::ExactlyOnce, first),
            (2, QoS::AtLeastOnce, 1),
            (3, QoS::ExactlyOnce, second),
            (4, QoS::AtLeastOnce, 2),
        ] {
            let packet = PublishPacket { qos, ..exactly_once(&topic, &number.to_string(), number) };
            publisher.send(Packet::Publish(packet)).await;
            assert_eq!(subscriber.receive_message().await, delivered(qos as u8, id, &number.to_string()));
        }
        subscriber.puback(1).await;
        subscriber.ping().await;

        let mut subscriber = end.next(subscriber, broker.address(), connect.clone()).await;

        assert_eq!(subscriber.receive_message().await, delivered_again(2, first, "1"), "{version:?} {end:?}");
        assert_eq!(subscriber.receive_message().await, delivered_again(2, second, "3"));
        assert_eq!(subscriber.receive_message().await, delivered_again(1, 2, "4"));
        publisher.publish_exactly_once(&topic, "5", 5).await;
        assert_eq!(subscriber.receive_message().await, delivered(2, third, "5"), "a new one, under a new id");
        subscriber.ack(AckKind::PubRec, second).await;
        assert_eq!(subscriber.receive_ack().await, (PUBREL, second, 0));

        // And again, now with a delivery at each of its steps.
        let mut subscriber = end.next(subscriber, broker.address(), connect).await;
        assert_eq!(subscriber.receive_ack().await, (PUBREL, second, 0));
        assert_eq!(subscriber.receive_message().await, delivered_again(2, first, "1"));
        assert_eq!(subscriber.receive_message().await, delivered_again(1, 2, "4"));
        assert_eq!(subscriber.receive_message().await, delivered_again(2, third, "5"));
        subscriber.ack(AckKind::PubComp, second).await;
        assert_eq!(subscriber.ping().await, []);
    }
    broker.running.stop().await;
}

#[tokio::test]
async fn what_was_received_is_released_again_and_not_sent_again() {
    // MQTT-4.3.3-7: not after PUBREL
    let broker = Standalone::start().await;
    for (number, (version, end)) in cases().enumerate() {
        let connect = persistent(version, &format!("subscriber-{number}"));
        let mut subscriber = attach(broker.address(), connect.clone(), false).await;
        subscriber.subscribe(&[("t", QoS::ExactlyOnce)]).await;
        let mut publisher = Client::connect(broker.address(), version, "publisher").await;
        for id in [1, 2] {
            publisher.publish_exactly_once("t", "x", id).await;
            subscriber.receive_message().await;
        }
        let (first, second) = (OWNER_IDS_FROM, OWNER_IDS_FROM + 1);
        for id in [second, first] {
            subscriber.ack(AckKind::PubRec, id).await;
            assert_eq!(subscriber.receive_ack().await, (PUBREL, id, 0));
        }

        let mut subscriber = end.next(subscriber, broker.address(), connect.clone()).await;

        assert_eq!(subscriber.receive_ack().await, (PUBREL, second, 0), "in the order of PUBREC");
        assert_eq!(subscriber.receive_ack().await, (PUBREL, first, 0));
        subscriber.ack(AckKind::PubComp, first).await;
        assert_eq!(subscriber.ping().await, []);
        let mut subscriber = end.next(subscriber, broker.address(), connect.clone()).await;
        assert_eq!(subscriber.receive_ack().await, (PUBREL, second, 0));
        subscriber.ack(AckKind::PubComp, second).await;
        assert_eq!(subscriber.ping().await, []);
        let mut subscriber = end.next(subscriber, broker.address(), connect).await;
        assert_eq!(subscriber.ping().await, []);
        subscriber.unsubscribe(&["t"]).await;
    }
    broker.running.stop().await;
}

#[tokio::test]
async fn a_publish_that_is_repeated_after_a_reconnect_is_delivered_once() {
    // MQTT-4.3.3-10
    let broker = Standalone::start().await;
    for (number, (version, end)) in cases().enumerate() {
        let connect = persistent(version, &format!("publisher-{number}"));
        let mut subscriber = Client::connect(broker.address(), version, "subscriber").await;
        subscriber.subscribe(&[("t", QoS::AtMostOnce)]).await;
        let mut publisher = attach(broker.address(), connect.clone(), false).await;
        publisher.publish_exactly_once("t", "acknowledged", 1).await;
        assert_eq!(publisher.receive_ack().await.0, PUBREC);
        publisher.publish_exactly_once("t", "perhaps acknowledged", 2).await;
        assert_eq!(subscriber.receive_message().await.text, "acknowledged");
        assert_eq!(subscriber.receive_message().await.text, "perhaps acknowledged");

        let mut publisher = end.next(publisher, broker.address(), connect.clone()).await;

        publisher.repeat_exactly_once("t", "perhaps acknowledged", 2).await;
        assert_eq!(publisher.receive_ack().await, (PUBREC, 2, 0));
        for id in [1, 2] {
            publisher.ack(AckKind::PubRel, id).await;
            assert_eq!(publisher.receive_ack().await, (PUBCOMP, id, 0));
        }
        publisher.publish_exactly_once("t", "new", 1).await;
        assert_eq!(publisher.receive_ack().await.0, PUBREC);
        assert_eq!(subscriber.receive_message().await.text, "new");

        // PUBREL is repeated, too: only one of both is known here.
        let mut publisher = end.next(publisher, broker.address(), connect).await;
        for (id, reason) in [(1, 0), (2, 0x92)] {
            publisher.ack(AckKind::PubRel, id).await;
            let expected = if version.is_v5() { reason } else { 0 };
            assert_eq!(publisher.receive_ack().await, (PUBCOMP, id, expected));
        }
        assert_eq!(subscriber.ping().await, []);
    }
    broker.running.stop().await;
}

#[tokio::test]
async fn a_session_that_is_discarded_takes_everything_with_it() {
    let broker = Standalone::start().await;
    for (version, end) in cases() {
        let connect = persistent(version, "c");
        let mut client =
            attach(broker.address(), Connect { clean_start: true, ..connect.clone() }, false).await;
        client.subscribe(&[("t", QoS::ExactlyOnce)]).await;
        client.publish_exactly_once("t", "to itself", 9).await;
        let packets = [client.receive().await, client.receive().await];
        let mut kinds = packets.each_ref().map(|packet: &Received| packet.first_byte);
        kinds.sort_unstable();
        assert_eq!(kinds, [0x34, PUBREC]);

        if end == End::Gone {
            drop(client);
        }
        let anew = Connect { clean_start: true, ..connect.clone() };
        let (mut client, connack) = Client::connect_with(broker.address(), anew).await;

        assert_eq!(connack.body[..2], [0, 0]);
        assert_eq!(client.ping().await, []);
        client.ack(AckKind::PubRel, 9).await;
        let not_found = if version.is_v5() { 0x92 } else { 0 };
        assert_eq!(client.receive_ack().await, (PUBCOMP, 9, not_found));
        client.subscribe(&[("t", QoS::ExactlyOnce)]).await;
        client.publish("t", b"new", Some(1)).await;
        let packets = [client.receive().await, client.receive().await];
        let message = packets.iter().find(|packet| packet.first_byte >> 4 == 3).unwrap();
        assert_eq!((message.first_byte, message.message().1), (0x32, Some(1)), "ids begin anew");
    }
    broker.running.stop().await;
}

#[tokio::test]
async fn a_smaller_receive_maximum_holds_for_what_is_sent_again() {
    let broker = Standalone::start().await;
    let connect = persistent(Version::V5, "subscriber");
    let mut subscriber = attach(broker.address(), connect.clone(), false).await;
    subscriber.subscribe(&[("t", QoS::ExactlyOnce)]).await;
    let mut publisher = Client::connect(broker.address(), Version::V5, "publisher").await;
    for id in 1..=3 {
        publisher.complete_exactly_once("t", &id.to_string(), id).await;
        subscriber.receive_message().await;
    }
    drop(subscriber);

    let small = Connect { receive_maximum: NonZeroU16::new(1), ..connect.clone() };
    let mut subscriber = attach(broker.address(), small.clone(), true).await;
    assert_eq!(subscriber.receive_message().await, delivered_again(2, OWNER_IDS_FROM, "1"));
    assert_eq!(subscriber.ping().await, []);
    // What has not come on this connection keeps its id for the next one.
    drop(subscriber);

    let mut subscriber = attach(broker.address(), small, true).await;
    for number in 1..=3 {
        let id = OWNER_IDS_FROM + number - 1;
        assert_eq!(subscriber.receive_message().await, delivered_again(2, id, &number.to_string()));
        subscriber.ack(AckKind::PubRec, id).await;
        assert_eq!(subscriber.receive_ack().await, (PUBREL, id, 0));
        subscriber.ack(AckKind::PubComp, id).await;
    }
    assert_eq!(subscriber.ping().await, []);
    broker.running.stop().await;
}

#[tokio::test]
async fn a_publish_that_was_not_committed_when_the_connection_ended_is_not_taken_for_done() {
    let filter = TopicFilter::parse("t").unwrap();
    for (version, is_committed) in [(Version::V3_1_1, true), (Version::V5, true), (Version::V5, false)] {
        let broker = Broker::start().await;
        broker.data_path.router.apply_durable(Partition(1), std::slice::from_ref(&filter), &[]);
        broker.log.is_holding.store(true, Ordering::SeqCst);
        let connect = persistent(version, "publisher");
        let mut publisher = attach(broker.address(), connect.clone(), false).await;
        publisher.publish_exactly_once("t", "x", 7).await;
        assert_eq!(publisher.ping().await, []);
        drop(publisher);

        let address = broker.address();
        let next = tokio::spawn(attach(address, connect, true));
        if is_committed {
            broker.log.commit_waiting(false);
        } else {
            broker.log.fail_waiting(&AppendError::Closed);
        }
        broker.log.is_holding.store(false, Ordering::SeqCst);
        let mut publisher = next.await.unwrap();

        publisher.repeat_exactly_once("t", "x", 7).await;
        assert_eq!(publisher.receive_ack().await, (PUBREC, 7, 0));
        assert_eq!(broker.log.records(1).len(), if is_committed { 1 } else { 2 });
    }
}

#[tokio::test]
async fn deliveries_of_a_persistent_session_that_did_not_come_from_its_queue_go_on_as_well() {
    for version in BOTH {
        let broker = Broker::start_with("limits: {inFlight: 2}\n").await;
        let connect = Connect { receive_maximum: NonZeroU16::new(2), ..persistent(version, "c") };
        let mut client = attach(broker.address(), connect.clone(), false).await;
        let registered = broker.data_path.registry.find("c").unwrap();
        {
            let mut turn = Turn::begin(broker.data_path.router.metrics());
            for (text, qos) in [("1", QoS::ExactlyOnce), ("2", QoS::AtLeastOnce), ("3", QoS::ExactlyOnce)] {
                let message = Arc::new(crate::client::record("t", text).message);
                let delivery = LiveDelivery { message: &message, qos, retain: false, identifiers: None };
                registered.mailbox.deliver(delivery, &mut turn);
            }
            turn.finish();
        }
        drop(registered);
        assert_eq!(client.receive_message().await, delivered(2, 1, "1"));
        assert_eq!(client.receive_message().await, delivered(1, 2, "2"));
        drop(client);

        let mut client = attach(broker.address(), connect.clone(), true).await;

        assert_eq!(client.receive_message().await, delivered_again(2, 1, "1"));
        assert_eq!(client.receive_message().await, delivered_again(1, 2, "2"));
        client.puback(2).await;
        assert_eq!(client.receive_message().await, delivered(2, 3, "3"), "it has been waiting");
        client.ack(AckKind::PubRec, 3).await;
        assert_eq!(client.receive_ack().await, (PUBREL, 3, 0));
        drop(client);

        let mut client = attach(broker.address(), connect, true).await;
        assert_eq!(client.receive_ack().await, (PUBREL, 3, 0));
        assert_eq!(client.receive_message().await, delivered_again(2, 1, "1"));
        assert_eq!(client.ping().await, []);
    }
}

/// A 5.0 client that resumes its session and lets it end with the connection (session expiry 0).
#[tokio::test]
async fn a_session_that_is_resumed_for_the_last_time_still_has_its_queue_and_brings_each_message_once() {
    let broker = Standalone::start().await;
    let connect_with_expiry = |expiry_secs| {
        let mut connect = connect(Version::V5, "c");
        connect.clean_start = false;
        connect.session_expiry_secs = expiry_secs;
        connect
    };
    let (mut client, _) = Client::connect_with(broker.address(), connect_with_expiry(Some(3_600))).await;
    client.subscribe(&[("t", QoS::AtLeastOnce)]).await;
    drop(client);

    let (mut last, connack) = Client::connect_with(broker.address(), connect_with_expiry(None)).await;
    assert_eq!(connack.body[0], 1, "session present");
    last.subscribe(&[("u", QoS::ExactlyOnce)]).await;
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "publisher").await;
    publisher.complete_exactly_once("t", "one", 1).await;
    publisher.complete_exactly_once("u", "two", 2).await;

    let texts = [last.receive_message().await, last.receive_message().await].map(|got| (got.qos, got.text));
    assert_eq!(texts, [(1, "one".to_owned()), (2, "two".to_owned())]);
    assert!(last.ping().await.is_empty(), "each once");
    last.send(Packet::Disconnect(Disconnect::new(ReasonCode::SUCCESS))).await;
    assert_eq!(last.receive_or_end().await, None);
    let (_, connack) = Client::connect_with(broker.address(), connect_with_expiry(Some(60))).await;
    assert_eq!(connack.body[0], 0, "it has ended");
}

/// MQTT 5.0 section 3.14.2.2.2, also for a session that was persistent before this connection.
#[tokio::test]
async fn a_session_that_is_to_end_with_its_connection_cannot_be_prolonged_by_disconnect() {
    let broker = Standalone::start().await;
    let first = attach(broker.address(), persistent(Version::V5, "c"), false).await;
    drop(first);
    let last = Connect { session_expiry_secs: None, ..persistent(Version::V5, "c") };
    let (mut last, connack) = Client::connect_with(broker.address(), last).await;
    assert_eq!(connack.body[0], 1, "session present");

    let prolonging = Disconnect { session_expiry_secs: Some(60), ..Disconnect::new(ReasonCode::SUCCESS) };
    last.send(Packet::Disconnect(prolonging)).await;

    assert_eq!(last.farewell().await, 0x82);
    attach(broker.address(), persistent(Version::V5, "c"), false).await;
}

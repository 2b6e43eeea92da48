//! What clients are sent at QoS 2.

use crate::broker::Broker;
use crate::client::{Client, connect};
use crate::standalone::Standalone;
use crate::{BOTH, DISCONNECT, Delivered, PUBREL, delivered, exactly_once};
use std::num::NonZeroU16;
use tidemill_core::packet::{AckKind, Packet, PacketId, PublishPacket, QoS, ReasonCode, Version};

async fn subscriber(broker: &Broker, version: Version, receive_maximum: u16) -> Client {
    let mut connect = connect(version, "subscriber");
    connect.receive_maximum = NonZeroU16::new(receive_maximum);
    let (mut client, _) = Client::connect_with(broker.address(), connect).await;
    client.subscribe(&[("t", QoS::ExactlyOnce)]).await;
    client
}

#[tokio::test]
async fn a_delivery_has_the_lower_of_both_qos_from_memory_and_from_the_queue() {
    let broker = Standalone::start().await;
    for (version, is_persistent) in [(Version::V3_1_1, false), (Version::V3_1_1, true), (Version::V5, true)] {
        let mut subscribers = Vec::new();
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let mut connect = connect(version, &format!("{version:?}-{is_persistent}-{qos:?}"));
            connect.clean_start = !is_persistent;
            connect.session_expiry_secs = (is_persistent && version.is_v5()).then_some(60);
            let (mut client, _) = Client::connect_with(broker.address(), connect).await;
            assert_eq!(client.subscribe(&[("t", qos)]).await.body.last(), Some(&(qos as u8)));
            subscribers.push((qos, client));
        }
        let mut publisher = Client::connect(broker.address(), version, "publisher").await;

        for (number, published) in
            [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce].into_iter().enumerate()
        {
            let packet_id = if published == QoS::AtMostOnce { None } else { PacketId::new(1) };
            let text = number.to_string();
            let packet = PublishPacket { qos: published, packet_id, ..exactly_once("t", &text, 1) };
            publisher.send(Packet::Publish(packet)).await;
            for (subscribed, client) in &mut subscribers {
                let expected = published.min(*subscribed) as u8;
                let message = client.receive_message().await;
                assert_eq!((message.qos, message.text.as_str()), (expected, text.as_str()), "{version:?}");
                assert_eq!((message.dup, message.id.is_some()), (false, expected > 0));
            }
        }
    }
    broker.running.stop().await;
}

#[tokio::test]
async fn acknowledgements_may_come_in_any_order() {
    for version in BOTH {
        let broker = Broker::start().await;
        let mut subscriber = subscriber(&broker, version, 100).await;
        let mut publisher = Client::connect(broker.address(), version, "publisher").await;
        for id in 1..=3 {
            publisher.complete_exactly_once("t", &id.to_string(), id).await;
            assert_eq!(subscriber.receive_message().await, delivered(2, id, &id.to_string()));
        }

        for id in [3, 1] {
            subscriber.ack(AckKind::PubRec, id).await;
            assert_eq!(subscriber.receive_ack().await, (PUBREL, id, 0));
        }
        subscriber.ack(AckKind::PubComp, 1).await;
        subscriber.ack(AckKind::PubRec, 2).await;
        assert_eq!(subscriber.receive_ack().await, (PUBREL, 2, 0));
        subscriber.ack(AckKind::PubComp, 2).await;
        subscriber.ack(AckKind::PubComp, 3).await;

        assert_eq!(subscriber.ping().await, []);
        publisher.complete_exactly_once("t", "next", 4).await;
        assert_eq!(subscriber.receive_message().await, delivered(2, 4, "next"));
    }
}

#[tokio::test]
async fn the_clients_receive_maximum_counts_until_pubcomp() {
    // MQTT-3.3.4-9
    let broker = Broker::start().await;
    let mut subscriber = subscriber(&broker, Version::V5, 1).await;
    let mut publisher = Client::connect(broker.address(), Version::V5, "publisher").await;
    for (id, text) in [(1, "first"), (2, "second")] {
        publisher.complete_exactly_once("t", text, id).await;
    }
    assert_eq!(subscriber.receive_message().await, delivered(2, 1, "first"));
    subscriber.ack(AckKind::PubRec, 1).await;
    assert_eq!(subscriber.receive_ack().await, (PUBREL, 1, 0));
    assert_eq!(subscriber.ping().await, []);

    subscriber.ack(AckKind::PubComp, 1).await;

    assert_eq!(subscriber.receive_message().await, delivered(2, 2, "second"));
}

#[tokio::test]
async fn pubrec_with_an_error_ends_the_delivery() {
    // MQTT-4.3.3-4: PUBREL only answers a reason below 0x80.
    let broker = Broker::start().await;
    let mut subscriber = subscriber(&broker, Version::V5, 1).await;
    let mut publisher = Client::connect(broker.address(), Version::V5, "publisher").await;
    for (id, text) in [(1, "first"), (2, "second")] {
        publisher.complete_exactly_once("t", text, id).await;
    }
    subscriber.receive_message().await;

    subscriber.ack_with(AckKind::PubRec, 1, ReasonCode::QUOTA_EXCEEDED).await;

    assert_eq!(subscriber.receive_message().await, delivered(2, 2, "second"));
    subscriber.ack_with(AckKind::PubRec, 2, ReasonCode::NO_MATCHING_SUBSCRIBERS).await;
    assert_eq!(subscriber.receive_ack().await, (PUBREL, 2, 0), "0x10 is no error");
}

#[tokio::test]
async fn pubrec_is_always_answered_with_pubrel_and_an_unknown_pubcomp_is_no_harm() {
    for (version, not_found) in [(Version::V3_1_1, 0), (Version::V5, 0x92)] {
        let broker = Broker::start().await;
        let mut subscriber = subscriber(&broker, version, 100).await;
        let mut publisher = Client::connect(broker.address(), version, "publisher").await;
        publisher.complete_exactly_once("t", "x", 1).await;
        subscriber.receive_message().await;

        for _ in 0..2 {
            subscriber.ack(AckKind::PubRec, 1).await;
            assert_eq!(subscriber.receive_ack().await, (PUBREL, 1, 0));
        }
        subscriber.ack(AckKind::PubRec, 9).await;
        assert_eq!(subscriber.receive_ack().await, (PUBREL, 9, not_found));
        for id in [9, 1, 1] {
            subscriber.ack(AckKind::PubComp, id).await;
        }
        subscriber.ack(AckKind::PubRec, 1).await;

        assert_eq!(subscriber.receive_ack().await, (PUBREL, 1, not_found));
    }
}

#[tokio::test]
async fn an_acknowledgement_of_the_wrong_kind_is_a_protocol_error() {
    for version in BOTH {
        for (qos, kind) in [
            (QoS::ExactlyOnce, AckKind::PubAck),
            (QoS::ExactlyOnce, AckKind::PubComp),
            (QoS::AtLeastOnce, AckKind::PubRec),
            (QoS::AtLeastOnce, AckKind::PubComp),
        ] {
            let broker = Broker::start().await;
            let mut subscriber = subscriber(&broker, version, 100).await;
            let mut publisher = Client::connect(broker.address(), version, "publisher").await;
            let packet = PublishPacket { qos, ..exactly_once("t", "x", 1) };
            publisher.send(Packet::Publish(packet)).await;
            let Delivered { id, .. } = subscriber.receive_message().await;

            subscriber.ack(kind, id.unwrap()).await;

            if version.is_v5() {
                let disconnect = subscriber.receive().await;
                assert_eq!((disconnect.first_byte, disconnect.body[0]), (DISCONNECT, 0x82), "{kind:?}");
            }
            assert_eq!(subscriber.receive_or_end().await, None, "{kind:?}");
            publisher.ping().await;
        }
    }
}

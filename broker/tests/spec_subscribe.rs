//! SUBSCRIBE, UNSUBSCRIBE and what they deliver, over real sockets.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "fixture/broker.rs"]
mod broker;
#[path = "fixture/client.rs"]
mod client;

use broker::Broker;
use bytes::Bytes;
use client::{Client, connect, options};
use std::sync::Arc;
use tidemill_broker::owner::HostSide;
use tidemill_core::attach::{Deliver, Delivery, QueueId, SessionNumber};
use tidemill_core::member::OwnerEpoch;
use tidemill_core::message::Message;
use tidemill_core::packet::{QoS, SubscribeEntry, SubscriptionOptions, Version};
use tidemill_core::partition::{Partition, QueueKind};
use tidemill_core::record::{Origin, Record, RecordBody};
use tidemill_core::topic::TopicName;

fn entry(filter: &str, options: SubscriptionOptions) -> SubscribeEntry {
    SubscribeEntry { filter: filter.into(), options }
}

#[tokio::test]
async fn every_filter_has_a_reason_code_of_its_own() {
    let broker = Broker::start_with("limits: {subscriptions: 5}\n").await;
    let deep = "a/".repeat(128);
    let filters = [
        ("a", QoS::AtMostOnce),
        ("b/#", QoS::AtLeastOnce),
        ("c", QoS::ExactlyOnce),
        ("$share/g/d", QoS::AtLeastOnce),
        (&deep, QoS::AtMostOnce),
        ("a", QoS::AtLeastOnce),
        ("e", QoS::AtMostOnce),
        ("f", QoS::AtMostOnce),
    ];

    let mut v5 = Client::connect(broker.address(), Version::V5, "v5").await;
    assert_eq!(v5.subscribe(&filters).await.body, [0, 1, 0, 0, 1, 2, 1, 0x8F, 1, 0, 0x97]);
    let mut v3 = Client::connect(broker.address(), Version::V3_1_1, "v3").await;
    assert_eq!(v3.subscribe(&filters).await.body, [0, 1, 0, 1, 2, 1, 0x80, 1, 0, 0x80]);

    let unsuback = v5.unsubscribe(&["a", "nothing", "$share/h/d", "a"]).await;
    assert_eq!(unsuback.body, [0, 1, 0, 0, 0x11, 0x11, 0x11]);
    assert_eq!(v5.subscribe(&[("f", QoS::AtMostOnce)]).await.body, [0, 1, 0, 0], "there is room again");
}

#[tokio::test]
async fn overlapping_subscriptions_bring_one_copy_at_the_highest_qos_with_all_identifiers() {
    let broker = Broker::start().await;
    let mut client = Client::connect(broker.address(), Version::V5, "c").await;
    client.subscribe_with(vec![entry("a/#", options(QoS::AtMostOnce))], Some(7)).await;
    client.subscribe_with(vec![entry("a/+", options(QoS::AtLeastOnce))], Some(3)).await;
    client.subscribe_with(vec![entry("a/b", options(QoS::AtMostOnce))], Some(9)).await;
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;

    publisher.publish("a/b", b"x", Some(1)).await;

    let received = client.receive().await;
    assert_eq!(received.first_byte, 0x32);
    assert_eq!(received.body, [0, 3, b'a', b'/', b'b', 0, 1, 6, 0x0B, 3, 0x0B, 7, 0x0B, 9, b'x']);
    client.puback(1).await;
    assert_eq!(client.ping().await, [], "one copy only");
}

#[tokio::test]
async fn no_local_keeps_a_clients_own_messages_from_it() {
    let broker = Broker::start().await;
    let mut client = Client::connect(broker.address(), Version::V5, "c").await;
    let no_local = SubscriptionOptions { no_local: true, ..options(QoS::AtMostOnce) };
    client.subscribe_with(vec![entry("t", no_local)], None).await;
    let mut other = Client::connect(broker.address(), Version::V3_1_1, "o").await;

    client.publish("t", b"own", None).await;
    assert_eq!(client.ping().await, []);
    other.publish("t", b"other", None).await;

    assert!(client.receive().await.body.ends_with(b"other"));
}

#[tokio::test]
async fn wildcards_at_the_first_level_do_not_match_dollar_topics_and_sys_is_not_writable() {
    let broker = Broker::start().await;
    let mut client = Client::connect(broker.address(), Version::V5, "c").await;
    client.subscribe(&[("#", QoS::AtMostOnce), ("+/x", QoS::AtMostOnce), ("$own/#", QoS::AtMostOnce)]).await;

    client.publish("$own/x", b"1", None).await;
    client.publish("$other/x", b"2", None).await;
    assert!(client.receive().await.body.ends_with(b"1"));
    assert_eq!(client.ping().await, []);

    client.publish("$SYS/x", b"3", Some(5)).await;
    let puback = client.receive().await;
    assert_eq!((puback.first_byte, &puback.body[..3]), (0x40, &[0, 5, 0x90][..]));
    client.publish("$SYS/x", b"4", None).await;
    assert_eq!(client.receive().await.body[0], 0x90);
}

#[tokio::test]
async fn after_unsubscribe_nothing_comes_and_the_route_is_withdrawn() {
    let broker = Broker::start().await;
    let mut client = Client::connect(broker.address(), Version::V3_1_1, "c").await;
    client.subscribe(&[("a/+", QoS::AtMostOnce), ("a/b", QoS::AtMostOnce)]).await;
    client.publish("a/b", b"1", None).await;
    assert_eq!(client.ping().await.len(), 1);

    client.unsubscribe(&["a/+", "a/b"]).await;
    client.publish("a/b", b"2", None).await;

    assert_eq!(client.ping().await, []);
    assert_eq!(broker.data_path.router.announced_live(), []);
}

#[tokio::test]
async fn the_clients_receive_maximum_bounds_what_is_in_flight() {
    let broker = Broker::start().await;
    let mut subscriber = connect(Version::V5, "s");
    subscriber.receive_maximum = std::num::NonZeroU16::new(2);
    let (mut subscriber, _) = Client::connect_with(broker.address(), subscriber).await;
    subscriber.subscribe(&[("t", QoS::AtLeastOnce)]).await;
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;

    for number in 1..=4_u8 {
        publisher.publish("t", &[number], Some(u16::from(number))).await;
        publisher.receive().await;
    }
    let received = subscriber.ping().await;
    assert_eq!(received.len(), 2);
    subscriber.puback(2).await;
    let third = subscriber.receive().await;
    assert_eq!(third.body, [0, 1, b't', 0, 3, 0, 3]);
    subscriber.puback(1).await;
    subscriber.puback(3).await;
    assert_eq!(subscriber.receive().await.body.last(), Some(&4));
}

fn delivery(offset: u64, redelivery: bool) -> Delivery {
    let record = Record {
        body: RecordBody::Inline,
        retry: false,
        origin: Origin {
            member: tidemill_core::member::Member {
                id: tidemill_core::member::MemberId::new("broker-9"),
                incarnation: tidemill_core::member::Incarnation(9),
            },
            producer: 1,
            sequence: offset,
        },
        unique_id: None,
        message: Message {
            topic: TopicName::parse("q").expect("q is a topic"),
            payload: Bytes::from(format!("{offset}")),
            qos: QoS::AtLeastOnce,
            retain: false,
            properties: None,
            publisher: "p".into(),
            publish_time_ms: 0,
        },
    };
    let identifiers = Vec::new();
    Delivery {
        offset,
        qos: QoS::AtLeastOnce,
        retain: false,
        redelivery,
        identifiers,
        packet_id: None,
        record: Arc::new(record),
    }
}

#[tokio::test]
async fn a_persistent_session_gets_its_queue_once_reports_what_is_done_and_takes_only_qos_0_live() {
    let broker = Broker::start().await;
    let mut session = connect(Version::V3_1_1, "session");
    session.clean_start = false;
    let (mut client, _) = Client::connect_with(broker.address(), session).await;
    let suback = client.subscribe(&[("q", QoS::AtLeastOnce), ("z", QoS::AtMostOnce)]).await;
    assert_eq!(suback.body, [0, 1, 1, 0]);
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;
    publisher.publish("q", b"by the queue only", Some(1)).await;
    publisher.receive().await;
    publisher.publish("q", b"live", None).await;
    assert_eq!(client.receive().await.message(), ("q".into(), None, b"live".to_vec()));

    let connection = broker.owner.connection_of("session").unwrap();
    let deliver = |deliveries| Deliver {
        queue: QueueId {
            kind: QueueKind::Session,
            name: "session".into(),
            number: SessionNumber::new(OwnerEpoch(1), connection.counter),
        },
        partition: Partition(0),
        connection,
        deliveries,
    };
    let registry = &broker.data_path.registry;
    registry.deliver(&broker.data_path.own, deliver(vec![delivery(10, true), delivery(12, false)]));
    registry.deliver(&broker.data_path.own, deliver(vec![delivery(10, true)]));

    let first = client.receive().await;
    assert_eq!((first.first_byte, first.message().2), (0x32, b"10".to_vec()), "a new packet id, so no DUP");
    let second = client.receive().await;
    assert_eq!((second.first_byte, second.message().2), (0x32, b"12".to_vec()));
    client.puback(second.message().1.unwrap()).await;
    assert_eq!(client.ping().await, [], "what is in flight is not sent again");
    assert_eq!(broker.owner.acked_offsets(), [12]);

    let partition = broker.data_path.partitioning.partition_of(QueueKind::Session, "session");
    let group = broker.data_path.partitioning.group_of(partition);
    let attachments = registry.attachments(group);
    let attachment = attachments.iter().find(|attachment| attachment.request.client_id == "session").unwrap();
    assert_eq!((&attachment.in_flight[..], &attachment.done[..]), (&[10][..], &[12][..]));
    registry.deliver(&broker.data_path.own, deliver(vec![delivery(12, true)]));
    assert_eq!(client.ping().await, [], "what is done is not sent again");
    assert_eq!(broker.owner.acked_offsets(), [12, 12], "but reported again");
}

#[tokio::test]
async fn of_several_entries_with_one_filter_the_last_counts_and_each_has_its_reason() {
    let too_deep = "a/".repeat(128);
    for is_persistent in [false, true] {
        let broker = Broker::start().await;
        let mut request = connect(Version::V3_1_1, "c");
        request.clean_start = !is_persistent;
        let (mut client, _) = Client::connect_with(broker.address(), request).await;

        let suback = client
            .subscribe(&[
                ("a", QoS::AtLeastOnce),
                ("b", QoS::AtMostOnce),
                ("a", QoS::AtMostOnce),
                (&too_deep, QoS::AtMostOnce),
                ("b", QoS::AtLeastOnce),
            ])
            .await;

        assert_eq!(suback.body[2..], [1, 0, 0, 0x80, 1]);
        assert_eq!(broker.data_path.router.announced_live().len(), 2);
        if is_persistent {
            assert_eq!(broker.owner.filters_of("c"), ["a", "b"]);
        }
        client.publish("a", b"m", None).await;
        assert_eq!(client.receive().await.message(), ("a".into(), None, b"m".to_vec()));
    }
}

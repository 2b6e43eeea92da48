//! PUBLISH and its acknowledgement, over real sockets.

#[path = "fixture/broker.rs"]
mod broker;
#[path = "fixture/client.rs"]
mod client;

use broker::Broker;
use client::Client;
use std::sync::atomic::Ordering;
use tidemill_core::packet::{QoS, Version};
use tidemill_core::partition::Partition;
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
        broker.data_path.router.apply_durable(Partition(partition), &[filter.clone()], &[]);
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

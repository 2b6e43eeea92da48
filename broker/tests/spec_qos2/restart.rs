//! Exactly once although the broker dies: the binary with its embedded log, killed and started again.

use crate::client::{Client, connect};
use crate::process::Process;
use crate::{BOTH, PUBCOMP, PUBREC, PUBREL, delivered, delivered_again};
use rustix::process::Signal;
use std::net::SocketAddr;
use tidemill_core::packet::{AckKind, Connect, QoS, Version};
use tidemill_core::session::exactly_once::OWNER_IDS_FROM;

async fn attach(address: SocketAddr, version: Version, client_id: &str, is_present: bool) -> Client {
    let session_expiry_secs = version.is_v5().then_some(600);
    let connect = Connect { clean_start: false, session_expiry_secs, ..connect(version, client_id) };
    let (client, connack) = Client::connect_with(address, connect).await;
    assert_eq!(connack.body[..2], [u8::from(is_present), 0]);
    client
}

#[tokio::test]
async fn every_step_of_an_exchange_goes_on_where_it_stood_when_the_broker_was_killed() {
    for version in BOTH {
        let data = tempfile::tempdir().unwrap();
        let (broker, address) = Process::start(data.path()).await;
        let mut subscriber = attach(address, version, "subscriber", false).await;
        subscriber.subscribe(&[("t", QoS::ExactlyOnce)]).await;
        let mut publisher = attach(address, version, "publisher", false).await;
        let (first, second, third) = (OWNER_IDS_FROM, OWNER_IDS_FROM + 1, OWNER_IDS_FROM + 2);
        for (number, id) in [(1, first), (2, second), (3, third)] {
            publisher.publish_exactly_once("t", &number.to_string(), number).await;
            assert_eq!(publisher.receive_ack().await, (PUBREC, number, 0));
            assert_eq!(subscriber.receive_message().await, delivered(2, id, &number.to_string()));
        }
        // Of each side one is complete, one half way, and one at its beginning.
        publisher.ack(AckKind::PubRel, 1).await;
        assert_eq!(publisher.receive_ack().await, (PUBCOMP, 1, 0));
        for id in [first, second] {
            subscriber.ack(AckKind::PubRec, id).await;
            assert_eq!(subscriber.receive_ack().await, (PUBREL, id, 0));
        }
        subscriber.ack(AckKind::PubComp, first).await;
        assert_eq!(subscriber.ping().await, []);

        broker.end(Signal::KILL).await;
        let (broker, address) = Process::start(data.path()).await;

        let mut subscriber = attach(address, version, "subscriber", true).await;
        let mut packets = Vec::new();
        // The completion may not have been stored: then PUBREL comes again.
        while packets.last() != Some(&(PUBREL, second, 0)) {
            packets.push(subscriber.receive_ack().await);
        }
        assert!(packets.len() == 1 || packets == [(PUBREL, first, 0), (PUBREL, second, 0)], "{packets:?}");
        assert_eq!(subscriber.receive_message().await, delivered_again(2, third, "3"));
        for (_, id, _) in packets {
            subscriber.ack(AckKind::PubComp, id).await;
        }
        let mut publisher = attach(address, version, "publisher", true).await;
        publisher.repeat_exactly_once("t", "2", 2).await;
        assert_eq!(publisher.receive_ack().await, (PUBREC, 2, 0));
        for id in [2, 3] {
            publisher.ack(AckKind::PubRel, id).await;
            assert_eq!(publisher.receive_ack().await, (PUBCOMP, id, 0));
        }
        // Its packet id is free: this is another message.
        publisher.publish_exactly_once("t", "4", 1).await;
        assert_eq!(publisher.receive_ack().await, (PUBREC, 1, 0));
        let next = subscriber.receive_message().await;
        assert_eq!((next.dup, next.text.as_str()), (false, "4"), "nothing came twice");
        assert_eq!(subscriber.ping().await, []);
        broker.end(Signal::KILL).await;
    }
}

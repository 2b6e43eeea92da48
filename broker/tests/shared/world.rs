//! Members, publishers and what the broker counts.

use crate::broker::Broker;
use crate::client::{Client, Received, connect, options};
use std::num::NonZeroU16;
use tidemill_core::packet::{
    AckKind, Connect, Packet, PublishPacket, QoS, SubscribeEntry, SubscriptionOptions, Version,
};

pub(crate) const VERSIONS: [Version; 2] = [Version::V3_1_1, Version::V5];

pub(crate) fn entry(filter: &str, options: SubscriptionOptions) -> SubscribeEntry {
    SubscribeEntry { filter: filter.into(), options }
}

/// A persistent session.
pub(crate) fn session(version: Version, client_id: &str) -> Connect {
    let mut connect = connect(version, client_id);
    connect.clean_start = false;
    connect.session_expiry_secs = version.is_v5().then_some(3_600);
    connect
}

/// One that takes `window` messages at a time. 3.1.1 clients have `limits.inFlight`.
pub(crate) fn narrow(mut connect: Connect, window: u16) -> Connect {
    connect.receive_maximum = NonZeroU16::new(window).filter(|_| connect.version.is_v5());
    connect
}

/// A member of a group, with a clean session.
pub(crate) async fn member(broker: &Broker, version: Version, client_id: &str, filter: &str) -> Client {
    member_with(broker, connect(version, client_id), filter, QoS::AtLeastOnce).await
}

pub(crate) async fn member_with(broker: &Broker, connect: Connect, filter: &str, qos: QoS) -> Client {
    let (mut client, _) = Client::connect_with(broker.address(), connect).await;
    let suback = client.subscribe_with(vec![entry(filter, options(qos))], None).await;
    assert_eq!(suback.body.last(), Some(&(qos as u8)));
    client
}

/// Publishes numbers at QoS 1 and waits for each PUBACK.
pub(crate) async fn publish(publisher: &mut Client, topic: &str, numbers: impl IntoIterator<Item = u8>) {
    for number in numbers {
        publisher.publish(topic, &[number], Some(u16::from(number) + 1)).await;
        assert_eq!(publisher.receive().await.first_byte, 0x40);
    }
}

/// Publishes numbers at QoS 2 and completes each.
pub(crate) async fn publish_at_2(publisher: &mut Client, topic: &str, numbers: impl IntoIterator<Item = u8>) {
    for number in numbers {
        let id = u16::from(number) + 1;
        let packet = crate::client::publish(topic, &[number], Some(id));
        publisher.send(Packet::Publish(PublishPacket { qos: QoS::ExactlyOnce, ..packet })).await;
        assert_eq!(publisher.receive().await.first_byte, 0x50);
        publisher.ack(AckKind::PubRel, id).await;
        assert_eq!(publisher.receive().await.first_byte, 0x70);
    }
}

/// The number that a PUBLISH carries.
pub(crate) fn number(received: &Received) -> u8 {
    assert_eq!(received.first_byte >> 4, 3, "{received:?} is no PUBLISH");
    *received.body.last().unwrap()
}

/// What is there now, in order.
pub(crate) async fn numbers(client: &mut Client) -> Vec<u8> {
    client.ping().await.iter().map(number).collect()
}

/// The next number, acknowledged.
pub(crate) async fn take(client: &mut Client) -> u8 {
    let received = client.receive().await;
    client.puback(received.message().1.unwrap()).await;
    number(&received)
}

/// The next numbers, each acknowledged.
pub(crate) async fn take_all(client: &mut Client, count: usize) -> Vec<u8> {
    let mut taken = Vec::new();
    while taken.len() < count {
        taken.push(take(client).await);
    }
    taken
}

/// The connection breaks; completes when the broker has noticed.
pub(crate) async fn lose(broker: &Broker, client: Client, client_id: &str) {
    drop(client);
    broker.until(|broker| broker.data_path.registry.find(client_id).is_none()).await;
}

/// What the broker counts under `name`, as `/metrics` shows it.
pub(crate) fn counted(broker: &Broker, name: &str) -> u64 {
    let text = String::from_utf8(broker.data_path.metrics.render().unwrap()).unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).expect("it is counted");
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

pub(crate) fn dropped(broker: &Broker, reason: &str) -> u64 {
    counted(broker, &format!("tidemill_messages_dropped_total{{reason=\"{reason}\"}}"))
}

pub(crate) fn redistributed(broker: &Broker) -> u64 {
    counted(broker, "tidemill_shared_redistributed_total")
}

//! More retained messages than a mailbox holds.

use super::*;
use std::collections::BTreeSet;
use std::num::NonZeroU16;

/// Retains `t/0000`, `t/0001`, … with QoS 1.
async fn retain_many(broker: &Broker, count: usize, payload: &str) -> Client {
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;
    for first in (0..count).step_by(100) {
        for number in first..count.min(first + 100) {
            publisher.send(Packet::Publish(retained(&format!("t/{number:05}"), payload, Some(1)))).await;
        }
        for _ in first..count.min(first + 100) {
            publisher.receive().await;
        }
    }
    publisher
}

async fn slow(broker: &Broker, receive_maximum: u16) -> Client {
    let mut slow = connect(Version::V5, "slow");
    slow.receive_maximum = NonZeroU16::new(receive_maximum);
    Client::connect_with(broker.address(), slow).await.0
}

/// MQTT-3.3.4-9: never more in flight than the client's receive maximum.
#[tokio::test]
async fn thousands_come_one_window_after_the_other_each_once() {
    let broker = Broker::start().await;
    let mut publisher = retain_many(&broker, 2_500, "x").await;
    let mut client = slow(&broker, 3).await;

    let mut found = subscribe(&mut client, "t/+", QoS::AtLeastOnce).await;
    assert_eq!(found.len(), 3);
    publisher.publish("t/live", b"", Some(1)).await;
    publisher.receive().await;
    assert_eq!(seen(&mut client).await, [], "what is published waits for the window like anything");
    for acknowledged in 0..=2_500 {
        client.puback(found[acknowledged].id.unwrap()).await;
        if found.len() <= 2_500 {
            found.push(Seen::of(&client.receive().await, client.version));
        }
        if acknowledged % 500 == 0 {
            assert_eq!(seen(&mut client).await, [], "for one acknowledgement comes one message");
        }
    }
    assert_eq!(seen(&mut client).await, []);

    assert_eq!(found[3].topic, "t/live", "what is published does not wait behind the retained messages");
    let live = found.remove(3);
    assert!(!live.retain && found.iter().all(|seen| seen.retain && seen.qos == 1));
    let topics: Vec<_> = found.iter().map(|seen| seen.topic.clone()).collect();
    let expected: Vec<_> = (0..2_500).map(|number| format!("t/{number:05}")).collect();
    assert_eq!(topics, expected);
}

#[tokio::test]
async fn a_client_that_reads_late_gets_all_of_them_and_loses_nothing_that_is_published() {
    let broker = Broker::start().await;
    let payload = "x".repeat(1_000);
    let count = 6_000;
    let mut publisher = retain_many(&broker, count, &payload).await;
    let mut client = Client::connect(broker.address(), Version::V3_1_1, "late").await;
    client.subscribe(&[("t/+", QoS::AtMostOnce)]).await;

    for number in 0..100 {
        publisher.publish("t/live", format!("{number}").as_bytes(), None).await;
    }
    publisher.ping().await;

    let mut found: Vec<Seen> = Vec::new();
    while found.len() < count + 100 {
        found.push(Seen::of(&client.receive().await, Version::V3_1_1));
    }
    let topics: BTreeSet<_> = found.iter().filter(|seen| seen.retain).map(|seen| &seen.topic).collect();
    assert_eq!(topics.len(), count);
    let live: Vec<_> = found.iter().filter(|seen| !seen.retain).map(|seen| seen.payload.clone()).collect();
    assert_eq!(live, (0..100).map(|number| number.to_string()).collect::<Vec<_>>());
    assert_eq!(metric(&broker, "messages_dropped_total{reason=\"mailbox_full\"}"), 0);
    assert_eq!(seen(&mut client).await, []);
}

#[tokio::test]
async fn a_message_that_was_replaced_or_cleared_meanwhile_comes_as_it_is_then() {
    let broker = Broker::start().await;
    let mut publisher = retain_many(&broker, 10, "old").await;
    let mut client = slow(&broker, 1).await;
    let first = subscribe(&mut client, "t/+", QoS::AtLeastOnce).await;
    client.unsubscribe(&["t/+"]).await;
    client.puback(first[0].id.unwrap()).await;
    assert_eq!(seen(&mut client).await, [], "nothing comes after UNSUBSCRIBE");
    let first = subscribe(&mut client, "t/+", QoS::AtLeastOnce).await;

    retain(&mut publisher, &[("t/00003", "new"), ("t/00004", ""), ("t/00000", "passed already")]).await;
    let mut found = first;
    while found.last().unwrap().topic != "t/00009" {
        client.puback(found.last().unwrap().id.unwrap()).await;
        found.push(Seen::of(&client.receive().await, client.version));
    }

    let of = |topic: &str| -> Vec<(String, bool)> {
        let of_topic = found.iter().filter(|seen| seen.topic == topic);
        of_topic.map(|seen| (seen.payload.clone(), seen.retain)).collect()
    };
    assert_eq!(of("t/00000"), [("old".into(), true), ("passed already".into(), false)]);
    assert_eq!(of("t/00003"), [("new".into(), false), ("new".into(), true)]);
    assert_eq!(of("t/00004"), [("".into(), false)]);
    assert_eq!(of("t/00009"), [("old".into(), true)]);
}

#[tokio::test]
async fn a_subscription_that_is_replaced_before_all_came_goes_on_or_begins_anew_as_it_says() {
    use tidemill_core::packet::RetainHandling;

    let broker = Broker::start().await;
    retain_many(&broker, 5, "x").await;
    let mut client = slow(&broker, 1).await;
    let rest = |handling| SubscriptionOptions { retain_handling: handling, ..options(QoS::AtMostOnce) };
    let first = subscribe(&mut client, "t/+", QoS::AtLeastOnce).await;
    assert_eq!(first.len(), 1);

    let goes_on = subscribe_with(&mut client, entry("t/+", rest(RetainHandling::DoNotSend)), Some(5)).await;
    let again = subscribe(&mut client, "t/+", QoS::AtLeastOnce).await;
    let anew = subscribe_with(&mut client, entry("t/+", rest(RetainHandling::Send)), Some(6)).await;

    assert_eq!(goes_on.len(), 4);
    assert!(goes_on.iter().all(|seen| seen.qos == 0 && seen.identifiers == [5]), "{goes_on:?}");
    assert_eq!(again.len(), 0, "the first message is not acknowledged, so nothing of QoS 1 fits");
    assert_eq!(anew.len(), 5);
}

//! Who is chosen, as configured.

use crate::broker::Broker;
use crate::client::{Client, connect};
use crate::standalone::Standalone;
use crate::world::{lose, member, number, numbers, publish, session, take};
use std::collections::BTreeSet;
use tidemill_core::packet::{QoS, Version};

async fn members(broker: &Broker, filter: &str) -> Vec<Client> {
    let mut members = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let name = format!("{name}-{filter}");
        members.push(member(broker, Version::V5, &name, filter).await);
    }
    members
}

async fn received(members: &mut [Client]) -> Vec<Vec<u8>> {
    let mut received = Vec::new();
    for member in members {
        received.push(numbers(member).await);
    }
    received
}

#[tokio::test]
async fn groups_have_the_strategy_of_the_first_name_that_fits() {
    let broker = Broker::start_with(
        "sharedSubscriptions:\n  strategy: sticky\n  groups:\n    - {name: 'topics-*', strategy: hashTopic}\n    \
         - {name: publishers, strategy: hashPublisher}\n    - {name: turns, strategy: roundRobin}\n    \
         - {name: chance, strategy: random}\n",
    )
    .await;
    let mut sticky = members(&broker, "$share/other/#").await;
    let mut topics = members(&broker, "$share/topics-eu/#").await;
    let mut publishers = members(&broker, "$share/publishers/#").await;
    let mut turns = members(&broker, "$share/turns/#").await;
    let mut chance = members(&broker, "$share/chance/#").await;

    for name in 0..8_u8 {
        let publisher = connect(Version::V3_1_1, &format!("publisher-{name}"));
        let (mut publisher, _) = Client::connect_with(broker.address(), publisher).await;
        for topic in 0..8_u8 {
            publish(&mut publisher, &format!("topic/{topic}"), [16 * name + topic]).await;
        }
    }

    assert_eq!(received(&mut sticky).await.iter().filter(|got| !got.is_empty()).count(), 1);
    let parts = |got: &[Vec<u8>], part: fn(&u8) -> u8| -> Vec<BTreeSet<u8>> {
        got.iter().map(|numbers| numbers.iter().map(part).collect()).collect()
    };
    let by_topic = parts(&received(&mut topics).await, |number| number % 16);
    let by_publisher = parts(&received(&mut publishers).await, |number| number / 16);
    for parts in [by_topic, by_publisher] {
        assert_eq!(parts.iter().map(BTreeSet::len).sum::<usize>(), 8, "each at one member: {parts:?}");
        assert!(parts.iter().filter(|part| !part.is_empty()).count() > 1, "{parts:?}");
    }
    assert!(received(&mut turns).await.iter().all(|got| got.len() == 16));
    // That one of four gets nothing of 64 is as likely as 4 in 10^8.
    assert!(received(&mut chance).await.iter().all(|got| !got.is_empty()));
}

#[tokio::test]
async fn least_in_flight_prefers_the_member_that_is_done() {
    let broker = Broker::start_with("sharedSubscriptions: {strategy: leastInFlight}\n").await;
    let mut busy = member(&broker, Version::V3_1_1, "busy", "$share/g/t").await;
    let mut free = member(&broker, Version::V3_1_1, "free", "$share/g/t").await;
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;

    publish(&mut publisher, "t", 0..2).await;
    assert_eq!(take(&mut free).await, 1);
    for number in 2..6 {
        free.ping().await;
        publish(&mut publisher, "t", [number]).await;
        assert_eq!(take(&mut free).await, number);
    }

    assert_eq!(numbers(&mut busy).await, [0]);
}

/// What is in flight to a member counts, wherever it comes from.
#[tokio::test]
async fn least_in_flight_counts_what_came_from_the_queue_of_a_session() {
    let broker = Standalone::start_with("sharedSubscriptions: {strategy: leastInFlight}\n").await;
    let (mut busy, _) = Client::connect_with(broker.address(), session(Version::V3_1_1, "busy")).await;
    busy.subscribe(&[("own", QoS::AtLeastOnce), ("$share/g/t", QoS::AtLeastOnce)]).await;
    let mut free = Client::connect(broker.address(), Version::V3_1_1, "free").await;
    free.subscribe(&[("$share/g/t", QoS::AtLeastOnce)]).await;
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;
    publish(&mut publisher, "own", 0..3).await;
    for expected in 0..3 {
        assert_eq!(number(&busy.receive().await), expected, "received, not acknowledged");
    }

    publish(&mut publisher, "t", 3..6).await;

    assert_eq!(numbers(&mut free).await, [3, 4, 5]);
    assert!(numbers(&mut busy).await.is_empty());
}

#[tokio::test]
async fn sticky_goes_to_the_next_member_when_the_one_that_has_it_goes() {
    let broker = Broker::start_with("sharedSubscriptions: {strategy: sticky}\n").await;
    let mut first = member(&broker, Version::V3_1_1, "b", "$share/g/t").await;
    let mut late = member(&broker, Version::V3_1_1, "a", "$share/g/t").await;
    let mut next = member(&broker, Version::V3_1_1, "c", "$share/g/t").await;
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;

    publish(&mut publisher, "t", 0..3).await;
    assert_eq!([take(&mut first).await, take(&mut first).await, take(&mut first).await], [0, 1, 2]);
    first.ping().await;
    lose(&broker, first, "b").await;
    publish(&mut publisher, "t", 3..6).await;

    assert_eq!(numbers(&mut next).await, [3, 4, 5]);
    assert!(numbers(&mut late).await.is_empty());
}

//! Who gets a message, and how.

use crate::broker::Broker;
use crate::client::{Client, connect, options};
use crate::world::{
    VERSIONS, dropped, entry, member, member_with, narrow, number, numbers, publish, take, take_all,
};
use tidemill_core::packet::{QoS, Version};

#[tokio::test]
async fn a_message_goes_to_exactly_one_member_and_every_member_has_its_turn() {
    for version in VERSIONS {
        let broker = Broker::start().await;
        let mut members = Vec::new();
        for name in ["a", "b", "c"] {
            members.push(member(&broker, version, name, "$share/g/t/#").await);
        }
        let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;

        publish(&mut publisher, "t/x", 0..6).await;
        for number in 6..9 {
            publisher.publish("t/x", &[number], None).await;
        }
        publisher.ping().await;

        let mut received = Vec::new();
        for member in &mut members {
            received.push(numbers(member).await);
        }
        assert_eq!(received, [[0, 3, 6], [1, 4, 7], [2, 5, 8]]);
    }
}

#[tokio::test]
async fn an_ordinary_subscription_of_a_member_brings_a_copy_of_its_own() {
    for version in VERSIONS {
        let broker = Broker::start().await;
        let mut both = member(&broker, version, "both", "$share/g/t").await;
        both.subscribe(&[("t", QoS::AtMostOnce)]).await;
        let mut shared = member(&broker, version, "shared", "$share/g/t").await;
        let mut plain = member(&broker, version, "plain", "t").await;
        let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;

        publish(&mut publisher, "t", 1..=4).await;

        assert_eq!(numbers(&mut both).await, [1, 1, 2, 3, 3, 4]);
        assert_eq!(numbers(&mut shared).await, [2, 4]);
        assert_eq!(numbers(&mut plain).await, [1, 2, 3, 4]);
    }
}

// MQTT-4.8.2-3: ShareName and filter together name the subscription.
#[tokio::test]
async fn two_filters_under_one_group_name_are_two_groups() {
    for version in VERSIONS {
        let broker = Broker::start().await;
        let mut one = member(&broker, version, "one", "$share/g/t/+").await;
        let mut two = member(&broker, version, "two", "$share/g/t/#").await;
        let mut three = member(&broker, version, "three", "$share/g/t/#").await;
        let mut other = member(&broker, version, "other", "$share/h/t/#").await;
        let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;

        publish(&mut publisher, "t/x", 1..=4).await;

        assert_eq!(numbers(&mut one).await, [1, 2, 3, 4]);
        // The turn was that of the one that came first.
        assert_eq!((numbers(&mut two).await, numbers(&mut three).await), (vec![1, 3], vec![2, 4]));
        assert_eq!(numbers(&mut other).await, [1, 2, 3, 4]);
    }
}

#[tokio::test]
async fn one_client_in_two_groups_gets_one_copy_of_each() {
    let broker = Broker::start().await;
    let mut client = member(&broker, Version::V5, "c", "$share/g/t").await;
    client.subscribe_with(vec![entry("$share/g/+", options(QoS::AtLeastOnce))], None).await;
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;

    publish(&mut publisher, "t", 1..=2).await;

    assert_eq!(numbers(&mut client).await, [1, 1, 2, 2]);
}

// MQTT-4.8.2-3: the QoS granted to the member that was chosen; MQTT-3.8.4-8, MQTT-3.3.4-3.
#[tokio::test]
async fn qos_and_identifier_are_those_of_the_member_that_gets_it() {
    let broker = Broker::start().await;
    let mut at_0 = Client::connect(broker.address(), Version::V5, "a").await;
    at_0.subscribe_with(vec![entry("$share/g/t", options(QoS::AtMostOnce))], Some(7)).await;
    let mut at_1 = Client::connect(broker.address(), Version::V5, "b").await;
    at_1.subscribe_with(vec![entry("$share/g/t", options(QoS::AtLeastOnce))], Some(9)).await;
    at_1.subscribe_with(vec![entry("t", options(QoS::AtMostOnce))], Some(3)).await;
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;

    publish(&mut publisher, "t", 1..=2).await;
    publisher.publish("t", &[3], None).await;
    publisher.ping().await;
    publisher.publish("t", &[4], None).await;
    publisher.ping().await;

    let at_0: Vec<_> = at_0.ping().await.into_iter().map(|one| (one.first_byte, one.body)).collect();
    assert_eq!(at_0, [(0x30, vec![0, 1, b't', 2, 0x0B, 7, 1]), (0x30, vec![0, 1, b't', 2, 0x0B, 7, 3])]);
    let mut at_1: Vec<_> = at_1.ping().await.into_iter().map(|one| (one.first_byte, one.body)).collect();
    at_1.retain(|(_, body)| body.windows(2).any(|identifier| identifier == [0x0B, 9]));
    assert_eq!(
        at_1,
        [(0x32, vec![0, 1, b't', 0, 1, 2, 0x0B, 9, 2]), (0x30, vec![0, 1, b't', 2, 0x0B, 9, 4])]
    );
}

#[tokio::test]
async fn a_repeated_subscribe_replaces_the_options_of_the_member() {
    let broker = Broker::start().await;
    let mut client = member(&broker, Version::V5, "c", "$share/g/t").await;
    client.subscribe_with(vec![entry("$share/g/t", options(QoS::AtMostOnce))], Some(5)).await;

    client.publish("t", &[1], Some(1)).await;

    let received = client.receive().await;
    assert_eq!((received.first_byte, received.body), (0x30, vec![0, 1, b't', 2, 0x0B, 5, 1]));
    assert_eq!(client.receive().await.body, [0, 1], "PUBACK: success");
    assert_eq!(client.ping().await, []);
}

#[tokio::test]
async fn a_member_whose_mailbox_is_full_is_skipped() {
    for version in VERSIONS {
        let broker = Broker::start_with("limits: {mailboxMessages: 2, inFlight: 1}\n").await;
        let mut slow =
            member_with(&broker, narrow(connect(version, "slow"), 1), "$share/g/t", QoS::AtLeastOnce).await;
        let mut quick = member(&broker, version, "quick", "$share/g/t").await;
        let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;
        let mut taken = Vec::new();

        // One in flight and two that wait: then the slow one takes no more.
        for round in 0..4 {
            publish(&mut publisher, "t", [2 * round, 2 * round + 1]).await;
            taken.extend(take_all(&mut quick, if round < 3 { 1 } else { 2 }).await);
            quick.ping().await;
        }

        assert_eq!(taken, [1, 3, 5, 6, 7]);
        assert_eq!(take_all(&mut slow, 3).await, [0, 2, 4]);
        assert_eq!(dropped(&broker, "slow_client_closed"), 0);
    }
}

#[tokio::test]
async fn when_all_members_are_full_messages_wait_for_the_first_that_has_room_and_qos_0_is_dropped() {
    for version in VERSIONS {
        let broker = Broker::start_with("limits: {mailboxMessages: 2, inFlight: 1}\n").await;
        let narrow_one = narrow(connect(version, "one"), 1);
        let mut one = member_with(&broker, narrow_one, "$share/g/t", QoS::AtLeastOnce).await;
        let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;

        publish(&mut publisher, "t", 0..5).await;
        publisher.publish("t", &[9], None).await;
        publisher.ping().await;

        assert_eq!(dropped(&broker, "mailbox_full"), 1);
        assert_eq!(take_all(&mut one, 5).await, [0, 1, 2, 3, 4]);
        assert!(numbers(&mut one).await.is_empty());
    }
}

#[tokio::test]
async fn what_waits_for_members_is_bounded_and_the_oldest_give_way() {
    let broker = Broker::start_with("limits: {mailboxMessages: 2, inFlight: 1}\n").await;
    let mut one = member(&broker, Version::V3_1_1, "one", "$share/g/t").await;
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;

    // One in flight, two in the mailbox, two in the group.
    publish(&mut publisher, "t", 0..7).await;
    assert_eq!(dropped(&broker, "shared_backlog_full"), 2);
    let mut two = member(&broker, Version::V3_1_1, "two", "$share/g/t").await;

    assert_eq!(take_all(&mut two, 2).await, [5, 6], "after SUBACK");
    assert_eq!(take_all(&mut one, 3).await, [0, 1, 2]);
    publish(&mut publisher, "t", 7..9).await;
    let mut rest = [take(&mut one).await, take(&mut two).await];
    rest.sort_unstable();
    assert_eq!(rest, [7, 8]);
}

#[tokio::test]
async fn puback_says_success_when_a_group_has_it() {
    let broker = Broker::start().await;
    let _member = member(&broker, Version::V5, "m", "$share/g/t").await;
    let mut publisher = Client::connect(broker.address(), Version::V5, "p").await;

    publisher.publish("t", &[1], Some(1)).await;
    publisher.publish("elsewhere", &[1], Some(2)).await;

    assert_eq!(publisher.receive().await.body, [0, 1]);
    assert_eq!(publisher.receive().await.body, [0, 2, 0x10]);
}

#[tokio::test]
async fn wills_are_shared_as_well() {
    let broker = Broker::start().await;
    let mut one = member(&broker, Version::V3_1_1, "one", "$share/g/w").await;
    let mut two = member(&broker, Version::V3_1_1, "two", "$share/g/w").await;
    let mut mortal = connect(Version::V5, "mortal");
    mortal.will = crate::client::will("w", 0);
    let (mortal, _) = Client::connect_with(broker.address(), mortal).await;

    crate::world::lose(&broker, mortal, "mortal").await;

    let received: Vec<_> = [one.ping().await, two.ping().await].concat();
    assert_eq!(received.len(), 1);
    assert_eq!(number(&received[0]), b'e', "gone");
}

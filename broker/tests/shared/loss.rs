//! A member is lost: what it was not done with goes to others. Clean sessions.

use crate::broker::Broker;
use crate::client::{Client, connect};
use crate::world::{
    VERSIONS, dropped, lose, member, member_with, narrow, number, numbers, publish, publish_at_2,
    redistributed, take_all,
};
use tidemill_core::packet::{AckKind, Disconnect, Packet, QoS, ReasonCode, Version};

#[tokio::test]
async fn what_a_lost_member_has_not_acknowledged_or_not_got_goes_to_another_in_order_and_once() {
    for version in VERSIONS {
        let broker = Broker::start_with("limits: {inFlight: 2}\n").await;
        let lost = narrow(connect(version, "lost"), 2);
        let mut lost = member_with(&broker, lost, "$share/g/t", QoS::AtLeastOnce).await;
        let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;
        publish(&mut publisher, "t", 0..5).await;
        assert_eq!(numbers(&mut lost).await, [0, 1], "two are sent, three wait");
        lost.puback(1).await;
        lost.ping().await;
        let heir = connect(Version::V3_1_1, "heir");
        let mut heir = member_with(&broker, heir, "$share/g/t", QoS::AtLeastOnce).await;

        lose(&broker, lost, "lost").await;

        assert_eq!(take_all(&mut heir, 4).await, [1, 2, 3, 4]);
        assert!(numbers(&mut heir).await.is_empty());
        assert_eq!(redistributed(&broker), 4);
        publish(&mut publisher, "t", 5..7).await;
        assert_eq!(take_all(&mut heir, 2).await, [5, 6]);
    }
}

#[tokio::test]
async fn it_makes_no_difference_how_the_member_goes() {
    for ending in ["disconnect", "protocol error", "takeover"] {
        let broker = Broker::start().await;
        let mut lost = member(&broker, Version::V5, "lost", "$share/g/t").await;
        let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;
        publish(&mut publisher, "t", 0..2).await;
        assert_eq!(numbers(&mut lost).await, [0, 1]);
        let mut heir = member(&broker, Version::V5, "heir", "$share/g/t").await;

        match ending {
            "disconnect" => lost.send(Packet::Disconnect(Disconnect::new(ReasonCode::SUCCESS))).await,
            "protocol error" => lost.send_raw(&[0x00, 0x00]).await,
            _ => drop(Client::connect(broker.address(), Version::V5, "lost").await),
        }

        let received = [heir.receive().await, heir.receive().await];
        assert_eq!(received.each_ref().map(number), [0, 1], "{ending}");
        // Another client: another packet, not the same one again.
        assert_eq!(received.each_ref().map(|one| one.first_byte), [0x32, 0x32], "{ending}");
    }
}

#[tokio::test]
async fn each_group_takes_back_its_own() {
    let broker = Broker::start().await;
    let mut lost = member(&broker, Version::V5, "lost", "$share/g/t").await;
    lost.subscribe(&[("$share/h/t", QoS::AtLeastOnce), ("t", QoS::AtLeastOnce)]).await;
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;
    publish(&mut publisher, "t", 0..3).await;
    assert_eq!(numbers(&mut lost).await, [0, 0, 0, 1, 1, 1, 2, 2, 2]);
    let mut of_g = member(&broker, Version::V5, "g", "$share/g/t").await;
    let mut of_h = member(&broker, Version::V5, "h", "$share/h/t").await;

    lose(&broker, lost, "lost").await;

    assert_eq!(take_all(&mut of_g, 3).await, [0, 1, 2]);
    assert_eq!(take_all(&mut of_h, 3).await, [0, 1, 2]);
    assert_eq!((numbers(&mut of_g).await, numbers(&mut of_h).await), (vec![], vec![]));
    assert_eq!(redistributed(&broker), 6, "the plain subscription's are lost with the clean session");
}

#[tokio::test]
async fn nothing_is_kept_of_a_group_whose_last_member_had_a_clean_session() {
    for version in VERSIONS {
        let broker = Broker::start().await;
        let mut last = member(&broker, version, "last", "$share/g/t").await;
        let mut publisher = Client::connect(broker.address(), Version::V5, "p").await;
        publish(&mut publisher, "t", 0..2).await;
        assert_eq!(numbers(&mut last).await, [0, 1]);

        lose(&broker, last, "last").await;
        publisher.publish("t", &[2], Some(1)).await;

        assert_eq!(publisher.receive().await.body, [0, 1, 0x10], "no matching subscribers");
        assert_eq!(dropped(&broker, "no_shared_member"), 2);
        let mut new = member(&broker, version, "new", "$share/g/t").await;
        assert!(numbers(&mut new).await.is_empty());
    }
}

#[tokio::test]
async fn what_other_members_have_no_room_for_waits_until_they_have() {
    let broker = Broker::start_with("limits: {mailboxMessages: 3, inFlight: 1}\n").await;
    let mut lost = member(&broker, Version::V3_1_1, "a", "$share/g/t").await;
    let mut heir = member(&broker, Version::V3_1_1, "b", "$share/g/t").await;
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;
    publish(&mut publisher, "t", 0..8).await;
    assert_eq!((numbers(&mut lost).await, numbers(&mut heir).await), (vec![0], vec![1]), "four for each");

    lose(&broker, lost, "a").await;

    assert_eq!(redistributed(&broker), 4);
    assert_eq!(dropped(&broker, "shared_backlog_full"), 1, "room for three");
    heir.puback(1).await;
    assert_eq!(take_all(&mut heir, 6).await, [3, 5, 7, 2, 4, 6]);
    assert!(numbers(&mut heir).await.is_empty());
}

#[tokio::test]
async fn what_a_client_had_from_a_group_that_it_left_is_still_its_own() {
    let broker = Broker::start().await;
    let mut leaver = member(&broker, Version::V5, "leaver", "$share/g/t").await;
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;
    publish(&mut publisher, "t", 0..2).await;
    assert_eq!(numbers(&mut leaver).await, [0, 1]);
    let mut heir = member(&broker, Version::V5, "heir", "$share/g/t").await;

    leaver.unsubscribe(&["$share/g/t"]).await;
    leaver.puback(1).await;
    leaver.ping().await;
    assert!(numbers(&mut heir).await.is_empty());
    lose(&broker, leaver, "leaver").await;

    assert_eq!(take_all(&mut heir, 1).await, [1], "it has not acknowledged this one");
}

// Section 4.8.2: a QoS 2 message that a member has begun to receive is not sent to another.
#[tokio::test]
async fn qos_2_goes_to_another_only_if_it_was_not_sent_and_is_dropped_with_a_clean_session_else() {
    for version in VERSIONS {
        let broker = Broker::start_with("limits: {inFlight: 2}\n").await;
        let lost = narrow(connect(version, "lost"), 2);
        let mut lost = member_with(&broker, lost, "$share/g/t", QoS::ExactlyOnce).await;
        let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;
        publish_at_2(&mut publisher, "t", 0..4).await;
        assert_eq!(numbers(&mut lost).await, [0, 1], "two are sent, two wait");
        lost.ack(AckKind::PubRec, 1).await;
        assert_eq!(lost.receive().await.first_byte, 0x62, "PUBREL");
        let mut heir = member_with(&broker, connect(version, "heir"), "$share/g/t", QoS::ExactlyOnce).await;

        lose(&broker, lost, "lost").await;

        assert_eq!(numbers(&mut heir).await, [2, 3]);
        assert_eq!((redistributed(&broker), dropped(&broker, "shared_member_lost")), (2, 1));
    }
}

//! Members with persistent sessions: they stay members while they are away.

use crate::broker::Broker;
use crate::client::{Client, connect};
use crate::standalone::Standalone;
use crate::world::{
    VERSIONS, dropped, entry, lose, member, member_with, narrow, number, numbers, publish, publish_at_2,
    session, take, take_all,
};
use tidemill_core::packet::{AckKind, Disconnect, Packet, QoS, ReasonCode, Version};

#[tokio::test]
async fn a_persistent_member_is_served_from_memory_and_the_log_has_nothing_to_do_with_it() {
    for version in VERSIONS {
        let broker = Broker::start().await;
        let mut one = member_with(&broker, session(version, "one"), "$share/g/t", QoS::AtLeastOnce).await;
        let mut two = member(&broker, version, "two", "$share/g/t").await;
        let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;

        publish(&mut publisher, "t", 0..4).await;

        assert_eq!(take_all(&mut one, 2).await, [0, 2]);
        assert_eq!(take_all(&mut two, 2).await, [1, 3]);
        one.ping().await;
        assert!((0..4).all(|partition| broker.log.records(partition).is_empty()));
        assert!(broker.owner.acked_offsets().is_empty());
        assert!(broker.data_path.router.announced_live().is_empty());
    }
}

#[tokio::test]
async fn while_all_are_away_messages_above_qos_0_wait_for_the_first_that_connects() {
    for version in VERSIONS {
        let broker = Broker::start().await;
        let one = member_with(&broker, session(version, "one"), "$share/g/t", QoS::AtLeastOnce).await;
        lose(&broker, one, "one").await;
        let mut publisher = Client::connect(broker.address(), Version::V5, "p").await;
        publish(&mut publisher, "t", 0..3).await;
        publisher.publish("t", &[9], None).await;
        publisher.ping().await;

        let (mut one, connack) = Client::connect_with(broker.address(), session(version, "one")).await;

        assert_eq!(connack.body[0], 1, "session present");
        assert_eq!(take_all(&mut one, 3).await, [0, 1, 2]);
        publish(&mut publisher, "t", [3]).await;
        assert_eq!(take(&mut one).await, 3, "it is a member again without subscribing");
        assert!(numbers(&mut one).await.is_empty());
    }
}

#[tokio::test]
async fn a_new_member_takes_what_waits_for_those_that_are_away() {
    let broker = Broker::start().await;
    let one = member_with(&broker, session(Version::V5, "one"), "$share/g/t", QoS::AtLeastOnce).await;
    lose(&broker, one, "one").await;
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;
    publish(&mut publisher, "t", 0..3).await;

    let mut new = member(&broker, Version::V3_1_1, "new", "$share/g/t").await;

    assert_eq!(take_all(&mut new, 3).await, [0, 1, 2]);
    let (mut one, _) = Client::connect_with(broker.address(), session(Version::V5, "one")).await;
    assert!(numbers(&mut one).await.is_empty());
}

#[tokio::test]
async fn what_the_last_member_had_not_acknowledged_waits_if_its_session_stays() {
    for version in VERSIONS {
        let broker = Broker::start().await;
        let mut last = member_with(&broker, session(version, "last"), "$share/g/t", QoS::AtLeastOnce).await;
        let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;
        publish(&mut publisher, "t", 0..3).await;
        assert_eq!(take(&mut last).await, 0);
        assert_eq!(numbers(&mut last).await, [1, 2]);
        lose(&broker, last, "last").await;
        publish(&mut publisher, "t", [3]).await;

        let (mut last, _) = Client::connect_with(broker.address(), session(version, "last")).await;

        assert_eq!(take_all(&mut last, 3).await, [1, 2, 3]);
        assert!(numbers(&mut last).await.is_empty());
        assert_eq!(dropped(&broker, "no_shared_member"), 0);
    }
}

#[tokio::test]
async fn an_unacknowledged_message_goes_to_a_connected_member_not_back_to_the_persistent_one() {
    for version in VERSIONS {
        let broker = Broker::start().await;
        let mut away = member_with(&broker, session(version, "away"), "$share/g/t", QoS::AtLeastOnce).await;
        let mut there = member(&broker, version, "there", "$share/g/t").await;
        let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;
        publish(&mut publisher, "t", 0..2).await;
        assert_eq!(numbers(&mut away).await, [0]);
        assert_eq!(take(&mut there).await, 1);

        lose(&broker, away, "away").await;

        assert_eq!(take(&mut there).await, 0);
        let (mut away, _) = Client::connect_with(broker.address(), session(version, "away")).await;
        assert!(numbers(&mut away).await.is_empty());
    }
}

#[tokio::test]
async fn what_waits_for_absent_members_is_bounded_and_the_oldest_give_way() {
    let broker = Broker::start_with("limits: {mailboxMessages: 3}\n").await;
    let one = member_with(&broker, session(Version::V5, "one"), "$share/g/t", QoS::AtLeastOnce).await;
    lose(&broker, one, "one").await;
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;

    publish(&mut publisher, "t", 0..5).await;

    assert_eq!(dropped(&broker, "shared_backlog_full"), 2);
    let (mut one, _) = Client::connect_with(broker.address(), session(Version::V5, "one")).await;
    assert_eq!(take_all(&mut one, 3).await, [2, 3, 4]);
}

#[tokio::test]
async fn an_absent_member_at_qos_0_lets_nothing_wait() {
    let broker = Broker::start().await;
    let one = member_with(&broker, session(Version::V5, "one"), "$share/g/t", QoS::AtMostOnce).await;
    lose(&broker, one, "one").await;
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;
    publish(&mut publisher, "t", 0..3).await;

    let (mut one, _) = Client::connect_with(broker.address(), session(Version::V5, "one")).await;

    assert!(numbers(&mut one).await.is_empty());
    publisher.publish("t", &[3], None).await;
    assert_eq!(number(&one.receive().await), 3);
}

#[tokio::test]
async fn a_session_that_starts_anew_is_no_member_any_more_and_what_waited_for_it_is_gone() {
    for version in VERSIONS {
        let broker = Broker::start().await;
        let one = member_with(&broker, session(version, "one"), "$share/g/t", QoS::AtLeastOnce).await;
        lose(&broker, one, "one").await;
        let mut publisher = Client::connect(broker.address(), Version::V5, "p").await;
        publish(&mut publisher, "t", 0..2).await;

        let (mut one, connack) = Client::connect_with(broker.address(), connect(version, "one")).await;

        assert_eq!(connack.body[0], 0);
        assert!(numbers(&mut one).await.is_empty());
        assert_eq!(dropped(&broker, "no_shared_member"), 2);
        publisher.publish("t", &[3], Some(1)).await;
        assert_eq!(publisher.receive().await.body, [0, 1, 0x10], "no matching subscribers");
    }
}

#[tokio::test]
async fn a_session_that_expires_is_no_member_any_more() {
    let broker = Broker::start().await;
    let mut brief = session(Version::V5, "brief");
    brief.session_expiry_secs = Some(1);
    let brief = member_with(&broker, brief, "$share/g/t", QoS::AtLeastOnce).await;
    lose(&broker, brief, "brief").await;
    let mut publisher = Client::connect(broker.address(), Version::V5, "p").await;
    publish(&mut publisher, "t", 0..2).await;

    broker.until(|broker| dropped(broker, "no_shared_member") == 2).await;

    publisher.publish("t", &[3], Some(1)).await;
    assert_eq!(publisher.receive().await.body, [0, 1, 0x10], "no matching subscribers");
}

#[tokio::test]
async fn a_disconnect_that_ends_the_session_ends_its_membership() {
    let broker = Broker::start().await;
    let mut one = member_with(&broker, session(Version::V5, "one"), "$share/g/t", QoS::AtLeastOnce).await;
    let mut disconnect = Disconnect::new(ReasonCode::SUCCESS);
    disconnect.session_expiry_secs = Some(0);
    one.send(Packet::Disconnect(disconnect)).await;
    assert_eq!(one.receive_or_end().await, None);
    broker.until(|broker| broker.data_path.registry.find("one").is_none()).await;
    let mut publisher = Client::connect(broker.address(), Version::V5, "p").await;

    publisher.publish("t", &[1], Some(1)).await;

    assert_eq!(publisher.receive().await.body, [0, 1, 0x10], "no matching subscribers");
}

#[tokio::test]
async fn a_takeover_takes_the_place_of_the_former_connection() {
    for version in VERSIONS {
        let broker = Broker::start().await;
        let mut former = member_with(&broker, session(version, "one"), "$share/g/t", QoS::AtLeastOnce).await;
        let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;
        publish(&mut publisher, "t", 0..2).await;
        assert_eq!(numbers(&mut former).await, [0, 1]);

        let (mut one, _) = Client::connect_with(broker.address(), session(version, "one")).await;

        assert_eq!(take_all(&mut one, 2).await, [0, 1]);
        publish(&mut publisher, "t", 2..4).await;
        assert_eq!(take_all(&mut one, 2).await, [2, 3]);
        assert!(numbers(&mut one).await.is_empty());
    }
}

#[tokio::test]
async fn a_persistent_member_and_its_plain_subscription_do_not_disturb_each_other() {
    let broker = Broker::start().await;
    let (mut one, _) = Client::connect_with(broker.address(), session(Version::V5, "one")).await;
    let at_1 = crate::client::options(QoS::AtLeastOnce);
    one.subscribe_with(vec![entry("$share/g/t", at_1), entry("t", at_1)], None).await;
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;

    publish(&mut publisher, "t", [1]).await;

    // The queue's copy is the owner's to deliver, and this owner delivers none.
    assert_eq!(take(&mut one).await, 1);
    assert!(numbers(&mut one).await.is_empty());
    one.unsubscribe(&["$share/g/t"]).await;
    publisher.publish("t", &[2], None).await;
    publisher.ping().await;
    publish(&mut publisher, "t", [3]).await;
    assert_eq!(numbers(&mut one).await, [2], "the plain one is left, at QoS 0 from memory");
}

// Section 4.8.2 and MQTT-4.4.0-1: the member completes what was begun, under the packet ids that it knows.
#[tokio::test]
async fn qos_2_that_was_sent_stays_with_the_persistent_session_and_what_was_not_goes_to_another() {
    for version in VERSIONS {
        let broker = Broker::start_with("limits: {inFlight: 2}\n").await;
        let away = narrow(session(version, "away"), 2);
        let mut away = member_with(&broker, away, "$share/g/t", QoS::ExactlyOnce).await;
        let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;
        publish_at_2(&mut publisher, "t", 0..4).await;
        assert_eq!(numbers(&mut away).await, [0, 1], "two are sent, two wait");
        away.ack(AckKind::PubRec, 1).await;
        assert_eq!(away.receive().await.first_byte, 0x62, "PUBREL");
        let mut heir = member_with(&broker, connect(version, "heir"), "$share/g/t", QoS::ExactlyOnce).await;

        lose(&broker, away, "away").await;

        assert_eq!(numbers(&mut heir).await, [2, 3]);
        let (mut away, _) = Client::connect_with(broker.address(), session(version, "away")).await;
        let again = away.ping().await;
        assert_eq!(again.iter().map(|one| one.first_byte).collect::<Vec<_>>(), [0x62, 0x3C], "PUBREL, DUP");
        assert_eq!((&again[0].body[..2], again[1].message().1, number(&again[1])), (&[0, 1][..], Some(2), 1));
        away.ack(AckKind::PubComp, 1).await;
        away.ack(AckKind::PubRec, 2).await;
        away.ack(AckKind::PubComp, 2).await;
        assert_eq!(away.ping().await.len(), 1, "PUBREL of the second");
        assert_eq!(dropped(&broker, "shared_member_lost"), 0);
    }
}

#[tokio::test]
async fn the_owner_keeps_the_membership_over_a_reconnect_and_the_log_has_no_record_for_it() {
    for version in VERSIONS {
        let broker = Standalone::start().await;
        let (mut one, _) = Client::connect_with(broker.address(), session(version, "one")).await;
        let asked = [("$share/g/t", QoS::AtLeastOnce), ("q", QoS::AtLeastOnce)];
        assert!(one.subscribe(&asked).await.body.ends_with(&[1, 1]));
        one.send(Packet::Disconnect(Disconnect::new(ReasonCode::SUCCESS))).await;
        assert_eq!(one.receive_or_end().await, None);
        let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;
        publish(&mut publisher, "t", 0..2).await;
        publish(&mut publisher, "q", [2]).await;

        let (mut one, connack) = Client::connect_with(broker.address(), session(version, "one")).await;

        assert_eq!(connack.body[0], 1, "session present");
        let mut taken = take_all(&mut one, 3).await;
        taken.sort_unstable();
        assert_eq!(taken, [0, 1, 2], "from the group and from the queue, each once");
        publish(&mut publisher, "t", [3]).await;
        assert_eq!(take(&mut one).await, 3);
        assert!(numbers(&mut one).await.is_empty());
        one.unsubscribe(&["$share/g/t"]).await;
        publish(&mut publisher, "t", [4]).await;
        assert!(numbers(&mut one).await.is_empty());
        broker.running.stop().await;
    }
}

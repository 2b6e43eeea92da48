//! Which SUBSCRIBE gets which retained messages.

use super::*;
use tidemill_core::packet::RetainHandling;

/// MQTT-3.3.1-9, -10 and -11; MQTT-3.8.4-3 and -4.
#[tokio::test]
async fn retain_handling_decides_at_each_subscribe() {
    let broker = Broker::start().await;
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;
    retain(&mut publisher, &[("t", "x")]).await;
    let handled = |handling| SubscriptionOptions { retain_handling: handling, ..options(QoS::AtMostOnce) };
    // What comes with the first SUBSCRIBE, with the second, and with one after UNSUBSCRIBE.
    for (handling, expected) in [
        (RetainHandling::Send, [1, 1, 1]),
        (RetainHandling::SendIfNew, [1, 0, 1]),
        (RetainHandling::DoNotSend, [0, 0, 0]),
    ] {
        let mut client = Client::connect(broker.address(), Version::V5, "c").await;
        let mut counts = Vec::new();
        for round in 0..3 {
            if round == 2 {
                client.unsubscribe(&["t"]).await;
            }
            client.subscribe_with(vec![entry("t", handled(handling))], None).await;
            counts.push(seen(&mut client).await.len());
        }
        assert_eq!(counts, expected, "{handling:?}");
    }
    let mut old = Client::connect(broker.address(), Version::V3_1_1, "c").await;
    for _ in 0..2 {
        assert_eq!(subscribe(&mut old, "t", QoS::AtMostOnce).await.len(), 1, "3.x always");
    }
}

#[tokio::test]
async fn a_subscription_that_a_persistent_session_had_is_not_new_after_it_came_back() {
    let broker = Broker::start().await;
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "p").await;
    retain(&mut publisher, &[("t", "x")]).await;
    let if_new =
        SubscriptionOptions { retain_handling: RetainHandling::SendIfNew, ..options(QoS::AtLeastOnce) };
    let mut session = connect(Version::V5, "session");
    session.session_expiry_secs = Some(600);
    session.clean_start = false;
    let (mut first, _) = Client::connect_with(broker.address(), session.clone()).await;
    first.subscribe_with(vec![entry("t", if_new)], None).await;
    let found = seen(&mut first).await;
    assert_eq!(short(&found), [("t", "x", 1, true)]);
    first.puback(found[0].id.unwrap()).await;
    first.ping().await;
    drop(first);

    let (mut second, connack) = Client::connect_with(broker.address(), session).await;

    assert_eq!(connack.body[0], 1, "the session was there");
    assert_eq!(seen(&mut second).await, [], "coming back alone brings nothing");
    second.subscribe_with(vec![entry("t", if_new)], None).await;
    assert_eq!(seen(&mut second).await, []);
    second.subscribe_with(vec![entry("t", options(QoS::AtLeastOnce))], None).await;
    assert_eq!(seen(&mut second).await.len(), 1, "value 0 asks for it again");
    assert!(broker.owner.acked_offsets().is_empty(), "it is none of the session's queue");
}

/// MQTT-3.8.4-5: as if the filters had come one by one; MQTT-3.3.4-3: with the identifier of the subscription.
#[tokio::test]
async fn each_filter_of_a_subscribe_brings_its_own_copy_after_the_suback() {
    let broker = Broker::start().await;
    let mut client = Client::connect(broker.address(), Version::V5, "c").await;
    retain(&mut client, &[("a/b", "x"), ("a/c", "y")]).await;

    let entries = vec![
        entry("a/+", options(QoS::AtMostOnce)),
        entry("a/b", options(QoS::AtLeastOnce)),
        entry("nothing", options(QoS::AtLeastOnce)),
        entry("$share/g/a/b", options(QoS::AtLeastOnce)),
    ];
    client.subscribe_with(entries, Some(7)).await;
    let first = seen(&mut client).await;
    client.subscribe_with(vec![entry("#", options(QoS::ExactlyOnce))], Some(8)).await;
    let second = seen(&mut client).await;

    assert_eq!(short(&first), [("a/b", "x", 0, true), ("a/c", "y", 0, true), ("a/b", "x", 1, true)]);
    assert!(first.iter().all(|seen| seen.identifiers == [7] && !seen.dup), "{first:?}");
    assert_eq!(short(&second), [("a/b", "x", 1, true), ("a/c", "y", 1, true)]);
    assert!(second.iter().all(|seen| seen.identifiers == [8]), "of this subscription only: {second:?}");
}

/// MQTT-3.8.3-3: not to a client of the publisher's client id, whenever it was published.
#[tokio::test]
async fn no_local_holds_for_retained_messages() {
    let broker = Broker::start().await;
    let mut client = Client::connect(broker.address(), Version::V5, "c").await;
    let mut other = Client::connect(broker.address(), Version::V5, "other").await;
    retain(&mut client, &[("t/own", "own")]).await;
    retain(&mut other, &[("t/other", "other")]).await;
    let no_local = SubscriptionOptions { no_local: true, ..options(QoS::AtMostOnce) };

    client.subscribe_with(vec![entry("t/+", no_local)], None).await;

    assert_eq!(short(&seen(&mut client).await), [("t/other", "other", 0, true)]);
}

/// A broker among others does not retain yet.
#[tokio::test]
async fn with_coordination_kubernetes_retained_messages_and_wills_are_refused() {
    let cluster = "coordination: kubernetes\nkafka: {bootstrapServers: 'nowhere:9092'}\n\
                   peers: {tls: {caFile: a, certificateFile: b, keyFile: c}}\n";
    let broker = Broker::start_with(cluster).await;

    let (mut publisher, connack) = Client::connect_with(broker.address(), connect(Version::V5, "p")).await;
    assert!(connack.body.windows(2).any(|property| property == [0x25, 0]), "CONNACK says so: {connack:?}");
    publisher.send(Packet::Publish(retained("t", "x", Some(1)))).await;
    assert_eq!(publisher.receive().await.body[0], 0x9A);
    let mut old = Client::connect(broker.address(), Version::V3_1_1, "old").await;
    old.send(Packet::Publish(retained("t", "x", None))).await;
    assert_eq!(old.receive_or_end().await, None);
    let mut with_will = connect(Version::V5, "c");
    with_will.will = will("w", 0);
    with_will.will.as_mut().unwrap().retain = true;
    let (_, connack) = Client::connect_with(broker.address(), with_will).await;
    assert_eq!(connack.body[1], 0x9A);

    let mut forwarded = record("t", "x");
    forwarded.message.retain = true;
    {
        let mut turn = Turn::begin(broker.data_path.router.metrics());
        let mut cache = RouteCache::new(Publisher::Other);
        broker.data_path.router.deliver_forwarded(&forwarded, &mut cache, &mut turn);
        turn.finish();
    }
    let mut later = Client::connect(broker.address(), Version::V5, "later").await;
    assert_eq!(subscribe(&mut later, "#", QoS::AtMostOnce).await, []);
}

//! Subscriptions: answered when they hold, and what they count for.

use super::values::{options, payloads, request, subscription};
use super::world::World;
use futures::FutureExt;
use std::sync::atomic::Ordering;
use tidemill_broker::owner::OwnerSide;
use tidemill_core::attach::{AttachRequest, SubscribeRequest};
use tidemill_core::packet::{QoS, ReasonCode};
use tidemill_core::state::key::StateKey;

#[tokio::test]
async fn a_closed_gate_is_a_failure_and_leaves_nothing() {
    let world = World::new().await;
    let client = world.attach(request("c")).await.unwrap();
    world.routes.is_closed.store(true, Ordering::SeqCst);
    let asked =
        vec![subscription("a", options(QoS::AtLeastOnce)), subscription("b", options(QoS::AtMostOnce))];

    let reasons = world.subscribe(&client, asked).await.unwrap();

    assert_eq!(reasons, [ReasonCode::UNSPECIFIED_ERROR, ReasonCode::SUCCESS]);
    assert!(world.routes.filters().is_empty());
    let world = world.crash(2).await;
    let client = world.attach(request("c")).await.unwrap();
    let kept: Vec<_> = client.grant.subscriptions.iter().map(|one| one.target.to_string()).collect();
    assert!(kept.is_empty() || kept == ["b"] || kept == ["a", "b"], "{kept:?}");
}

#[tokio::test]
async fn a_closed_gate_keeps_the_subscription_that_was_there() {
    let world = World::new().await;
    let client = world.subscriber("c", "a").await;
    world.routes.is_closed.store(true, Ordering::SeqCst);

    let reasons = world.subscribe(&client, vec![subscription("a", options(QoS::ExactlyOnce))]).await.unwrap();
    assert_eq!(reasons, [ReasonCode::UNSPECIFIED_ERROR]);

    let mut twice = super::values::message("a", "m");
    twice.qos = QoS::ExactlyOnce;
    world.publish(twice).await;
    assert_eq!(world.deliveries(&client, 1).await[0].qos, QoS::AtLeastOnce);
}

/// Its connection ends before SUBACK. Messages that came meanwhile were not kept for the session.
#[tokio::test]
async fn a_durable_subscription_that_was_replaced_by_qos_0_is_not_as_before_although_nobody_hears_of_it() {
    for is_behind in [false, true] {
        let world = World::new().await;
        let window = if is_behind { 1 } else { 100 };
        let client = world.attach(AttachRequest { window, ..request("c") }).await.unwrap();
        let asked = |qos| vec![subscription("a", options(qos))];
        world.subscribe(&client, asked(QoS::AtLeastOnce)).await.unwrap();
        for number in 0..3 {
            world.publish_text("a", &number.to_string()).await;
        }
        world.until(|| world.metrics.records_read.get() == 3).await;

        let (client_id, connection) = (client.id.clone(), client.grant.connection);
        let request_0 = SubscribeRequest { client_id, connection, subscriptions: asked(QoS::AtMostOnce) };
        assert!(world.owner.subscribe(request_0).now_or_never().is_none(), "nobody waits for the answer");
        world.stored().await;

        let client = world.attach(request("c")).await.unwrap();
        assert_eq!(client.grant.subscriptions[0].options.qos, QoS::AtMostOnce, "behind: {is_behind}");
        assert_eq!(payloads(&world.deliveries(&client, 3).await), ["0", "1", "2"]);
    }
}

#[tokio::test]
async fn what_was_published_before_the_subscribe_is_not_delivered() {
    let world = World::new().await;
    let other = world.subscriber("other", "a").await;
    world.publish_text("a", "before").await;
    // In the same partition: the same client with a second filter.
    world.subscribe(&other, vec![subscription("+", options(QoS::AtLeastOnce))]).await.unwrap();
    world.publish_text("a", "after").await;

    assert_eq!(payloads(&world.deliveries(&other, 2).await), ["before", "after"], "once for each queue");
}

#[tokio::test]
async fn after_unsubscribing_the_backlog_is_still_delivered_and_nothing_later() {
    let world = World::new().await;
    let client = world.attach(AttachRequest { window: 1, ..request("c") }).await.unwrap();
    let both = ["a", "b"].map(|filter| subscription(filter, options(QoS::AtLeastOnce)));
    world.subscribe(&client, both.to_vec()).await.unwrap();
    for text in ["1", "2", "3"] {
        world.publish_text("a", text).await;
    }
    world.until(|| world.metrics.records_read.get() == 3).await;

    let reasons = world.unsubscribe(&client, "a").await.unwrap();
    assert_eq!(reasons, [ReasonCode::SUCCESS]);
    assert_eq!(world.unsubscribe(&client, "a").await.unwrap(), [ReasonCode::NO_SUBSCRIPTION_EXISTED]);
    assert_eq!(world.routes.filters(), ["b"]);
    world.publish_text("b", "4").await;

    for count in 1..=4 {
        let deliveries = world.deliveries(&client, count).await;
        world.ack(&client, vec![deliveries[count - 1].offset]);
    }
    assert_eq!(payloads(&world.deliveries(&client, 4).await), ["1", "2", "3", "4"]);
    world.stop().await;
    let left = world.state().await.into_iter().filter(|entry| entry.key.starts_with(&[1, 1])).count();
    assert_eq!(left, 1, "the ended subscription is gone when its backlog is");
}

#[tokio::test]
async fn routes_go_with_the_last_queue_of_a_filter() {
    let world = World::new().await;
    let clients = [world.subscriber("c", "a").await, world.subscriber("d", "a").await];
    let filters = world.routes.filters().len();

    for client in &clients {
        assert!(!world.routes.filters().is_empty());
        world.unsubscribe(client, "a").await.unwrap();
    }

    assert!((1..=2).contains(&filters), "one for each partition");
    assert!(world.routes.filters().is_empty());
}

#[tokio::test]
async fn more_subscriptions_than_allowed_are_refused_one_by_one() {
    let world = World::new().await;
    let client = world.attach(request("c")).await.unwrap();
    let many: Vec<_> =
        (0..101).map(|number| subscription(&number.to_string(), options(QoS::AtLeastOnce))).collect();

    let reasons = world.subscribe(&client, many).await.unwrap();

    assert_eq!(reasons.iter().filter(|reason| **reason == ReasonCode::GRANTED_QOS_1).count(), 100);
    assert_eq!(reasons.last(), Some(&ReasonCode::QUOTA_EXCEEDED));
}

#[tokio::test]
async fn operations_of_one_client_take_effect_in_the_order_they_were_sent() {
    let world = World::new().await;
    let client = world.attach(request("c")).await.unwrap();

    for _ in 0..20 {
        let asked = vec![subscription("a", options(QoS::AtLeastOnce))];
        let (granted, ended) = tokio::join!(world.subscribe(&client, asked), world.unsubscribe(&client, "a"));
        assert_eq!(granted.unwrap(), [ReasonCode::GRANTED_QOS_1]);
        assert_eq!(ended.unwrap(), [ReasonCode::SUCCESS]);
    }

    assert!(world.routes.filters().is_empty());
}

#[tokio::test]
async fn what_makes_a_key_that_no_store_takes_is_refused_and_stops_nobody() {
    let world = World::new().await;
    let refused = world.attach(request(&"c".repeat(60_000))).await;
    let client = world.attach(request("long")).await.unwrap();

    let reasons = world
        .subscribe(
            &client,
            vec![
                subscription(&"f".repeat(60_500), options(QoS::AtLeastOnce)),
                subscription("short", options(QoS::AtLeastOnce)),
            ],
        )
        .await
        .unwrap();

    assert!(matches!(refused, Err(tidemill_core::attach::OwnerError::QuotaExceeded)));
    assert_eq!(reasons, [ReasonCode::QUOTA_EXCEEDED, ReasonCode::GRANTED_QOS_1]);
    let longest = world.state().await.into_iter().map(|entry| entry.key.len()).max();
    assert!(longest.is_some_and(|bytes| bytes <= tidemill_broker::log::state::KEY_BYTES_MAX));
}

/// MQTT-3.8.4-4: what was published before a subscription is replaced is not lost by that.
#[tokio::test]
async fn lowering_a_subscription_to_qos_0_loses_nothing_that_was_published_before() {
    let world = World::new().await;
    let client = world.attach(AttachRequest { window: 1, ..request("c") }).await.unwrap();
    world.subscribe(&client, vec![subscription("a", options(QoS::AtLeastOnce))]).await.unwrap();
    for text in ["1", "2", "3"] {
        world.publish_text("a", text).await;
    }

    let lowered = vec![subscription("a", options(QoS::AtMostOnce))];
    assert_eq!(world.subscribe(&client, lowered).await.unwrap(), [ReasonCode::SUCCESS]);

    world.publish_text("a", "from memory, not from the queue").await;
    let first = world.deliveries(&client, 1).await;
    world.ack(&client, vec![first[0].offset]);
    world.deliveries(&client, 2).await;
    world.stored().await;
    let world = world.crash(2).await;
    let client = world.attach(request("c")).await.unwrap();
    assert_eq!(client.grant.subscriptions, [subscription("a", options(QoS::AtMostOnce))]);
    assert_eq!(world.routes.filters(), ["a"], "the queue is not through yet");
    let rest = world.deliveries(&client, 2).await;
    assert_eq!(payloads(&rest), ["2", "3"]);
    world.ack(&client, rest.iter().map(|delivery| delivery.offset).collect());
    world.until(|| world.routes.filters().is_empty()).await;
    assert_eq!(payloads(&world.deliveries(&client, 2).await), ["2", "3"]);
    world.stored().await;
    let world = world.crash(3).await;
    let client = world.attach(request("c")).await.unwrap();
    assert_eq!(client.grant.subscriptions, [subscription("a", options(QoS::AtMostOnce))]);
    assert!(world.routes.filters().is_empty());
}

#[tokio::test]
async fn a_subscription_whose_asker_has_given_up_is_taken_back() {
    let world = World::new().await;
    let client = world.attach(request("c")).await.unwrap();
    world.routes.is_held.send_replace(true);
    let asked =
        vec![subscription("a", options(QoS::AtLeastOnce)), subscription("b", options(QoS::AtMostOnce))];
    let mut subscribing = Box::pin(world.subscribe(&client, asked));
    assert!(futures::poll!(&mut subscribing).is_pending());
    world.until(|| world.routes.filters() == ["a"]).await;

    drop(subscribing);
    world.routes.is_held.send_replace(false);

    world.until(|| world.routes.filters().is_empty()).await;
    world.stored().await;
    let world = world.crash(2).await;
    assert!(world.attach(request("c")).await.unwrap().grant.subscriptions.is_empty());
}

#[tokio::test]
async fn a_shared_subscription_is_kept_with_the_session_and_brings_nothing_to_its_queue() {
    let world = World::new().await;
    let client = world.attach(request("c")).await.unwrap();
    let exactly_once = options(QoS::ExactlyOnce);
    let asked = vec![
        subscription("$share/g/a/#", exactly_once),
        subscription("$queue/a", options(QoS::AtLeastOnce)),
        subscription("b", options(QoS::AtLeastOnce)),
    ];

    let reasons = world.subscribe(&client, asked).await.unwrap();

    assert_eq!(reasons, [ReasonCode::GRANTED_QOS_2, ReasonCode::GRANTED_QOS_1, ReasonCode::GRANTED_QOS_1]);
    assert_eq!(world.routes.filters(), ["b"], "no durable route for a shared filter");
    // Appended for "b" and offered to the queue, which has nothing but "b".
    world.publish_text("b", "by the queue").await;
    assert_eq!(payloads(&world.deliveries(&client, 1).await), ["by the queue"]);

    let world = world.crash(2).await;
    let client = world.attach(request("c")).await.unwrap();
    let kept = |client: &super::world::Client| -> Vec<(String, QoS)> {
        client.grant.subscriptions.iter().map(|one| (one.target.to_string(), one.options.qos)).collect()
    };
    let shared = |text: &str, qos| (text.to_owned(), qos);
    assert_eq!(
        kept(&client),
        [
            shared("b", QoS::AtLeastOnce),
            shared("$share/$queue/a", QoS::AtLeastOnce),
            shared("$share/g/a/#", QoS::ExactlyOnce)
        ]
    );
    assert_eq!(world.unsubscribe(&client, "$share/$queue/a").await.unwrap(), [ReasonCode::SUCCESS]);
    let not_there = [ReasonCode::NO_SUBSCRIPTION_EXISTED];
    assert_eq!(world.unsubscribe(&client, "$queue/a").await.unwrap(), not_there);
    assert_eq!(world.unsubscribe(&client, "a/#").await.unwrap(), not_there, "only the group has it");

    let world = world.crash(3).await;
    let client = world.attach(request("c")).await.unwrap();
    assert_eq!(kept(&client).len(), 2);
    let renewed = world.attach(AttachRequest { clean_start: true, ..request("c") }).await.unwrap();
    world.detach(&renewed).await;
    world.stop().await;
    let subscriptions = world
        .state()
        .await
        .into_iter()
        .filter(|entry| matches!(StateKey::decode(entry.key.clone()), Ok(StateKey::Subscription { .. })));
    assert_eq!(subscriptions.count(), 0, "they end with the session");
}

//! What a queue may hold, what happens beyond it, and what becomes of messages that nobody acknowledges.

use super::values::{message, options, payloads, request, subscription};
use super::world::{Client, World};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidemill_broker::log::Log;
use tidemill_broker::owner::parts::QueueRules;
use tidemill_core::attach::AttachRequest;
use tidemill_core::message::Message;
use tidemill_core::packet::QoS;
use tidemill_core::partition::{Offset, QueueKind};
use tidemill_core::queue::limits::{DropReason, QueueLimits, QueuePolicy};
use tidemill_core::state::key::StateKey;

fn rules(limits: QueueLimits) -> QueueRules {
    QueueRules { limits, ..QueueRules::default() }
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

async fn publish(world: &World, range: std::ops::Range<u32>) {
    for number in numbers(range) {
        world.publish_text("a", &number).await;
    }
}

/// A subscriber to `a` that is away.
async fn away(world: &World) -> Client {
    let client = world.subscriber("c", "a").await;
    world.detach(&client).await;
    client
}

async fn log_start(world: &World, client_id: &str) -> u64 {
    let partition = world.partitioning.partition_of(QueueKind::Session, client_id);
    world.log.bounds(partition).await.unwrap().start
}

/// Waits until the log of the client's partition begins after `offset`.
async fn lets_go_of(world: &World, offset: Offset) {
    for _ in 0..1_000 {
        world.stored().await;
        if log_start(world, "c").await > offset {
            return;
        }
    }
    panic!("the log is not let go of up to {offset}");
}

#[tokio::test]
async fn of_a_full_queue_the_oldest_messages_go_and_the_log_below_them_whatever_happens_to_the_owner() {
    let world = World::with_rules(rules(QueueLimits { messages: 10, ..QueueLimits::NONE })).await;
    away(&world).await;
    publish(&world, 0..100).await;
    world.until(|| world.metrics.dropped(DropReason::Messages) == 90).await;
    let start = log_start(&world, "c").await;
    world.stored().await;

    let world = world.crash(2).await;
    publish(&world, 100..105).await;
    let client = world.attach(request("c")).await.unwrap();

    assert_eq!(payloads(&world.deliveries(&client, 10).await), numbers(95..105));
    world.ack(&client, world.deliveries(&client, 10).await.iter().map(|one| one.offset).collect());
    publish(&world, 105..106).await;
    assert_eq!(payloads(&world.deliveries(&client, 11).await), numbers(95..106));
    lets_go_of(&world, start + 90).await;
}

#[tokio::test]
async fn a_full_queue_that_drops_what_comes_goes_on_in_order_when_it_has_drained() {
    let limits = QueueLimits { messages: 10, policy: QueuePolicy::DropNewest, ..QueueLimits::NONE };
    let world = World::with_rules(rules(limits)).await;
    away(&world).await;
    publish(&world, 0..15).await;
    world.until(|| world.metrics.dropped(DropReason::Messages) == 5).await;
    world.stored().await;

    let world = world.crash(2).await;
    publish(&world, 15..16).await;
    let client = world.attach(request("c")).await.unwrap();
    assert_eq!(payloads(&world.deliveries(&client, 10).await), numbers(0..10));
    publish(&world, 16..18).await;

    let expected = [numbers(0..10), numbers(16..18)].concat();
    assert_eq!(payloads(&world.deliveries(&client, 12).await), expected);
}

fn property<'a>(message: &'a Message, name: &str) -> &'a str {
    let properties = message.properties.as_ref().unwrap();
    properties.user_properties.iter().find(|(key, _)| key == name).map(|(_, value)| &**value).unwrap()
}

#[tokio::test]
async fn what_a_full_queue_gives_up_is_published_as_dead_letters_in_order_before_the_queue_lets_go_of_it() {
    let limits = QueueLimits { messages: 10, policy: QueuePolicy::DeadLetter, ..QueueLimits::NONE };
    let world = World::with_rules(rules(limits)).await;
    away(&world).await;
    world.dead.is_away.store(true, Ordering::SeqCst);
    publish(&world, 0..300).await;
    world.until(|| world.metrics.dropped(DropReason::Messages) == 290).await;
    world.stored().await;

    let world = world.crash(2).await;
    world.until(|| world.metrics.dead_letters.get() == 290).await;

    let published = world.dead.published.lock().clone();
    let texts: Vec<_> =
        published.iter().map(|one| String::from_utf8(one.payload.to_vec()).unwrap()).collect();
    assert_eq!(texts, numbers(0..290));
    assert_eq!(published[0].topic.as_str(), "$dead/c");
    assert_eq!(property(&published[0], "dead-letter-reason"), "messages");
    assert_eq!(property(&published[0], "dead-letter-topic"), "a");
    assert_eq!(property(&published[0], "dead-letter-session"), "c");
    let client = world.attach(request("c")).await.unwrap();
    assert_eq!(payloads(&world.deliveries(&client, 10).await), numbers(290..300));
}

#[tokio::test]
async fn a_dead_letter_that_could_not_be_published_is_published_again() {
    let limits = QueueLimits { messages: 1, policy: QueuePolicy::DeadLetter, ..QueueLimits::NONE };
    let world = World::with_rules(rules(limits)).await;
    away(&world).await;
    world.dead.is_away.store(true, Ordering::SeqCst);
    publish(&world, 0..3).await;
    world.until(|| world.metrics.dropped(DropReason::Messages) == 2).await;

    world.dead.is_away.store(false, Ordering::SeqCst);
    world.until(|| world.metrics.dead_letters.get() == 2).await;

    assert_eq!(world.dead.published.lock().len(), 2);
}

#[tokio::test]
async fn a_message_that_has_waited_too_long_is_dropped_whether_or_not_it_is_read() {
    let limits = QueueLimits { age_ms: Some(5_000), ..QueueLimits::NONE };
    let world = World::with_rules(rules(limits)).await;
    away(&world).await;
    publish(&world, 0..20).await;
    let late = Message { publish_time_ms: 4_000, ..message("a", "late") };
    world.publish(late).await;

    world.around.now_ms.store(6_000, Ordering::SeqCst);
    let client = world.attach(request("c")).await.unwrap();

    assert_eq!(payloads(&world.deliveries(&client, 1).await), ["late"]);
    world.until(|| world.metrics.dropped(DropReason::Age) == 20).await;
    world.detach(&client).await;
    publish(&world, 20..21).await;
    world.until(|| world.metrics.dropped(DropReason::Age) == 21).await;
}

/// A receiver that never acknowledges pins neither memory nor the log.
#[tokio::test]
async fn a_message_that_its_receiver_keeps_for_long_is_parked_and_comes_first_after_the_next_attach() {
    let rules = QueueRules { park_after: Duration::from_secs(10), ..QueueRules::default() };
    let world = World::with_rules(rules).await;
    let client = world.subscriber("c", "a").await;
    publish(&world, 0..3).await;
    let deliveries = world.deliveries(&client, 3).await;
    world.ack(&client, vec![deliveries[1].offset]);
    world.around.now_ms.store(10_000, Ordering::SeqCst);
    world.until(|| world.metrics.parked_messages.get() == 2).await;
    publish(&world, 3..4).await;
    world.deliveries(&client, 4).await;
    lets_go_of(&world, deliveries[2].offset).await;

    let world = world.crash(2).await;
    let client = world.attach(AttachRequest { window: 1, ..request("c") }).await.unwrap();
    let mut received = Vec::new();
    for count in 1..=3 {
        let last = world.deliveries(&client, count).await.pop().unwrap();
        assert!(last.redelivery);
        world.ack(&client, vec![last.offset]);
        received.extend(payloads(&[last]));
    }

    assert_eq!(received, ["0", "2", "3"]);
    world.stored().await;
    let is_parked = |key: StateKey| matches!(key, StateKey::Parked { .. });
    let state = world.state().await;
    assert!(!state.into_iter().any(|entry| is_parked(StateKey::decode(entry.key).unwrap())));
}

#[tokio::test]
async fn a_session_that_ends_takes_its_parked_messages_along() {
    let rules = QueueRules { park_after: Duration::from_secs(10), ..QueueRules::default() };
    let world = World::with_rules(rules).await;
    let client = world.subscriber("c", "a").await;
    publish(&world, 0..1).await;
    world.deliveries(&client, 1).await;
    world.around.now_ms.store(10_000, Ordering::SeqCst);
    world.until(|| world.metrics.parked_messages.get() == 1).await;
    world.stored().await;
    let world = world.crash(2).await;

    world.attach(AttachRequest { clean_start: true, ..request("c") }).await.unwrap();

    let names = |key: &StateKey| matches!(key, StateKey::Parked { .. });
    let state = world.state().await;
    assert!(!state.iter().any(|entry| names(&StateKey::decode(entry.key.clone()).unwrap())));
}

#[tokio::test]
async fn a_message_that_came_too_often_is_dropped_and_the_others_come() {
    let limits = QueueLimits { deliveries_max: Some(2), ..QueueLimits::NONE };
    let world = World::with_rules(rules(limits)).await;
    away(&world).await;
    publish(&world, 0..2).await;
    let one_at_a_time = || AttachRequest { window: 1, ..request("c") };
    for _ in 0..2 {
        let client = world.attach(one_at_a_time()).await.unwrap();
        assert_eq!(payloads(&world.deliveries(&client, 1).await), ["0"]);
        world.detach(&client).await;
    }

    let client = world.attach(one_at_a_time()).await.unwrap();

    assert_eq!(payloads(&world.deliveries(&client, 1).await), ["1"]);
    assert_eq!(world.metrics.dropped(DropReason::MaxDeliveries), 1);
}

#[tokio::test]
async fn the_exchange_of_a_qos_2_message_that_came_too_often_is_over() {
    let limits = QueueLimits { deliveries_max: Some(1), ..QueueLimits::NONE };
    let world = World::with_rules(rules(limits)).await;
    let client = world.attach(request("c")).await.unwrap();
    world.subscribe(&client, vec![subscription("a", options(QoS::ExactlyOnce))]).await.unwrap();
    world.publish(Message { qos: QoS::ExactlyOnce, ..message("a", "x") }).await;
    assert_eq!(world.deliveries(&client, 1).await[0].qos, QoS::ExactlyOnce);
    world.detach(&client).await;

    world.attach(request("c")).await.unwrap();
    world.until(|| world.metrics.dropped(DropReason::MaxDeliveries) == 1).await;
    world.stored().await;

    let is_exchange = |key: StateKey| matches!(key, StateKey::SessionOut { .. });
    let state = world.state().await;
    assert!(!state.into_iter().any(|entry| is_exchange(StateKey::decode(entry.key).unwrap())));
}

#[tokio::test]
async fn more_messages_than_there_are_packet_ids_wait_for_one_session_and_come_in_order() {
    const COUNT: u32 = 70_000;
    const WINDOW: u16 = 16_384;
    let world = World::new().await;
    away(&world).await;
    publish(&world, 0..COUNT).await;

    let client = world.attach(AttachRequest { window: WINDOW, ..request("c") }).await.unwrap();
    let mut received = Vec::new();
    while received.len() < COUNT as usize {
        let expected = (received.len() + usize::from(WINDOW)).min(COUNT as usize);
        let deliveries = world.deliveries(&client, expected).await.split_off(received.len());
        world.ack(&client, deliveries.iter().map(|one| one.offset).collect());
        received.extend(payloads(&deliveries));
    }

    assert_eq!(received, numbers(0..COUNT));
}

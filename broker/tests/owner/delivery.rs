//! What is delivered, to whom, in which order, and what comes again.

use super::values::{message, options, payloads, request, subscription};
use super::world::World;
use tidemill_broker::log::memory::{MemoryLog, Offsets};
use tidemill_core::attach::{AttachRequest, Delivery};
use tidemill_core::packet::{PublishProperties, QoS, SubscriptionOptions};
use tidemill_core::partition::{Offset, Partitioning};
use tidemill_core::queue::IN_FLIGHT_BYTES;

fn offsets(deliveries: &[Delivery]) -> Vec<Offset> {
    deliveries.iter().map(|delivery| delivery.offset).collect()
}

fn redeliveries(deliveries: &[Delivery]) -> Vec<bool> {
    deliveries.iter().map(|delivery| delivery.redelivery).collect()
}

#[tokio::test]
async fn a_subscriber_that_was_away_gets_its_messages_on_resume_in_order() {
    for mode in [Offsets::Contiguous, Offsets::WithGaps] {
        let world = World::with_offsets(mode).await;
        let client = world.subscriber("c", "a/+").await;
        world.detach(&client).await;
        for number in 0..50 {
            world.publish_text("a/b", &number.to_string()).await;
        }

        let client = world.attach(request("c")).await.unwrap();

        assert!(client.grant.session_present);
        let expected: Vec<_> = (0..50).map(|number| number.to_string()).collect();
        let deliveries = world.deliveries(&client, 50).await;
        assert_eq!(payloads(&deliveries), expected);
        assert!(redeliveries(&deliveries).iter().all(|redelivery| !redelivery));
    }
}

#[tokio::test]
async fn a_long_backlog_is_read_from_the_log_and_joins_the_head_without_loss_or_repeat() {
    let world = World::new().await;
    let client = world.subscriber("c", "a").await;
    world.detach(&client).await;
    for number in 0..3_000 {
        world.publish_text("a", &number.to_string()).await;
    }

    let client = world.attach(AttachRequest { window: u16::MAX, ..request("c") }).await.unwrap();
    for number in 3_000..3_300 {
        world.publish_text("a", &number.to_string()).await;
    }

    let expected: Vec<_> = (0..3_300).map(|number| number.to_string()).collect();
    assert_eq!(payloads(&world.deliveries(&client, 3_300).await), expected);
}

#[tokio::test]
async fn the_window_is_respected_and_each_acknowledgement_makes_room() {
    let world = World::new().await;
    let client = world.attach(AttachRequest { window: 3, ..request("c") }).await.unwrap();
    world.subscribe(&client, vec![subscription("a", options(QoS::AtLeastOnce))]).await.unwrap();
    for number in 0..2_000 {
        world.publish_text("a", &number.to_string()).await;
    }

    let mut seen = 0;
    while seen < 2_000 {
        let deliveries = world.deliveries(&client, seen + 1).await;
        assert!(deliveries.len() <= seen + 3, "{} in flight", deliveries.len() - seen);
        world.ack(&client, offsets(&deliveries[seen..]));
        seen = deliveries.len();
    }

    let expected: Vec<_> = (0..2_000).map(|number| number.to_string()).collect();
    assert_eq!(payloads(&world.deliveries(&client, 2_000).await), expected);
}

#[tokio::test]
async fn a_subscriber_that_does_not_acknowledge_holds_a_budget_of_bytes_and_gets_the_rest_as_it_acknowledges()
{
    // More than what the owner keeps in memory, so that a part comes from the log.
    const COUNT: usize = 24;
    for payload_bytes in [1 << 20, 300 << 10] {
        let world = World::new().await;
        let client = world.subscriber("c", "a").await;
        let texts: Vec<_> =
            (0..COUNT).map(|number| format!("{number:04}").repeat(payload_bytes / 4)).collect();
        for text in &texts {
            world.publish_text("a", text).await;
        }
        world.until(|| world.metrics.records_read.get() >= COUNT as u64).await;

        let mut acked = 0;
        while acked < COUNT {
            let messages = IN_FLIGHT_BYTES.div_ceil(payload_bytes).min(COUNT - acked);
            world.deliveries(&client, acked + messages).await;
            // Turns in which an owner without a budget would go on.
            world.stored().await;
            let deliveries = world.hosts.delivered(&client.id, client.grant.connection);
            assert_eq!(deliveries.len() - acked, messages, "outstanding after {acked} acknowledgements");
            world.ack(&client, vec![deliveries[acked].offset]);
            acked += 1;
        }

        assert!(payloads(&world.deliveries(&client, COUNT).await) == texts, "all of them, in order");
    }
}

#[tokio::test]
async fn a_frame_of_deliveries_is_never_larger_than_a_link_takes() {
    let world = World::new().await;
    let client = world.subscriber("c", "a").await;
    world.detach(&client).await;
    for (count, payload_bytes) in [(11, 100 << 10), (2_000, 100)] {
        for _ in 0..count {
            world.publish_text("a", &"x".repeat(payload_bytes)).await;
        }
    }

    let client = world.attach(AttachRequest { window: u16::MAX, ..request("c") }).await.unwrap();

    let deliveries = world.deliveries(&client, 11).await;
    world.ack(&client, offsets(&deliveries));
    world.deliveries(&client, 2_011).await;
    // A large message is alone; small ones share a frame that is small too.
    let largest = world.hosts.largest_frame_bytes();
    assert!(largest < (100 << 10) + 1_024, "{largest} bytes");
}

#[tokio::test]
async fn what_was_not_acknowledged_comes_again_first_and_in_order() {
    let world = World::new().await;
    let client = world.subscriber("c", "a").await;
    for text in ["1", "2", "3", "4"] {
        world.publish_text("a", text).await;
    }
    let first = world.deliveries(&client, 4).await;
    world.ack(&client, vec![first[1].offset]);
    world.detach(&client).await;
    world.publish_text("a", "5").await;

    let client = world.attach(request("c")).await.unwrap();

    let deliveries = world.deliveries(&client, 4).await;
    assert_eq!(payloads(&deliveries), ["1", "3", "4", "5"]);
    assert_eq!(redeliveries(&deliveries), [true, true, true, false]);
}

#[tokio::test]
async fn subscription_options_decide_how_a_message_is_delivered() {
    let world = World::new().await;
    let client = world.attach(request("publisher")).await.unwrap();
    let own = SubscriptionOptions { no_local: true, ..options(QoS::ExactlyOnce) };
    let retained = SubscriptionOptions { retain_as_published: true, ..options(QoS::AtLeastOnce) };
    let mut first = subscription("own/#", own);
    first.identifier = Some(7);
    let mut wide = subscription("#", retained);
    wide.identifier = Some(9);
    let granted =
        world.subscribe(&client, vec![first, wide, subscription("zero", options(QoS::AtMostOnce))]).await;
    assert_eq!(granted.unwrap().iter().map(|reason| reason.0).collect::<Vec<_>>(), [2, 1, 0]);

    let mut others = message("own/x", "others");
    others.publisher = "somebody".into();
    (others.retain, others.qos) = (true, QoS::ExactlyOnce);
    world.publish(others).await;
    world.publish_text("own/x", "own").await;

    let mut deliveries = world.deliveries(&client, 2).await;
    // The one at QoS 1 may come first: that at QoS 2 waits until its packet id is stored.
    deliveries.sort_unstable_by_key(|one| one.offset);
    let seen: Vec<_> = deliveries.iter().map(|one| (one.qos, one.retain, one.identifiers.clone())).collect();
    assert_eq!(
        seen,
        [(QoS::ExactlyOnce, true, vec![9, 7]), (QoS::AtLeastOnce, false, vec![9])],
        "identifiers in filter order, no local for the own message"
    );
}

#[tokio::test]
async fn an_expired_message_is_not_delivered_and_a_later_one_is() {
    let world = World::new().await;
    let client = world.subscriber("c", "a").await;
    world.detach(&client).await;
    let mut short = message("a", "short");
    short.properties =
        Some(Box::new(PublishProperties { message_expiry_secs: Some(5), ..PublishProperties::default() }));
    world.publish(short).await;
    world.publish_text("a", "long").await;
    world.around.now_ms.store(6_000, std::sync::atomic::Ordering::SeqCst);

    let client = world.attach(request("c")).await.unwrap();

    assert_eq!(payloads(&world.deliveries(&client, 1).await), ["long"]);
    world.until(|| world.metrics.expired_messages.get() == 1).await;
}

#[tokio::test]
async fn a_message_is_delivered_although_its_appender_died_right_after_the_commit() {
    let log = std::sync::Arc::new(MemoryLog::new(Partitioning::new(2, 1).unwrap(), Offsets::Contiguous));
    let world = World::on(log, std::sync::Arc::default(), std::sync::Arc::default());
    world.start(1).await;
    let client = world.subscriber("c", "a").await;
    let appender = World::on(
        std::sync::Arc::new(world.log.another_broker()),
        std::sync::Arc::default(),
        std::sync::Arc::default(),
    );
    appender.log.die_after_commit();

    appender.append_unanswered(&world.routes, message("a", "last words"));

    assert_eq!(payloads(&world.deliveries(&client, 1).await), ["last words"]);
}

#[tokio::test]
async fn a_hundred_thousand_idle_queues_are_not_touched_by_a_record() {
    use std::collections::hash_map::RandomState;
    use std::sync::Arc;
    use tidemill_core::attach::SessionNumber;
    use tidemill_core::packet::RetainHandling;
    use tidemill_core::queue::partition::PartitionQueues;
    use tidemill_core::queue::subscription::Subscription;
    use tidemill_core::topic::TopicFilter;

    let mut queues = PartitionQueues::new(0, RandomState::new());
    let options = SubscriptionOptions {
        qos: QoS::AtLeastOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    };
    for number in 0..100_000_u32 {
        let slot = queues.create(super::world::queue(&number.to_string(), SessionNumber(1)));
        let filter = TopicFilter::parse(format!("device/{number}/+")).unwrap();
        queues.subscribe(
            slot,
            filter,
            Subscription { options, identifier: None, start: 0, end: None, successor: None },
        );
    }
    assert_eq!(queues.take_dirty(usize::MAX).len(), 100_000);

    for offset in 0..1_000 {
        let record = super::world::record(message(&format!("device/{offset}/state"), "x"));
        queues.handle_record(offset, &Arc::new(record), 0);
    }

    let touched = queues.take_dirty(usize::MAX);
    assert_eq!(touched.len(), 1_000, "each record touched the one queue that it is for");
    assert_eq!(queues.floor(), 0);
}

#[tokio::test]
async fn many_queues_behind_the_head_take_turns_and_all_of_them_arrive() {
    let world = World::new().await;
    let mut names = Vec::new();
    for number in 0..48 {
        let client = world.subscriber(&number.to_string(), "a").await;
        world.detach(&client).await;
        names.push(client.id.clone());
    }
    // More than what is kept in memory, so that each needs a reader, and there are more of them than readers.
    for number in 0..1_500 {
        world.publish_text("a", &number.to_string()).await;
    }

    let mut clients = Vec::new();
    for name in &names {
        clients.push(world.attach(AttachRequest { window: 200, ..request(name) }).await.unwrap());
    }

    let expected: Vec<_> = (0..1_500).map(|number| number.to_string()).collect();
    // The last ones wait for readers that the first ones hold without taking anything.
    for client in clients.iter().rev() {
        let mut seen = 0;
        while seen < 1_500 {
            let deliveries = world.deliveries(client, seen + 1).await;
            world.ack(client, offsets(&deliveries[seen..]));
            seen = deliveries.len();
        }
        assert_eq!(payloads(&world.deliveries(client, 1_500).await), expected);
    }
}

//! How fast queues are served behind the head, and that none of them starves the others.

use super::values::{message, payloads, request};
use super::world::{Client, World};
use bytestring::ByteString;
use futures::future::join_all;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidemill_broker::log::state::State;
use tidemill_broker::owner::parts::QueueRules;
use tidemill_core::attach::AttachRequest;
use tidemill_core::message::Message;
use tidemill_core::partition::{Offset, Partition, QueueKind};
use tidemill_core::queue::index::BLOCK_OFFSETS;
use tidemill_core::queue::limits::QueueLimits;
use tidemill_core::queue::pace::TokenBucket;

async fn away(world: &World, client_id: &str, filter: &str) {
    let client = world.subscriber(client_id, filter).await;
    world.detach(&client).await;
}

fn count(world: &World, client: &Client) -> usize {
    world.hosts.delivered_count(&client.id, client.grant.connection)
}

#[tokio::test]
async fn what_has_waited_comes_at_the_pace_of_a_session_and_what_comes_now_does_not_wait() {
    let world = World::with_rules(QueueRules { replay_per_queue: Some(8), ..QueueRules::default() }).await;
    away(&world, "c", "a").await;
    let live = world.subscriber("live", "a").await;
    for number in 0..20 {
        world.publish_text("a", &number.to_string()).await;
    }
    assert_eq!(world.deliveries(&live, 20).await.len(), 20);

    let client = world.attach(request("c")).await.unwrap();
    for expected in [2, 4, 6] {
        world.deliveries(&client, expected).await;
        world.stored().await;
        assert_eq!(count(&world, &client), expected, "a quarter of a second's at a time");
        world.around.now_ms.fetch_add(250, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn all_sessions_together_get_no_more_than_the_broker_has_for_them() {
    let total = Arc::new(Mutex::new(TokenBucket::new(40, 0)));
    let world = World::with_rules(QueueRules { replay_total: Some(total), ..QueueRules::default() }).await;
    for client_id in ["c", "d", "e"] {
        away(&world, client_id, "a").await;
    }
    for number in 0..20 {
        world.publish_text("a", &number.to_string()).await;
    }

    let mut clients = Vec::new();
    for client_id in ["c", "d", "e"] {
        clients.push(world.attach(request(client_id)).await.unwrap());
    }
    let all = || clients.iter().map(|client| count(&world, client)).sum::<usize>();
    for quarters in 1..=3 {
        world.until(|| all() >= 10 * quarters).await;
        world.stored().await;
        assert_eq!(all(), 10 * quarters);
        world.around.now_ms.fetch_add(250, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn dead_letters_and_drops_use_up_no_pace() {
    let limits = QueueLimits { messages: 5, ..QueueLimits::NONE };
    let rules = QueueRules { limits, replay_per_queue: Some(40), ..QueueRules::default() };
    let world = World::with_rules(rules).await;
    away(&world, "c", "a").await;
    for number in 0..50 {
        world.publish_text("a", &number.to_string()).await;
    }

    let client = world.attach(request("c")).await.unwrap();

    assert_eq!(payloads(&world.deliveries(&client, 5).await), ["45", "46", "47", "48", "49"]);
}

/// More sessions come back with much to read than there are readers, and one with little after them.
#[tokio::test]
async fn sessions_with_long_backlogs_do_not_starve_one_with_a_short_one() {
    const LONG: usize = 9_000;
    const CLIENTS: usize = 20;
    // Nothing passes until all are there.
    let mut bucket = TokenBucket::new(4_000_000, 0);
    bucket.take(1_000_000);
    let total = Some(Arc::new(Mutex::new(bucket)));
    let world = World::with_rules(QueueRules { replay_total: total, ..QueueRules::default() }).await;
    let partition_of = |id: &str| world.partitioning.partition_of(QueueKind::Session, id);
    let ids = (0..).map(|number| format!("long-{number}"));
    let ids: Vec<_> = ids.filter(|id| partition_of(id) == partition_of("short")).take(CLIENTS).collect();
    for id in &ids {
        away(&world, id, "long").await;
    }
    // Last in turn, and its message is the first in the log.
    away(&world, "short", "short").await;
    world.publish_text("short", "x").await;
    for _ in 0..LONG {
        world.publish(Message { payload: bytes::Bytes::new(), ..message("long", "") }).await;
    }

    let everything = |client_id: &str| AttachRequest { window: u16::MAX, ..request(client_id) };
    let long = join_all(ids.iter().map(|id| world.attach(everything(id)))).await;
    let long: Vec<_> = long.into_iter().map(Result::unwrap).collect();
    let short = world.attach(everything("short")).await.unwrap();
    world.around.now_ms.store(250, Ordering::SeqCst);
    world.deliveries(&short, 1).await;
    for client in &long {
        assert_eq!(world.deliveries(client, LONG).await.len(), LONG);
    }

    let frames = world.hosts.frames.lock();
    let before = frames.iter().take_while(|(client_id, _)| client_id != "short");
    let mut counts: BTreeMap<&ByteString, usize> = BTreeMap::new();
    for (client_id, messages) in before {
        *counts.entry(client_id).or_default() += messages;
    }
    assert!(counts.values().all(|count| *count < LONG), "it did not wait until others had all: {counts:?}");
}

/// Sessions that are away, on one partition: one for which nearly everything waits, and one for which little does.
async fn busy_and_rare(world: &World, rare: &str) -> Vec<String> {
    const BETWEEN: usize = 10_000;
    let partition_of = |id: &str| world.partitioning.partition_of(QueueKind::Session, id);
    let busy = (0..).map(|number| format!("busy-{number}"));
    let busy = busy.filter(|id| partition_of(id) == partition_of(rare)).take(1).next().unwrap();
    away(world, &busy, "busy").await;
    away(world, rare, "rare").await;
    let (mut expected, mut last) = (Vec::new(), Vec::new());
    for number in 0..3 {
        world.publish_text("rare", &number.to_string()).await;
        expected.push(number.to_string());
        for _ in 0..BETWEEN {
            last = world.publish(Message { payload: bytes::Bytes::new(), ..message("busy", "") }).await;
        }
    }
    has_blocks_to(world, partition_of(rare), last[0].1 - BLOCK_OFFSETS).await;
    expected
}

/// Waits until the index speaks for `offset`: blocks are stored with the next counts of the queues.
async fn has_blocks_to(world: &World, partition: Partition, offset: Offset) {
    let index = State::index(&*world.log).unwrap();
    while index.clone().blocks(partition, offset).await.unwrap().is_empty() {
        world.stored().await;
    }
}

/// What is read without the index: at most what came since the last block, and a block that was not stored.
const UNLISTED: u64 = 2 * BLOCK_OFFSETS;

/// The session comes back, and gets its messages without reading those between them.
async fn comes_back(world: &World, client_id: &str, expected: &[String]) {
    let client = world.attach(request(client_id)).await.unwrap();
    assert_eq!(payloads(&world.deliveries(&client, expected.len()).await), expected);

    world.publish_text("rare", "live").await;
    let all = payloads(&world.deliveries(&client, expected.len() + 1).await);
    assert_eq!(all.last().map(String::as_str), Some("live"));
    let read = world.metrics.records_read_behind.get();
    assert!((expected.len() as u64..UNLISTED).contains(&read), "{read} records read behind the head");
}

#[tokio::test]
async fn a_session_that_comes_back_reads_its_own_messages_and_not_those_between_them() {
    let world = World::new().await;
    let expected = busy_and_rare(&world, "rare").await;

    comes_back(&world, "rare", &expected).await;
}

#[tokio::test]
async fn the_index_holds_over_a_stop_and_a_crash_of_the_owner() {
    let world = World::new().await;
    let expected = busy_and_rare(&world, "rare").await;
    world.stop().await;
    world.start(2).await;
    let world = world.crash(3).await;

    comes_back(&world, "rare", &expected).await;
}

#[tokio::test]
async fn a_long_backlog_comes_whole_and_in_order_through_the_index_and_blocks_below_the_floor_go() {
    let world = World::new().await;
    away(&world, "c", "a/+").await;
    let (mut expected, mut last) = (Vec::new(), Vec::new());
    for number in 0..20_000 {
        let topic = ["a/x", "b", "a/y"][number % 3];
        if topic == "b" {
            continue;
        }
        last = world.publish_text(topic, &number.to_string()).await;
        expected.push(number.to_string());
    }
    let partition = world.partitioning.partition_of(QueueKind::Session, "c");
    has_blocks_to(&world, partition, last[0].1 - BLOCK_OFFSETS).await;
    let index = State::index(&*world.log).unwrap();
    assert!(index.clone().blocks(partition, 0).await.unwrap().len() > 3);

    let everything = AttachRequest { window: u16::MAX, ..request("c") };
    let client = world.attach(everything).await.unwrap();
    let deliveries = world.deliveries(&client, expected.len()).await;
    assert_eq!(payloads(&deliveries), expected);

    world.ack(&client, deliveries.iter().map(|delivery| delivery.offset).collect());
    let last = deliveries.last().unwrap().offset;
    while world.log_start(partition).await <= last {
        world.stored().await;
    }
    assert_eq!(index.blocks(partition, 0).await.unwrap(), []);
}

#[tokio::test]
async fn a_damaged_record_stops_the_queue_that_needs_it_and_no_other_until_its_session_goes() {
    let world = World::new().await;
    let partition_of = |id: &str| world.partitioning.partition_of(QueueKind::Session, id);
    let other = (0..).map(|number| format!("other-{number}"));
    let other = other.filter(|id| partition_of(id) == partition_of("hurt")).take(1).next().unwrap();
    away(&world, "hurt", "a").await;
    away(&world, &other, "b").await;
    let damaged = world.publish_text("a", "damaged").await;
    for number in 0..3 {
        world.publish_text("b", &number.to_string()).await;
    }
    world.until(|| world.metrics.records_read.get() == 4).await;
    world.stop().await;
    world.log.damage(partition_of("hurt"), damaged[0].1);
    world.start(2).await;

    let hurt = world.attach(request("hurt")).await.unwrap();
    let client = world.attach(request(&other)).await.unwrap();

    assert_eq!(payloads(&world.deliveries(&client, 3).await), ["0", "1", "2"]);
    world.until(|| world.metrics.queues_stopped.get() == 1).await;
    world.publish_text("b", "live").await;
    world.publish_text("a", "behind the damage").await;
    assert_eq!(payloads(&world.deliveries(&client, 4).await)[3], "live");
    assert_eq!(count(&world, &hurt), 0);
    assert_eq!(world.metrics.partitions_refused.get(), 0);

    let anew = world.attach(AttachRequest { clean_start: true, ..request("hurt") }).await.unwrap();
    assert!(!anew.grant.session_present);
    world.until(|| world.metrics.queues_stopped.get() == 0).await;
}

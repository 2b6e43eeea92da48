//! A group that has nothing to do sleeps, and does what is due in time. The clock of these tests is stepped.

use super::parts::Around;
use super::values::request;
use super::world::World;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidemill_broker::log::Log;
use tidemill_broker::log::memory::{MemoryLog, Offsets};
use tidemill_core::attach::{AttachRequest, OwnerError, SessionLifetime};
use tidemill_core::partition::Partitioning;
use tokio::time::{Instant, pause, resume, sleep};

/// How often queues are scanned and the trim floor is looked at.
const INTERVAL: Duration = Duration::from_secs(30);
/// How late a deadline is noticed, at most.
const TICK: Duration = Duration::from_millis(250);

/// An owner whose group is not started.
fn unstarted() -> World {
    let around = Around { since: Some(Instant::now()), trim_interval: INTERVAL, ..Around::default() };
    let log = MemoryLog::new(Partitioning::new(2, 1).unwrap(), Offsets::Contiguous);
    World::on(Arc::new(log), Arc::new(around), Arc::default())
}

/// An owner that has had nothing to do for a while.
async fn asleep() -> World {
    let world = unstarted();
    world.start(1).await;
    world.subscriber("other", "b").await;
    sleep(10 * INTERVAL).await;
    world
}

#[tokio::test(start_paused = true)]
async fn a_group_with_nothing_to_do_looks_at_its_deadlines_as_often_as_it_scans() {
    let world = asleep().await;
    let before = world.around.asked_dead.load(Ordering::SeqCst);

    sleep(20 * INTERVAL).await;

    let looks = world.around.asked_dead.load(Ordering::SeqCst) - before;
    assert!((19..=21).contains(&looks), "{looks}");
}

#[tokio::test(start_paused = true)]
async fn a_broker_whose_membership_can_end_looks_all_the_time() {
    let world = asleep().await;
    world.validity.set(u64::MAX - 1);
    sleep(INTERVAL).await;
    let before = world.around.asked_dead.load(Ordering::SeqCst);

    sleep(INTERVAL).await;

    let looks = world.around.asked_dead.load(Ordering::SeqCst) - before;
    assert!(looks >= 100, "{looks}");
}

#[tokio::test(start_paused = true)]
async fn a_session_of_a_group_that_sleeps_ends_at_its_deadline() {
    let world = asleep().await;
    let lifetime = SessionLifetime::Persistent { expiry_secs: 7 };
    let client = world.attach(AttachRequest { lifetime, ..request("c") }).await.unwrap();
    world.detach(&client).await;

    sleep(Duration::from_secs(7) - TICK).await;
    assert_eq!(world.metrics.expired_sessions.get(), 0);
    sleep(2 * TICK).await;

    assert_eq!(world.metrics.expired_sessions.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_acknowledgement_to_a_group_that_sleeps_is_stored_within_a_second_and_trimmed_after_two_intervals()
{
    let world = asleep().await;
    let client = world.subscriber("c", "a").await;
    sleep(INTERVAL).await;
    // The log commits on a thread of its own, which a clock that is stepped does not wait for.
    resume();
    let offsets = world.publish_text("a", "m").await;
    world.deliveries(&client, 1).await;
    pause();
    sleep(INTERVAL).await;
    let commits = world.metrics.commits.get();

    world.ack(&client, offsets.iter().map(|(_, offset)| *offset).collect());

    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.metrics.commits.get(), commits + 1);
    sleep(2 * INTERVAL + Duration::from_secs(2)).await;
    for (partition, offset) in offsets {
        assert!(world.log.bounds(partition).await.unwrap().start > offset);
    }
}

#[tokio::test(start_paused = true)]
async fn an_attach_that_waits_for_the_state_is_refused_after_ten_seconds() {
    let world = unstarted();
    world.log.make_unreadable();
    world.start(1).await;
    sleep(10 * INTERVAL).await;
    let asked = Instant::now();

    assert_eq!(world.attach(request("c")).await.err(), Some(OwnerError::Unavailable));

    let waited = asked.elapsed();
    assert!(waited >= Duration::from_secs(10) && waited <= Duration::from_secs(10) + 2 * TICK, "{waited:?}");
}

//! Many persistent sessions on one broker process.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidemill_contract::config::Config;
use tidemill_e2e::broker::Broker;
use tidemill_e2e::environment::is_soak;
use tidemill_e2e::mosquitto::Endpoint;
use tidemill_e2e::random::Numbers;
use tidemill_e2e::raw_client::RawClient;
use tidemill_e2e::wait::until;
use tokio::task::JoinSet;

/// Clients that do something at the same time.
const CONCURRENT: usize = 64;

/// Does `one` for each number below `count`, some at a time.
async fn for_each<F>(count: u32, one: impl Fn(u32) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut running = JoinSet::new();
    for number in 0..count {
        if running.len() >= CONCURRENT {
            running.join_next().await.unwrap().unwrap();
        }
        running.spawn(one(number));
    }
    while let Some(ended) = running.join_next().await {
        ended.unwrap();
    }
}

const SESSIONS: u32 = 1_000;
const MESSAGES: u32 = 100;

async fn publish_all(endpoint: &Endpoint, messages: std::ops::Range<u32>) {
    let (mut publisher, _) = RawClient::connect(endpoint, 4, "publisher", true).await.unwrap();
    for number in messages {
        publisher.publish("all/x", &number.to_be_bytes(), 1, false).await.unwrap();
    }
}

/// Half of the messages come before the broker is killed; the other half right after its start, when no session has
/// been seen yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_sessions_get_their_hundred_messages_each_in_order_although_the_broker_was_killed() {
    let folder = tempfile::tempdir().unwrap();
    let mut broker = Broker::start(folder.path(), Config::default(), &[]).await.unwrap();
    let endpoint = broker.mqtt().clone();
    for_each(SESSIONS, |number| {
        let endpoint = endpoint.clone();
        async move {
            let level = if number % 2 == 0 { 4 } else { 5 };
            let (mut client, is_present) =
                RawClient::connect(&endpoint, level, &format!("s-{number}"), false).await.unwrap();
            assert!(!is_present);
            assert_eq!(client.subscribe("all/#", 1).await.unwrap(), 1);
        }
    })
    .await;

    publish_all(&endpoint, 0..MESSAGES / 2).await;
    broker.kill().await.unwrap();
    broker.restart().await.unwrap();
    publish_all(&endpoint, MESSAGES / 2..MESSAGES).await;

    for_each(SESSIONS, |number| {
        let endpoint = endpoint.clone();
        async move {
            let level = if number % 2 == 0 { 4 } else { 5 };
            let (mut client, is_present) =
                RawClient::connect(&endpoint, level, &format!("s-{number}"), false).await.unwrap();
            assert!(is_present, "session {number}");
            let mut next = 0;
            while next < MESSAGES {
                let message = client.next_delivery().await.unwrap();
                let sequence = u32::from_be_bytes(message.payload.try_into().unwrap());
                // A repeat is legal; what comes for the first time is the next one.
                assert!(sequence <= next, "session {number} got {sequence} instead of {next}");
                next = next.max(sequence + 1);
            }
        }
    })
    .await;
}

/// What a session without subscription may take in memory, with its share of what allocators and stores keep.
const SESSION_BYTES_MAX: f64 = 8.0 * 1024.0;

#[tokio::test(flavor = "multi_thread")]
async fn sessions_of_random_client_ids_that_never_return_take_little_memory_and_are_gone_after_their_expiry()
{
    let (sessions, expiry_secs) = if is_soak() { (100_000, 120) } else { (20_000, 15) };
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config::default();
    config.sessions.max_expiry_secs = expiry_secs;
    let broker = Broker::start(folder.path(), config, &[]).await.unwrap();
    let endpoint = broker.mqtt().clone();
    let before = broker.resident_bytes().unwrap();

    for_each(sessions, |number| {
        let endpoint = endpoint.clone();
        async move {
            let mut numbers = Numbers::new(number.into());
            let name: String = (0..16).map(|_| char::from(b'a' + numbers.byte() % 26)).collect();
            let (client, _) =
                RawClient::connect(&endpoint, 4, &format!("{name}{number}"), false).await.unwrap();
            drop(client);
        }
    })
    .await;
    let most = broker.metric("tidemill_owner_sessions").await.unwrap();
    let grown = broker.resident_bytes().unwrap() - before;

    // On a slow machine the first ones are gone before the last ones come.
    println!("{most} sessions at the same time, {:.0} bytes each", grown / most);
    assert!(grown < f64::from(sessions) * SESSION_BYTES_MAX, "{grown} bytes for {most} sessions");
    until("all sessions have expired", Duration::from_secs(u64::from(expiry_secs) + 60), || async {
        let left = broker.metric("tidemill_owner_sessions").await?;
        anyhow::ensure!(left == 0.0, "{left} sessions are left");
        Ok(Some(()))
    })
    .await
    .unwrap();
    let expired = broker.metric("tidemill_owner_expired_sessions_total").await.unwrap();
    assert_eq!(expired, f64::from(sessions));
    let (_, is_present) = RawClient::connect(&endpoint, 4, "somebody", false).await.unwrap();
    assert!(!is_present);
}

/// Each round has a topic that nobody subscribed to before, a publisher that is at it already, and a subscriber.
#[tokio::test(flavor = "multi_thread")]
async fn every_message_that_is_published_after_the_suback_arrives_however_they_race() {
    const ROUNDS: u32 = 120;
    const AFTER: u64 = 20;
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(folder.path(), Config::default(), &[]).await.unwrap();
    let endpoint = broker.mqtt().clone();
    for_each(ROUNDS, |round| {
        let endpoint = endpoint.clone();
        async move {
            let topic = format!("race/{round}/x");
            // The number of the next message; a message is sent after it was counted.
            let sent = Arc::new(AtomicU64::new(0));
            let last = Arc::new(AtomicU64::new(u64::MAX));
            let publishing =
                tokio::spawn(race(endpoint.clone(), topic, Arc::clone(&sent), Arc::clone(&last)));
            let level = if round % 2 == 0 { 4 } else { 5 };
            let is_clean = round % 3 == 0;
            let name = format!("r-{round}");
            let (mut subscriber, _) = RawClient::connect(&endpoint, level, &name, is_clean).await.unwrap();
            let filter = if round % 5 < 2 { format!("race/{round}/x") } else { format!("race/{round}/+") };
            let mut numbers = Numbers::new(round.into());
            let start = numbers.below(20) as u64;
            while sent.load(Ordering::SeqCst) < start {
                subscriber.round_trip().await.unwrap();
            }

            assert_eq!(subscriber.subscribe(&filter, 1).await.unwrap(), 1);
            let first_due = sent.load(Ordering::SeqCst);
            last.store(first_due + AFTER, Ordering::SeqCst);

            let mut next = None;
            while next.is_none_or(|next| next <= first_due + AFTER) {
                let message = subscriber.next_delivery().await.unwrap();
                let sequence = u64::from_be_bytes(message.payload.try_into().unwrap());
                let is_next = next.map_or(sequence <= first_due, |next| sequence == next);
                assert!(is_next, "round {round}: {sequence} instead of {next:?}, {first_due} was due");
                next = Some(sequence + 1);
            }
            publishing.await.unwrap();
        }
    })
    .await;
}

/// Publishes up to the last number, whenever that is told.
async fn race(endpoint: Endpoint, topic: String, sent: Arc<AtomicU64>, last: Arc<AtomicU64>) {
    let (mut publisher, _) = RawClient::connect(&endpoint, 4, &format!("p-{topic}"), true).await.unwrap();
    loop {
        let sequence = sent.fetch_add(1, Ordering::SeqCst);
        publisher.publish(&topic, &sequence.to_be_bytes(), 1, false).await.unwrap();
        if sequence >= last.load(Ordering::SeqCst) {
            return;
        }
    }
}

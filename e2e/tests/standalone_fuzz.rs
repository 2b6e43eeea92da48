//! Whatever connections send: the broker stays up, says only what a broker may say, disturbs nobody else, and keeps
//! nothing of it.
//!
//! `TIDEMILL_FUZZ_CASES` connections are made from the seeds that follow `TIDEMILL_FUZZ_SEED`; `make soak` sets both. A
//! seed that once failed goes to `KEPT`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "fuzz/hostile.rs"]
mod hostile;

use hostile::{Script, attack};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidemill_contract::config::Config;
use tidemill_e2e::broker::Broker;
use tidemill_e2e::environment::number;
use tidemill_e2e::mosquitto::Endpoint;
use tidemill_e2e::raw_client::RawClient;
use tokio::task::JoinSet;

/// Seeds that found something; they come first.
const KEPT: [u64; 1] = [
    // A CONNACK larger than the client accepts: DISCONNECT came instead of it.
    76,
];
/// Connections at the same time.
const CONCURRENT: usize = 8;
/// What the broker may keep of all of it: retained messages, kept sessions and their queues, buffers of the allocator.
const RESIDENT_BYTES_MAX: f64 = 192.0 * 1024.0 * 1024.0;

/// Two who exchange messages in every version, one after the other, until told to stop; answers how many.
async fn bystanders(endpoint: Endpoint, stop: Arc<AtomicBool>) -> u64 {
    let (mut reader, _) = RawClient::connect(&endpoint, 5, "bystander-r", false).await.unwrap();
    let (mut writer, _) = RawClient::connect(&endpoint, 4, "bystander-w", true).await.unwrap();
    reader.subscribe("bystander/+", 2).await.unwrap();
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        for qos in 0..3 {
            sent += 1;
            writer.publish("bystander/x", format!("{sent}").as_bytes(), qos, false).await.unwrap();
        }
        // Messages of a kept session take their way through the log.
        let mut got = Vec::new();
        while got.len() < 3 {
            reader.round_trip().await.unwrap();
            got.extend(reader.take_deliveries());
        }
        let mut numbers: Vec<u64> =
            got.iter().map(|one| String::from_utf8_lossy(&one.payload).parse().unwrap()).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (sent - 2..=sent).collect::<Vec<_>>());
    }
    sent
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_connections_send_the_broker_stays_upright_and_others_undisturbed() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(folder.path(), Config::default(), &[]).await.unwrap();
    let first = number("TIDEMILL_FUZZ_SEED", 1).unwrap();
    let cases = number("TIDEMILL_FUZZ_CASES", 2_000).unwrap();
    println!("TIDEMILL_FUZZ_SEED={first}, {cases} connections");
    let stop = Arc::new(AtomicBool::new(false));
    let undisturbed = tokio::spawn(bystanders(broker.mqtt().clone(), Arc::clone(&stop)));

    let mut attacks = JoinSet::new();
    let mut failed = Vec::new();
    for seed in KEPT.into_iter().chain(first..first.saturating_add(cases)) {
        while attacks.len() >= CONCURRENT {
            failed.extend(attacks.join_next().await.unwrap().unwrap());
        }
        // A few tell more than one; thousands tell no more than those.
        if failed.len() > 10 {
            break;
        }
        let endpoint = broker.mqtt().clone();
        attacks.spawn(async move {
            let outcome = attack(&endpoint, &Script::new(seed)).await;
            outcome.err().map(|error| format!("seed {seed}: {error:#}"))
        });
    }
    failed.extend(attacks.join_all().await.into_iter().flatten());
    stop.store(true, Ordering::Relaxed);
    let exchanged = undisturbed.await.unwrap();

    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(exchanged > 0);
    broker.wait_for_status("only the test's own look", |status| status.connections == 0).await.unwrap();
    assert!(!broker.log().unwrap().contains("panicked"), "{}", broker.log().unwrap());
    let resident = broker.resident_bytes().unwrap();
    println!("{exchanged} messages of bystanders; {:.0} MiB resident", resident / 1_048_576.0);
    assert!(resident < RESIDENT_BYTES_MAX, "{resident} bytes are resident");
}

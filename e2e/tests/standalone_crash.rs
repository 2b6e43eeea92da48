//! What was acknowledged survives `kill -9` at any moment, and nothing that is exactly once happens twice.
//!
//! `TIDEMILL_CRASH_SEED` decides what clients do and when disaster strikes; without it each run goes another way and
//! prints its seed. `make soak` runs more rounds of the same.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::{SystemTime, UNIX_EPOCH};
use tidemill_contract::config::Config;
use tidemill_e2e::crash;
use tidemill_e2e::crash::auditor::Verdict;
use tidemill_e2e::crash::plan::{Disaster, Plan};
use tidemill_e2e::environment::{is_soak, number};

async fn nothing_goes_wrong(disaster: Disaster) {
    let folder = tempfile::tempdir().unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let seed = number("TIDEMILL_CRASH_SEED", now).unwrap();
    let rounds = if is_soak() { 100 } else { 15 };
    println!("TIDEMILL_CRASH_SEED={seed}, {rounds} rounds");

    let verdict = crash::run(folder.path(), Config::default(), Plan { seed, rounds, disaster }).await;

    let verdict = verdict.unwrap_or_else(|error| panic!("TIDEMILL_CRASH_SEED={seed}: {error:#}"));
    let Verdict { acknowledged, due, arrived, repeated, violations, violations_more } = verdict;
    println!("{acknowledged} acknowledged, {due} due, {arrived} arrived, {repeated} of them again");
    assert!(violations.is_empty(), "TIDEMILL_CRASH_SEED={seed}: {violations:#?} and {violations_more} more");
    assert!(due > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_repeated_at_qos_2_or_reordered_when_the_broker_is_killed_at_random() {
    nothing_goes_wrong(Disaster::BrokerKilled).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_repeated_at_qos_2_or_reordered_when_all_connections_break_at_random() {
    nothing_goes_wrong(Disaster::ConnectionsBroken).await;
}

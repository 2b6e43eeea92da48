//! The membership protocol in a simulated world with a stepped clock: late and lost answers, stale watches, cut links, wrong
//! clocks, pauses, crashes and re-created leases, by hand and by chance. `TIDEMILL_SOAK=1` runs many thousands of seeds;
//! `TIDEMILL_SEEDS=from..to` runs others, and `TIDEMILL_TRACE=1` prints everything that happens.

#![allow(clippy::unwrap_used, reason = "the harness is a test, too, and stops at what cannot be")]

mod aftermath;
mod api;
mod checker;
mod deliver;
mod earlier_faults;
mod failure_schedules;
mod faults;
mod happening;
mod mutations;
mod process;
mod pump;
mod random;
mod world;

use std::time::Duration;

use random::Random;
use world::World;

const SEEDS: u64 = 300;
const SEEDS_SOAK: u64 = 20_000;

/// One random run: faults for a while, then none; how long it took to settle.
fn run_seed(seed: u64) -> Result<Duration, String> {
    let setup = faults::random_setup(&mut Random::new(seed ^ 0xC0FFEE));
    let hold_limit = setup.timings.hold_limit;
    let mut world = World::running(setup, seed);
    world.plan_faults(Duration::from_secs(30));
    world.run(Duration::from_secs(56));
    world.heal();
    // Two of three may be gone at once without proof: then only the hold limit and a minute end the wait.
    let bound = hold_limit + Duration::from_secs(60 + 45);
    let settled = world.settle(bound)?;
    // What was on its way when the faults ended may still cost a renewal, and groups move for balance.
    world.run(Duration::from_secs(2));
    world.settle(Duration::from_secs(20))?;
    if seed.is_multiple_of(4) {
        world.run(Duration::from_secs(40));
        world.expect_balance()?;
    }
    world.checker.violation.map_or(Ok(settled), Err)
}

fn chosen_seeds() -> std::ops::Range<u64> {
    if let Ok(chosen) = std::env::var("TIDEMILL_SEEDS") {
        let (from, to) = chosen.split_once("..").expect("TIDEMILL_SEEDS is from..to");
        return from.parse().unwrap()..to.parse().unwrap();
    }
    0..if std::env::var_os("TIDEMILL_SOAK").is_some() { SEEDS_SOAK } else { SEEDS }
}

#[test]
fn random_schedules_keep_every_invariant_and_settle() {
    let seeds = chosen_seeds();

    let threads: Vec<_> = (0..2u64)
        .map(|part| {
            let seeds = seeds.clone();
            std::thread::spawn(move || {
                seeds.filter(|seed| seed % 2 == part).map(|seed| (seed, run_seed(seed))).collect::<Vec<_>>()
            })
        })
        .collect();
    let results: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();

    let failed: Vec<_> =
        results.iter().filter_map(|(seed, result)| Some((seed, result.as_ref().err()?))).collect();
    for (seed, reason) in failed.iter().take(3) {
        println!("seed {seed}: {reason}");
    }
    let mut settled: Vec<_> =
        results.iter().filter_map(|(_, result)| result.as_ref().ok().copied()).collect();
    settled.sort();
    if let Some(worst) = settled.last() {
        println!(
            "settled: p50 {:?}, p99 {:?}, max {worst:?}",
            settled[settled.len() / 2],
            settled[settled.len() * 99 / 100]
        );
    }
    let failed: Vec<_> = failed.into_iter().map(|(seed, _)| *seed).collect();
    assert!(
        failed.is_empty(),
        "{} of {} seeds failed: {:?}",
        failed.len(),
        results.len(),
        &failed[..failed.len().min(20)]
    );
}

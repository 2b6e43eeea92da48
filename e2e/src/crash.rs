//! The crash harness: good clients on a broker that is killed again and again at random points, and an auditor who knows
//! all they saw. A client keeps its session state over every crash of the broker, as the MQTT specification asks of it; so
//! whatever is lost, repeated or out of order is the broker's fault.
//!
//! Everything that chance decides comes from one seed, except how the machine schedules it all.

pub mod auditor;
pub mod plan;
mod publisher;
mod receiver;
mod sender;
mod stream;
mod subscriber;
mod world;

pub use stream::Stream;

use crate::broker::Broker;
use anyhow::{Context, Result};
use auditor::Verdict;
use plan::{Disaster, Moment, Plan};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_contract::config::Config;
use tokio::task::JoinSet;
use world::{Stage, World};

/// A disaster waits at most so long for its moment: some rounds never come to it.
const MOMENT_LIMIT: Duration = Duration::from_secs(4);
/// A message that has not come after so long without any other is lost. Longer than a client waits for an answer.
const QUIET: Duration = Duration::from_secs(30);
/// Warnings of the broker that are shown of a run that went wrong.
const LOG_LINES_MAX: usize = 20;
/// Between two looks at how far the clients are.
const LOOK: Duration = Duration::from_millis(50);

/// Runs `plan` on a broker in `folder` and answers what the auditor says. At the end everybody comes online and takes
/// everything; then there are two disasters more, so that what was done before shows again if it was not remembered.
///
/// # Errors
///
/// When the broker ends by itself or does not start again, with the end of its log.
pub async fn run(folder: &Path, config: Config, plan: Plan) -> Result<Verdict> {
    let mut broker = Broker::start(folder, config, &[]).await?;
    let world = Arc::new(World::new(broker.mqtt().clone(), plan.clone()));
    let mut clients = JoinSet::new();
    for number in 0..plan.publishers() {
        clients.spawn(publisher::run(Arc::clone(&world), number));
    }
    for number in 0..plan.subscribers() {
        clients.spawn(subscriber::run(Arc::clone(&world), number));
    }

    for round in 0..plan.rounds {
        wait_for(&world, plan.moment(round)).await;
        strike(&mut broker, &world).await.with_context(|| format!("round {round}"))?;
    }
    for last in [false, false, true] {
        broker.wait_until_ready().await?;
        let is_complete = drain(&world).await;
        // What does not arrive now never will, whatever happens to the broker.
        if last || !is_complete {
            break;
        }
        strike(&mut broker, &world).await.context("after the last round")?;
    }
    world.set_stage(Stage::Over);
    while let Some(ended) = clients.join_next().await {
        ended.context("a client's task")?;
    }
    let verdict = world.verdict();
    if !verdict.violations.is_empty() {
        println!("the last errors of the clients: {:#?}", world.last_errors());
        let log = broker.log()?;
        let is_news = |line: &&str| !line.contains("\"level\":\"INFO\"");
        let news: Vec<_> = log.lines().filter(is_news).rev().take(LOG_LINES_MAX).collect();
        println!("the last warnings of the broker, newest first:\n{}", news.join("\n"));
    }
    Ok(verdict)
}

/// Ends a round.
async fn strike(broker: &mut Broker, world: &World) -> Result<()> {
    match world.plan.disaster {
        Disaster::BrokerKilled => {
            broker.kill().await?;
            world.begin_next_round();
            broker.relaunch()
        }
        Disaster::ConnectionsBroken => {
            world.begin_next_round();
            Ok(())
        }
    }
}

/// Waits for the moment of a disaster.
async fn wait_for(world: &World, moment: Moment) {
    match moment {
        Moment::AfterStart(pause) => tokio::time::sleep(pause).await,
        Moment::At { event, count } => {
            let mut counts = world.counts.subscribe();
            let goal = counts.borrow().of(event) + count;
            let reached = counts.wait_for(|counts| counts.of(event) >= goal);
            // A round whose clients are done before has its disaster when nothing happens.
            drop(tokio::time::timeout(MOMENT_LIMIT, reached).await);
        }
    }
}

/// Everybody online: publishers publish what is left of the round, and all that is acknowledged arrives. Answers whether
/// it did before nothing happened any more.
async fn drain(world: &World) -> bool {
    world.set_stage(Stage::Draining);
    let (mut seen, mut changed_at) = (world.progress(), Instant::now());
    while changed_at.elapsed() < QUIET {
        if world.is_idle() && world.auditor.lock().missing() == 0 {
            return true;
        }
        tokio::time::sleep(LOOK).await;
        let now = world.progress();
        if now != seen {
            (seen, changed_at) = (now, Instant::now());
        }
    }
    false
}

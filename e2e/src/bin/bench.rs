//! `make bench`: Tidemill and mosquitto side by side on this machine. Prints figures, asserts nothing about time; a
//! message that is lost, repeated or out of order ends it with an error. docs/benchmarks.md explains the rows.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use std::time::Duration;
use tidemill_e2e::bench::pair::{Pace, Plan};
use tidemill_e2e::bench::subject::{BROKERS, Subject};
use tidemill_e2e::bench::table::{Figure, head, lines};
use tidemill_e2e::bench::{fan_out, idle, many, pair, route, trie};
use tokio::task::JoinSet;

/// What the broker allocates with, so that the row without a broker tells the same.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures Tidemill and mosquitto in the same run and prints a table in Markdown.
#[derive(Parser)]
struct Arguments {
    /// Only rows whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Runs of each row of traffic; each is on a new process, with the brokers in turn.
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// How long a run of traffic lasts.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
}

const PAIRS: u32 = 50;
const IDLE_CONNECTIONS: u32 = 5_000;
const MANY: u32 = 1_000_000;
const CPU: &str = "broker CPU µs per message";

/// One row of the table.
struct Row {
    name: &'static str,
    load: Load,
}

enum Load {
    /// 50 pairs: QoS, whether the sessions are persistent, messages under way per pair.
    Saturated {
        qos: u8,
        persistent: bool,
        window: u64,
    },
    /// 50 pairs at so many messages per second in all.
    Paced {
        qos: u8,
        per_second: u32,
    },
    /// 2 publishers, 100 subscribers each, 100 messages per second and publisher.
    FanOut,
    Idle,
    Subscriptions,
    Retained,
    /// No broker: the trie of the core, and the routes of a publisher.
    Match,
}

const ROWS: [Row; 12] = [
    Row { name: "50 pairs, QoS 0", load: Load::Saturated { qos: 0, persistent: false, window: 100 } },
    Row { name: "50 pairs, QoS 1", load: Load::Saturated { qos: 1, persistent: false, window: 20 } },
    Row { name: "50 pairs, QoS 2", load: Load::Saturated { qos: 2, persistent: false, window: 20 } },
    Row {
        name: "50 pairs, QoS 1, persistent",
        load: Load::Saturated { qos: 1, persistent: true, window: 20 },
    },
    Row { name: "20,000/s, QoS 0", load: Load::Paced { qos: 0, per_second: 20_000 } },
    Row { name: "20,000/s, QoS 1", load: Load::Paced { qos: 1, per_second: 20_000 } },
    Row { name: "1,000/s, QoS 1", load: Load::Paced { qos: 1, per_second: 1_000 } },
    Row { name: "fan-out 2 to 200, 20,000/s", load: Load::FanOut },
    Row { name: "5,000 idle connections", load: Load::Idle },
    Row { name: "1,000,000 subscriptions", load: Load::Subscriptions },
    Row { name: "1,000,000 retained messages", load: Load::Retained },
    Row { name: "trie of 1,000,000 filters", load: Load::Match },
];

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    ensure!((0.5..=600.0).contains(&arguments.seconds), "--seconds is between 0.5 and 600");
    raise_descriptor_limit()?;
    println!("{}", head());
    for row in ROWS.iter().filter(|row| row.name.contains(&arguments.only)) {
        println!("{}", measure(row, &arguments).await.with_context(|| row.name)?);
    }
    Ok(())
}

/// The brokers inherit it. 5,000 clients and 5,000 connections of a broker need more than many shells allow.
fn raise_descriptor_limit() -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(65_536).min(65_536).max(limit.current.unwrap_or(0));
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit })?;
    Ok(())
}

/// All runs of one row, the brokers in turn.
async fn measure(row: &Row, arguments: &Arguments) -> Result<String> {
    if let Load::Match = row.load {
        return Ok(lines(row.name, &[matches()?], &[]));
    }
    let runs = match row.load {
        Load::Saturated { .. } | Load::Paced { .. } | Load::FanOut => arguments.runs,
        Load::Idle => arguments.runs.min(2),
        Load::Subscriptions | Load::Retained | Load::Match => 1,
    };
    let mut figures = [const { Vec::new() }; 2];
    for _ in 0..runs {
        for (kind, figures) in BROKERS.into_iter().zip(&mut figures) {
            let subject = Subject::start(kind).await?;
            let load = Duration::from_secs_f64(arguments.seconds);
            figures.push(run(&row.load, &subject, load).await.with_context(|| format!("{kind:?}"))?);
        }
    }
    let [tidemill, mosquitto] = figures;
    Ok(lines(row.name, &tidemill, &mosquitto))
}

async fn run(load: &Load, subject: &Subject, duration: Duration) -> Result<Vec<Figure>> {
    match *load {
        Load::Saturated { qos, persistent, window } => {
            let outcome =
                pairs(subject, plan(subject, qos, persistent, Pace::Window(window), duration)).await?;
            Ok(vec![
                Figure::new(CPU, outcome.cpu_micros),
                Figure::new("messages per second", outcome.received / duration.as_secs_f64()),
            ])
        }
        Load::Paced { qos, per_second } => {
            let pace = Pace::Every(Duration::from_secs(PAIRS.into()) / per_second);
            let outcome = pairs(subject, plan(subject, qos, false, pace, duration)).await?;
            Ok(vec![
                Figure::new(CPU, outcome.cpu_micros),
                Figure::new("latency p50, µs", outcome.latency_micros(50)),
                Figure::new("latency p99, µs", outcome.latency_micros(99)),
                Figure::new("latency max, µs", outcome.latency_micros(100)),
            ])
        }
        Load::FanOut => fan_out_of(subject, duration).await,
        Load::Idle => {
            let cost = idle::run(subject, IDLE_CONNECTIONS).await?;
            Ok(vec![
                Figure::new("bytes per connection", cost.held_bytes),
                Figure::new("bytes per connection, 3 s after they left", cost.left_bytes),
            ])
        }
        Load::Subscriptions => {
            let cost = many::subscriptions(subject, MANY, 200_000).await?;
            Ok(vec![
                Figure::new("bytes each beyond the filter", cost.bytes_beyond_filter),
                Figure::new("broker CPU µs per PUBLISH to a new topic", cost.new_topic_micros),
                Figure::new("broker CPU µs per PUBLISH to the same topic", cost.same_topic_micros),
            ])
        }
        Load::Retained => {
            let cost = many::retained(subject, MANY, 200).await?;
            Ok(vec![
                Figure::new("bytes each beyond topic and payload", cost.bytes_beyond_message),
                Figure::new("broker CPU µs to keep one", cost.keep_micros),
                Figure::new("broker CPU µs to find ten by `a/+/b`", cost.search_micros),
                Figure::new("ms until the ten are there", cost.search_millis),
            ])
        }
        Load::Match => matches(),
    }
}

fn matches() -> Result<Vec<Figure>> {
    let cost = trie::run(MANY, 200_000)?;
    let repeated = route::run(MANY, 10_000_000)?;
    Ok(vec![
        Figure::new("ns per match of a new topic, one filter found", cost.hit_nanos),
        Figure::new("ns per match of a new topic, none found", cost.miss_nanos),
        Figure::new("ns per look-up of one topic again and again", repeated.one_nanos),
        Figure::new("ns per look-up of a hundred topics in turn", repeated.hundred_nanos),
    ])
}

fn plan(subject: &Subject, qos: u8, persistent: bool, pace: Pace, duration: Duration) -> Plan {
    Plan { endpoint: subject.endpoint().clone(), qos, persistent, pace, payload_bytes: 64, duration }
}

/// What all pairs saw together.
struct Outcome {
    received: f64,
    cpu_micros: f64,
    latencies_micros: Vec<u32>,
}

impl Outcome {
    /// The latency that `percent` of the messages had at most.
    fn latency_micros(&self, percent: usize) -> f64 {
        let last = self.latencies_micros.len().saturating_sub(1);
        self.latencies_micros.get(last * percent / 100).copied().map_or(f64::NAN, f64::from)
    }
}

async fn pairs(subject: &Subject, plan: Plan) -> Result<Outcome> {
    let before = subject.cpu_micros()?;
    let mut running = JoinSet::new();
    for number in 0..PAIRS {
        running.spawn(pair::run(plan.clone(), number));
    }
    let (mut received, mut latencies_micros) = (0, Vec::new());
    while let Some(tally) = running.join_next().await {
        let mut tally = tally??;
        received += tally.received;
        latencies_micros.append(&mut tally.latencies_micros);
    }
    let used = subject.cpu_micros()? - before;
    ensure!(received > 0, "nothing was sent");
    let received = f64::from(u32::try_from(received).context("fewer messages than that in seconds")?);
    latencies_micros.sort_unstable();
    Ok(Outcome { received, cpu_micros: used / received, latencies_micros })
}

async fn fan_out_of(subject: &Subject, duration: Duration) -> Result<Vec<Figure>> {
    let interval = Duration::from_millis(10);
    let messages = u32::try_from(duration.as_millis() / interval.as_millis())?.max(1);
    let endpoint = subject.endpoint().clone();
    let plan =
        fan_out::Plan { endpoint, publishers: 2, subscribers: 100, interval, messages, payload_bytes: 64 };
    let cost = fan_out::run(plan, || subject.cpu_micros()).await?;
    Ok(vec![Figure::new("broker CPU µs per delivery", cost)])
}

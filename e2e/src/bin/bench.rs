//! `make bench`: Tidemill and mosquitto side by side on this machine. Prints figures, asserts nothing about time; a
//! message that is lost, repeated or out of order ends it with an error. docs/benchmarks.md explains the rows.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use std::time::Duration;
use tidemill_e2e::bench::pair::{Pace, Plan};
use tidemill_e2e::bench::subject::{BROKERS, BrokerKind, Subject};
use tidemill_e2e::bench::table::{Figure, head, lines};
use tidemill_e2e::bench::{boot, drain, fan_in, fan_out, idle, many, offline, pairs, route, trie};

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
    /// Messages that one session misses and then drains.
    #[arg(long, default_value_t = 500_000)]
    drain: u64,
    /// Stored messages of the row with the long backlog; the one with the short backlog has a hundredth of them.
    #[arg(long, default_value_t = 5_000_000)]
    backlog: u64,
}

const SESSIONS_AWAY: u32 = 100_000;
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
        persistent: bool,
        per_second: u32,
    },
    /// 50 publishers with so many messages per second in all, one persistent session.
    FanIn {
        per_second: u32,
    },
    /// A persistent session that was away, and live pairs beside it.
    Drain,
    /// Start with stored messages: the long backlog divided by this.
    Boot {
        divisor: u64,
    },
    /// Persistent sessions whose clients are away.
    Offline,
    /// 2 publishers, 100 subscribers each, 100 messages per second and publisher.
    FanOut,
    Idle,
    Subscriptions,
    Retained,
    /// No broker: the trie of the core, and the routes of a publisher.
    Match,
}

const ROWS: [Row; 18] = [
    Row { name: "50 pairs, QoS 0", load: Load::Saturated { qos: 0, persistent: false, window: 100 } },
    Row { name: "50 pairs, QoS 1", load: Load::Saturated { qos: 1, persistent: false, window: 20 } },
    Row { name: "50 pairs, QoS 2", load: Load::Saturated { qos: 2, persistent: false, window: 20 } },
    Row {
        name: "50 pairs, QoS 1, persistent",
        load: Load::Saturated { qos: 1, persistent: true, window: 20 },
    },
    Row { name: "20,000/s, QoS 0", load: Load::Paced { qos: 0, persistent: false, per_second: 20_000 } },
    Row { name: "20,000/s, QoS 1", load: Load::Paced { qos: 1, persistent: false, per_second: 20_000 } },
    Row { name: "1,000/s, QoS 1", load: Load::Paced { qos: 1, persistent: false, per_second: 1_000 } },
    Row {
        name: "1,000/s, QoS 1, persistent",
        load: Load::Paced { qos: 1, persistent: true, per_second: 1_000 },
    },
    Row { name: "fan-in 20,000/s to one persistent session", load: Load::FanIn { per_second: 20_000 } },
    Row { name: "drain of a persistent session", load: Load::Drain },
    Row { name: "start with a short backlog", load: Load::Boot { divisor: 100 } },
    Row { name: "start with a long backlog", load: Load::Boot { divisor: 1 } },
    Row { name: "100,000 sessions away", load: Load::Offline },
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
        Load::Saturated { .. } | Load::Paced { .. } | Load::FanIn { .. } | Load::Drain | Load::FanOut => {
            arguments.runs
        }
        Load::Idle => arguments.runs.min(2),
        Load::Boot { .. } | Load::Offline | Load::Subscriptions | Load::Retained | Load::Match => 1,
    };
    let mut figures = [const { Vec::new() }; 2];
    for _ in 0..runs {
        for (kind, figures) in BROKERS.into_iter().zip(&mut figures) {
            // mosquitto keeps messages in memory: there is no backlog that it could start with.
            if matches!(row.load, Load::Boot { .. }) && kind == BrokerKind::Mosquitto {
                continue;
            }
            let mut subject = Subject::start(kind).await?;
            let figure = run(&row.load, &mut subject, arguments).await;
            figures.push(figure.with_context(|| format!("{kind:?}"))?);
        }
    }
    let [tidemill, mosquitto] = figures;
    Ok(lines(row.name, &tidemill, &mosquitto))
}

async fn run(load: &Load, subject: &mut Subject, arguments: &Arguments) -> Result<Vec<Figure>> {
    let duration = Duration::from_secs_f64(arguments.seconds);
    match *load {
        Load::Saturated { qos, persistent, window } => {
            let plan = plan(subject, qos, persistent, Pace::Window(window), duration);
            let outcome = pairs::run(subject, plan).await?;
            Ok(vec![
                Figure::new(CPU, outcome.cpu_micros),
                Figure::new("messages per second", outcome.received / duration.as_secs_f64()),
            ])
        }
        Load::Paced { qos, persistent, per_second } => {
            let plan = plan(subject, qos, persistent, pairs::pace(per_second), duration);
            paced(subject, plan).await
        }
        Load::FanIn { per_second } => fan_in_of(subject, per_second, duration).await,
        Load::Drain => drain_of(subject, arguments.drain, duration).await,
        Load::Boot { divisor } => boot_of(subject, arguments.backlog / divisor).await,
        Load::Offline => {
            Ok(vec![Figure::new("bytes per session", offline::run(subject, SESSIONS_AWAY).await?)])
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

/// Latencies of pairs at a fixed rate; with persistent sessions also those of PUBACK, and how often the disk was
/// waited for.
async fn paced(subject: &Subject, plan: Plan) -> Result<Vec<Figure>> {
    const SYNCS: &str = "tidemill_log_syncs_total";
    let persistent = plan.persistent;
    let syncs_before = subject.metric(SYNCS).await?;
    let outcome = pairs::run(subject, plan).await?;
    let mut figures = vec![
        Figure::new(CPU, outcome.cpu_micros),
        Figure::new("latency p50, µs", outcome.latencies.micros(50)),
        Figure::new("latency p99, µs", outcome.latencies.micros(99)),
        Figure::new("latency max, µs", outcome.latencies.micros(100)),
    ];
    if persistent {
        figures.push(Figure::new("PUBACK p50, µs", outcome.acks.micros(50)));
        figures.push(Figure::new("PUBACK p99, µs", outcome.acks.micros(99)));
        if let (Some(before), Some(after)) = (syncs_before, subject.metric(SYNCS).await?) {
            figures.push(Figure::new("syncs of the log per message", (after - before) / outcome.received));
        }
    }
    Ok(figures)
}

async fn fan_in_of(subject: &Subject, per_second: u32, duration: Duration) -> Result<Vec<Figure>> {
    let cost = fan_in::run(subject, per_second, duration).await?;
    Ok(vec![
        Figure::new(CPU, cost.cpu_micros),
        Figure::new("messages per second", cost.per_second),
        Figure::new("latency p50, µs", cost.latencies.micros(50)),
        Figure::new("latency p99, µs", cost.latencies.micros(99)),
    ])
}

async fn drain_of(subject: &Subject, messages: u64, duration: Duration) -> Result<Vec<Figure>> {
    let cost = drain::run(subject, messages, duration).await?;
    Ok(vec![
        Figure::new("messages per second", cost.per_second),
        Figure::new(CPU, cost.cpu_micros),
        Figure::new("live p50 before, µs", cost.before.micros(50)),
        Figure::new("live p99 before, µs", cost.before.micros(99)),
        Figure::new("live p50 meanwhile, µs", cost.meanwhile.micros(50)),
        Figure::new("live p99 meanwhile, µs", cost.meanwhile.micros(99)),
    ])
}

async fn boot_of(subject: &mut Subject, messages: u64) -> Result<Vec<Figure>> {
    let cost = boot::run(subject, messages).await?;
    Ok(vec![
        Figure::new("ms from start to CONNACK", cost.connack_millis),
        Figure::new("ms to the first message of a session", cost.first_message_millis),
        Figure::new(
            "stored bytes per message beyond topic, payload and publisher",
            cost.bytes_beyond_message,
        ),
        Figure::new("bytes written per byte stored", cost.written_per_stored),
        Figure::new("messages stored per second", cost.fill_per_second),
    ])
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

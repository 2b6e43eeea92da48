//! `make bench`: Tidemill and mosquitto side by side on this machine. Prints figures, asserts nothing about time; a
//! message that is lost, repeated or out of order ends it with an error.

use anyhow::{Context, Result};
use std::process::Stdio;
use std::time::Duration;
use tidemill_e2e::bench::pair::{Plan, run};
use tidemill_e2e::bench::process::{cpu_secs, resident_kib};
use tidemill_e2e::broker::free_port;
use tidemill_e2e::environment::binary;
use tidemill_e2e::mosquitto::Endpoint;
use tidemill_e2e::wait::until;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

const PAIRS: u32 = 50;
const ROUNDS: usize = 3;

/// One row of the table.
struct Scenario {
    name: &'static str,
    qos: u8,
    persistent: bool,
    window: u64,
}

const SCENARIOS: [Scenario; 3] = [
    Scenario { name: "50 pairs, QoS 0, clean", qos: 0, persistent: false, window: 100 },
    Scenario { name: "50 pairs, QoS 1, clean", qos: 1, persistent: false, window: 20 },
    Scenario { name: "50 pairs, QoS 1, persistent", qos: 1, persistent: true, window: 20 },
];

struct Subject {
    name: &'static str,
    child: Child,
    endpoint: Endpoint,
}

#[tokio::main]
async fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let subjects = [start_tidemill(folder.path()).await?, start_mosquitto(folder.path()).await?];
    println!("| scenario | broker | msg/s | broker CPU µs per message | RSS MiB |");
    println!("|---|---|---|---|---|");
    for scenario in &SCENARIOS {
        let mut costs = [const { Vec::new() }; 2];
        for _ in 0..ROUNDS {
            for (subject, costs) in subjects.iter().zip(&mut costs) {
                costs.push(measure(subject, scenario).await?);
            }
        }
        let [ours, theirs] = costs.map(median);
        println!("| {} | mosquitto / tidemill | | ratio {:.2} | |", scenario.name, theirs / ours);
    }
    Ok(())
}

/// Runs one scenario once; answers CPU µs per message.
async fn measure(subject: &Subject, scenario: &Scenario) -> Result<f64> {
    let pid = subject.child.id().context("the broker runs")?;
    let plan = Plan {
        endpoint: subject.endpoint.clone(),
        qos: scenario.qos,
        persistent: scenario.persistent,
        window: scenario.window,
        payload_bytes: 64,
        duration: Duration::from_secs(3),
    };
    let before = cpu_secs(pid)?;
    let mut pairs = JoinSet::new();
    for number in 0..PAIRS {
        pairs.spawn(run(plan.clone(), number));
    }
    let mut received = 0;
    while let Some(tally) = pairs.join_next().await {
        received += tally?.with_context(|| format!("{} on {}", scenario.name, subject.name))?.received;
    }
    let received = f64::from(u32::try_from(received).context("fewer messages than that in seconds")?);
    let cost = (cpu_secs(pid)? - before) * 1e6 / received;
    let rate = received / plan.duration.as_secs_f64();
    println!(
        "| {} | {} | {rate:.0} | {cost:.2} | {} |",
        scenario.name,
        subject.name,
        resident_kib(pid)? / 1024
    );
    Ok(cost)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn start_tidemill(folder: &std::path::Path) -> Result<Subject> {
    let (port, admin) = (free_port()?, free_port()?);
    let child = Command::new(binary("tidemill-broker")?)
        .args([
            "serve",
            "--listen",
            &format!("mqtt://127.0.0.1:{port}"),
            "--admin",
            &format!("127.0.0.1:{admin}"),
        ])
        .arg("--data")
        .arg(folder.join("tidemill"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("start tidemill-broker")?;
    wait_for_port("tidemill", child, port).await
}

async fn start_mosquitto(folder: &std::path::Path) -> Result<Subject> {
    let port = free_port()?;
    let config = folder.join("mosquitto.conf");
    std::fs::write(
        &config,
        format!("listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n"),
    )?;
    let child = Command::new("mosquitto")
        .arg("-c")
        .arg(&config)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("start mosquitto (Debian package mosquitto)")?;
    wait_for_port("mosquitto", child, port).await
}

async fn wait_for_port(name: &'static str, child: Child, port: u16) -> Result<Subject> {
    let endpoint = Endpoint::new("127.0.0.1", port);
    until(name, Duration::from_secs(30), || async {
        TcpStream::connect((endpoint.host.as_str(), port)).await?;
        Ok(Some(()))
    })
    .await?;
    Ok(Subject { name, child, endpoint })
}

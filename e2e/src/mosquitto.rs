//! The real `mosquitto_pub` and `mosquitto_sub`, as a user would call them.

use anyhow::{Context, Result, ensure};
use std::collections::VecDeque;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

/// Where a client connects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// IP address or host name.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl Endpoint {
    /// `host:port` on this machine or in the cluster.
    #[must_use]
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self { host: host.into(), port }
    }
}

/// Publishes one message and waits for its acknowledgement: `mosquitto_pub -h … -p … -t … -m … -q …`.
///
/// # Errors
///
/// When the client fails or takes more than 30 s, with what it printed.
pub async fn publish(endpoint: &Endpoint, topic: &str, message: &str, qos: u8, more: &[&str]) -> Result<()> {
    let mut command = client("mosquitto_pub", endpoint);
    command.args(["-t", topic, "-m", message, "-q", &qos.to_string()]).args(more);
    let output =
        timeout(Duration::from_secs(30), command.output()).await.context("mosquitto_pub hangs")??;
    ensure!(output.status.success(), "mosquitto_pub: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// A running `mosquitto_sub`.
pub struct Subscriber {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    /// Messages of a resumed session that came before the SUBACK.
    early: VecDeque<String>,
}

impl Subscriber {
    /// Starts `mosquitto_sub -h … -p … -t … -q … -v` and waits until it says that it is subscribed (`-d`).
    ///
    /// # Errors
    ///
    /// When it ends or is not subscribed within 30 s.
    pub async fn start(endpoint: &Endpoint, topic: &str, qos: u8, more: &[&str]) -> Result<Self> {
        let mut command = client("mosquitto_sub", endpoint);
        // -d reports the SUBACK on standard output, where -v prints the messages.
        command.args(["-d", "-v", "-t", topic, "-q", &qos.to_string()]).args(more);
        let mut child = command.spawn().context("start mosquitto_sub")?;
        let stdout = child.stdout.take().context("standard output is piped")?;
        let mut subscriber = Self { child, lines: BufReader::new(stdout).lines(), early: VecDeque::new() };
        subscriber.wait_for_line(|line| line.starts_with("Subscribed (mid:")).await.context("subscribe")?;
        Ok(subscriber)
    }

    /// The next message as `topic payload`.
    ///
    /// # Errors
    ///
    /// When none comes within 60 s or the client ends.
    pub async fn next_message(&mut self) -> Result<String> {
        match self.early.pop_front() {
            Some(message) => Ok(message),
            None => self.wait_for_line(|line| !is_debug(line)).await,
        }
    }

    /// Ends the client without a DISCONNECT, as a lost device would.
    ///
    /// # Errors
    ///
    /// When the process cannot be killed.
    pub async fn kill(mut self) -> Result<()> {
        self.child.kill().await.context("kill mosquitto_sub")
    }

    async fn wait_for_line(&mut self, wanted: impl Fn(&str) -> bool) -> Result<String> {
        let search = async {
            while let Some(line) = self.lines.next_line().await? {
                if wanted(&line) {
                    return Ok(line);
                }
                if !is_debug(&line) {
                    self.early.push_back(line);
                }
            }
            anyhow::bail!("mosquitto_sub ended")
        };
        timeout(Duration::from_secs(60), search).await.context("nothing from mosquitto_sub for 60 s")?
    }
}

/// Lines of `-d`: `Client … sending/received …` and `Subscribed (mid: …)`.
fn is_debug(line: &str) -> bool {
    line.starts_with("Client ") || line.starts_with("Subscribed (mid:")
}

fn client(program: &str, endpoint: &Endpoint) -> Command {
    // Line by line also into a pipe: mosquitto_sub does not flush what -d prints. stdbuf becomes the program.
    let mut command = Command::new("stdbuf");
    command
        .args(["-oL", program])
        .args(["-h", &endpoint.host, "-p", &endpoint.port.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

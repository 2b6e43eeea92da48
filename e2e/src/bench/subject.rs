//! A broker under load.

use super::process::{cpu_micros, resident_bytes, written_bytes};
use crate::broker::{free_port, metric};
use crate::environment::binary;
use crate::mosquitto::Endpoint;
use crate::wait::until;
use anyhow::{Context, Result};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// Which broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokerKind {
    /// Ours, standalone, with its embedded log.
    Tidemill,
    /// Debian's mosquitto.
    Mosquitto,
}

/// Both, in the order in which they are measured.
pub const BROKERS: [BrokerKind; 2] = [BrokerKind::Tidemill, BrokerKind::Mosquitto];

/// A fresh broker process with limits that no row reaches; killed when dropped.
pub struct Subject {
    command: Command,
    child: Child,
    endpoint: Endpoint,
    /// Where its metrics are; mosquitto has none.
    admin: Option<Endpoint>,
    folder: tempfile::TempDir,
}

impl Subject {
    /// Starts a broker with empty data and waits until it accepts connections, also at its admin port.
    ///
    /// # Errors
    ///
    /// When it does not within 30 s.
    pub async fn start(kind: BrokerKind) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let port = free_port()?;
        let (mut command, admin) = match kind {
            BrokerKind::Tidemill => {
                let admin = Endpoint::new("127.0.0.1", free_port()?);
                (tidemill(folder.path(), port, &admin)?, Some(admin))
            }
            BrokerKind::Mosquitto => (mosquitto(folder.path(), port)?, None),
        };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        let child = command.spawn().with_context(|| format!("start {kind:?}"))?;
        let endpoint = Endpoint::new("127.0.0.1", port);
        until("the broker", Duration::from_secs(30), || async {
            for endpoint in [Some(&endpoint), admin.as_ref()].into_iter().flatten() {
                TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await?;
            }
            Ok(Some(()))
        })
        .await?;
        Ok(Self { command, child, endpoint, admin, folder })
    }

    /// `kill -9`, and a new process on the same data; waits for nothing but that the disks have what was written: how long that
    /// takes depends on what came just before.
    ///
    /// # Errors
    ///
    /// When one of the two fails.
    pub async fn crash(&mut self) -> Result<()> {
        self.child.kill().await.context("kill the broker")?;
        tokio::task::spawn_blocking(rustix::fs::sync).await.context("sync the disks")?;
        self.child = self.command.spawn().context("start the broker again")?;
        Ok(())
    }

    /// The value of one of its metrics, if it has that one.
    ///
    /// # Errors
    ///
    /// When the admin port does not answer.
    pub async fn metric(&self, name: &str) -> Result<Option<f64>> {
        match &self.admin {
            Some(admin) => metric(admin, name).await,
            None => Ok(None),
        }
    }

    /// Bytes written to disk so far by the running process.
    ///
    /// # Errors
    ///
    /// When the broker has ended.
    pub fn written_bytes(&self) -> Result<f64> {
        written_bytes(self.pid()?)
    }

    /// Lengths of all files in its data directory.
    ///
    /// # Errors
    ///
    /// When a folder cannot be read.
    pub fn stored_bytes(&self) -> Result<u64> {
        let (mut bytes, mut folders) = (0, vec![self.folder.path().join("data")]);
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder)? {
                // A file may be removed between the listing and the look.
                let entry = entry?;
                let Ok(metadata) = entry.metadata() else { continue };
                if metadata.is_dir() {
                    folders.push(entry.path());
                } else {
                    bytes += metadata.len();
                }
            }
        }
        Ok(bytes)
    }

    /// Where clients connect.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// CPU µs used so far.
    ///
    /// # Errors
    ///
    /// When the broker has ended.
    pub fn cpu_micros(&self) -> Result<f64> {
        cpu_micros(self.pid()?)
    }

    /// Resident bytes now.
    ///
    /// # Errors
    ///
    /// When the broker has ended.
    pub fn resident_bytes(&self) -> Result<f64> {
        resident_bytes(self.pid()?)
    }

    fn pid(&self) -> Result<u32> {
        self.child.id().context("the broker has ended")
    }
}

fn tidemill(folder: &Path, port: u16, admin: &Endpoint) -> Result<Command> {
    let mut command = Command::new(binary("tidemill-broker")?);
    command
        .args(["serve", "--listen", &format!("mqtt://127.0.0.1:{port}")])
        .args(["--admin", &format!("{}:{}", admin.host, admin.port)])
        // A session misses more than it may hold by default.
        .args(["--set", "sessions.queue.messages=100000000", "--set", "sessions.queue.bytes=1099511627776"])
        .arg("--data")
        .arg(folder.join("data"));
    Ok(command)
}

fn mosquitto(folder: &Path, port: u16) -> Result<Command> {
    let config = folder.join("mosquitto.conf");
    let text = format!(
        "listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\nmax_inflight_messages 100\n"
    );
    std::fs::write(&config, text)?;
    let mut command = Command::new("mosquitto");
    command.arg("-c").arg(&config);
    Ok(command)
}

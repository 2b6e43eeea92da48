//! A broker under load.

use super::process::{cpu_micros, resident_bytes};
use crate::broker::free_port;
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
    child: Child,
    endpoint: Endpoint,
    _folder: tempfile::TempDir,
}

impl Subject {
    /// Starts a broker with empty data and waits until it accepts connections.
    ///
    /// # Errors
    ///
    /// When it does not within 30 s.
    pub async fn start(kind: BrokerKind) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let port = free_port()?;
        let mut command = match kind {
            BrokerKind::Tidemill => tidemill(folder.path(), port)?,
            BrokerKind::Mosquitto => mosquitto(folder.path(), port)?,
        };
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {kind:?}"))?;
        let endpoint = Endpoint::new("127.0.0.1", port);
        until("the broker", Duration::from_secs(30), || async {
            TcpStream::connect((endpoint.host.as_str(), port)).await?;
            Ok(Some(()))
        })
        .await?;
        Ok(Self { child, endpoint, _folder: folder })
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

fn tidemill(folder: &Path, port: u16) -> Result<Command> {
    let mut command = Command::new(binary("tidemill-broker")?);
    command
        .args(["serve", "--listen", &format!("mqtt://127.0.0.1:{port}")])
        .args(["--admin", &format!("127.0.0.1:{}", free_port()?)])
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

//! A real broker process.

use crate::environment::binary;
use crate::mosquitto::Endpoint;
use crate::wait::until;
use anyhow::{Context, Result, ensure};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tidemill_contract::admin::BrokerStatus;
use tidemill_contract::config::Config;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// How long a broker may take until it is ready: the first takeover of a Kafka-backed group included.
pub const READY_LIMIT: Duration = Duration::from_secs(90);

/// A broker process that belongs to one test. It is killed when dropped; its log stays in its folder.
pub struct Broker {
    child: Child,
    config_file: PathBuf,
    log_file: PathBuf,
    environment: Vec<(String, String)>,
    admin: Endpoint,
    mqtt: Endpoint,
}

/// A TCP port of 127.0.0.1 that was free a moment ago.
///
/// # Errors
///
/// When the machine has none.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl Broker {
    /// Writes `config` into `folder` with fresh ports for MQTT and admin, starts the process and waits until ready.
    ///
    /// # Errors
    ///
    /// When it ends or is not ready within [`READY_LIMIT`], with the end of its log.
    pub async fn start(folder: &Path, config: Config, environment: &[(&str, &str)]) -> Result<Self> {
        let mut broker = Self::spawn(folder, config, environment)?;
        broker.wait_until_ready().await?;
        Ok(broker)
    }

    /// As [`Self::start`], without the wait: several brokers may need each other to get ready.
    ///
    /// # Errors
    ///
    /// When the process cannot be started.
    pub fn spawn(folder: &Path, mut config: Config, environment: &[(&str, &str)]) -> Result<Self> {
        let (mqtt, admin) = (free_port()?, free_port()?);
        config.listeners.0[0].address = format!("127.0.0.1:{mqtt}");
        config.admin.address = format!("127.0.0.1:{admin}");
        config.data.directory = folder.join("data");
        std::fs::create_dir_all(folder)?;
        let config_file = folder.join("broker.yaml");
        std::fs::write(&config_file, serde_json::to_string_pretty(&config)?)?;
        let environment: Vec<_> =
            environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let log_file = folder.join("broker.log");
        Ok(Self {
            child: run(&config_file, &log_file, &environment)?,
            config_file,
            log_file,
            environment,
            admin: Endpoint::new("127.0.0.1", admin),
            mqtt: Endpoint::new("127.0.0.1", mqtt),
        })
    }

    /// Where clients connect.
    #[must_use]
    pub fn mqtt(&self) -> &Endpoint {
        &self.mqtt
    }

    /// What the broker has written to its log so far.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub fn log(&self) -> Result<String> {
        std::fs::read_to_string(&self.log_file).context("the broker's log")
    }

    /// Resident memory in bytes.
    ///
    /// # Errors
    ///
    /// When the process has ended.
    pub fn resident_bytes(&self) -> Result<f64> {
        crate::bench::process::resident_bytes(self.child.id().context("the broker has ended")?)
    }

    /// The value of a counter or gauge without labels.
    ///
    /// # Errors
    ///
    /// When the admin port does not answer or has no such metric.
    pub async fn metric(&self, name: &str) -> Result<f64> {
        metric(&self.admin, name).await?.with_context(|| format!("no metric {name}"))
    }

    /// Waits until `/readyz` answers 200.
    ///
    /// # Errors
    ///
    /// When the process ends or the limit passes, with the end of its log.
    pub async fn wait_until_ready(&mut self) -> Result<()> {
        let (admin, child, log_file) = (self.admin.clone(), &mut self.child, self.log_file.clone());
        let exited = |child: &mut Child| child.try_wait().ok().flatten();
        let started = std::time::Instant::now();
        while started.elapsed() < READY_LIMIT {
            if let Some(status) = exited(child) {
                anyhow::bail!("broker ended with {status}:\n{}", log_tail(&log_file));
            }
            if get(&admin, "/readyz").await.is_ok_and(|(status, _)| status == 200) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        anyhow::bail!("broker is not ready after {READY_LIMIT:?}:\n{}", log_tail(&log_file))
    }

    /// The broker's own account of itself.
    ///
    /// # Errors
    ///
    /// When the admin port does not answer.
    pub async fn status(&self) -> Result<BrokerStatus> {
        let (status, body) = get(&self.admin, "/v1/status").await?;
        ensure!(status == 200, "/v1/status answered {status}: {body}");
        Ok(serde_json::from_str(&body)?)
    }

    /// Waits until the broker's account of itself satisfies `wanted`.
    ///
    /// # Errors
    ///
    /// When it does not within [`READY_LIMIT`].
    pub async fn wait_for_status(
        &self,
        what: &str,
        wanted: impl Fn(&BrokerStatus) -> bool,
    ) -> Result<BrokerStatus> {
        until(what, READY_LIMIT, || async {
            let status = self.status().await?;
            Ok(wanted(&status).then_some(status))
        })
        .await
    }

    /// `kill -9`: no chance to flush anything.
    ///
    /// # Errors
    ///
    /// When it has ended by itself before, with the end of its log.
    pub async fn kill(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            anyhow::bail!("broker ended with {status}:\n{}", log_tail(&self.log_file));
        }
        self.child.kill().await.context("kill the broker")
    }

    /// SIGTERM, then waits for the exit status.
    ///
    /// # Errors
    ///
    /// When it does not end within 60 s, or not with status 0.
    pub async fn terminate(&mut self) -> Result<()> {
        let pid = self.child.id().context("the broker runs")?;
        let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).context("a process id")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let status = tokio::time::timeout(Duration::from_secs(60), self.child.wait())
            .await
            .context("SIGTERM ignored")??;
        ensure!(status.success(), "broker ended with {status}:\n{}", log_tail(&self.log_file));
        Ok(())
    }

    /// Starts the process again on the same data and ports and waits until ready.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub async fn restart(&mut self) -> Result<()> {
        self.relaunch()?;
        self.wait_until_ready().await
    }

    /// As [`Self::restart`], without the wait.
    ///
    /// # Errors
    ///
    /// When the process cannot be started.
    pub fn relaunch(&mut self) -> Result<()> {
        self.child = run(&self.config_file, &self.log_file, &self.environment)?;
        Ok(())
    }
}

fn run(config_file: &Path, log_file: &Path, environment: &[(String, String)]) -> Result<Child> {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(log_file)?;
    Command::new(binary("tidemill-broker")?)
        .args(["serve", "--config"])
        .arg(config_file)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .context("start tidemill-broker")
}

/// The last lines of a log, for an error message.
fn log_tail(log_file: &Path) -> String {
    let text = std::fs::read_to_string(log_file).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

/// The value of a counter or gauge without labels, at the admin port `admin`; `None` if there is none of that name.
///
/// # Errors
///
/// When the admin port does not answer.
pub async fn metric(admin: &Endpoint, name: &str) -> Result<Option<f64>> {
    let (status, text) = get(admin, "/metrics").await?;
    ensure!(status == 200, "/metrics answered {status}");
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map(|value| value.parse().context("a number")).transpose()
}

/// One HTTP/1.1 GET: status and body.
///
/// # Errors
///
/// When the port does not answer within 5 s.
pub async fn get(endpoint: &Endpoint, path: &str) -> Result<(u16, String)> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", endpoint.host);
    let exchange = async {
        let mut stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        anyhow::Ok(answer)
    };
    let answer =
        tokio::time::timeout(Duration::from_secs(5), exchange).await.context("no answer in 5 s")??;
    let status =
        answer.split(' ').nth(1).and_then(|code| code.parse().ok()).context("an HTTP status line")?;
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
    Ok((status, body))
}

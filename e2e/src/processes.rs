//! Three broker processes on a real Kafka and a real Kubernetes API, without pods.

use crate::broker::Broker;
use crate::certificates::Authority;
use crate::environment::{binary, kafka, kubeconfig};
use crate::mosquitto::Endpoint;
use anyhow::{Context, Result, ensure};
use std::path::Path;
use tempfile::TempDir;
use tidemill_contract::config::{Config, Coordination, Kafka, Membership, Peers};
use tokio::process::Command;

/// Brokers of one cluster, each a process of its own.
pub struct Processes {
    /// The brokers, by number; their member ids are `<cluster>-<number>`.
    pub brokers: Vec<Broker>,
    _folder: TempDir,
}

impl Processes {
    /// Makes leases and certificates and starts `count` brokers of a new cluster. Waits until all are ready.
    ///
    /// # Errors
    ///
    /// When a broker does not get ready, with the end of its log.
    pub async fn start(cluster: &str, count: usize) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let authority = Authority::create(folder.path())?;
        let members: Vec<_> = (0..count).map(|number| format!("{cluster}-{number}")).collect();
        let configs: Vec<_> =
            members.iter().map(|member| config(cluster, member, &authority)).collect::<Result<_>>()?;
        create_leases(folder.path(), configs.first().context("a cluster has a broker")?, &members).await?;

        let kubeconfig = kubeconfig()?;
        let kubeconfig = kubeconfig.to_str().context("a path in UTF-8")?;
        let mut brokers = Vec::new();
        for (member, config) in members.iter().zip(configs) {
            brokers.push(Broker::spawn(&folder.path().join(member), config, &[("KUBECONFIG", kubeconfig)])?);
        }
        for broker in &mut brokers {
            broker.wait_until_ready().await?;
        }
        Ok(Self { brokers, _folder: folder })
    }

    /// Where clients connect, by broker.
    #[must_use]
    pub fn endpoints(&self) -> Vec<Endpoint> {
        self.brokers.iter().map(|broker| broker.mqtt().clone()).collect()
    }

    /// The number of the broker that owns partition group `group`.
    ///
    /// # Errors
    ///
    /// When none serves it within the broker's ready limit.
    pub async fn owner_of(&self, group: u16) -> Result<usize> {
        crate::wait::until("an owner of the group", crate::broker::READY_LIMIT, || async {
            for (number, broker) in self.brokers.iter().enumerate() {
                if let Ok(status) = broker.status().await
                    && status.partition_groups.iter().any(|owned| owned.group == group && owned.serving)
                {
                    return Ok(Some(number));
                }
            }
            Ok(None)
        })
        .await
    }
}

fn config(cluster: &str, member: &str, authority: &Authority) -> Result<Config> {
    let peers = format!("127.0.0.1:{}", crate::broker::free_port()?);
    Ok(Config {
        member: Some(member.to_owned()),
        cluster: tidemill_contract::config::ClusterName(cluster.to_owned()),
        coordination: Coordination::Kubernetes,
        kafka: Some(Kafka {
            bootstrap_servers: kafka()?,
            topic_prefix: Some(format!("e2e.{cluster}")),
            partitions: 8,
            partition_groups: Some(6),
            replication_factor: 1,
            min_in_sync_replicas: 1,
            create_topics: true,
        }),
        membership: Membership { namespace: Some("default".into()), ..Membership::default() },
        peers: Some(Peers {
            address: peers.clone(),
            advertised: Some(peers),
            tls: authority.member(member)?,
        }),
        ..Config::default()
    })
}

/// `tidemill-operator leases`: what makes the leases where no operator runs.
async fn create_leases(folder: &Path, config: &Config, members: &[String]) -> Result<()> {
    let file = folder.join("leases.yaml");
    std::fs::write(&file, serde_json::to_string(config)?)?;
    let output = Command::new(binary("tidemill-operator")?)
        .args(["leases", "--new-cluster", "--members", &members.join(","), "--config"])
        .arg(&file)
        .env("KUBECONFIG", kubeconfig()?)
        .output()
        .await?;
    ensure!(output.status.success(), "tidemill-operator leases: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

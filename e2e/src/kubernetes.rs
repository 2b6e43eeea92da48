//! The real cluster: pods, leases and `MqttCluster` resources.

use crate::environment::kubeconfig;
use crate::mosquitto::Endpoint;
use crate::wait::until;
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt};
use std::time::Duration;
use tidemill_contract::{names, ports};
use tidemill_crds::MqttCluster;

/// A client of the API server that `make test` started.
///
/// # Errors
///
/// When there is none.
pub async fn client() -> Result<Client> {
    // Whoever was first in this process has installed a provider already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let file = Kubeconfig::read_from(kubeconfig()?)?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// Applies an `MqttCluster` written as YAML, as `kubectl apply --server-side` would.
///
/// # Errors
///
/// What the API server says.
pub async fn apply(client: &Client, namespace: &str, yaml: &str) -> Result<String> {
    let object: serde_json::Value =
        serde_saphyr::from_str(yaml).map_err(|error| anyhow::anyhow!("{error}"))?;
    let name = object["metadata"]["name"].as_str().context("metadata.name")?.to_owned();
    let clusters: Api<MqttCluster> = Api::namespaced(client.clone(), namespace);
    clusters.patch(&name, &PatchParams::apply("tidemill-e2e").force(), &Patch::Apply(object)).await?;
    Ok(name)
}

/// Waits until the cluster's condition `Ready` is true for its present generation.
///
/// # Errors
///
/// When it is not within `limit`, with its conditions.
pub async fn wait_until_ready(client: &Client, namespace: &str, name: &str, limit: Duration) -> Result<()> {
    let clusters: Api<MqttCluster> = Api::namespaced(client.clone(), namespace);
    until("MqttCluster Ready", limit, || async {
        let cluster = clusters.get(name).await?;
        let conditions = cluster.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        let ready = conditions.iter().any(|condition| {
            condition.type_ == "Ready"
                && condition.status == "True"
                && condition.observed_generation == cluster.metadata.generation
        });
        let said: Vec<_> =
            conditions.iter().map(|is| format!("{}={} {}", is.type_, is.status, is.message)).collect();
        ensure!(ready, "{}", said.join("; "));
        Ok(Some(()))
    })
    .await
}

/// One broker pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerPod {
    /// Its name: the member id.
    pub name: String,
    /// Tells it from its successors of the same name.
    pub uid: String,
    /// Where clients reach it directly.
    pub mqtt: Endpoint,
    /// Whether its readiness probe succeeds.
    pub is_ready: bool,
}

/// The broker pods of a cluster that have an address, by name.
///
/// # Errors
///
/// What the API server says.
pub async fn broker_pods(client: &Client, namespace: &str, cluster: &str) -> Result<Vec<BrokerPod>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let selector = format!("{}={cluster}", names::LABEL_CLUSTER);
    let list = pods.list(&ListParams::default().labels(&selector)).await?;
    let mut brokers: Vec<_> = list
        .iter()
        .filter_map(|pod| {
            let status = pod.status.as_ref()?;
            let address = status.pod_ip.clone()?;
            let is_ready =
                status.conditions.iter().flatten().any(|is| is.type_ == "Ready" && is.status == "True");
            Some(BrokerPod {
                name: pod.name_any(),
                uid: pod.uid()?,
                mqtt: Endpoint::new(address, ports::MQTT),
                is_ready,
            })
        })
        .collect();
    brokers.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(brokers)
}

/// Waits until `count` brokers are ready and none has the UID `not`.
///
/// # Errors
///
/// When they are not within `limit`.
pub async fn wait_for_brokers(
    client: &Client,
    namespace: &str,
    cluster: &str,
    count: usize,
    not: Option<&str>,
) -> Result<Vec<BrokerPod>> {
    until("ready broker pods", Duration::from_secs(180), || async {
        let pods = broker_pods(client, namespace, cluster).await?;
        let ready = pods.iter().filter(|pod| pod.is_ready && Some(pod.uid.as_str()) != not).count();
        ensure!(ready == count && pods.len() == count, "{ready} of {count} ready");
        Ok(Some(pods))
    })
    .await
}

/// Kills a pod without grace, as a lost node would.
///
/// # Errors
///
/// What the API server says.
pub async fn kill_pod(client: &Client, namespace: &str, name: &str) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    pods.delete(name, &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() }).await?;
    Ok(())
}

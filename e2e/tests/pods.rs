//! The cluster of `make demo`: operator, chart and three broker pods on a real kubelet, with a real Kafka.
//!
//! The operator and the charts are installed before (`make test` does it); each test applies its own `MqttCluster`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use anyhow::Context;
use std::time::{Duration, Instant};
use tidemill_e2e::audit::{Audit, Load, Verdict};
use tidemill_e2e::environment::{is_soak, kafka};
use tidemill_e2e::kubernetes::{apply, broker_pods, client, kill_pod, wait_for_brokers, wait_until_ready};
use tidemill_e2e::mosquitto::{Subscriber, publish};

const NAMESPACE: &str = "default";
const PERSISTENT: [&str; 3] = ["-i", "reader", "-c"];

/// The ten lines of YAML, once for all tests of this file: three brokers take their time.
fn cluster_yaml() -> String {
    format!(
        "apiVersion: tidemill.dev/v1alpha1\n\
         kind: MqttCluster\n\
         metadata: {{name: pods}}\n\
         spec:\n\
         \x20 replicas: 3\n\
         \x20 auth: {{anonymous: true}}\n\
         \x20 kafka:\n\
         \x20   bootstrapServers: {}\n\
         \x20   replicationFactor: 1\n\
         \x20   minInSyncReplicas: 1\n",
        kafka().expect("a Kafka for the tests")
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_lines_of_yaml_become_a_cluster_that_delivers_and_keeps() {
    let kube = client().await.unwrap();
    let applied = Instant::now();
    let name = apply(&kube, NAMESPACE, &cluster_yaml()).await.unwrap();
    wait_until_ready(&kube, NAMESPACE, &name, Duration::from_secs(240)).await.unwrap();
    println!("figure: kubectl apply to Ready: {:.1} s", applied.elapsed().as_secs_f64());
    let pods = wait_for_brokers(&kube, NAMESPACE, &name, 3, None).await.unwrap();

    // Story 1: a subscriber on one broker gets what is published on another.
    let mut subscriber = Subscriber::start(&pods[0].mqtt, "news/#", 1, &[]).await.unwrap();
    publish(&pods[1].mqtt, "news/local", "across", 1, &[]).await.unwrap();
    publish(&pods[2].mqtt, "news/local", "again", 0, &[]).await.unwrap();
    assert_eq!(subscriber.next_message().await.unwrap(), "news/local across");
    assert_eq!(subscriber.next_message().await.unwrap(), "news/local again");

    // Story 2: a subscriber that was away gets its message although the broker that took it was killed in between.
    Subscriber::start(&pods[0].mqtt, "orders/#", 1, &PERSISTENT).await.unwrap().kill().await.unwrap();
    publish(&pods[1].mqtt, "orders/1", "kept", 1, &[]).await.unwrap();
    kill_pod(&kube, NAMESPACE, &pods[1].name).await.unwrap();
    let resumed =
        tidemill_e2e::wait::until("the session at another broker", Duration::from_secs(60), || async {
            Subscriber::start(&pods[2].mqtt, "orders/#", 1, &PERSISTENT).await.map(Some)
        });
    assert_eq!(resumed.await.unwrap().next_message().await.unwrap(), "orders/1 kept");

    // A broker pod is deleted under light load: no acknowledged message is lost.
    let rounds = if is_soak() { 10 } else { 1 };
    for round in 0..rounds {
        let pods = wait_for_brokers(&kube, NAMESPACE, &name, 3, None).await.unwrap();
        let verdict = audit_one_kill(&kube, &name, &pods[round % 3].name).await.unwrap();
        println!("audit: {verdict:?}");
        assert_eq!(verdict.lost, []);
        assert_eq!(verdict.reordered, []);
    }
}

async fn audit_one_kill(kube: &kube::Client, cluster: &str, victim: &str) -> anyhow::Result<Verdict> {
    let pods = broker_pods(kube, NAMESPACE, cluster).await?;
    let uid = pods.iter().find(|pod| pod.name == victim).context("the victim runs")?.uid.clone();
    let load = Load { name: format!("pods-{uid}"), publishers: 6, pause: Duration::from_millis(5) };
    let audit = Audit::start(pods.iter().map(|pod| pod.mqtt.clone()).collect(), load).await?;
    audit.wait_for_progress(200, Duration::from_secs(60)).await?;

    let killed = Instant::now();
    kill_pod(kube, NAMESPACE, victim).await?;
    audit.wait_for_progress(200, Duration::from_secs(60)).await?;
    println!("figure: 200 further acknowledgements {:.1} s after the kill", killed.elapsed().as_secs_f64());
    wait_for_brokers(kube, NAMESPACE, cluster, 3, Some(&uid)).await?;
    println!("figure: three ready brokers again {:.1} s after the kill", killed.elapsed().as_secs_f64());
    audit.finish(Duration::from_secs(40)).await
}

//! What the API server lets in: the schema and the CEL rules of the definition, on a real API server.
//!
//! Needs `TIDEMILL_E2E_KUBECONFIG`, a kubeconfig with the right to create definitions and namespaces.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use anyhow::Context;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::runtime::wait::{await_condition, conditions};
use serde_json::{Value, json};
use std::time::Duration;
use tidemill_crds::{MqttCluster, mqtt_cluster_definition};
use tidemill_e2e::kubernetes::client;

const DEFINITION: &str = "mqttclusters.tidemill.dev";
const NAMESPACE: &str = "tidemill-rules";
const ESTABLISH_TIMEOUT: Duration = Duration::from_secs(60);

/// The API with the definition of this source tree established, and a namespace to try it in.
async fn clusters() -> anyhow::Result<Api<MqttCluster>> {
    let client = client().await?;
    let params = PatchParams::apply("tidemill-rules").force();
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    definitions.patch(DEFINITION, &params, &Patch::Apply(mqtt_cluster_definition())).await?;
    let established = await_condition(definitions, DEFINITION, conditions::is_crd_established());
    tokio::time::timeout(ESTABLISH_TIMEOUT, established).await.context("definition not established")??;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    Api::<Namespace>::all(client.clone()).patch(NAMESPACE, &params, &Patch::Apply(namespace)).await?;
    Ok(Api::namespaced(client, NAMESPACE))
}

fn kafka_spec() -> Value {
    // Paused: an operator that happens to run there makes nothing of it.
    json!({"replicas": 3, "kafka": {"bootstrapServers": "kafka:9092"}, "auth": {"anonymous": true}, "paused": true})
}

fn embedded_spec() -> Value {
    json!({"replicas": 1, "embedded": {}, "storage": {"size": "1Gi"}, "auth": {"anonymous": true}, "paused": true})
}

/// `spec` with the value at each `/`-separated path replaced, or removed where it is null.
fn changed(mut spec: Value, changes: &[(&str, Value)]) -> Value {
    for (path, value) in changes {
        let (parents, key) = path.rsplit_once('/').unwrap_or(("", path));
        let mut target = &mut spec;
        for parent in parents.split('/').filter(|parent| !parent.is_empty()) {
            target = &mut target[parent];
        }
        let entries = target.as_object_mut().expect("the parent of a change is an object");
        if value.is_null() {
            entries.remove(key);
        } else {
            entries.insert((*key).to_owned(), value.clone());
        }
    }
    spec
}

fn document(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "tidemill.dev/v1alpha1",
        "kind": "MqttCluster",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": spec,
    })
}

/// What the API server says to `spec` under `name`: nothing is stored.
async fn dry_run(clusters: &Api<MqttCluster>, name: &str, spec: &Value) -> Result<MqttCluster, String> {
    let params = PatchParams::apply("tidemill-rules").force().dry_run();
    let answer = clusters.patch(name, &params, &Patch::Apply(document(name, spec))).await;
    answer.map_err(|error| error.to_string())
}

async fn assert_refused(clusters: &Api<MqttCluster>, name: &str, spec: &Value, words: &str) {
    match dry_run(clusters, name, spec).await {
        Ok(_) => panic!("accepted, but should be refused with '{words}': {spec}"),
        Err(answer) => assert!(answer.contains(words), "'{words}' is not in the answer to {spec}: {answer}"),
    }
}

#[tokio::test]
async fn a_new_cluster_is_let_in_or_refused_with_a_plain_reason() -> anyhow::Result<()> {
    let clusters = clusters().await?;
    let kafka = |changes: &[(&str, Value)]| changed(kafka_spec(), changes);
    let embedded = |changes: &[(&str, Value)]| changed(embedded_spec(), changes);

    let accepted = dry_run(&clusters, "fine", &kafka(&[])).await.map_err(anyhow::Error::msg)?;
    assert_eq!(accepted.spec.listeners[0].port, 1883, "the API server fills in the defaults");
    assert_eq!(accepted.spec.kafka.as_ref().map(|kafka| kafka.partitions), Some(32));
    assert_eq!(
        accepted.spec.kafka.and_then(|kafka| kafka.partition_groups),
        None,
        "they follow the partitions"
    );
    let few = kafka(&[("kafka/partitions", json!(8))]);
    dry_run(&clusters, "fine", &few).await.map_err(anyhow::Error::msg)?;
    dry_run(&clusters, "fine", &embedded(&[])).await.map_err(anyhow::Error::msg)?;

    let timings = json!({"renewIntervalSecs": 5, "stopAfterSecs": 10, "leaseDurationSecs": 20});
    let twice = json!([{"name": "a", "port": 1883}, {"name": "b", "port": 1883}]);
    let refused = [
        (kafka(&[("auth", Value::Null)]), "auth is missing: say who may connect"),
        (kafka(&[("auth", json!({}))]), "nobody could connect"),
        (kafka(&[("auth/anonymous", json!(false))]), "nobody could connect"),
        (kafka(&[("kafka", Value::Null)]), "exactly one of kafka and embedded must be given"),
        (kafka(&[("embedded", json!({}))]), "exactly one of kafka and embedded must be given"),
        (embedded(&[("replicas", json!(2))]), "replicas must be 1"),
        (kafka(&[("replicas", json!(0))]), "spec.replicas"),
        (kafka(&[("replicas", json!(65))]), "spec.replicas"),
        (kafka(&[("kafka/partitions", json!(65))]), "spec.kafka.partitions"),
        (kafka(&[("kafka/partitionGroups", json!(33))]), "partitionGroups must not exceed partitions"),
        (
            kafka(&[("kafka/minInSyncReplicas", json!(4))]),
            "minInSyncReplicas must not exceed replicationFactor",
        ),
        (kafka(&[("kafka/bootstrapServers", json!("no port"))]), "spec.kafka.bootstrapServers"),
        (kafka(&[("storage", json!({"storageClassName": "fast"}))]), "storageClassName is only for embedded"),
        (kafka(&[("limits", json!({"retainedBytes": 1_000_000}))]), "retainedBytes is only for embedded"),
        (kafka(&[("listeners", twice)]), "two listeners have the same port"),
        (
            kafka(&[("listeners", json!([{"name": "peers", "port": 1883}]))]),
            "taken by the brokers' own ports",
        ),
        (kafka(&[("listeners", json!([{"name": "a", "port": 7883}]))]), "taken by the brokers' own ports"),
        (kafka(&[("membership", timings)]), "stopAfterSecs must exceed twice renewIntervalSecs"),
        (kafka(&[("membership", json!({"renewIntervalSecs": 5}))]), "come together"),
        (kafka(&[("replica", json!(3))]), "replica"),
    ];
    for (spec, words) in &refused {
        assert_refused(&clusters, "refused", spec, words).await;
    }
    for name in ["1st", "a.b", &"x".repeat(41)] {
        assert_refused(&clusters, name, &kafka_spec(), "the name becomes part of pod and Service names")
            .await;
    }
    Ok(())
}

#[tokio::test]
async fn choices_that_brokers_do_not_take_are_refused_by_their_key() -> anyhow::Result<()> {
    let clusters = clusters().await?;
    let kafka = |changes: &[(&str, Value)]| changed(kafka_spec(), changes);
    let embedded = |changes: &[(&str, Value)]| changed(embedded_spec(), changes);
    let dead_letters = |topic: &str| kafka(&[("sessions", json!({"queue": {"deadLetterTopic": topic}}))]);
    let groups = |names: &[&str]| {
        let groups: Vec<_> = names.iter().map(|name| json!({"name": name, "strategy": "sticky"})).collect();
        embedded(&[("sharedSubscriptions", json!({"strategy": "random", "groups": groups}))])
    };

    let interval = json!({"durability": "interval", "syncIntervalMs": 20});
    let queue = json!({"messages": 1_099_511_627_776_u64, "bytes": 1, "ageSecs": 60, "policy": "dropNewest"});
    let accepted = [
        embedded(&[("embedded", interval), ("threads", json!(1024))]),
        kafka(&[("sessions", json!({"queue": queue, "maxDeliveries": 3, "replayTotal": 4_294_967_295_u32}))]),
        dead_letters("$dead/{clientId}"),
        dead_letters("$queue"),
        groups(&["orders-eu", "orders-*"]),
    ];
    for spec in &accepted {
        dry_run(&clusters, "chosen", spec).await.map_err(anyhow::Error::msg)?;
    }

    let refused = [
        (embedded(&[("embedded/durability", json!("always"))]), "spec.embedded.durability"),
        (embedded(&[("embedded/syncIntervalMs", json!(20))]), "only has a meaning with durability: interval"),
        (kafka(&[("threads", json!(0))]), "spec.threads"),
        (kafka(&[("sessions", json!({"queue": {"messages": 0}}))]), "spec.sessions.queue.messages"),
        (kafka(&[("sessions", json!({"queue": {"policy": "drop"}}))]), "spec.sessions.queue.policy"),
        (kafka(&[("sessions", json!({"maxDeliveries": 0}))]), "spec.sessions.maxDeliveries"),
        (dead_letters("lost/#"), "deadLetterTopic must be a topic name"),
        (dead_letters("$SYS/lost"), "deadLetterTopic must be a topic name"),
        (dead_letters("$share/a/lost"), "nobody could receive deadLetterTopic"),
        (dead_letters("$queue/lost"), "nobody could receive deadLetterTopic"),
        (dead_letters("lost/{clientID}"), "no word in braces but {clientId}"),
        (dead_letters(&"é".repeat(513)), "deadLetterTopic must have at most 1024 bytes"),
        (groups(&["a/b"]), "a ShareName has no /, + or #"),
        (groups(&["a", "a"]), "two groups of sharedSubscriptions have the same name"),
        (kafka(&[("sharedSubscriptions", json!({}))]), "sharedSubscriptions is only for embedded"),
    ];
    for (spec, words) in &refused {
        assert_refused(&clusters, "refused", spec, words).await;
    }
    Ok(())
}

#[tokio::test]
async fn what_must_not_change_cannot_be_changed_not_even_in_two_steps() -> anyhow::Result<()> {
    let clusters = clusters().await?;
    let params = PatchParams::apply("tidemill-rules").force();
    let prefixed = changed(kafka_spec(), &[("kafka/topicPrefix", json!("iot"))]);
    for (name, spec) in [("kept", kafka_spec()), ("prefixed", prefixed.clone()), ("solo", embedded_spec())] {
        clusters.patch(name, &params, &Patch::Apply(document(name, &spec))).await?;
    }

    let plain = |changes: &[(&str, Value)]| changed(kafka_spec(), changes);
    let to_embedded = plain(&[("kafka", Value::Null), ("embedded", json!({})), ("replicas", json!(1))]);
    let to_kafka = changed(
        embedded_spec(),
        &[("embedded", Value::Null), ("kafka", json!({"bootstrapServers": "kafka:9092"}))],
    );
    let refused = [
        ("kept", plain(&[("kafka/partitions", json!(64))]), "partitions cannot change"),
        ("kept", plain(&[("kafka/partitionGroups", json!(8))]), "partitionGroups cannot change"),
        // A rule on an optional field does not run where the field is absent on one side.
        ("kept", plain(&[("kafka/topicPrefix", json!("iot"))]), "topicPrefix cannot change"),
        ("prefixed", kafka_spec(), "topicPrefix cannot change"),
        (
            "prefixed",
            changed(prefixed, &[("kafka/topicPrefix", json!("other"))]),
            "topicPrefix cannot change",
        ),
        ("kept", to_embedded, "cannot switch between kafka and embedded"),
        ("solo", to_kafka, "cannot switch between kafka and embedded"),
        (
            "solo",
            changed(embedded_spec(), &[("storage/size", json!("2Gi"))]),
            "storage of an embedded cluster",
        ),
        ("solo", changed(embedded_spec(), &[("storage", Value::Null)]), "storage of an embedded cluster"),
    ];
    for (name, spec, words) in &refused {
        assert_refused(&clusters, name, spec, words).await;
    }
    let allowed = plain(&[
        ("replicas", json!(5)),
        ("image", json!("tidemill/broker:2")),
        ("kafka/bootstrapServers", json!("kafka-b:9092")),
        ("kafka/topicManagement", json!("Observe")),
        // Says what the default is.
        ("kafka/partitionGroups", json!(16)),
        ("paused", json!(false)),
    ]);
    dry_run(&clusters, "kept", &allowed).await.map_err(anyhow::Error::msg)?;

    for name in ["kept", "prefixed", "solo"] {
        clusters.delete(name, &DeleteParams::default()).await?;
    }
    Ok(())
}

#[tokio::test]
async fn scaling_goes_through_the_scale_subresource() -> anyhow::Result<()> {
    let clusters = clusters().await?;
    let params = PatchParams::apply("tidemill-rules").force();
    clusters.patch("scaled", &params, &Patch::Apply(document("scaled", &kafka_spec()))).await?;

    let scale = json!({"spec": {"replicas": 5}});
    clusters.patch_scale("scaled", &PatchParams::default(), &Patch::Merge(scale)).await?;

    assert_eq!(clusters.get("scaled").await?.spec.replicas, 5);
    clusters.delete("scaled", &DeleteParams::default()).await?;
    Ok(())
}

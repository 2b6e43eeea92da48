//! What the tests of this folder start from.

use crate::controller::certificates::{Credential, PEER_VALIDITY, PeerCredential, PeerIdentity};
use crate::controller::dereference::Observed;
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetStatus};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use tidemill_contract::names;
use tidemill_crds::MqttCluster;

pub(crate) fn kafka_cluster() -> MqttCluster {
    cluster(
        "demo",
        json!({
            "replicas": 3,
            "kafka": {"bootstrapServers": "kafka:9092"},
            "auth": {"anonymous": true},
        }),
    )
}

pub(crate) fn embedded_cluster() -> MqttCluster {
    cluster(
        "solo",
        json!({
            "replicas": 1,
            "embedded": {},
            "storage": {"size": "20Gi", "storageClassName": "fast"},
            "resources": {"requests": {"cpu": "500m", "memory": "256Mi"}},
            "auth": {"anonymous": true},
        }),
    )
}

/// The spec of `base` with the keys of `more`.
pub(crate) fn with(base: MqttCluster, more: Value) -> MqttCluster {
    let mut document = serde_json::to_value(base).unwrap();
    document["spec"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(document).unwrap()
}

/// Something else than the default at every key of the config file that a cluster of either kind may have.
fn choices() -> Value {
    json!({
        "sessions": {
            "maxExpirySecs": 86_400,
            "queue": {
                "messages": 50_000,
                "bytes": 67_108_864,
                "ageSecs": 43_200,
                "policy": "deadLetter",
                "deadLetterTopic": "lost/{clientId}",
            },
            "parkAfterSecs": 600,
            "maxDeliveries": 5,
            "replayPerSession": 1_000,
            "replayTotal": 20_000,
        },
        "mqtt": {
            "maximumKeepAliveSecs": 60,
            "responseInformation": "answers/{clientId}",
            "checkPayloadFormat": true,
            "sysIntervalSecs": 30,
        },
        "limits": {
            "maximumPacketBytes": 65_536,
            "connections": 20_000,
            "receiveMaximum": 200,
            "inFlight": 50,
            "mailboxMessages": 500,
            "mailboxBytes": 262_144,
            "subscriptions": 100,
        },
        "threads": 3,
    })
}

/// [`kafka_cluster`] with every choice that it has.
pub(crate) fn chosen_kafka_cluster() -> MqttCluster {
    let own = json!({
        "kafka": {
            "bootstrapServers": "kafka:9092",
            "topicPrefix": "iot",
            "replicationFactor": 5,
            "minInSyncReplicas": 3,
            "partitions": 64,
            "partitionGroups": 8,
        },
        "membership": {
            "renewIntervalSecs": 5,
            "stopAfterSecs": 15,
            "leaseDurationSecs": 20,
            "strictIdentity": true,
        },
    });
    with(with(kafka_cluster(), choices()), own)
}

/// [`embedded_cluster`] with every choice that it has.
pub(crate) fn chosen_embedded_cluster() -> MqttCluster {
    let mut own = json!({
        "embedded": {"partitions": 8, "partitionGroups": 4, "durability": "interval", "syncIntervalMs": 20},
        "sharedSubscriptions": {
            "strategy": "leastInFlight",
            "groups": [
                {"name": "orders-eu", "strategy": "sticky"},
                {"name": "orders-*", "strategy": "hashTopic"},
            ],
        },
        "limits": choices()["limits"],
    });
    own["limits"]["retainedBytes"] = json!(1_073_741_824);
    with(with(embedded_cluster(), choices()), own)
}

fn cluster(name: &str, spec: Value) -> MqttCluster {
    serde_json::from_value(json!({
        "apiVersion": "tidemill.dev/v1alpha1",
        "kind": "MqttCluster",
        "metadata": {
            "name": name,
            "namespace": "messaging",
            "uid": "11111111-2222-3333-4444-555555555555",
            "generation": 4,
        },
        "spec": spec,
    }))
    .unwrap()
}

pub(crate) fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

pub(crate) fn lease(name: &str, holder: &str, epoch: i32, state: Option<&str>) -> Lease {
    let annotations =
        state.map(|state| BTreeMap::from([(names::ANNOTATION_STATE.to_owned(), state.to_owned())]));
    Lease {
        metadata: ObjectMeta { name: Some(name.to_owned()), annotations, ..ObjectMeta::default() },
        spec: Some(LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_transitions: Some(epoch),
            ..LeaseSpec::default()
        }),
    }
}

pub(crate) fn ready_pod(name: &str) -> Pod {
    Pod {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        status: Some(PodStatus {
            conditions: Some(vec![PodCondition {
                type_: "Ready".to_owned(),
                status: "True".to_owned(),
                ..PodCondition::default()
            }]),
            ..PodStatus::default()
        }),
        ..Pod::default()
    }
}

/// An identity of plain words instead of keys, so that golden files stay the same.
pub(crate) fn identity(pods: &[&str]) -> PeerIdentity {
    let credential = |name: &str| Credential {
        certificate: format!("certificate of {name}"),
        key: format!("key of {name}"),
    };
    let peer = |pod: &&str| {
        ((*pod).to_owned(), PeerCredential { credential: credential(pod), expires: now() + PEER_VALIDITY })
    };
    PeerIdentity { authority: credential("the authority"), peers: pods.iter().map(peer).collect() }
}

/// Everything as it is when `replicas` brokers run the spec of [`kafka_cluster`] and share the groups evenly.
pub(crate) fn healthy(replicas: i32) -> Observed {
    let mut spec = kafka_cluster();
    spec.spec.replicas = replicas;
    let cluster = crate::controller::validate::validate(&spec).unwrap();
    let plan = crate::controller::plan::plan(&cluster, &Observed::default(), "tidemill/broker:0.1.0", now());
    let pods = cluster.pods();
    let identity = identity(&pods.iter().map(String::as_str).collect::<Vec<_>>());
    let mut stateful_set: StatefulSet =
        crate::controller::build::build(&cluster, &plan, Some(&identity)).stateful_set;
    stateful_set.metadata.generation = Some(1);
    stateful_set.status = Some(StatefulSetStatus {
        observed_generation: Some(1),
        replicas,
        ready_replicas: Some(replicas),
        updated_replicas: Some(replicas),
        current_revision: Some("a".to_owned()),
        update_revision: Some("a".to_owned()),
        ..StatefulSetStatus::default()
    });
    let members = pods
        .iter()
        .map(|pod| lease(&names::member_lease("demo", pod), &format!("{pod}_u_b_c"), 1, Some("Serving")));
    let groups = (0..16_u16).map(|group| {
        let owner = &pods[usize::from(group) % pods.len()];
        lease(&names::group_lease("demo", group), &format!("{owner}_00000000000000aa_1"), 1, None)
    });
    Observed {
        leases: members.chain(groups).chain([lease("demo.view", "", 0, None)]).collect(),
        pods: pods.iter().map(|pod| ready_pod(pod)).collect(),
        stateful_set: Some(stateful_set),
        ..Observed::default()
    }
}

/// The documents of `deploy/samples`, each with its path.
pub(crate) fn samples() -> Vec<(String, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/samples");
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths
        .map(|path| {
            let document = serde_saphyr::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
            (path.display().to_string(), document)
        })
        .collect()
}

/// Compares with a file of `tests/golden`, or writes it when `TIDEMILL_UPDATE_GOLDEN` is set.
pub(crate) fn assert_golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("TIDEMILL_UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(golden == text, "{} is not what is built", path.display());
}

//! All reads of a pass, straight from the API server and from Kafka: decisions are not made on caches.

use crate::clients::kafka::KafkaObserver;
use crate::controller::topics::{KafkaObservation, desired_topics};
use crate::controller::validate::{Store, ValidatedCluster};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::ListParams;
use kube::{Api, Client};
use std::fmt::Debug;
use tidemill_contract::names;
use tidemill_contract::topics::TRANSACTION_STATE;

/// What is there.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Observed {
    /// The brokers' StatefulSet.
    pub stateful_set: Option<StatefulSet>,
    /// The brokers' pods, also those that are on their way out.
    pub pods: Vec<Pod>,
    /// Member, group and view leases.
    pub leases: Vec<Lease>,
    /// The Services of the cluster.
    pub services: Vec<Service>,
    /// The disruption budgets of the cluster.
    pub disruption_budgets: Vec<PodDisruptionBudget>,
    /// Secret of the certificate authority.
    pub authority: Option<Secret>,
    /// Secret of the brokers' certificates.
    pub peer_tls: Option<Secret>,
    /// Kafka and its topics. `None` for an embedded cluster.
    pub kafka: Option<KafkaObservation>,
}

/// Reads everything that a pass over `cluster` looks at. Kafka being away is an observation, not an error.
///
/// # Errors
///
/// What the API server answered; the pass must be repeated.
pub async fn dereference(
    client: &Client,
    kafka: &KafkaObserver,
    cluster: &ValidatedCluster,
) -> Result<Observed, kube::Error> {
    let namespace = cluster.namespace.as_str();
    let of_cluster = ListParams::default().labels(&format!("{}={}", names::LABEL_CLUSTER, cluster.name));
    let stateful_sets = Api::<StatefulSet>::namespaced(client.clone(), namespace);
    let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
    let authority_secret = cluster.authority_secret();
    let peer_secret = cluster.peer_secret();
    let objects = async {
        tokio::try_join!(
            stateful_sets.get_opt(&cluster.name),
            list::<Pod>(client, namespace, &of_cluster),
            list::<Lease>(client, namespace, &of_cluster),
            list::<Service>(client, namespace, &of_cluster),
            list::<PodDisruptionBudget>(client, namespace, &of_cluster),
            secrets.get_opt(&authority_secret),
            secrets.get_opt(&peer_secret),
        )
    };
    let (objects, kafka) = tokio::join!(objects, observe_kafka(kafka, cluster));
    let (stateful_set, pods, leases, services, disruption_budgets, authority, peer_tls) = objects?;
    Ok(Observed { stateful_set, pods, leases, services, disruption_budgets, authority, peer_tls, kafka })
}

async fn list<K>(client: &Client, namespace: &str, params: &ListParams) -> Result<Vec<K>, kube::Error>
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + serde::de::DeserializeOwned,
{
    Ok(Api::<K>::namespaced(client.clone(), namespace).list(params).await?.items)
}

async fn observe_kafka(observer: &KafkaObserver, cluster: &ValidatedCluster) -> Option<KafkaObservation> {
    match &cluster.store {
        Store::Kafka { kafka, .. } => {
            let mut topics: Vec<_> = desired_topics(cluster).into_iter().map(|topic| topic.name).collect();
            topics.push(TRANSACTION_STATE.to_owned());
            Some(observer.observe(&kafka.bootstrap_servers, topics).await)
        }
        Store::Embedded(_) => None,
    }
}

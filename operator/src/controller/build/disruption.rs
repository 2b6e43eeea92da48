//! How many brokers a drain of nodes may take away.

use super::metadata;
use crate::controller::validate::ValidatedCluster;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

pub(crate) fn build_disruption_budget(cluster: &ValidatedCluster) -> PodDisruptionBudget {
    PodDisruptionBudget {
        metadata: metadata(cluster, cluster.name.clone()),
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(1)),
            selector: Some(LabelSelector {
                match_labels: Some(cluster.selector()),
                ..LabelSelector::default()
            }),
            // A broker that is not ready serves nobody; it must not keep a node from being drained.
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
            ..PodDisruptionBudgetSpec::default()
        }),
        ..PodDisruptionBudget::default()
    }
}

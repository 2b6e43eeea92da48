//! All objects of a cluster, from the spec and the plan. Pure: the same input builds the same bytes, and nothing of the
//! operator's own version goes in, so that upgrading it restarts no broker.

pub(crate) mod access;
pub(crate) mod config;
pub(crate) mod disruption;
pub(crate) mod leases;
pub(crate) mod secrets;
pub(crate) mod services;
pub(crate) mod stateful_set;

use crate::controller::certificates::PeerIdentity;
use crate::controller::plan::Plan;
use crate::controller::validate::ValidatedCluster;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Everything that is applied, in the order of the fields.
#[derive(Debug, Clone, PartialEq)]
pub struct Objects {
    /// Who the brokers are.
    pub service_account: ServiceAccount,
    /// What they may do. `None` without leases.
    pub role: Option<Role>,
    /// Gives them the role. `None` without leases.
    pub role_binding: Option<RoleBinding>,
    /// Leases to create; never applied over existing ones.
    pub leases: Vec<Lease>,
    /// The cluster's authority and the brokers' certificates.
    pub secrets: Vec<Secret>,
    /// The config file.
    pub config_map: ConfigMap,
    /// The headless Service, then one per listener.
    pub services: Vec<Service>,
    /// `None` for a single broker, whose node could not be drained otherwise.
    pub disruption_budget: Option<PodDisruptionBudget>,
    /// The brokers.
    pub stateful_set: StatefulSet,
}

/// Builds everything. `identity` is what [`Plan::certificates`] asked for; `None` for a cluster without peers.
#[must_use]
pub fn build(cluster: &ValidatedCluster, plan: &Plan, identity: Option<&PeerIdentity>) -> Objects {
    let has_leases = cluster.has_leases();
    Objects {
        service_account: access::build_service_account(cluster),
        role: has_leases.then(|| access::build_role(cluster, &plan.granted_leases)),
        role_binding: has_leases.then(|| access::build_role_binding(cluster)),
        leases: plan.missing_leases.iter().map(|lease| leases::build_lease(cluster, lease)).collect(),
        secrets: identity.map(|identity| secrets::build_secrets(cluster, identity)).unwrap_or_default(),
        config_map: config::build_config_map(cluster),
        services: services::build_services(cluster),
        disruption_budget: (cluster.replicas >= 2).then(|| disruption::build_disruption_budget(cluster)),
        stateful_set: stateful_set::build_stateful_set(cluster, plan, identity),
    }
}

/// Metadata of an object of the cluster.
pub(crate) fn metadata(cluster: &ValidatedCluster, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(cluster.namespace.clone()),
        labels: Some(cluster.labels()),
        owner_references: Some(vec![cluster.owner_reference()]),
        ..ObjectMeta::default()
    }
}

#[cfg(test)]
mod tests;

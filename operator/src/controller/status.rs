//! The status of a cluster, from what was read and planned. Pure, and without anything that changes by itself: it is
//! written only when it differs.

mod conditions;

use crate::controller::dereference::Observed;
use crate::controller::membership::Membership;
use crate::controller::plan::Plan;
use crate::controller::validate::{Refusal, ValidatedCluster};
pub(crate) use conditions::NOT_POWER_LOSS_DURABLE;
use conditions::Sight;
pub use conditions::{Finding, Verdict};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use tidemill_crds::{
    Endpoint, MemberStatus, MqttCluster, MqttClusterStatus, PartitionGroupsStatus, condition,
};

/// State of a member whose lease nobody holds.
const STATE_ABSENT: &str = "Absent";

/// Status of a cluster that was gone through.
#[must_use]
pub fn build_status(
    old: Option<&MqttClusterStatus>,
    cluster: &ValidatedCluster,
    plan: &Plan,
    observed: &Observed,
    now: Timestamp,
) -> MqttClusterStatus {
    let membership = Membership::from_leases(&cluster.name, &observed.leases);
    let replicas = Replicas::of(observed.stateful_set.as_ref());
    let starting = conditions::is_starting(old, now);
    let findings =
        conditions::findings(&Sight { cluster, plan, observed, membership: &membership, replicas, starting });
    MqttClusterStatus {
        observed_generation: Some(cluster.generation),
        replicas: replicas.present,
        ready_replicas: replicas.ready,
        updated_replicas: replicas.updated,
        selector: Some(selector(cluster)),
        endpoints: endpoints(cluster, &observed.services),
        members: members(cluster, &membership),
        partition_groups: cluster.has_leases().then(|| partition_groups(cluster, &membership)),
        conditions: merge_conditions(old, findings, cluster.generation, now),
    }
}

/// Status of a cluster whose spec was refused: everything else stays as it was last seen.
#[must_use]
pub fn refused_status(cluster: &MqttCluster, refusal: &Refusal, now: Timestamp) -> MqttClusterStatus {
    let message = refusal.to_string();
    let findings = vec![
        Finding::new(condition::READY, Verdict::False, "SpecInvalid", &message),
        Finding::new(condition::DEGRADED, Verdict::True, "SpecInvalid", &message),
    ];
    amended_status(cluster, findings, now)
}

/// Status of a cluster whose pass failed: whether it runs its spec is not known, everything else stays as it was last seen.
#[must_use]
pub fn failed_status(cluster: &MqttCluster, error: &str, now: Timestamp) -> MqttClusterStatus {
    let findings = vec![
        Finding::new(condition::READY, Verdict::Unknown, "ReconcileFailed", error),
        Finding::new(condition::DEGRADED, Verdict::True, "ReconcileFailed", error),
    ];
    amended_status(cluster, findings, now)
}

fn amended_status(cluster: &MqttCluster, findings: Vec<Finding>, now: Timestamp) -> MqttClusterStatus {
    let generation = cluster.metadata.generation.unwrap_or_default();
    let mut status = cluster.status.clone().unwrap_or_default();
    let amended = merge_conditions(Some(&status), findings, generation, now);
    let kept = status.conditions.into_iter().filter(|old| amended.iter().all(|new| new.type_ != old.type_));
    status.conditions = amended.iter().cloned().chain(kept).collect();
    status.conditions.sort_by(|left, right| left.type_.cmp(&right.type_));
    status.observed_generation = Some(generation);
    status
}

/// Broker pods as the StatefulSet counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Replicas {
    pub(crate) present: i32,
    pub(crate) ready: i32,
    pub(crate) updated: i32,
    /// Whether these numbers are about the newest spec of the StatefulSet.
    pub(crate) current: bool,
    /// Whether every pod has the newest template.
    pub(crate) settled: bool,
}

impl Replicas {
    fn of(stateful_set: Option<&StatefulSet>) -> Self {
        let status = stateful_set.and_then(|set| set.status.clone()).unwrap_or_default();
        let generation = stateful_set.and_then(|set| set.metadata.generation);
        let revisions_agree =
            status.update_revision.is_none() || status.update_revision == status.current_revision;
        let updated = match revisions_agree {
            true => status.replicas,
            false => status.updated_replicas.unwrap_or_default(),
        };
        Self {
            present: status.replicas,
            ready: status.ready_replicas.unwrap_or_default(),
            updated,
            current: generation.is_some() && status.observed_generation == generation,
            settled: updated == status.replicas,
        }
    }
}

fn selector(cluster: &ValidatedCluster) -> String {
    cluster.selector().iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

fn endpoints(cluster: &ValidatedCluster, services: &[Service]) -> Vec<Endpoint> {
    let endpoint = |listener: &tidemill_crds::Listener| {
        let name = cluster.listener_service(listener);
        let service = services.iter().find(|service| service.name_any() == name);
        let port = service.and_then(|service| service.spec.as_ref()?.ports.as_ref()?.first());
        let ingress = service
            .and_then(|service| service.status.as_ref()?.load_balancer.as_ref()?.ingress.as_ref())
            .into_iter()
            .flatten();
        let scheme = match listener.protocol {
            tidemill_crds::ListenerProtocol::Mqtt => "mqtt",
        };
        Endpoint {
            name: listener.name.clone(),
            url: format!("{scheme}://{name}.{}.svc:{}", cluster.namespace, listener.port),
            node_port: port.and_then(|port| port.node_port),
            load_balancer: ingress
                .filter_map(|one| one.ip.clone().or_else(|| one.hostname.clone()))
                .collect(),
        }
    };
    cluster.listeners.iter().map(endpoint).collect()
}

fn members(cluster: &ValidatedCluster, membership: &Membership) -> Vec<MemberStatus> {
    if !cluster.has_leases() {
        return Vec::new();
    }
    // Also brokers beyond the spec, as long as they hold their lease or a group: they are on their way out.
    let mut names = cluster.pods();
    let leaving = membership
        .members
        .iter()
        .filter(|(name, member)| member.state.is_some() || membership.owns_any(name))
        .map(|(name, _)| name.clone());
    names.extend(leaving.filter(|name| !cluster.pods().contains(name)).collect::<Vec<_>>());
    let member = |name: String| {
        let observed = membership.members.get(&name);
        MemberStatus {
            epoch: observed.map(|member| member.epoch).unwrap_or_default(),
            state: observed
                .and_then(|member| member.state.clone())
                .unwrap_or_else(|| STATE_ABSENT.to_owned()),
            partition_groups: count(membership.owned_by(&name)),
            name,
        }
    };
    names.into_iter().map(member).collect()
}

fn partition_groups(cluster: &ValidatedCluster, membership: &Membership) -> PartitionGroupsStatus {
    let total = cluster.group_count();
    let owned = (0..total).filter(|group| membership.is_owned(*group)).count();
    let total = i32::from(total);
    PartitionGroupsStatus { total, owned: count(owned), unowned: total - count(owned) }
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// Turns findings into conditions. A condition whose status stays keeps its time, or every pass would write.
fn merge_conditions(
    old: Option<&MqttClusterStatus>,
    findings: Vec<Finding>,
    generation: i64,
    now: Timestamp,
) -> Vec<Condition> {
    let whole_seconds = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let mut conditions: Vec<_> = findings
        .into_iter()
        .map(|finding| {
            let before = old
                .and_then(|old| old.conditions.iter().find(|condition| condition.type_ == finding.type_))
                .filter(|before| before.status == finding.verdict.as_str());
            Condition {
                last_transition_time: before
                    .map_or_else(|| Time(whole_seconds), |before| before.last_transition_time.clone()),
                message: finding.message,
                observed_generation: Some(generation),
                reason: finding.reason.to_owned(),
                status: finding.verdict.as_str().to_owned(),
                type_: finding.type_.to_owned(),
            }
        })
        .collect();
    conditions.sort_by(|left, right| left.type_.cmp(&right.type_));
    conditions
}

#[cfg(test)]
mod tests;

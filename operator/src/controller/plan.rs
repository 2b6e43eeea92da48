//! What this pass does. Pure: it looks at the spec and at what was read, and decides.

use crate::controller::build::config::config_hash;
use crate::controller::build::stateful_set::ANNOTATION_CONFIG;
use crate::controller::certificates::{CertificatePlan, plan_certificates};
use crate::controller::dereference::Observed;
use crate::controller::membership::Membership;
use crate::controller::topics::{KafkaObservation, desired_topics};
use crate::controller::validate::{Store, ValidatedCluster};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use std::collections::BTreeSet;
use tidemill_contract::names;
use tidemill_contract::topics::{Topic, TopicReport, compare_topics};
use tidemill_crds::TopicManagement;

/// What happens to the brokers in this pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Nothing.
    Steady,
    /// They are started for the first time.
    Create,
    /// Brokers are added.
    Expand,
    /// One broker is taken away, or waited for.
    Shrink,
    /// They are restarted one by one with a new pod template.
    Roll,
}

/// A lease that does not exist yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseToCreate {
    /// Its name.
    pub name: String,
    /// Value of the label that tells its kind.
    pub kind: &'static str,
    /// First value of `leaseTransitions`.
    pub epoch: i32,
}

/// An object that is not wanted any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Surplus {
    /// The Service of a listener that is gone.
    Service(String),
    /// The disruption budget of a cluster that has one broker now.
    DisruptionBudget(String),
}

/// Everything that was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// What happens to the brokers.
    pub operation: Operation,
    /// Brokers that the StatefulSet gets now; on the way in it follows the spec one by one.
    pub replicas: i32,
    /// Image of the brokers.
    pub image: String,
    /// Leases to create; those that exist are the brokers' and stay as they are.
    pub missing_leases: Vec<LeaseToCreate>,
    /// Leases that brokers may write.
    pub granted_leases: Vec<String>,
    /// Certificates to issue. `None` without peers.
    pub certificates: Option<CertificatePlan>,
    /// Topics to create, and what is wrong with the others.
    pub topics: TopicReport,
    /// Objects to delete.
    pub surplus: Vec<Surplus>,
}

/// Decides what to do for `cluster` as `observed`. `default_image` is for clusters that name no image and have no
/// brokers yet.
#[must_use]
pub fn plan(cluster: &ValidatedCluster, observed: &Observed, default_image: &str, now: Timestamp) -> Plan {
    let membership = Membership::from_leases(&cluster.name, &observed.leases);
    let current = observed.stateful_set.as_ref();
    let image = cluster
        .image
        .clone()
        .or_else(|| current.and_then(current_image))
        .unwrap_or_else(|| default_image.to_owned());
    let replicas = next_replicas(cluster, observed, &membership);
    let operation = match current {
        None => Operation::Create,
        Some(current) => operation(cluster, current, &image),
    };
    let lease_names = lease_names(cluster);
    let granted_leases = lease_names
        .iter()
        .map(|(name, _)| name.clone())
        .chain(membership.lease_names.iter().cloned())
        .collect::<BTreeSet<_>>();
    Plan {
        operation,
        replicas,
        image,
        missing_leases: missing_leases(lease_names, observed, &membership),
        granted_leases: granted_leases.into_iter().collect(),
        certificates: cluster.has_leases().then(|| {
            let pods: Vec<_> =
                (0..replicas.max(cluster.replicas)).map(|ordinal| cluster.pod(ordinal)).collect();
            plan_certificates(&pods, observed.authority.as_ref(), observed.peer_tls.as_ref(), now)
        }),
        topics: topic_report(cluster, observed),
        surplus: surplus(cluster, observed),
    }
}

/// An object that is left of a former cluster of the same name, if there is one. The garbage collector removes it soon;
/// built upon now, it would vanish under the new brokers.
#[must_use]
pub fn left_over(cluster: &ValidatedCluster, observed: &Observed) -> Option<String> {
    let foreign = |metadata: &ObjectMeta| {
        let owners = metadata.owner_references.iter().flatten();
        owners.filter(|owner| owner.controller == Some(true)).any(|owner| owner.uid != cluster.uid)
    };
    let sets = observed.stateful_set.iter().map(|set| ("StatefulSet", &set.metadata));
    let leases = observed.leases.iter().map(|lease| ("Lease", &lease.metadata));
    let services = observed.services.iter().map(|service| ("Service", &service.metadata));
    let secrets =
        observed.authority.iter().chain(&observed.peer_tls).map(|secret| ("Secret", &secret.metadata));
    let mut all = sets.chain(leases).chain(services).chain(secrets);
    all.find(|(_, metadata)| foreign(metadata)).map(|(kind, metadata)| format!("{kind} {}", name(metadata)))
}

impl Plan {
    /// Topics that the operator may create in this pass.
    #[must_use]
    pub fn topics_to_create<'a>(&'a self, cluster: &ValidatedCluster) -> &'a [Topic] {
        match &cluster.store {
            Store::Kafka { kafka, .. } => match kafka.topic_management {
                TopicManagement::Managed => &self.topics.missing,
                TopicManagement::Observe => &[],
            },
            Store::Embedded(_) => &[],
        }
    }
}

fn topic_report(cluster: &ValidatedCluster, observed: &Observed) -> TopicReport {
    match &observed.kafka {
        Some(KafkaObservation::Reached { topics }) => compare_topics(&desired_topics(cluster), topics),
        Some(KafkaObservation::Unreachable { .. }) | None => TopicReport::default(),
    }
}

/// Image of the brokers that run: a cluster that names none keeps it when the operator's default changes.
fn current_image(stateful_set: &StatefulSet) -> Option<String> {
    stateful_set.spec.as_ref()?.template.spec.as_ref()?.containers.first()?.image.clone()
}

fn current_replicas(stateful_set: &StatefulSet) -> i32 {
    stateful_set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

/// Brokers are added all at once and taken away one by one: the next one only after the last one's pod is gone and its
/// partition groups have other owners. A cluster without a ready broker is not waited for, since nobody could take them.
fn next_replicas(cluster: &ValidatedCluster, observed: &Observed, membership: &Membership) -> i32 {
    let Some(current) = observed.stateful_set.as_ref() else { return cluster.replicas };
    let present = current_replicas(current);
    if cluster.replicas >= present {
        return cluster.replicas;
    }
    let leaving = |member: &str| ordinal(&cluster.name, member).is_some_and(|ordinal| ordinal >= present);
    let pods_gone = !observed.pods.iter().any(|pod| leaving(name(&pod.metadata)));
    let groups_moved = !membership.groups.values().flatten().any(|owner| leaving(owner));
    let nobody_ready = !observed.pods.iter().any(is_ready);
    if pods_gone && (groups_moved || nobody_ready) { present - 1 } else { present }
}

fn operation(cluster: &ValidatedCluster, current: &StatefulSet, image: &str) -> Operation {
    let present = current_replicas(current);
    if cluster.replicas > present {
        return Operation::Expand;
    }
    if cluster.replicas < present {
        return Operation::Shrink;
    }
    let template = current.spec.as_ref().map(|spec| &spec.template);
    let hash = template
        .and_then(|template| template.metadata.as_ref())
        .and_then(|metadata| metadata.annotations.as_ref())
        .and_then(|annotations| annotations.get(ANNOTATION_CONFIG));
    let same =
        hash == Some(&config_hash(&cluster.config)) && current_image(current).as_deref() == Some(image);
    if same && is_settled(current) { Operation::Steady } else { Operation::Roll }
}

/// Whether all pods run the newest template.
fn is_settled(stateful_set: &StatefulSet) -> bool {
    let Some(status) = &stateful_set.status else { return false };
    status.update_revision.is_none() || status.update_revision == status.current_revision
}

/// The leases that the spec asks for, with their kinds.
fn lease_names(cluster: &ValidatedCluster) -> Vec<(String, &'static str)> {
    if !cluster.has_leases() {
        return Vec::new();
    }
    let members =
        cluster.pods().into_iter().map(|pod| (names::member_lease(&cluster.name, &pod), names::LEASE_MEMBER));
    let groups = (0..cluster.group_count())
        .map(|group| (names::group_lease(&cluster.name, group), names::LEASE_GROUP));
    members.chain(groups).chain([(names::view_lease(&cluster.name), names::LEASE_VIEW)]).collect()
}

/// A group lease that is created while no broker can exist starts at epoch 1 and may be claimed at once; else somebody
/// may still act on the lease that was lost, and claimers must wait.
fn missing_leases(
    wanted: Vec<(String, &'static str)>,
    observed: &Observed,
    membership: &Membership,
) -> Vec<LeaseToCreate> {
    let nobody_runs = observed.stateful_set.is_none() && observed.pods.is_empty();
    wanted
        .into_iter()
        .filter(|(name, _)| !membership.lease_names.contains(name))
        .map(|(name, kind)| {
            let epoch = i32::from(kind == names::LEASE_GROUP && nobody_runs);
            LeaseToCreate { name, kind, epoch }
        })
        .collect()
}

fn surplus(cluster: &ValidatedCluster, observed: &Observed) -> Vec<Surplus> {
    let mut wanted: BTreeSet<_> =
        cluster.listeners.iter().map(|listener| cluster.listener_service(listener)).collect();
    wanted.insert(cluster.peer_service());
    let services = observed.services.iter().map(|service| name(&service.metadata).to_owned());
    let services = services.filter(|name| !wanted.contains(name));
    let budgets = observed.disruption_budgets.iter().map(|budget| name(&budget.metadata).to_owned());
    let budgets = budgets.filter(|_| cluster.replicas < 2);
    services.map(Surplus::Service).chain(budgets.map(Surplus::DisruptionBudget)).collect()
}

fn name(metadata: &ObjectMeta) -> &str {
    metadata.name.as_deref().unwrap_or_default()
}

fn ordinal(cluster: &str, member: &str) -> Option<i32> {
    member.strip_prefix(cluster)?.strip_prefix('-')?.parse().ok()
}

/// Whether a pod's condition says it is ready.
#[must_use]
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
}

#[cfg(test)]
mod tests;

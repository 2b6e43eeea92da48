//! One pass over one cluster.

use crate::clients::authority::{self, AuthorityError};
use crate::clients::kafka::{CreateError, KafkaObserver};
use crate::controller::apply::{ApplyError, FIELD_MANAGER, apply, delete_surplus};
use crate::controller::build::build;
use crate::controller::dereference::{Observed, dereference};
use crate::controller::plan::{Operation, Plan, left_over, plan};
use crate::controller::status::{NOT_POWER_LOSS_DURABLE, build_status, failed_status, refused_status};
use crate::controller::topics::KafkaObservation;
use crate::controller::validate::{Refusal, Store, ValidatedCluster, validate};
use crate::metrics::{Metrics, Outcome};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::runtime::events::{Event, EventType, Recorder};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_crds::{MqttCluster, MqttClusterStatus, condition};
use tracing::warn;

/// Deadline of one pass. A call that hangs costs its cluster this long and the others nothing.
const PASS_TIMEOUT: Duration = Duration::from_secs(60);
/// When to look again although nothing was seen to change: what is not watched, and Kafka.
const CALM: Duration = Duration::from_secs(60);
/// When to look again while something is under way or wrong.
const BUSY: Duration = Duration::from_secs(15);
/// Deadline of telling about a failure.
const TELL_TIMEOUT: Duration = Duration::from_secs(5);

/// What all passes share.
pub struct Shared {
    /// The Kubernetes API.
    pub client: Client,
    /// Kafka, as seen in the last seconds.
    pub kafka: KafkaObserver,
    /// Image of clusters that name none.
    pub default_image: String,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Tells users what happened.
    pub recorder: Recorder,
}

/// A pass failed; it is repeated later.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    /// Reading failed.
    #[error("reading the cluster's objects failed: {0}")]
    Dereference(#[source] kube::Error),
    /// A former cluster of the same name is not removed yet.
    #[error(
        "{0} belongs to something else, probably to a former cluster of this name; waiting until it is gone"
    )]
    LeftOver(String),
    /// A certificate could not be issued.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// Writing failed.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The topics could not be created.
    #[error(transparent)]
    Topics(#[from] CreateError),
    /// The status could not be written.
    #[error("writing the status failed: {0}")]
    Status(#[source] kube::Error),
    /// The deadline has passed.
    #[error("the pass took longer than {} s", PASS_TIMEOUT.as_secs())]
    TimedOut,
}

/// Goes over `cluster` once and answers when to look again; `None`: when it changes.
///
/// # Errors
///
/// [`PassError`]; the status has been told about it where that was possible.
pub async fn reconcile(cluster: &MqttCluster, shared: &Shared) -> Result<Option<Duration>, PassError> {
    let started = Instant::now();
    let passed = match tokio::time::timeout(PASS_TIMEOUT, Box::pin(pass(cluster, shared))).await {
        Ok(passed) => passed,
        Err(_) => Err(PassError::TimedOut),
    };
    let outcome = match &passed {
        Ok((outcome, _)) => *outcome,
        Err(PassError::TimedOut) => Outcome::TimedOut,
        Err(
            PassError::Dereference(_)
            | PassError::LeftOver(_)
            | PassError::Authority(_)
            | PassError::Apply(_)
            | PassError::Topics(_)
            | PassError::Status(_),
        ) => Outcome::Failed,
    };
    shared.metrics.count_pass(outcome, started.elapsed().as_secs_f64());
    match passed {
        Ok((_, again)) => Ok(again),
        Err(error) => {
            tell_failure(cluster, shared, &error).await;
            Err(error)
        }
    }
}

async fn pass(cluster: &MqttCluster, shared: &Shared) -> Result<(Outcome, Option<Duration>), PassError> {
    if cluster.metadata.deletion_timestamp.is_some() {
        // Everything has an owner reference and goes by itself; topics are kept.
        return Ok((Outcome::Done, None));
    }
    let now = Timestamp::now();
    let validated = match validate(cluster) {
        Ok(validated) => validated,
        Err(refusal) => {
            refuse(cluster, shared, &refusal, now).await?;
            return Ok((Outcome::Refused, None));
        }
    };
    let mut observed =
        dereference(&shared.client, &shared.kafka, &validated).await.map_err(PassError::Dereference)?;
    if let Some(object) = left_over(&validated, &observed) {
        return Err(PassError::LeftOver(object));
    }
    let plan = plan(&validated, &observed, &shared.default_image, now);
    if !validated.paused {
        warn_once_per_generation(cluster, &validated, shared).await;
        change(&validated, &plan, &mut observed, shared, now).await?;
    }
    let status = build_status(cluster.status.as_ref(), &validated, &plan, &observed, now);
    let ready = is_true(&status, condition::READY);
    shared.metrics.set_ready(&validated.namespace, &validated.name, ready);
    let calm = ready && plan.operation == Operation::Steady && plan.topics.missing.is_empty();
    write_status(cluster, status, shared).await.map_err(PassError::Status)?;
    Ok((Outcome::Done, Some(if calm { CALM } else { BUSY })))
}

/// All writes of a pass. Topics come before brokers, which would only wait for them; Kafka being away holds nothing up.
async fn change(
    cluster: &ValidatedCluster,
    plan: &Plan,
    observed: &mut Observed,
    shared: &Shared,
    now: Timestamp,
) -> Result<(), PassError> {
    let identity = match &plan.certificates {
        Some(certificates) => Some(authority::issue(certificates, &cluster.name, now)?),
        None => None,
    };
    if let Some(first) =
        identity.iter().flat_map(|identity| identity.peers.values()).map(|peer| peer.expires).min()
    {
        shared.metrics.set_certificate_expiry(&cluster.namespace, &cluster.name, first.as_second());
    }
    let created = create_topics(cluster, plan, observed, shared).await;
    let objects = build(cluster, plan, identity.as_ref());
    observed.stateful_set = Some(apply(&shared.client, &cluster.namespace, &objects).await?);
    delete_surplus(&shared.client, &cluster.namespace, &plan.surplus).await?;
    Ok(created?)
}

async fn create_topics(
    cluster: &ValidatedCluster,
    plan: &Plan,
    observed: &Observed,
    shared: &Shared,
) -> Result<(), CreateError> {
    let topics = plan.topics_to_create(cluster);
    let (Store::Kafka { kafka, .. }, Some(KafkaObservation::Reached { .. })) =
        (&cluster.store, &observed.kafka)
    else {
        return Ok(());
    };
    if topics.is_empty() {
        return Ok(());
    }
    shared.kafka.create(&kafka.bootstrap_servers, topics.to_vec()).await
}

async fn refuse(
    cluster: &MqttCluster,
    shared: &Shared,
    refusal: &Refusal,
    now: Timestamp,
) -> Result<(), PassError> {
    let message = refusal.to_string();
    publish(cluster, shared, "SpecInvalid", &message).await;
    shared.metrics.set_ready(&cluster.namespace().unwrap_or_default(), &cluster.name_any(), false);
    let status = refused_status(cluster, refusal, now);
    write_status(cluster, status, shared).await.map_err(PassError::Status)
}

async fn tell_failure(cluster: &MqttCluster, shared: &Shared, error: &PassError) {
    let message = error.to_string();
    publish(cluster, shared, "ReconcileFailed", &message).await;
    let status = failed_status(cluster, &message, Timestamp::now());
    let written = tokio::time::timeout(TELL_TIMEOUT, write_status(cluster, status, shared)).await;
    match written {
        Ok(Ok(())) => {}
        Ok(Err(error)) => warn!(cluster = cluster.name_any(), %error, "failure not written to the status"),
        Err(_) => warn!(cluster = cluster.name_any(), "failure not written to the status in time"),
    }
}

/// The status tells the same all the time; the event tells it once for each spec.
async fn warn_once_per_generation(cluster: &MqttCluster, validated: &ValidatedCluster, shared: &Shared) {
    let seen = cluster.status.as_ref().and_then(|status| status.observed_generation);
    let Store::Kafka { kafka, .. } = &validated.store else { return };
    if kafka.replication_factor == 1 && seen != Some(validated.generation) {
        publish(cluster, shared, "SingleReplica", NOT_POWER_LOSS_DURABLE).await;
    }
}

async fn publish(cluster: &MqttCluster, shared: &Shared, reason: &str, note: &str) {
    let event = Event {
        type_: EventType::Warning,
        reason: reason.to_owned(),
        note: Some(note.chars().take(1_000).collect()),
        action: "Reconcile".to_owned(),
        secondary: None,
    };
    let reference = cluster.object_ref(&());
    let published = shared.recorder.publish(&event, &reference);
    match tokio::time::timeout(TELL_TIMEOUT, published).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => warn!(cluster = cluster.name_any(), %error, "event not published"),
        Err(_) => warn!(cluster = cluster.name_any(), "event not published in time"),
    }
}

fn is_true(status: &MqttClusterStatus, type_: &str) -> bool {
    status.conditions.iter().any(|condition| condition.type_ == type_ && condition.status == "True")
}

/// Writes only what differs: a status that is written in every pass starts the next one.
async fn write_status(
    cluster: &MqttCluster,
    status: MqttClusterStatus,
    shared: &Shared,
) -> Result<(), kube::Error> {
    if cluster.status.as_ref() == Some(&status) {
        return Ok(());
    }
    let namespace = cluster.namespace().unwrap_or_default();
    let patch = json!({
        "apiVersion": MqttCluster::api_version(&()),
        "kind": MqttCluster::kind(&()),
        "status": status,
    });
    Api::<MqttCluster>::namespaced(shared.client.clone(), &namespace)
        .patch_status(&cluster.name_any(), &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(patch))
        .await
        .map(|_| ())
}

//! Watches clusters and what belongs to them, and goes over each cluster that changed.

pub mod apply;
pub mod build;
pub mod certificates;
pub mod dereference;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod membership;
pub mod plan;
pub mod reconcile;
pub mod status;
pub mod topics;
pub mod trigger;
pub mod validate;

use crate::admin::Readiness;
use crate::metrics::Outcome;
use futures::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::core::{DeserializeGuard, PartialObjectMeta};
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::events::{Event, EventType};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{Predicate, WatchStreamExt, predicates, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use parking_lot::Mutex;
use reconcile::{PassError, Shared};
use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;
use tidemill_contract::names;
use tidemill_crds::MqttCluster;
use tracing::{Instrument, debug, info_span, warn};

type Guarded = DeserializeGuard<MqttCluster>;

/// Passes at the same time, each over another cluster.
const CONCURRENCY: u16 = 16;
/// Changes within this time start one pass.
const DEBOUNCE: Duration = Duration::from_millis(300);
/// Pauses after failures double from the first to the last.
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
const BACKOFF_LAST: Duration = Duration::from_secs(60);

/// Where clusters are looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// Everywhere.
    AllNamespaces,
    /// In one namespace.
    Namespace(String),
}

impl Scope {
    fn api<K>(&self, client: &Client) -> Api<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        match self {
            Self::AllNamespaces => Api::all(client.clone()),
            Self::Namespace(namespace) => Api::namespaced(client.clone(), namespace),
        }
    }
}

struct Context {
    shared: Arc<Shared>,
    /// Failures in a row by cluster. Bounded by the number of clusters: a success or the end of one removes it.
    failures: Mutex<HashMap<ObjectRef<Guarded>, u32>>,
}

/// Runs until `shutdown` is done, then finishes the passes under way. Watch errors are retried with pauses forever.
pub async fn run(
    scope: Scope,
    shared: Arc<Shared>,
    readiness: Arc<Readiness>,
    shutdown: impl Future<Output = ()> + Send + Sync + 'static,
) {
    let context = Arc::new(Context { shared: shared.clone(), failures: Mutex::default() });
    let client = shared.client.clone();
    let (reader, writer) = reflector::store::<Guarded>();
    let clusters = watcher(scope.api::<Guarded>(&client), watcher::Config::default().any_semantic())
        .default_backoff()
        .reflect(writer)
        .inspect_ok({
            let context = context.clone();
            move |event| forget_deleted(event, &context)
        })
        .applied_objects()
        .predicate_filter(predicates::generation.combine(predicates::annotations), Default::default());
    let leases =
        trigger::lease_changes(watcher(scope.api::<Lease>(&client), of_clusters()).default_backoff());
    let controller = Controller::for_stream(count_errors("MqttCluster", &shared, clusters), reader.clone())
        .owns_stream(count_errors("StatefulSet", &shared, owned::<StatefulSet>(&scope, &client)))
        .owns_stream(count_errors("Service", &shared, owned::<Service>(&scope, &client)))
        .owns_stream(count_errors("ConfigMap", &shared, owned::<ConfigMap>(&scope, &client)))
        .owns_stream(count_errors("Lease", &shared, leases))
        .with_config(Config::default().debounce(DEBOUNCE).concurrency(CONCURRENCY))
        .graceful_shutdown_on(shutdown)
        .run(reconcile_guarded, after_failure, context)
        .for_each(|passed| {
            match passed {
                Ok((cluster, _)) => debug!(%cluster, "pass done"),
                Err(error) => debug!(%error, "pass not done"),
            }
            std::future::ready(())
        });
    let arrival = announce_arrival(reader, readiness);
    tokio::pin!(controller, arrival);
    tokio::select! {
        () = &mut controller => return,
        () = &mut arrival => {}
    }
    controller.await;
}

async fn announce_arrival(reader: Store<Guarded>, readiness: Arc<Readiness>) {
    // The only error is the end of the watch, which ends the process.
    if reader.wait_until_ready().await.is_ok() {
        readiness.arrive();
    }
}

fn of_clusters() -> watcher::Config {
    watcher::Config::default().labels(names::LABEL_CLUSTER)
}

/// Changes of owned objects; only their metadata is fetched, a pass reads the rest itself.
fn owned<K>(
    scope: &Scope,
    client: &Client,
) -> impl Stream<Item = Result<PartialObjectMeta<K>, watcher::Error>> + Send + 'static
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + serde::de::DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    watcher(scope.api::<PartialObjectMeta<K>>(client), of_clusters()).default_backoff().touched_objects()
}

fn count_errors<K>(
    kind: &'static str,
    shared: &Arc<Shared>,
    stream: impl Stream<Item = Result<K, watcher::Error>> + Send + 'static,
) -> impl Stream<Item = Result<K, watcher::Error>> + Send + 'static {
    let shared = shared.clone();
    stream.inspect_err(move |error| {
        warn!(kind, %error, "watch interrupted");
        shared.metrics.count_watch_error(kind);
    })
}

fn forget_deleted(event: &watcher::Event<Guarded>, context: &Context) {
    if let watcher::Event::Delete(cluster) = event {
        let namespace = cluster.meta().namespace.clone().unwrap_or_default();
        context.shared.metrics.forget(&namespace, &cluster.name_any());
        context.failures.lock().remove(&ObjectRef::from_obj(cluster));
    }
}

async fn reconcile_guarded(guarded: Arc<Guarded>, context: Arc<Context>) -> Result<Action, PassError> {
    let namespace = guarded.meta().namespace.clone().unwrap_or_default();
    let span = info_span!("reconcile", %namespace, cluster = guarded.name_any());
    let cluster = match &guarded.0 {
        Ok(cluster) => cluster,
        Err(unreadable) => {
            tell_unreadable(&guarded, &unreadable.error, &context.shared).instrument(span).await;
            return Ok(Action::await_change());
        }
    };
    let again = reconcile::reconcile(cluster, &context.shared).instrument(span).await?;
    context.failures.lock().remove(&ObjectRef::from_obj(guarded.as_ref()));
    Ok(again.map_or_else(Action::await_change, Action::requeue))
}

/// A resource that does not parse is told about and left alone; it does not stop the others.
async fn tell_unreadable(guarded: &Guarded, error: &str, shared: &Shared) {
    warn!(%error, "not readable as an MqttCluster");
    shared.metrics.count_pass(Outcome::Unreadable, 0.0);
    let event = Event {
        type_: EventType::Warning,
        reason: "Unreadable".to_owned(),
        note: Some(format!("not readable as an MqttCluster: {error}").chars().take(1_000).collect()),
        action: "Reconcile".to_owned(),
        secondary: None,
    };
    if let Err(error) = shared.recorder.publish(&event, &guarded.object_ref(&())).await {
        warn!(%error, "event not published");
    }
}

fn after_failure(guarded: Arc<Guarded>, error: &PassError, context: Arc<Context>) -> Action {
    let reference = ObjectRef::from_obj(guarded.as_ref());
    let pause = {
        let mut failures = context.failures.lock();
        let count = failures.entry(reference.clone()).or_default();
        *count = count.saturating_add(1);
        backoff(*count)
    };
    warn!(cluster = %reference, %error, pause_secs = pause.as_secs(), "pass failed");
    Action::requeue(pause)
}

fn backoff(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(10);
    BACKOFF_FIRST.saturating_mul(1 << doublings).min(BACKOFF_LAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_minute() {
        let pauses: Vec<_> =
            [1, 2, 3, 7, 8, 1_000].into_iter().map(|count| backoff(count).as_secs()).collect();

        assert_eq!(pauses, [1, 2, 4, 60, 60, 60]);
    }

    #[test]
    fn a_resource_that_does_not_parse_is_kept_apart_from_the_others() {
        let list = serde_json::json!([
            {"metadata": {"name": "broken"}, "spec": {"replicas": "three"}},
            {"metadata": {"name": "fine"}, "spec": {"replicas": 3}},
        ]);

        let read: Vec<Guarded> = serde_json::from_value(list).unwrap();

        assert!(read[0].0.is_err());
        assert_eq!(read[0].name_any(), "broken");
        assert!(read[1].0.is_ok());
    }
}

//! The calls to the Kubernetes API. Every call has a deadline, nothing is retried here.

use super::LeaseError;
use super::object::{name_of, replacement, version_of};
use futures::stream::{BoxStream, StreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Config};
use std::time::Duration;
use tidemill_contract::names::LABEL_CLUSTER;
use tidemill_core::membership::lease::{LeaseContent, LeaseKey, WriteResult};
use tokio::time::timeout;

/// Deadline of one call, and of reading its answer.
const CALL: Duration = Duration::from_secs(3);

/// Events of a watch; errors are reported and followed by a new start of the watch.
pub(super) type Events<T> = BoxStream<'static, Result<Event<T>, watcher::Error>>;

/// The leases and pods of one cluster in one namespace. Cheap to clone.
#[derive(Clone)]
pub struct LeaseApi {
    cluster: String,
    leases: Api<Lease>,
    watched_leases: Api<Lease>,
    watched_pods: Api<Pod>,
}

impl LeaseApi {
    /// Connects with the kubeconfig that `KUBECONFIG` names, or from within a pod. `namespace`: default is that of the
    /// pod or the kubeconfig.
    ///
    /// # Errors
    ///
    /// [`LeaseError::Access`]: no usable configuration; the broker refuses to start.
    pub async fn connect(cluster: &str, namespace: Option<&str>) -> Result<Self, LeaseError> {
        let config = Config::infer().await.map_err(|error| LeaseError::Access(error.to_string()))?;
        Self::with_config(cluster, namespace, config)
    }

    /// As [`Self::connect`] with a configuration of the caller's.
    ///
    /// # Errors
    ///
    /// [`LeaseError::Access`].
    pub fn with_config(cluster: &str, namespace: Option<&str>, config: Config) -> Result<Self, LeaseError> {
        let access = |error: kube::Error| LeaseError::Access(error.to_string());
        let namespace = namespace.unwrap_or(&config.default_namespace).to_owned();
        // A silent API server must not eat a lease: the defaults wait for ever and retry inside one call.
        let mut calls = config.clone();
        calls.connect_timeout = Some(CALL);
        calls.read_timeout = Some(CALL);
        calls.write_timeout = Some(CALL);
        calls.reset_reader_on_write = true;
        calls.default_retry = false;
        // Watches are silent for long; the watcher has an idle timeout of its own.
        let mut watches = config;
        watches.connect_timeout = Some(CALL);
        watches.default_retry = false;
        let calls = Client::try_from(calls).map_err(access)?;
        let watches = Client::try_from(watches).map_err(access)?;
        Ok(Self {
            cluster: cluster.to_owned(),
            leases: Api::namespaced(calls, &namespace),
            watched_leases: Api::namespaced(watches.clone(), &namespace),
            watched_pods: Api::namespaced(watches, &namespace),
        })
    }

    /// Name of the cluster.
    #[must_use]
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// All leases of the cluster, consistently: no resource version is given, so the API asks its store.
    pub(super) async fn list(&self) -> Option<Vec<Lease>> {
        let parameters = ListParams::default().labels(&self.selector());
        match timeout(CALL, self.leases.list(&parameters)).await {
            Ok(Ok(list)) => Some(list.items),
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot list leases");
                None
            }
            Err(_) => {
                tracing::warn!("no answer to a list of leases in time");
                None
            }
        }
    }

    /// Replaces an object under the version that `former` has. Sent at most once.
    pub(super) async fn replace(
        &self,
        key: &LeaseKey,
        former: &Lease,
        content: &LeaseContent,
    ) -> (WriteResult, Option<Lease>) {
        let name = name_of(&self.cluster, key);
        let lease = replacement(former, content);
        let parameters = PostParams::default();
        match timeout(CALL, self.leases.replace(&name, &parameters, &lease)).await {
            Ok(Ok(stored)) => match version_of(&stored) {
                Some(version) => (WriteResult::Written(version), Some(stored)),
                None => (WriteResult::NoAnswer, None),
            },
            Ok(Err(error)) => {
                let result = judge(&error);
                if result != WriteResult::Conflict {
                    tracing::warn!(lease = name, %error, "cannot write a lease");
                }
                (result, None)
            }
            Err(_) => {
                tracing::warn!(lease = name, "no answer to a write of a lease in time");
                (WriteResult::NoAnswer, None)
            }
        }
    }

    /// Watches the leases of the cluster.
    pub(super) fn watch_leases(&self) -> Events<Lease> {
        let config = watcher::Config::default().labels(&self.selector());
        watcher(self.watched_leases.clone(), config).default_backoff().boxed()
    }

    /// Watches the pods of the cluster.
    pub(super) fn watch_pods(&self) -> Events<Pod> {
        let config = watcher::Config::default().labels(&self.selector());
        watcher(self.watched_pods.clone(), config).default_backoff().boxed()
    }

    fn selector(&self) -> String {
        format!("{LABEL_CLUSTER}={}", self.cluster)
    }
}

/// What an error says about the write. Only an answer of the API that it was not done counts as one.
fn judge(error: &kube::Error) -> WriteResult {
    let kube::Error::Api(status) = error else { return WriteResult::NoAnswer };
    match status.code {
        409 => WriteResult::Conflict,
        404 => WriteResult::NotFound,
        400..=499 => WriteResult::Refused,
        _ => WriteResult::NoAnswer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    #[test]
    fn only_an_answer_that_says_so_means_that_a_write_was_not_done() {
        let api = |code| kube::Error::Api(Box::new(Status { code, ..Status::default() }));

        assert_eq!(judge(&api(409)), WriteResult::Conflict);
        assert_eq!(judge(&api(404)), WriteResult::NotFound);
        assert_eq!(judge(&api(422)), WriteResult::Refused);
        assert_eq!(judge(&api(429)), WriteResult::Refused);
        assert_eq!(judge(&api(500)), WriteResult::NoAnswer);
        assert_eq!(judge(&api(504)), WriteResult::NoAnswer);
        assert_eq!(judge(&kube::Error::LinesCodecMaxLineLengthExceeded), WriteResult::NoAnswer);
    }
}

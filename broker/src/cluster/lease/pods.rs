//! What pods say: which containers of brokers have ended, and the id of the own one.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use std::collections::BTreeSet;
use tidemill_core::member::MemberId;
use tidemill_core::membership::lease::{PodStatus, ResourceVersion};

/// Name of the broker's container in its pod.
const CONTAINER: &str = "broker";
/// The kubelet's start time of the own container lies before the start of this process by less than this. A container
/// that ran before in the same pod, and whose end the status does not show yet, started earlier.
const START_SLACK: SignedDuration = SignedDuration::from_secs(3);

/// Which containers of a pod have ended; `None` for a pod without name, UID or version.
#[must_use]
pub fn status_of(pod: &Pod) -> Option<PodStatus> {
    let member = MemberId::new(pod.metadata.name.as_deref()?);
    let pod_uid = pod.metadata.uid.clone()?;
    let mut terminated = BTreeSet::new();
    for container in containers(pod) {
        for state in [&container.state, &container.last_state].into_iter().flatten() {
            terminated.extend(state.terminated.as_ref().and_then(|ended| ended.container_id.clone()));
        }
    }
    let version = ResourceVersion(pod.metadata.resource_version.as_ref()?.parse().ok()?);
    Some(PodStatus { member, version, pod_uid, terminated })
}

/// The id of the container in which this process runs, which started at `started`; `None` while the pod's status does
/// not show it.
#[must_use]
pub fn own_container(pod: &Pod, pod_uid: &str, started: Timestamp) -> Option<String> {
    if pod.metadata.uid.as_deref() != Some(pod_uid) {
        return None;
    }
    let container = containers(pod).next()?;
    let running = container.state.as_ref()?.running.as_ref()?;
    let is_own = running.started_at.as_ref()?.0 >= started - START_SLACK;
    container.container_id.clone().filter(|id| is_own && !id.is_empty())
}

fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref());
    statuses.unwrap_or_default().iter().filter(|status| status.name == CONTAINER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{
        ContainerState, ContainerStateRunning, ContainerStateTerminated, PodStatus as ApiStatus,
    };
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    fn pod(started: Timestamp) -> Pod {
        let ended = |id: &str| ContainerState {
            terminated: Some(ContainerStateTerminated {
                container_id: Some(id.to_owned()),
                ..ContainerStateTerminated::default()
            }),
            ..ContainerState::default()
        };
        let running = ContainerState {
            running: Some(ContainerStateRunning { started_at: Some(Time(started)) }),
            ..ContainerState::default()
        };
        let broker = ContainerStatus {
            name: "broker".into(),
            container_id: Some("containerd://new".into()),
            state: Some(running),
            last_state: Some(ended("containerd://old")),
            ..ContainerStatus::default()
        };
        let sidecar = ContainerStatus {
            name: "sidecar".into(),
            state: Some(ended("containerd://other")),
            ..ContainerStatus::default()
        };
        let mut pod = Pod::default();
        pod.metadata.name = Some("demo-0".into());
        pod.metadata.uid = Some("uid-1".into());
        pod.metadata.resource_version = Some("7".into());
        let status = ApiStatus { container_statuses: Some(vec![sidecar, broker]), ..ApiStatus::default() };
        pod.status = Some(status);
        pod
    }

    #[test]
    fn only_ended_containers_of_the_broker_are_reported() {
        let status = status_of(&pod(Timestamp::UNIX_EPOCH)).unwrap();

        assert_eq!(status.member, MemberId::new("demo-0"));
        assert_eq!(status.terminated, BTreeSet::from(["containerd://old".to_owned()]));
    }

    #[test]
    fn a_container_that_started_before_this_process_is_not_its_own() {
        let started = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(100);
        let own = |at: i64| {
            own_container(&pod(Timestamp::UNIX_EPOCH + SignedDuration::from_secs(at)), "uid-1", started)
        };

        assert_eq!(own(99), Some("containerd://new".into()));
        assert_eq!(own(50), None);
        assert_eq!(own_container(&pod(started), "uid-2", started), None);
    }
}

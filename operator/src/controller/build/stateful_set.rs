//! The brokers.

use super::config::{CONFIG_DIRECTORY, CONFIG_FILE, DATA_DIRECTORY, TLS_DIRECTORY, config_hash};
use super::metadata;
use crate::controller::certificates::{ANNOTATION_AUTHORITY, PeerIdentity};
use crate::controller::plan::Plan;
use crate::controller::validate::{Store, ValidatedCluster};
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec, StatefulSetUpdateStrategy};
use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapVolumeSource, Container, ContainerPort, EmptyDirVolumeSource, EnvVar,
    EnvVarSource, HTTPGetAction, ObjectFieldSelector, PersistentVolumeClaim, PersistentVolumeClaimSpec,
    PodSecurityContext, PodSpec, PodTemplateSpec, Probe, SeccompProfile, SecretVolumeSource, SecurityContext,
    TopologySpreadConstraint, Volume, VolumeMount, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use std::collections::BTreeMap;
use tidemill_contract::{names, ports};

/// Annotation of a pod: a hash of its config file. Another one restarts the pods one by one.
pub(crate) const ANNOTATION_CONFIG: &str = "tidemill.dev/config-hash";

/// The user and group of the image.
const USER: i64 = 65532;
/// Time for a broker to release its partition groups after SIGTERM.
const TERMINATION_GRACE_SECS: i64 = 60;
const VOLUME_SIZE_KAFKA: &str = "1Gi";
const VOLUME_SIZE_EMBEDDED: &str = "8Gi";

pub(crate) fn build_stateful_set(
    cluster: &ValidatedCluster,
    plan: &Plan,
    identity: Option<&PeerIdentity>,
) -> StatefulSet {
    StatefulSet {
        metadata: metadata(cluster, cluster.name.clone()),
        spec: Some(StatefulSetSpec {
            replicas: Some(plan.replicas),
            service_name: Some(cluster.peer_service()),
            // Brokers do not wait for each other; with OrderedReady one that cannot start would keep all others down.
            pod_management_policy: Some("Parallel".to_owned()),
            update_strategy: Some(StatefulSetUpdateStrategy {
                type_: Some("RollingUpdate".to_owned()),
                ..StatefulSetUpdateStrategy::default()
            }),
            selector: LabelSelector { match_labels: Some(cluster.selector()), ..LabelSelector::default() },
            template: pod_template(cluster, plan, identity),
            volume_claim_templates: volume_claims(cluster),
            ..StatefulSetSpec::default()
        }),
        ..StatefulSet::default()
    }
}

fn pod_template(cluster: &ValidatedCluster, plan: &Plan, identity: Option<&PeerIdentity>) -> PodTemplateSpec {
    let mut annotations = BTreeMap::from([(ANNOTATION_CONFIG.to_owned(), config_hash(&cluster.config))]);
    if let Some(identity) = identity {
        annotations.insert(ANNOTATION_AUTHORITY.to_owned(), identity.authority_hash());
    }
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(cluster.labels()),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        }),
        spec: Some(PodSpec {
            service_account_name: Some(cluster.name.clone()),
            automount_service_account_token: Some(cluster.has_leases()),
            termination_grace_period_seconds: Some(TERMINATION_GRACE_SECS),
            security_context: Some(PodSecurityContext {
                run_as_non_root: Some(true),
                run_as_user: Some(USER),
                run_as_group: Some(USER),
                fs_group: Some(USER),
                seccomp_profile: Some(SeccompProfile {
                    type_: "RuntimeDefault".to_owned(),
                    ..SeccompProfile::default()
                }),
                ..PodSecurityContext::default()
            }),
            topology_spread_constraints: Some(vec![TopologySpreadConstraint {
                max_skew: 1,
                topology_key: "kubernetes.io/hostname".to_owned(),
                when_unsatisfiable: "ScheduleAnyway".to_owned(),
                label_selector: Some(LabelSelector {
                    match_labels: Some(cluster.selector()),
                    ..LabelSelector::default()
                }),
                ..TopologySpreadConstraint::default()
            }]),
            containers: vec![container(cluster, &plan.image)],
            volumes: Some(volumes(cluster)),
            ..PodSpec::default()
        }),
    }
}

fn container(cluster: &ValidatedCluster, image: &str) -> Container {
    let listeners = cluster.listeners.iter().map(|listener| port(&listener.name, listener.port));
    Container {
        name: "broker".to_owned(),
        image: Some(image.to_owned()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        args: Some(vec![
            "serve".to_owned(),
            "--config".to_owned(),
            format!("{CONFIG_DIRECTORY}/{CONFIG_FILE}"),
        ]),
        env: Some(vec![
            env(names::ENV_MEMBER, "metadata.name"),
            env(names::ENV_NAMESPACE, "metadata.namespace"),
            env(names::ENV_POD_UID, "metadata.uid"),
            env(names::ENV_POD_IP, "status.podIP"),
        ]),
        ports: Some(listeners.chain([port("peers", ports::PEERS), port("admin", ports::ADMIN)]).collect()),
        // A start may take as long as the state needs to load; only then liveness counts.
        startup_probe: Some(probe("/healthz", 2, 150)),
        liveness_probe: Some(probe("/healthz", 10, 3)),
        readiness_probe: Some(probe("/readyz", 2, 2)),
        resources: cluster.resources.clone(),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".to_owned()]),
                ..Capabilities::default()
            }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(volume_mounts(cluster)),
        ..Container::default()
    }
}

fn port(name: &str, number: u16) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: i32::from(number),
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    }
}

fn env(name: &str, field: &str) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                field_path: field.to_owned(),
                ..ObjectFieldSelector::default()
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    }
}

fn probe(path: &str, period_secs: i32, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String("admin".to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period_secs),
        timeout_seconds: Some(3),
        failure_threshold: Some(failures),
        ..Probe::default()
    }
}

fn volume_mounts(cluster: &ValidatedCluster) -> Vec<VolumeMount> {
    let mount = |name: &str, path: &str, read_only: bool| VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    };
    let mut mounts = vec![mount("config", CONFIG_DIRECTORY, true), mount("data", DATA_DIRECTORY, false)];
    if cluster.has_leases() {
        mounts.push(mount("peer-tls", TLS_DIRECTORY, true));
    }
    mounts
}

fn volumes(cluster: &ValidatedCluster) -> Vec<Volume> {
    let mut volumes = vec![Volume {
        name: "config".to_owned(),
        config_map: Some(ConfigMapVolumeSource {
            name: cluster.config_map(),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    }];
    if cluster.has_leases() {
        volumes.push(Volume {
            name: "peer-tls".to_owned(),
            secret: Some(SecretVolumeSource {
                secret_name: Some(cluster.peer_secret()),
                default_mode: Some(0o440),
                ..SecretVolumeSource::default()
            }),
            ..Volume::default()
        });
    }
    match cluster.store {
        Store::Kafka { .. } => volumes.push(Volume {
            name: "data".to_owned(),
            empty_dir: Some(EmptyDirVolumeSource {
                size_limit: Some(volume_size(cluster)),
                ..EmptyDirVolumeSource::default()
            }),
            ..Volume::default()
        }),
        Store::Embedded(_) => {}
    }
    volumes
}

fn volume_claims(cluster: &ValidatedCluster) -> Option<Vec<PersistentVolumeClaim>> {
    match cluster.store {
        Store::Kafka { .. } => None,
        Store::Embedded(_) => Some(vec![PersistentVolumeClaim {
            metadata: ObjectMeta {
                name: Some("data".to_owned()),
                labels: Some(cluster.selector()),
                ..ObjectMeta::default()
            },
            spec: Some(PersistentVolumeClaimSpec {
                access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
                storage_class_name: cluster.storage.storage_class_name.clone(),
                resources: Some(VolumeResourceRequirements {
                    requests: Some(BTreeMap::from([("storage".to_owned(), volume_size(cluster))])),
                    ..VolumeResourceRequirements::default()
                }),
                ..PersistentVolumeClaimSpec::default()
            }),
            ..PersistentVolumeClaim::default()
        }]),
    }
}

fn volume_size(cluster: &ValidatedCluster) -> Quantity {
    let default = match cluster.store {
        Store::Kafka { .. } => VOLUME_SIZE_KAFKA,
        Store::Embedded(_) => VOLUME_SIZE_EMBEDDED,
    };
    Quantity(cluster.storage.size.clone().unwrap_or_else(|| default.to_owned()))
}

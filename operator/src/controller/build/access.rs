//! Who the brokers are and what they may do: the least that membership needs.

use super::metadata;
use crate::controller::validate::ValidatedCluster;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};

pub(crate) fn build_service_account(cluster: &ValidatedCluster) -> ServiceAccount {
    ServiceAccount {
        metadata: metadata(cluster, cluster.name.clone()),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}

/// Reading cannot be narrowed to one cluster (there are no label selectors in a Role), writing is narrowed to its
/// leases. A lease that outlived its broker stays writable: others expire it.
pub(crate) fn build_role(cluster: &ValidatedCluster, leases: &[String]) -> Role {
    let rule = |group: &str, resource: &str, verbs: &[&str], names: Option<Vec<String>>| PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        resource_names: names,
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        ..PolicyRule::default()
    };
    let read = ["get", "list", "watch"];
    Role {
        metadata: metadata(cluster, cluster.name.clone()),
        rules: Some(vec![
            rule("coordination.k8s.io", "leases", &read, None),
            rule("coordination.k8s.io", "leases", &["update"], Some(leases.to_vec())),
            // A pod's status proves that a broker is dead.
            rule("", "pods", &read, None),
        ]),
    }
}

pub(crate) fn build_role_binding(cluster: &ValidatedCluster) -> RoleBinding {
    RoleBinding {
        metadata: metadata(cluster, cluster.name.clone()),
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".to_owned(),
            kind: "Role".to_owned(),
            name: cluster.name.clone(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name: cluster.name.clone(),
            namespace: Some(cluster.namespace.clone()),
            ..Subject::default()
        }]),
    }
}

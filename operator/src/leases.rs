//! `tidemill-operator leases`: the leases of brokers that coordinate through Kubernetes without an `MqttCluster`.

use crate::controller::apply::{ApplyError, create_lease};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::Client;
use kube::api::ObjectMeta;
use std::collections::BTreeMap;
use tidemill_contract::config::{Config, Coordination};
use tidemill_contract::names;

/// The leases could not be made.
#[derive(Debug, thiserror::Error)]
pub enum LeasesError {
    /// The brokers of this config use no leases.
    #[error("the config says coordination: local, which uses no leases")]
    NoCoordination,
    /// A member's name cannot be part of an object's name.
    #[error("'{0}' is not a member name: it must be of a-z, 0-9 and '-'")]
    Member(String),
    /// The API server refused one.
    #[error(transparent)]
    Apply(#[from] ApplyError),
}

/// Whether brokers of the cluster may have run before its leases are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum History {
    /// Perhaps: a group with epoch 0 is claimed only after it was seen so for the time in which every living broker
    /// renews.
    Unknown,
    /// None ever did: groups get epoch 1 and are claimed at once.
    New,
}

/// Every lease that `config` needs for `members`: one each, one per partition group, one for the view.
///
/// # Errors
///
/// [`LeasesError::NoCoordination`] and [`LeasesError::Member`]; the input must change.
pub fn leases_of(config: &Config, members: &[String], history: History) -> Result<Vec<Lease>, LeasesError> {
    match config.coordination {
        Coordination::Kubernetes => {}
        Coordination::Local => return Err(LeasesError::NoCoordination),
    }
    let cluster = &config.cluster.0;
    let mut leases = Vec::new();
    for member in members {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if member.is_empty() || !member.bytes().all(plain) {
            return Err(LeasesError::Member(member.clone()));
        }
        leases.push(empty_lease(cluster, names::member_lease(cluster, member), names::LEASE_MEMBER, 0));
    }
    let groups = config.partitioning().1;
    let epoch = match history {
        History::Unknown => 0,
        History::New => 1,
    };
    let group_lease =
        |group| empty_lease(cluster, names::group_lease(cluster, group), names::LEASE_GROUP, epoch);
    leases.extend((0..groups).map(group_lease));
    leases.push(empty_lease(cluster, names::view_lease(cluster), names::LEASE_VIEW, 0));
    Ok(leases)
}

/// Creates those of `leases` that do not exist.
///
/// # Errors
///
/// [`LeasesError::Apply`]; trying again is safe.
pub async fn create_leases(client: &Client, namespace: &str, leases: &[Lease]) -> Result<(), LeasesError> {
    for lease in leases {
        create_lease(client, namespace, lease).await?;
    }
    Ok(())
}

fn empty_lease(cluster: &str, name: String, kind: &str, epoch: i32) -> Lease {
    Lease {
        metadata: ObjectMeta {
            name: Some(name),
            labels: Some(BTreeMap::from([
                (names::LABEL_CLUSTER.to_owned(), cluster.to_owned()),
                (names::LABEL_LEASE.to_owned(), kind.to_owned()),
            ])),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec { lease_transitions: Some(epoch), ..LeaseSpec::default() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::ResourceExt;

    fn config(yaml: &str) -> Config {
        serde_saphyr::from_str(yaml).unwrap()
    }

    #[test]
    fn every_member_and_group_and_the_view_get_a_lease() {
        let config =
            config("{cluster: lab, coordination: kubernetes, embedded: {partitions: 4, partitionGroups: 2}}");

        let leases = leases_of(&config, &["a".to_owned(), "b".to_owned()], History::Unknown).unwrap();

        let names: Vec<_> = leases.iter().map(ResourceExt::name_any).collect();
        assert_eq!(names, ["lab.member.a", "lab.member.b", "lab.pg.0", "lab.pg.1", "lab.view"]);
        assert!(leases.iter().all(|lease| lease.spec.as_ref().unwrap().lease_transitions == Some(0)));
    }

    #[test]
    fn a_local_broker_is_told_that_it_needs_no_leases() {
        let refused = leases_of(&config("{}"), &["a".to_owned()], History::New);

        assert!(matches!(refused, Err(LeasesError::NoCoordination)));
    }

    #[test]
    fn a_member_whose_name_makes_no_object_name_is_refused() {
        let refused = leases_of(&config("coordination: kubernetes"), &["A.b".to_owned()], History::New);

        assert!(matches!(refused, Err(LeasesError::Member(_))));
    }
}

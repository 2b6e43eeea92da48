//! Leases as they are before any broker has written them.

use super::metadata;
use crate::controller::plan::LeaseToCreate;
use crate::controller::validate::ValidatedCluster;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use tidemill_contract::names;

/// An empty lease. It is owned by the cluster, not by a pod: a lease outlives the pods that hold it.
pub(crate) fn build_lease(cluster: &ValidatedCluster, lease: &LeaseToCreate) -> Lease {
    let mut metadata = metadata(cluster, lease.name.clone());
    metadata.labels.get_or_insert_default().insert(names::LABEL_LEASE.to_owned(), lease.kind.to_owned());
    Lease { metadata, spec: Some(LeaseSpec { lease_transitions: Some(lease.epoch), ..LeaseSpec::default() }) }
}

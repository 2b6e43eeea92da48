//! What the leases of a cluster tell: who is a member, who owns which partition group. Pure, and only for reporting and
//! for not disturbing anybody: the decisions about membership are the brokers' own.

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::ResourceExt;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_contract::names;

/// One member as its lease tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberObservation {
    /// Member epoch; 0 before the first start.
    pub epoch: i32,
    /// The state that the holder wrote; `None` when nobody holds the lease.
    pub state: Option<String>,
}

/// All leases of one cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Membership {
    /// Member leases by member.
    pub members: BTreeMap<String, MemberObservation>,
    /// Owner of each partition group, by group. `None`: nobody.
    pub groups: BTreeMap<u16, Option<String>>,
    /// Names of all leases that exist.
    pub lease_names: BTreeSet<String>,
}

/// State of a holder that wrote none.
const STATE_UNKNOWN: &str = "Unknown";

impl Membership {
    /// Reads the leases of `cluster`. Leases with a foreign name are listed by name only.
    #[must_use]
    pub fn from_leases(cluster: &str, leases: &[Lease]) -> Self {
        let mut membership = Self::default();
        let member_prefix = names::member_lease(cluster, "");
        for lease in leases {
            let name = lease.name_any();
            let spec = lease.spec.clone().unwrap_or_default();
            if let Some(member) = name.strip_prefix(&member_prefix) {
                membership.members.insert(member.to_owned(), observe_member(lease, &spec));
            } else if let Some(group) = group_number(cluster, &name) {
                membership.groups.insert(group, holder(&spec).map(|text| member_of(text).to_owned()));
            }
            membership.lease_names.insert(name);
        }
        membership
    }

    /// Whether `member` owns a partition group.
    #[must_use]
    pub fn owns_any(&self, member: &str) -> bool {
        self.groups.values().any(|owner| owner.as_deref() == Some(member))
    }

    /// Number of partition groups that `member` owns.
    #[must_use]
    pub fn owned_by(&self, member: &str) -> usize {
        self.groups.values().filter(|owner| owner.as_deref() == Some(member)).count()
    }

    /// Whether a living member owns `group`: one that holds its member lease.
    #[must_use]
    pub fn is_owned(&self, group: u16) -> bool {
        self.groups
            .get(&group)
            .and_then(Option::as_ref)
            .and_then(|owner| self.members.get(owner))
            .is_some_and(|owner| owner.state.is_some())
    }
}

fn observe_member(lease: &Lease, spec: &LeaseSpec) -> MemberObservation {
    let written = lease.annotations().get(names::ANNOTATION_STATE).cloned();
    MemberObservation {
        epoch: spec.lease_transitions.unwrap_or_default(),
        state: holder(spec).map(|_| written.unwrap_or_else(|| STATE_UNKNOWN.to_owned())),
    }
}

fn holder(spec: &LeaseSpec) -> Option<&str> {
    spec.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

/// The member that a holder identity names: it stands first, and pod names are letters, digits and hyphens.
fn member_of(holder: &str) -> &str {
    let end = holder.find(|it: char| !(it.is_ascii_alphanumeric() || it == '-')).unwrap_or(holder.len());
    &holder[..end]
}

fn group_number(cluster: &str, lease: &str) -> Option<u16> {
    let group = lease.rsplit_once('.')?.1.parse().ok()?;
    (names::group_lease(cluster, group) == lease).then_some(group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::fixtures::lease;

    #[test]
    fn members_and_owners_are_read_from_the_leases() {
        let leases = [
            lease("demo.member.demo-0", "demo-0_uid_boot_container", 3, Some("Serving")),
            lease("demo.member.demo-1", "", 2, Some("Leaving")),
            lease("demo.pg.0", "demo-0_00000000000000ff_3", 1, None),
            lease("demo.pg.1", "demo-1_00000000000000ff_1", 1, None),
            lease("demo.pg.2", "", 0, None),
            lease("demo.view", "", 0, None),
        ];

        let membership = Membership::from_leases("demo", &leases);

        let serving = MemberObservation { epoch: 3, state: Some("Serving".to_owned()) };
        assert_eq!(membership.members["demo-0"], serving);
        assert_eq!(
            membership.members["demo-1"].state, None,
            "an empty holder is no member, whatever it wrote"
        );
        assert!(membership.is_owned(0));
        assert!(!membership.is_owned(1), "its owner is not a member any more");
        assert!(!membership.is_owned(2));
        assert!(membership.owns_any("demo-1"), "the group lease still names it");
        assert_eq!(membership.owned_by("demo-0"), 1);
        assert_eq!(membership.lease_names.len(), 6);
    }

    #[test]
    fn a_cluster_does_not_read_the_leases_of_another_one() {
        let leases = [lease("demo2.pg.0", "demo2-0", 1, None), lease("demo.pg.x", "demo-0", 1, None)];

        let membership = Membership::from_leases("demo", &leases);

        assert!(membership.groups.is_empty() && membership.members.is_empty());
    }
}

//! `Lease` objects of the API from and to lease contents.

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use tidemill_contract::names;
use tidemill_core::member::MemberId;
use tidemill_core::membership::annotations::{LeaseFields, decode, encode};
use tidemill_core::membership::lease::{LeaseContent, LeaseKey, Observed, ResourceVersion};
use tidemill_core::partition::PartitionGroup;

/// Name of the object `key` of `cluster`.
#[must_use]
pub fn name_of(cluster: &str, key: &LeaseKey) -> String {
    match key {
        LeaseKey::Member(member) => names::member_lease(cluster, member.as_str()),
        LeaseKey::Group(group) => names::group_lease(cluster, group.0),
        LeaseKey::View => names::view_lease(cluster),
    }
}

/// Which lease of `cluster` an object is; `None` for others.
#[must_use]
pub fn key_of(cluster: &str, name: &str) -> Option<LeaseKey> {
    let key = match name.strip_prefix(cluster)?.strip_prefix('.')? {
        "view" => LeaseKey::View,
        rest => match rest.split_once('.')? {
            ("member", member) => LeaseKey::Member(MemberId::new(member)),
            ("pg", number) => LeaseKey::Group(PartitionGroup(number.parse().ok()?)),
            _ => return None,
        },
    };
    // "pg.007" and the like are not what anybody writes.
    (name_of(cluster, &key) == name).then_some(key)
}

/// Version of an object; `None` when the API does not say it as a number.
#[must_use]
pub fn version_of(lease: &Lease) -> Option<ResourceVersion> {
    lease.metadata.resource_version.as_ref()?.parse().ok().map(ResourceVersion)
}

/// Reads an object. `None` for one that is not of this cluster or cannot be read, which is reported.
#[must_use]
pub fn observe(cluster: &str, lease: &Lease) -> Option<Observed> {
    let name = lease.metadata.name.as_deref()?;
    let key = key_of(cluster, name)?;
    let version = version_of(lease)?;
    let spec = lease.spec.as_ref();
    let fields = LeaseFields {
        holder_identity: spec.and_then(|spec| spec.holder_identity.clone()),
        transitions: spec.and_then(|spec| spec.lease_transitions).unwrap_or(0),
        duration_secs: spec.and_then(|spec| spec.lease_duration_seconds),
        annotations: lease.metadata.annotations.clone().unwrap_or_default(),
    };
    match decode(&key, &fields) {
        Ok(content) => Some(Observed { key, version, content }),
        Err(error) => {
            tracing::warn!(lease = name, %error, "a lease cannot be read; going on without it");
            None
        }
    }
}

/// The object as it shall be: `former` with `content`; labels, owners and annotations of others stay.
#[must_use]
pub fn replacement(former: &Lease, content: &LeaseContent) -> Lease {
    let fields = encode(content);
    let mut lease = former.clone();
    lease.metadata.annotations.get_or_insert_default().extend(fields.annotations);
    lease.metadata.managed_fields = None;
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    if spec.holder_identity != fields.holder_identity {
        spec.acquire_time = fields.holder_identity.is_some().then(|| MicroTime(Timestamp::now()));
    }
    spec.holder_identity = fields.holder_identity;
    spec.lease_transitions = Some(fields.transitions);
    spec.lease_duration_seconds = fields.duration_secs;
    // For people with kubectl; brokers never look at it.
    spec.renew_time = Some(MicroTime(Timestamp::now()));
    lease
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_core::member::{Incarnation, Member, MemberEpoch, OwnerEpoch};
    use tidemill_core::membership::lease::{GroupLease, NamedMember};

    #[test]
    fn names_are_read_as_they_are_written_and_nothing_else_is_a_lease_of_the_cluster() {
        for key in
            [LeaseKey::View, LeaseKey::Member(MemberId::new("demo-0")), LeaseKey::Group(PartitionGroup(15))]
        {
            assert_eq!(key_of("demo", &name_of("demo", &key)), Some(key));
        }
        for name in
            ["demo", "demo.view.x", "demo.pg.x", "demo.pg.007", "other.view", "demo2.view", "demo.x.1"]
        {
            assert_eq!(key_of("demo", name), None, "{name}");
        }
    }

    #[test]
    fn a_replacement_keeps_what_others_wrote_and_is_read_again() {
        let mut former = Lease::default();
        former.metadata.name = Some("demo.pg.3".into());
        former.metadata.resource_version = Some("41".into());
        former.metadata.labels = Some([("l".to_owned(), "v".to_owned())].into());
        former.metadata.annotations = Some([("other".to_owned(), "kept".to_owned())].into());
        let holder = NamedMember {
            member: Member { id: MemberId::new("demo-0"), incarnation: Incarnation(7) },
            epoch: MemberEpoch(2),
        };
        let content = LeaseContent::Group(GroupLease { holder: Some(holder), epoch: OwnerEpoch(5) });

        let lease = replacement(&former, &content);

        assert_eq!(lease.metadata.labels, former.metadata.labels);
        assert_eq!(lease.metadata.annotations.as_ref().unwrap()["other"], "kept");
        let observed = observe("demo", &lease).unwrap();
        assert_eq!(observed.version, ResourceVersion(41));
        assert_eq!(observed.content, content);
    }
}

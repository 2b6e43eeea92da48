//! What starts a pass: changes that matter, and not the renewals of leases, of which there are many per second.

use futures::{Stream, StreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use kube::runtime::watcher::{self, Event};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use tidemill_contract::names;

/// Leases that were deleted, or whose holder, epoch or state changed since they were last seen here.
#[derive(Debug, Default)]
pub struct LeaseChanges {
    /// Digest of each lease by namespace and name. Bounded by the number of leases: deleted ones are removed.
    seen: HashMap<(Option<String>, String), u64>,
}

impl LeaseChanges {
    /// Takes a watch event and answers the lease if a pass should look at it. Order of events is kept.
    pub fn handle_event(&mut self, event: Event<Lease>) -> Option<Lease> {
        match event {
            Event::Apply(lease) | Event::InitApply(lease) => {
                let digest = digest(&lease);
                (self.seen.insert(key(&lease), digest) != Some(digest)).then_some(lease)
            }
            Event::Delete(lease) => {
                self.seen.remove(&key(&lease));
                Some(lease)
            }
            // A lease that vanished during a gap in the watch is found by the next periodic pass.
            Event::Init | Event::InitDone => None,
        }
    }
}

/// The leases of `events` that a pass should look at.
pub fn lease_changes(
    events: impl Stream<Item = Result<Event<Lease>, watcher::Error>> + Send + 'static,
) -> impl Stream<Item = Result<Lease, watcher::Error>> + Send + 'static {
    let mut changes = LeaseChanges::default();
    events.filter_map(move |event| {
        let changed = match event {
            Ok(event) => changes.handle_event(event).map(Ok),
            Err(error) => Some(Err(error)),
        };
        std::future::ready(changed)
    })
}

fn key(lease: &Lease) -> (Option<String>, String) {
    (lease.namespace(), lease.name_any())
}

fn digest(lease: &Lease) -> u64 {
    let mut hasher = DefaultHasher::new();
    if let Some(spec) = &lease.spec {
        spec.holder_identity.hash(&mut hasher);
        spec.lease_transitions.hash(&mut hasher);
    }
    lease.annotations().get(names::ANNOTATION_STATE).hash(&mut hasher);
    lease.metadata.uid.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::fixtures::lease;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

    fn renewed(second: i64) -> Lease {
        let mut lease = lease("demo.member.demo-0", "demo-0_u_b_c", 1, Some("Serving"));
        let at = k8s_openapi::jiff::Timestamp::from_second(second).unwrap();
        lease.spec.as_mut().unwrap().renew_time = Some(MicroTime(at));
        lease.metadata.resource_version = Some(second.to_string());
        lease
    }

    #[test]
    fn a_renewal_starts_no_pass() {
        let mut changes = LeaseChanges::default();

        assert!(changes.handle_event(Event::Apply(renewed(1))).is_some(), "the first sight is a change");
        assert!(changes.handle_event(Event::Apply(renewed(2))).is_none());
        assert!(changes.handle_event(Event::InitApply(renewed(3))).is_none(), "nor does a repeated list");
    }

    #[test]
    fn another_holder_epoch_or_state_starts_a_pass() {
        let mut changes = LeaseChanges::default();
        changes.handle_event(Event::Apply(lease("demo.pg.0", "demo-0", 1, Some("Joining"))));

        for changed in [
            lease("demo.pg.0", "demo-0", 1, Some("Serving")),
            lease("demo.pg.0", "demo-0", 2, Some("Serving")),
            lease("demo.pg.0", "", 2, Some("Serving")),
        ] {
            assert!(changes.handle_event(Event::Apply(changed)).is_some());
        }
    }

    #[test]
    fn a_deleted_lease_starts_a_pass_that_makes_it_again() {
        let mut changes = LeaseChanges::default();
        changes.handle_event(Event::Apply(renewed(1)));

        assert!(changes.handle_event(Event::Delete(renewed(1))).is_some());
        assert!(changes.handle_event(Event::Apply(renewed(1))).is_some());
    }
}

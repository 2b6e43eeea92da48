//! Membership and ownership by leases, against a real Kubernetes API: `TIDEMILL_E2E_KUBECONFIG` names it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "leases/world.rs"]
mod world;

use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::wait::await_condition;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidemill_broker::cluster::Coordination;
use tidemill_contract::names;
use tidemill_core::member::{MemberEpoch, OwnerEpoch};
use tidemill_core::membership::lease::{GroupLease, LeaseContent, MemberLease};
use tidemill_core::membership::timings::Timings;
use tidemill_core::partition::PartitionGroup;
use tokio::time::timeout;
use world::{CLUSTER, GROUPS, Leases, Member, Owned, PATIENCE, Pods, timings};

/// Groups and epochs of all members together; none may be owned twice.
fn all_owned(members: &[&Member]) -> Owned {
    let mut all = BTreeMap::new();
    for member in members {
        for (group, epoch) in member.owned() {
            assert!(all.insert(group, epoch).is_none(), "group {group:?} has two owners");
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn members_share_the_groups_and_those_of_a_dead_or_leaving_one_go_to_the_others() {
    let leases = Leases::create(&["a", "b", "c"]).await;
    let (a, b, c) = (leases.start("a"), leases.start("b"), leases.start("c"));

    for member in [&a, &b, &c] {
        member.owns(2).await;
        assert!(member.coordination.validity().is_valid());
    }
    let view = a.sees("all are serving", |view| {
        view.members.len() == 3 && view.members.values().all(|info| info.serving)
    });
    assert_eq!(view.await.members[&b.id].endpoint, "b.example:7883");
    let before = all_owned(&[&a, &b, &c]);
    assert_eq!(before.len(), usize::from(GROUPS));
    let lease = leases.get("demo.member.a").await;
    assert_eq!(lease.metadata.annotations.unwrap()["of-others"], "kept");
    assert_eq!(lease.metadata.labels.unwrap()[names::LABEL_CLUSTER], CLUSTER);

    let groups_of_c: BTreeSet<_> = c.owned().into_keys().collect();
    let (_, epoch_of_c) = leases.member("c").await;
    c.die().await;
    a.owns(3).await;
    b.owns(3).await;
    let (holder, epoch) = leases.member("c").await;
    assert_eq!((holder, epoch), (None, epoch_of_c + 1), "the expiry was written");
    let after_death = all_owned(&[&a, &b]);
    for (group, epoch) in &after_death {
        if groups_of_c.contains(group) {
            assert!(epoch > &before[group], "{group:?} changed its owner");
        }
    }

    let groups_of_b: BTreeSet<_> = b.owned().into_keys().collect();
    let (_, epoch_of_b) = leases.member("b").await;
    b.coordination.leave().await;
    let (holder, epoch) = leases.member("b").await;
    assert_eq!(holder, None, "the lease was released");
    assert!(epoch >= epoch_of_b);
    assert!(!b.coordination.validity().is_valid());
    assert!(b.owned().is_empty());
    a.owns(6).await;
    let after_leave = a.owned();
    assert!(groups_of_b.iter().all(|group| after_leave[group] > after_death[group]));
    a.sees("it is alone", |view| view.members.len() == 1).await;
    a.coordination.leave().await;
    b.die().await;
    a.die().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_others_expired_ends_and_a_new_start_joins_with_a_higher_epoch() {
    let leases = Leases::create(&["a"]).await;
    let a = leases.start("a");
    a.owns(usize::from(GROUPS)).await;
    let before = a.sees("it has joined", |view| view.own_epoch.0 > 0).await;
    let epochs = a.owned();

    leases.expire("a").await;

    let reason = timeout(PATIENCE, a.coordination.ended()).await.expect("it ends");
    assert!(reason.contains("Expired"), "{reason}");
    assert!(!a.coordination.validity().is_valid());
    a.die().await;

    let again = leases.start("a");
    again.owns(usize::from(GROUPS)).await;
    let after = again.sees("it has joined", |view| view.own_epoch.0 > 0).await;
    assert!(after.own_epoch > before.own_epoch);
    assert_ne!(after.own.incarnation, before.own.incarnation);
    assert!(again.owned().iter().all(|(group, epoch)| epoch > &epochs[group]));
    again.coordination.leave().await;
    again.die().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminated_container_proves_the_death_of_its_member_without_any_wait() {
    let leases = Leases::create(&["a", "c"]).await;
    // Objects that were used before, so that nobody waits to see whether they are new.
    for group in 0..GROUPS {
        let released = GroupLease { holder: None, epoch: OwnerEpoch(1) };
        leases.write(&names::group_lease(CLUSTER, group), &LeaseContent::Group(released)).await;
    }
    for member in ["a", "c"] {
        let vacant = MemberLease::vacant(MemberEpoch(1));
        leases.write(&names::member_lease(CLUSTER, member), &LeaseContent::Member(vacant)).await;
    }
    let pods = Pods::create(&leases, &["a", "c"]).await;
    let started = k8s_openapi::jiff::Timestamp::now();
    pods.report("c", "containerd://1", serde_json::json!({"running": {"startedAt": started}})).await;
    // Without a proof nothing of this would end in time.
    let timings = Timings { duration: Duration::from_secs(3_600), ..timings() };
    let a = leases.start_at("a", pods.place("a").await, timings);
    let c = leases.start_at("c", pods.place("c").await, timings);
    a.owns(3).await;
    c.owns(3).await;
    let is_named = |lease: Option<&Lease>| {
        let annotations = lease.and_then(|lease| lease.metadata.annotations.as_ref());
        annotations.is_some_and(|annotations| annotations["tidemill.dev/container"] == "containerd://1")
    };
    let named = await_condition(leases.api.clone(), "demo.member.c", is_named);
    timeout(PATIENCE, named).await.expect("the lease names the container").unwrap();

    c.die().await;
    let ended = serde_json::json!({
        "running": null, "terminated": {"exitCode": 137, "containerID": "containerd://1"},
    });
    pods.report("c", "containerd://1", ended).await;

    a.owns(6).await;
    assert_eq!(leases.member("c").await.0, None, "the expiry was written");
    a.coordination.leave().await;
    a.die().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_its_owner_lost_is_given_back_and_claimed_anew() {
    let leases = Leases::create(&["a"]).await;
    let a = leases.start("a");
    a.owns(usize::from(GROUPS)).await;
    let before = a.owned();

    a.owned.send_modify(|owned| {
        owned.remove(&PartitionGroup(2));
    });
    a.coordination.group_lost(PartitionGroup(2));

    a.owns(usize::from(GROUPS)).await;
    assert!(a.owned()[&PartitionGroup(2)] > before[&PartitionGroup(2)]);
    a.coordination.leave().await;
    a.die().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_epoch_that_the_owner_raised_is_written_into_the_lease() {
    let leases = Leases::create(&["a"]).await;
    let a = leases.start("a");
    a.owns(usize::from(GROUPS)).await;

    a.coordination.raise_epoch(PartitionGroup(3), OwnerEpoch(1_000));

    a.sees("the epoch is raised", |view| {
        view.owners[3].as_ref().is_some_and(|owner| owner.epoch == OwnerEpoch(1_000))
    })
    .await;
    let written =
        async { while leases.get("demo.pg.3").await.spec.unwrap().lease_transitions != Some(1_000) {} };
    timeout(PATIENCE, written).await.expect("the lease carries the epoch");
    a.coordination.leave().await;
    a.die().await;
}

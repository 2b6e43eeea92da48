//! Routes between brokers, and the gates of SUBACK.

use super::network::{Authority, Wire};
use super::node::{TestNode, acquaint, durable, filter, info, live, live_key, member, three};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tidemill_broker::cluster::{DurableGate, RouteChange, RouteExchange};
use tidemill_core::member::{MemberId, OwnerEpoch};
use tidemill_core::partition::Partition;

const LONG: Duration = Duration::from_secs(50);

#[tokio::test(flavor = "multi_thread")]
async fn a_live_route_reaches_every_peer_and_goes_again() {
    let nodes = three(LONG).await;

    nodes[0].node.exchange().announce_live(vec![live("x/+")]).await;
    for node in &nodes[1..] {
        let expected = BTreeSet::from([live_key("x/+")]);
        node.until("live route", |seen| seen.live.get(&MemberId::new("a")) == Some(&expected)).await;
    }

    let RouteChange::Add(route) = live("x/+") else { panic!("not an addition") };
    nodes[0].node.exchange().announce_live(vec![RouteChange::Remove(route)]).await;
    nodes[1].until("route gone", |seen| seen.live[&MemberId::new("a")].is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_durable_gate_opens_when_every_member_has_the_route() {
    let nodes = three(LONG).await;
    nodes[0].node.exchange().set_partition_routes(Partition(2), OwnerEpoch(5), vec![filter("old")]);

    nodes[0].node.exchange().announce_durable(vec![durable(2, "new")]).await.unwrap();

    let expected = BTreeSet::from([filter("new"), filter("old")]);
    for node in &nodes {
        let seen = node.seen();
        assert_eq!(seen.durable.get(&Partition(2)), Some(&expected), "at {}", node.member.id);
        assert!(!seen.unknown.contains(&Partition(2)));
        assert!(seen.unknown.contains(&Partition(1)), "nobody spoke for it");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_durable_gate_closes_when_a_member_is_cut_off_and_names_it() {
    let nodes = three(Duration::from_secs(1)).await;
    nodes[0].node.exchange().set_partition_routes(Partition(0), OwnerEpoch(1), vec![]);
    nodes[2].proxy.set(Wire::Cut);
    nodes[0].linked_to(&["b"]).await;

    let closed = nodes[0].node.exchange().announce_durable(vec![durable(0, "f")]).await.unwrap_err();

    assert_eq!(closed.missing, vec![MemberId::new("c")]);
    nodes[0].node.exchange().announce_live(vec![live("l")]).await;
    nodes[1].until("live route", |seen| seen.live.contains_key(&MemberId::new("a"))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_durable_gate_is_as_long_as_the_cluster_is_large_when_it_begins() {
    let authority = Authority::new();
    // As leases last longer in larger clusters.
    let gate: DurableGate = Arc::new(|view| match view.members.len() {
        0..=1 => LONG,
        _ => Duration::from_millis(100),
    });
    let a = TestNode::start_with(&authority, member("a", 1), Arc::clone(&gate)).await;
    let b = TestNode::start_with(&authority, member("b", 1), gate).await;
    acquaint(&[&a]);
    a.node.exchange().set_partition_routes(Partition(0), OwnerEpoch(1), vec![]);
    assert_eq!(a.node.exchange().durable_gate(), LONG);

    let unknown = info(&b);
    a.see(|view| drop(view.members.insert(unknown.member.id.clone(), unknown)));
    let closed = a.node.exchange().announce_durable(vec![durable(0, "new")]).await;

    assert_eq!(closed.unwrap_err().missing, vec![MemberId::new("b")]);
    assert_eq!(a.node.exchange().durable_gate(), Duration::from_millis(100));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_durable_gate_does_not_wait_for_a_member_that_expires() {
    let nodes = three(LONG).await;
    nodes[0].node.exchange().set_partition_routes(Partition(0), OwnerEpoch(1), vec![]);
    nodes[2].proxy.set(Wire::Cut);
    nodes[0].linked_to(&["b"]).await;
    let gate = nodes[0].node.exchange().announce_durable(vec![durable(0, "f")]);

    nodes[0].see(|view| drop(view.members.remove(&MemberId::new("c"))));

    gate.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_that_all_members_have_needs_no_peer_again() {
    let nodes = three(Duration::from_secs(1)).await;
    nodes[0].node.exchange().set_partition_routes(Partition(0), OwnerEpoch(1), vec![]);
    nodes[0].node.exchange().announce_durable(vec![durable(0, "f")]).await.unwrap();
    nodes[2].proxy.set(Wire::Cut);
    nodes[0].linked_to(&["b"]).await;

    nodes[0].node.exchange().announce_durable(vec![durable(0, "f")]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_link_brings_all_routes_again_and_durable_routes_outlive_their_owner() {
    let nodes = three(LONG).await;
    nodes[0].node.exchange().announce_live(vec![live("x")]).await;
    nodes[0].node.exchange().set_partition_routes(Partition(1), OwnerEpoch(3), vec![filter("d")]);
    nodes[1].until("durable route", |seen| seen.durable.contains_key(&Partition(1))).await;
    nodes[1].proxy.set(Wire::Cut);
    nodes[1].linked_to(&["c"]).await;
    nodes[0].node.exchange().announce_live(vec![live("y")]).await;

    nodes[1].proxy.set(Wire::Open);

    let expected = BTreeSet::from([live_key("x"), live_key("y")]);
    nodes[1].until("both live routes", |seen| seen.live[&MemberId::new("a")] == expected).await;
    nodes[1].see(|view| drop(view.members.remove(&MemberId::new("a"))));
    let seen = nodes[1].until("live routes gone", |seen| !seen.live.contains_key(&MemberId::new("a"))).await;
    assert_eq!(seen.durable[&Partition(1)], BTreeSet::from([filter("d")]));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_with_an_older_epoch_is_not_listened_to() {
    let nodes = three(LONG).await;
    nodes[1].node.exchange().set_partition_routes(Partition(1), OwnerEpoch(4), vec![filter("new")]);
    nodes[2].until("the new owner", |seen| seen.durable.contains_key(&Partition(1))).await;

    nodes[0].node.exchange().set_partition_routes(Partition(1), OwnerEpoch(3), vec![filter("stale")]);
    nodes[0].node.exchange().announce_live(vec![live("after")]).await;

    let seen = nodes[2].until("what came after", |seen| !seen.live[&MemberId::new("a")].is_empty()).await;
    assert_eq!(seen.durable[&Partition(1)], BTreeSet::from([filter("new")]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_joiner_is_ready_only_with_the_routes_of_all_serving_members() {
    let authority = Authority::new();
    let (a, b) = (
        TestNode::start(&authority, member("a", 1), LONG).await,
        TestNode::start(&authority, member("b", 1), LONG).await,
    );
    a.node.exchange().announce_live(vec![live("x")]).await;
    b.proxy.set(Wire::Cut);
    let mut ready = b.node.exchange().has_all_routes();
    b.see(|view| {
        view.members = [info(&a), info(&b)].map(|info| (info.member.id.clone(), info)).into();
    });
    assert!(!*ready.borrow_and_update());

    acquaint(&[&a, &b]);
    b.proxy.set(Wire::Open);
    ready.wait_for(|ready| *ready).await.unwrap();

    assert_eq!(b.seen().live[&MemberId::new("a")], BTreeSet::from([live_key("x")]));
    a.stop().await;
    b.stop().await;
}

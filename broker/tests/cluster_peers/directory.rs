//! Hosts and owners on different brokers.

use super::network::Wire;
use super::node::{TestNode, give_group, member, record, three};
use std::time::Duration;
use tidemill_broker::owner::{HostSide, OwnerSide};
use tidemill_core::attach::{
    Acked, AttachRequest, Attachment, ConnectionEpoch, Deliver, DeliveriesDone, Delivery, Detach,
    ExactlyOnceRequest, OwnerError, QueueId, Release, SessionLifetime, SessionNumber, StoredSubscription,
    SubscribeRequest, WillOutcome,
};
use tidemill_core::member::{MemberId, OwnerEpoch};
use tidemill_core::packet::{PacketId, QoS, ReasonCode, RetainHandling, SubscriptionOptions, Version};
use tidemill_core::partition::{Offset, Partition, PartitionGroup, QueueKind};
use tidemill_core::session::in_flight::{InFlight, Intent};
use tidemill_core::topic::SubscriptionTarget;

const LONG: Duration = Duration::from_secs(50);
const CONNECTION: ConnectionEpoch = ConnectionEpoch { owner: OwnerEpoch(1), counter: 77 };

fn request(host: &TestNode) -> AttachRequest {
    AttachRequest {
        client_id: "client".into(),
        host: host.member.clone(),
        version: Version::V3_1_1,
        clean_start: false,
        lifetime: SessionLifetime::Persistent { expiry_secs: 60 },
        window: 100,
        user: None,
        will: None,
    }
}

fn queue() -> QueueId {
    QueueId { kind: QueueKind::Session, name: "client".into(), number: SessionNumber::new(OwnerEpoch(1), 1) }
}

fn finished(finished: Vec<Offset>) -> DeliveriesDone {
    DeliveriesDone { finished, ..DeliveriesDone::default() }
}

fn acked(offset: u64) -> Acked {
    Acked { queue: queue(), partition: Partition(0), connection: CONNECTION, done: finished(vec![offset]) }
}

fn subscription(filter: &str) -> StoredSubscription {
    let options = SubscriptionOptions {
        qos: QoS::AtLeastOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    };
    StoredSubscription {
        target: SubscriptionTarget::Filter(super::node::filter(filter)),
        options,
        identifier: None,
    }
}

fn subscribe(subscriptions: Vec<StoredSubscription>) -> SubscribeRequest {
    SubscribeRequest { client_id: "client".into(), connection: CONNECTION, subscriptions }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_attached_and_subscribed_at_the_owner_wherever_it_is() {
    let nodes = three(LONG).await;
    give_group(&nodes.each_ref(), &nodes[1].member, 1);

    for host in &nodes {
        let grant = host.node.directory().attach(request(host)).await.unwrap();
        assert_eq!(grant.session, SessionNumber::new(OwnerEpoch(1), 1));
    }

    assert_eq!(nodes[1].seen().attached, nodes.iter().map(request).collect::<Vec<_>>());
    let subscribe = subscribe(vec![subscription("a/+")]);
    let reasons = nodes[2].node.directory().subscribe(subscribe.clone()).await.unwrap();
    assert_eq!(reasons, vec![ReasonCode(1)]);
    assert_eq!(nodes[1].seen().subscribed, vec![subscribe]);
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_subscriptions_as_a_session_may_have_pass_a_link_both_ways() {
    let nodes = three(LONG).await;
    give_group(&nodes.each_ref(), &nodes[1].member, 1);
    let many: Vec<_> =
        (0..10_000).map(|number| subscription(&format!("{}/{number}", "f".repeat(150)))).collect();
    *nodes[1].around.stored.lock() = many.clone();

    let grant = nodes[0].node.directory().attach(request(&nodes[0])).await.unwrap();
    let reasons = nodes[0].node.directory().subscribe(subscribe(many.clone())).await.unwrap();

    assert!(grant.subscriptions == many, "all of them, in order");
    assert_eq!(reasons, vec![ReasonCode(1); many.len()]);
    let seen = nodes[1].seen();
    assert_eq!((seen.attached.len(), seen.subscribed.len()), (1, 1), "nothing was asked again");
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledgements_of_a_full_window_pass_a_link() {
    let nodes = three(LONG).await;
    give_group(&nodes.each_ref(), &nodes[1].member, 1);
    let offsets: Vec<_> = (0..200_000).map(|number| u64::MAX - number).collect();

    nodes[0].node.directory().acked(Acked { done: finished(offsets.clone()), ..acked(0) });

    let count = |acked: &[Acked]| acked.iter().map(|acked| acked.done.finished.len()).sum::<usize>();
    let seen = nodes[1].until("all of them", |seen| count(&seen.acked) == offsets.len()).await;
    assert!(seen.acked.iter().flat_map(|acked| acked.done.finished.iter().copied()).eq(offsets), "in order");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owners_refusal_comes_back_as_it_is() {
    let nodes = three(LONG).await;
    give_group(&nodes.each_ref(), &nodes[1].member, 1);
    *nodes[1].around.refuses.lock() = Some(OwnerError::NotAuthorized);

    let refused = nodes[0].node.directory().attach(request(&nodes[0])).await;

    assert_eq!(refused, Err(OwnerError::NotAuthorized));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_does_not_serve_yet_is_asked_again() {
    let nodes = three(LONG).await;
    give_group(&nodes.each_ref(), &nodes[1].member, 1);
    *nodes[1].around.refuses.lock() = Some(OwnerError::Unavailable);
    let directory = nodes[0].node.directory().clone();
    let attaching = tokio::spawn(directory.attach(request(&nodes[0])));
    nodes[1].until("the first question", |seen| !seen.attached.is_empty()).await;

    *nodes[1].around.refuses.lock() = None;

    attaching.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attach_waits_for_an_owner_and_follows_it_when_it_changes() {
    let nodes = three(LONG).await;
    let directory = nodes[0].node.directory().clone();
    let attaching = tokio::spawn(directory.attach(request(&nodes[0])));
    // The host believes in an owner that does not believe in itself, until the view moves on.
    give_group(&[&nodes[0]], &nodes[1].member, 1);
    nodes[0].linked_to(&["b", "c"]).await;

    give_group(&nodes.each_ref(), &nodes[2].member, 2);

    attaching.await.unwrap().unwrap();
    assert_eq!(nodes[2].seen().attached.len(), 1);
    assert!(nodes[1].seen().attached.is_empty());
}

fn detach_in_flight() -> Detach {
    let in_flight = InFlight { received: vec![PacketId::MIN], ..InFlight::default() };
    Detach {
        client_id: "client".into(),
        connection: CONNECTION,
        session_expiry_secs: None,
        in_flight: Some(Box::new(in_flight)),
        will: WillOutcome::Due { in_ms: 30_000, is_brokers_own: true },
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_acknowledgements_and_detach_keep_their_order_between_brokers() {
    let nodes = three(LONG).await;
    give_group(&nodes.each_ref(), &nodes[1].member, 1);
    let (record, _) = record("payload", QoS::AtLeastOnce);
    let deliver = |offset| Deliver {
        queue: queue(),
        partition: Partition(0),
        connection: CONNECTION,
        deliveries: vec![Delivery {
            offset,
            qos: QoS::AtLeastOnce,
            retain: false,
            redelivery: false,
            identifiers: vec![],
            packet_id: None,
            record: record.clone(),
        }],
    };
    let detach = detach_in_flight();

    for offset in 0..50 {
        nodes[1].node.directory().deliver(&nodes[0].member, deliver(offset));
        nodes[0].node.directory().acked(acked(offset));
    }
    nodes[0].node.directory().detach(detach.clone());

    let at_host = nodes[0].until("deliveries", |seen| seen.delivered.len() == 50).await;
    assert_eq!(at_host.delivered, (0..50).map(deliver).collect::<Vec<_>>());
    let at_owner = nodes[1].until("detach", |seen| !seen.detached.is_empty()).await;
    assert_eq!(at_owner.acked, (0..50).map(acked).collect::<Vec<_>>());
    assert_eq!(at_owner.detached, vec![detach]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_closes_the_connection_at_its_host_and_does_not_wait_for_a_dead_one() {
    let nodes = three(LONG).await;

    nodes[1].node.directory().take_over(&nodes[0].member, "client", CONNECTION).await;
    nodes[1].node.directory().take_over(&member("c", 99), "client", CONNECTION).await;

    assert_eq!(nodes[0].seen().taken_over, vec![("client".to_owned(), CONNECTION)]);
    assert!(nodes[2].seen().taken_over.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_taken_over_connection_had_in_flight_is_at_the_owner_before_the_answer_that_it_is_closed() {
    let nodes = three(LONG).await;
    give_group(&nodes.each_ref(), &nodes[1].member, 1);
    nodes[0].around.closes_slowly.send_replace(true);
    let take_over = nodes[1].node.directory().take_over(&nodes[0].member, "client", CONNECTION);
    let taking_over = tokio::spawn(take_over);
    nodes[0].until("takeover", |seen| !seen.taken_over.is_empty()).await;

    nodes[0].node.directory().detach(detach_in_flight());
    nodes[0].around.closes_slowly.send_replace(false);
    taking_over.await.unwrap();

    assert_eq!(nodes[1].seen().detached, vec![detach_in_flight()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_host_tells_a_new_owner_its_attachments_once_even_if_it_has_none() {
    let nodes = three(LONG).await;
    let attachment = Attachment {
        request: request(&nodes[0]),
        session: SessionNumber::new(OwnerEpoch(1), 1),
        connection: CONNECTION,
        done: vec![3],
        in_flight: vec![4, 5],
    };
    *nodes[0].around.attachments.lock() = vec![attachment.clone()];

    give_group(&nodes.each_ref(), &nodes[1].member, 2);

    let seen = nodes[1].until("all hosts", |seen| seen.reattached.len() == 3).await;
    for host in &nodes {
        let count = usize::from(host.member.id == MemberId::new("a"));
        assert!(seen.reattached.contains(&(host.member.clone(), PartitionGroup(0), count)));
    }
    let outcomes = nodes[0].until("outcome", |seen| !seen.outcomes.is_empty()).await.outcomes;
    assert_eq!(outcomes[0].attachment, attachment);
    assert!(outcomes[0].result.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn attachments_are_told_again_over_a_new_link_to_the_same_owner() {
    let nodes = three(LONG).await;
    give_group(&nodes.each_ref(), &nodes[1].member, 2);
    nodes[1].until("all hosts", |seen| seen.reattached.len() == 3).await;

    nodes[1].proxy.set(Wire::Cut);
    nodes[0].linked_to(&["c"]).await;
    nodes[1].proxy.set(Wire::Open);

    nodes[1].until("host a again", |seen| seen.reattached.len() == 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_link_tells_the_owner_which_connections_this_host_could_still_have() {
    let nodes = three(LONG).await;
    give_group(&nodes.each_ref(), &nodes[1].member, 2);
    nodes[1].until("all hosts", |seen| seen.reattached.len() == 3).await;
    assert!(nodes[1].seen().words.iter().all(|word| word.granted.is_none()), "nobody was let in yet");
    let grant = nodes[0].node.directory().attach(request(&nodes[0])).await.unwrap();
    let many: Vec<_> = (0..2_000).map(|number| format!("attaching client number {number}").into()).collect();
    nodes[0].around.attaching.lock().clone_from(&many);

    nodes[1].proxy.set(Wire::Cut);
    nodes[0].linked_to(&["c"]).await;
    nodes[1].proxy.set(Wire::Open);

    let seen =
        nodes[1].until("host a again", |seen| seen.words.iter().any(|word| !word.attaching.is_empty())).await;
    let word = seen.words.last().unwrap();
    assert_eq!(word.granted, Some(grant.connection));
    assert!(word.attaching == many, "all parts of it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_comes_after_its_client_has_given_up_is_given_back() {
    let nodes = three(LONG).await;
    give_group(&nodes.each_ref(), &nodes[1].member, 1);
    nodes[1].around.answers_attaches.send_replace(false);
    let attaching = tokio::spawn(nodes[0].node.directory().attach(request(&nodes[0])));
    nodes[1].until("the question", |seen| !seen.attached.is_empty()).await;
    attaching.abort();
    assert!(attaching.await.unwrap_err().is_cancelled());

    nodes[1].around.answers_attaches.send_replace(true);

    let seen = nodes[1].until("detach", |seen| !seen.detached.is_empty()).await;
    assert_eq!(seen.detached[0].client_id, "client");
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_of_qos_2_are_stored_by_an_owner_elsewhere_and_released_at_the_host() {
    let nodes = three(LONG).await;
    give_group(&nodes.each_ref(), &nodes[1].member, 1);
    let id = |number| PacketId::new(number).unwrap();
    let request = ExactlyOnceRequest {
        client_id: "client".into(),
        connection: CONNECTION,
        intents: vec![Intent { packet_id: id(7), unique_id: u128::MAX - 7, found: 1 << 63 }],
        releases: vec![id(8), id(9)],
    };
    let release =
        Release { queue: queue(), connection: CONNECTION, packet_ids: vec![id(0x8001), id(0x8000)] };

    let stored = nodes[0].node.directory().store_exactly_once(request.clone()).await;
    nodes[1].node.directory().release(&nodes[0].member, release.clone());

    assert_eq!(stored, Ok(()));
    assert_eq!(nodes[1].seen().stored, [request]);
    let seen = nodes[0].until("the release", |seen| !seen.released.is_empty()).await;
    assert_eq!(seen.released, [release]);
}

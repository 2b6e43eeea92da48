//! Messages to peers: acknowledged when taken, never lost in silence, never in the way of control.

use super::network::Wire;
use super::node::{TestNode, durable, member, record, three};
use std::sync::Arc;
use std::time::Duration;
use tidemill_broker::cluster::{ForwardDone, Forwarder, RouteExchange};
use tidemill_core::member::{MemberId, OwnerEpoch};
use tidemill_core::packet::QoS;
use tidemill_core::partition::Partition;
use tokio::sync::oneshot;
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(50);

/// Forwards one message at QoS 1; the receiver hears when it counts as done.
fn forward(from: &TestNode, to: &TestNode, payload: &str) -> oneshot::Receiver<()> {
    let (sender, receiver) = oneshot::channel();
    let done: ForwardDone = Box::new(move || {
        let _ = sender.send(());
    });
    let (record, encoded) = record(payload.to_owned(), QoS::AtLeastOnce);
    from.node.forwards().forward(&to.member.id, &record, &encoded, Some(done));
    receiver
}

async fn done(receiver: oneshot::Receiver<()>) {
    timeout(LONG, receiver).await.expect("done in time").expect("called");
}

#[tokio::test(flavor = "multi_thread")]
async fn forwards_arrive_in_order_and_are_done_when_the_peer_took_them() {
    let [a, b, _c] = three(LONG).await;

    let receivers: Vec<_> = (0..100).map(|number| forward(&a, &b, &number.to_string())).collect();
    for receiver in receivers {
        done(receiver).await;
    }

    let expected: Vec<_> = (0..100).map(|number| number.to_string()).collect();
    assert_eq!(b.seen().forwarded, expected);
    assert!(b.seen().gaps.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forward_is_not_done_before_it_is_in_the_mailboxes_and_others_pass_meanwhile() {
    let [a, b, _c] = three(LONG).await;
    *b.around.takes_forwards.lock() = false;
    let mut first = forward(&a, &b, "slow");
    b.until("the slow one", |seen| seen.forwarded.len() == 1).await;
    *b.around.takes_forwards.lock() = true;

    let (record, encoded) = record("fast", QoS::AtMostOnce);
    a.node.forwards().forward(&b.member.id, &record, &encoded, None);
    b.until("the fast one", |seen| seen.forwarded.len() == 2).await;
    assert!(first.try_recv().is_err(), "the first is in no mailbox yet");

    b.around.kept.lock().drain(..).for_each(|taken| taken());
    done(first).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_link_releases_the_publisher_and_the_receiver_finds_the_gap_when_it_is_back() {
    let [a, b, _c] = three(LONG).await;
    done(forward(&a, &b, "before")).await;
    b.proxy.set(Wire::Cut);
    a.linked_to(&["c"]).await;

    done(forward(&a, &b, "lost")).await;
    b.proxy.set(Wire::Open);

    let seen = b.until("gap", |seen| !seen.gaps.is_empty()).await;
    assert_eq!(seen.gaps, vec![a.member.clone()]);
    done(forward(&a, &b, "after")).await;
    assert_eq!(b.seen().forwarded, vec!["before", "after"]);
    assert_eq!(b.seen().gaps.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_link_that_lost_nothing_is_no_gap() {
    let [a, b, _c] = three(LONG).await;
    done(forward(&a, &b, "before")).await;
    b.proxy.set(Wire::Cut);
    a.linked_to(&["c"]).await;

    b.proxy.set(Wire::Open);
    a.linked_to(&["b", "c"]).await;

    done(forward(&a, &b, "after")).await;
    assert!(b.seen().gaps.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_takes_nothing_has_its_link_broken_and_is_linked_again() {
    let [a, b, _c] = three(LONG).await;
    *b.around.takes_forwards.lock() = false;

    done(forward(&a, &b, "stuck")).await;

    a.linked_to(&["b", "c"]).await;
    *b.around.takes_forwards.lock() = true;
    done(forward(&a, &b, "after")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_that_gave_a_forward_up_and_expires_is_a_gap() {
    let [a, b, c] = three(LONG).await;
    b.proxy.set(Wire::DataStalled);
    done(forward(&a, &b, "never arrives")).await;
    b.linked_to(&["c"]).await;
    b.see(|view| drop(view.members.remove(&MemberId::new("a"))));

    let seen = b.until("gap", |seen| !seen.gaps.is_empty()).await;

    assert_eq!(seen.gaps, vec![a.member.clone()]);
    assert!(seen.forwarded.is_empty());
    assert!(c.seen().gaps.is_empty(), "others are not concerned");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_data_lane_does_not_block_the_control_lane() {
    let [a, b, _c] = three(LONG).await;
    a.node.exchange().set_partition_routes(Partition(0), OwnerEpoch(1), vec![]);
    b.proxy.set(Wire::DataStalled);
    let (record, encoded) = record(vec![b'x'; 1 << 20], QoS::AtMostOnce);
    // More than the credit and the queue for QoS 0 hold; what is too much is dropped, not waited for.
    for _ in 0..16 {
        a.node.forwards().forward(&b.member.id, &record, &encoded, None);
    }

    a.node.exchange().announce_durable(vec![durable(0, "f")]).await.unwrap();

    assert!(b.seen().durable.contains_key(&Partition(0)));
    assert!(b.seen().forwarded.len() < 16);
    b.proxy.set(Wire::Open);
    done(forward(&a, &b, "after")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_large_messages_both_ways_never_block_each_other() {
    let [a, b, _c] = three(LONG).await;
    let payload = "y".repeat(200_000);
    let (a, b) = (Arc::new(a), Arc::new(b));
    let senders = [(Arc::clone(&a), Arc::clone(&b)), (b, a)].map(|(from, to)| {
        let payload = payload.clone();
        tokio::spawn(async move {
            let receivers: Vec<_> = (0..200).map(|_| forward(&from, &to, &payload)).collect();
            for receiver in receivers {
                done(receiver).await;
            }
            assert_eq!(to.seen().forwarded.len(), 200);
            assert!(to.seen().gaps.is_empty());
        })
    });

    for sender in senders {
        sender.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forward_to_a_member_that_was_never_linked_is_done_at_once() {
    let [a, _b, _c] = three(LONG).await;
    let (sender, receiver) = oneshot::channel();
    let (record, encoded) = record("x", QoS::AtLeastOnce);
    let done_at_once: ForwardDone = Box::new(move || {
        let _ = sender.send(());
    });

    a.node.forwards().forward(&member("nobody", 1).id, &record, &encoded, Some(done_at_once));

    done(receiver).await;
}

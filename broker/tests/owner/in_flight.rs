//! What a session has in flight goes from one connection to the next.

use super::parts::host;
use super::values::request;
use super::world::{Client, World, within};
use tidemill_core::attach::{AttachRequest, SessionLifetime};
use tidemill_core::packet::{PacketId, QoS};
use tidemill_core::session::in_flight::{InFlight, OutgoingInFlight, SentFromQueue};

fn id(number: u16) -> PacketId {
    PacketId::new(number).unwrap()
}

/// As a host tells it: one publish received, one delivery released, and `queue` sent.
fn in_flight(queue: Vec<SentFromQueue>) -> InFlight {
    let outgoing = OutgoingInFlight { next_id: id(10), queue, live: Vec::new(), released: vec![id(8)] };
    InFlight { received: vec![id(3)], outgoing, ..InFlight::default() }
}

fn granted(client: &Client) -> Option<InFlight> {
    client.grant.in_flight.as_deref().cloned()
}

#[tokio::test]
async fn what_was_in_flight_comes_back_with_the_next_grant_but_for_what_is_done() {
    let world = World::new().await;
    let client = world.subscriber("c", "a").await;
    assert_eq!(granted(&client), None);
    for text in ["1", "2", "3"] {
        world.publish_text("a", text).await;
    }
    let offsets: Vec<_> = world.deliveries(&client, 3).await.iter().map(|one| one.offset).collect();
    world.ack(&client, vec![offsets[1]]);
    let sent = |offset, number| SentFromQueue { offset, packet_id: id(number), qos: QoS::ExactlyOnce };
    let queue = vec![sent(offsets[0], 5), sent(offsets[1], 6), sent(offsets[2], 7)];
    world.report_in_flight(&client, in_flight(queue));

    let client = world.attach(request("c")).await.unwrap();

    let queue = vec![sent(offsets[0], 5), sent(offsets[2], 7)];
    assert_eq!(granted(&client), Some(in_flight(queue)));
    let again: Vec<_> = world.deliveries(&client, 2).await.iter().map(|one| one.offset).collect();
    assert_eq!(again, [offsets[0], offsets[2]]);
    world.report_in_flight(&client, InFlight::default());
    let client = world.attach(request("c")).await.unwrap();
    assert_eq!(granted(&client), None, "everything was completed");
}

#[tokio::test]
async fn what_a_taken_over_connection_had_in_flight_is_granted_to_its_successor() {
    let world = World::new().await;
    let old = world.attach(request("c")).await.unwrap();
    world.hosts.closes.send_replace(false);
    let attach = tokio::spawn(world.owner_attach(AttachRequest { host: host(2), ..request("c") }));
    world.until(|| !world.hosts.taken_over().is_empty()).await;

    world.report_in_flight(&old, in_flight(Vec::new()));
    world.hosts.closes.send_replace(true);

    let new = within(attach).await.unwrap().unwrap();
    assert_eq!(new.in_flight.as_deref(), Some(&in_flight(Vec::new())));
}

#[tokio::test]
async fn a_connection_that_never_began_leaves_what_it_was_granted() {
    let world = World::new().await;
    let client = world.attach(request("c")).await.unwrap();
    world.report_in_flight(&client, in_flight(Vec::new()));
    let never_begun = world.attach(request("c")).await.unwrap();

    // Its host has nothing to close, and may say so later.
    let next = world.attach(request("c")).await.unwrap();
    assert_eq!(granted(&next), Some(in_flight(Vec::new())));
    world.report_detach(&never_begun);
    world.report_detach(&next);

    assert_eq!(granted(&world.attach(request("c")).await.unwrap()), Some(in_flight(Vec::new())));
}

#[tokio::test]
async fn what_nobody_can_tell_any_more_is_not_granted() {
    let world = World::new().await;
    let client = world.attach(request("c")).await.unwrap();
    world.report_in_flight(&client, in_flight(Vec::new()));
    world.attach(request("c")).await.unwrap();
    world.around.dead.lock().push(host(1));

    let next = world.attach(AttachRequest { host: host(2), ..request("c") }).await.unwrap();

    assert!(next.grant.session_present);
    assert_eq!(granted(&next), None, "its host died with it");
}

#[tokio::test]
async fn what_is_in_flight_ends_with_the_session() {
    let world = World::new().await;
    let client = world.attach(request("c")).await.unwrap();
    world.report_in_flight(&client, in_flight(Vec::new()));

    let anew = world.attach(AttachRequest { clean_start: true, ..request("c") }).await.unwrap();
    assert_eq!((anew.grant.session_present, granted(&anew)), (false, None));
    // The old connection's word comes late, and is about another session.
    world.report_in_flight(&client, in_flight(Vec::new()));
    world.report_detach(&anew);
    let resumed = world.attach(request("c")).await.unwrap();
    assert_eq!((resumed.grant.session_present, granted(&resumed)), (true, None));

    world.report_in_flight(&resumed, in_flight(Vec::new()));
    let last = AttachRequest { lifetime: SessionLifetime::Clean, ..request("c") };
    let last = world.attach(last).await.unwrap();
    assert_eq!(granted(&last), Some(in_flight(Vec::new())), "a last connection completes what was begun");
    world.detach(&last).await;
    assert!(!world.attach(request("c")).await.unwrap().grant.session_present);
}

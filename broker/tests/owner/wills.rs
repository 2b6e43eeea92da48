//! Wills over the death of host and owner together.

use super::values::request;
use super::world::{Client, World};
use bytes::Bytes;
use std::sync::atomic::Ordering;
use tidemill_broker::owner::parts::RestoredWill;
use tidemill_core::attach::{AttachRequest, Detach, SessionLifetime, WillOutcome, WillOver};
use tidemill_core::packet::{QoS, Will};
use tidemill_core::topic::TopicName;

fn will(qos: QoS) -> Will {
    Will {
        topic: TopicName::parse("w").unwrap(),
        payload: Bytes::from_static(b"gone"),
        qos,
        retain: false,
        delay_secs: 5,
        properties: None,
    }
}

fn with_will(client_id: &str, qos: QoS, lifetime: SessionLifetime) -> AttachRequest {
    AttachRequest { will: Some(Box::new(will(qos))), lifetime, ..request(client_id) }
}

fn name(client: &Client) -> WillOver {
    let (session, connection) = (client.grant.session, client.grant.connection);
    WillOver { client_id: client.id.clone(), session, connection }
}

/// The wills that a new owner hands over, in the order of clients.
fn restored(world: &World) -> Vec<RestoredWill> {
    let mut wills = world.around.wills.lock().clone();
    wills.sort_unstable_by_key(|will| will.name.client_id.clone());
    wills
}

fn end(world: &World, client: &Client, will: WillOutcome) {
    world.report(Detach {
        client_id: client.id.clone(),
        connection: client.grant.connection,
        session_expiry_secs: None,
        in_flight: None,
        will,
    });
}

const PERSISTENT: SessionLifetime = SessionLifetime::Persistent { expiry_secs: 3_600 };

#[tokio::test]
async fn the_wills_of_connections_that_died_with_their_broker_are_published_by_the_next_one() {
    let world = World::new().await;
    let session = world.attach(with_will("a", QoS::AtMostOnce, PERSISTENT)).await.unwrap();
    let clean = with_will("b", QoS::AtLeastOnce, SessionLifetime::Clean);
    let clean = world.attach(clean).await.unwrap();
    let forgotten = with_will("c", QoS::AtMostOnce, SessionLifetime::Clean);
    world.attach(forgotten).await.unwrap();
    world.stored().await;

    let world = world.crash(2).await;
    world.until(|| world.around.wills.lock().len() >= 2).await;

    let expected = |client: &Client, qos, session_expiry_secs| RestoredWill {
        name: name(client),
        will: will(qos),
        session_expiry_secs,
        due_in_ms: None,
        is_brokers_own: true,
    };
    let both = [expected(&session, QoS::AtMostOnce, 3_600), expected(&clean, QoS::AtLeastOnce, 0)];
    assert_eq!(restored(&world), both, "at QoS 0 and without a session nothing is kept");
    // Once it is over it does not come again.
    for will in &both {
        world.owner_will_over(will.name.clone());
    }
    world.stored().await;
    world.around.wills.lock().clear();
    let world = world.crash(3).await;
    world.attach(request("d")).await.unwrap();
    assert_eq!(restored(&world), []);
}

#[tokio::test]
async fn a_delay_that_runs_goes_on_and_what_was_published_is_not_kept() {
    let world = World::new().await;
    world.around.now_ms.store(100_000, Ordering::SeqCst);
    let waiting = world.attach(with_will("a", QoS::AtLeastOnce, PERSISTENT)).await.unwrap();
    let published = world.attach(with_will("b", QoS::AtLeastOnce, PERSISTENT)).await.unwrap();
    let normal = world.attach(with_will("c", QoS::AtLeastOnce, SessionLifetime::Clean)).await.unwrap();
    end(&world, &waiting, WillOutcome::Due { in_ms: 5_000, is_brokers_own: false });
    end(&world, &published, WillOutcome::Over);
    end(&world, &normal, WillOutcome::Over);
    world.stored().await;

    world.around.now_ms.store(102_000, Ordering::SeqCst);
    let world = world.crash(2).await;
    world.until(|| !world.around.wills.lock().is_empty()).await;

    let restored = restored(&world);
    assert_eq!(restored.iter().map(|will| &will.name).collect::<Vec<_>>(), [&name(&waiting)]);
    assert_eq!((restored[0].due_in_ms, restored[0].is_brokers_own), (Some(3_000), false));
}

#[tokio::test]
async fn a_new_connection_has_its_own_will_and_a_late_word_about_the_former_changes_nothing() {
    let world = World::new().await;
    let first = world.attach(with_will("a", QoS::AtLeastOnce, PERSISTENT)).await.unwrap();
    end(&world, &first, WillOutcome::Due { in_ms: 5_000, is_brokers_own: false });
    let second = world.attach(with_will("a", QoS::ExactlyOnce, PERSISTENT)).await.unwrap();
    world.owner_will_over(name(&first));
    world.stored().await;

    let world = world.crash(2).await;
    world.until(|| !world.around.wills.lock().is_empty()).await;

    let restored = restored(&world);
    assert_eq!(restored.iter().map(|will| &will.name).collect::<Vec<_>>(), [&name(&second)]);
}

//! Who is let in, and what becomes of sessions.

use super::parts::host;
use super::values::{options, payloads, request, subscription};
use super::world::{World, within};
use std::sync::atomic::Ordering;
use tidemill_core::attach::{AttachRequest, Detach, OwnerError, SessionLifetime, WillOutcome};
use tidemill_core::packet::QoS;
use tidemill_core::state::key::StateKey;

fn clean(client_id: &str) -> AttachRequest {
    AttachRequest { clean_start: true, lifetime: SessionLifetime::Clean, ..request(client_id) }
}

#[tokio::test]
async fn a_new_connection_is_granted_only_when_the_old_one_is_closed() {
    let world = World::new().await;
    let old = world.attach(clean("c")).await.unwrap();
    world.hosts.closes.send_replace(false);

    let attach = tokio::spawn(world.owner_attach(AttachRequest { host: host(2), ..clean("c") }));
    world.until(|| !world.hosts.taken_over().is_empty()).await;
    assert!(!attach.is_finished());
    world.hosts.closes.send_replace(true);

    let new = within(attach).await.unwrap().unwrap();
    assert!(new.connection > old.grant.connection && new.session > old.grant.session);
    assert_eq!(world.hosts.taken_over(), [(old.id.clone(), old.grant.connection)]);
}

#[tokio::test]
async fn of_many_connections_at_once_one_is_left() {
    let world = World::new().await;

    let attaches: Vec<_> = (0..8).map(|_| tokio::spawn(world.owner_attach(request("c")))).collect();
    let mut granted = Vec::new();
    for attach in attaches {
        granted.push(within(attach).await.unwrap().unwrap().connection);
    }
    granted.sort();
    let newest = granted.pop().unwrap();

    let mut taken_over: Vec<_> =
        world.hosts.taken_over().into_iter().map(|(_, connection)| connection).collect();
    taken_over.sort();
    assert_eq!(taken_over, granted);
    assert!(taken_over.iter().all(|connection| *connection < newest));
}

#[tokio::test]
async fn clean_start_discards_the_session_its_messages_and_its_state() {
    let world = World::new().await;
    let old = world.subscriber("c", "a").await;
    world.detach(&old).await;
    world.publish_text("a", "for the old session").await;

    let new = world.attach(AttachRequest { clean_start: true, ..request("c") }).await.unwrap();

    assert!(!new.grant.session_present && new.grant.subscriptions.is_empty());
    assert!(new.grant.session > old.grant.session);
    assert!(world.routes.filters().is_empty());
    world.subscribe(&new, vec![subscription("a", options(QoS::AtLeastOnce))]).await.unwrap();
    world.publish_text("a", "for the new one").await;
    assert_eq!(payloads(&world.deliveries(&new, 1).await), ["for the new one"]);
    for entry in world.state().await {
        match StateKey::decode(entry.key).unwrap() {
            StateKey::Subscription { queue, .. } | StateKey::Cursor { queue } | StateKey::Meta { queue } => {
                assert_eq!(queue.number, new.grant.session);
            }
            StateKey::Owner { .. } => {}
            key @ (StateKey::Parked { .. }
            | StateKey::SessionOut { .. }
            | StateKey::PublisherIn { .. }
            | StateKey::Will { .. }
            | StateKey::WillDue { .. }
            | StateKey::RetainedDue { .. }) => panic!("{key:?}"),
        }
    }
}

/// MQTT-3.1.2-4: a client that was told that its session is new must not find the old one later.
#[tokio::test]
async fn a_discarded_session_does_not_come_back_when_the_owner_dies_right_after_the_grant() {
    let world = World::new().await;
    let old = world.subscriber("c", "a").await;
    world.detach(&old).await;
    world.stored().await;

    world.attach(clean("c")).await.unwrap();
    let world = world.crash(2).await;

    assert!(!world.attach(request("c")).await.unwrap().grant.session_present);
}

#[tokio::test]
async fn a_clean_session_leaves_nothing_in_the_state() {
    let world = World::new().await;
    let client = world.attach(clean("c")).await.unwrap();
    world.detach(&client).await;
    world.stop().await;

    let keys: Vec<_> =
        world.state().await.into_iter().map(|entry| StateKey::decode(entry.key).unwrap()).collect();

    assert!(keys.iter().all(|key| matches!(key, StateKey::Owner { .. })), "{keys:?}");
}

#[tokio::test]
async fn a_session_belongs_to_its_user() {
    let world = World::new().await;
    let of = |user: &str| AttachRequest { user: Some(user.into()), ..request("c") };
    let client = world.attach(of("anna")).await.unwrap();

    assert_eq!(world.attach(of("ben")).await.err(), Some(OwnerError::NotAuthorized));
    world.detach(&client).await;
    assert_eq!(world.attach(of("ben")).await.err(), Some(OwnerError::NotAuthorized));

    assert!(world.attach(of("anna")).await.unwrap().grant.session_present);
}

#[tokio::test]
async fn a_session_is_resumed_before_its_deadline_and_gone_after_it_also_over_a_restart() {
    let world = World::new().await;
    let hour = 3_600_000;
    let client = world.subscriber("c", "a").await;
    world.detach(&client).await;
    world.stored().await;

    world.around.now_ms.store(hour - 1, Ordering::SeqCst);
    let world = world.crash(2).await;
    let client = world.attach(request("c")).await.unwrap();
    assert!(client.grant.session_present);
    world.detach(&client).await;
    world.stored().await;

    world.around.now_ms.store(2 * hour - 1, Ordering::SeqCst);
    let world = world.crash(3).await;
    let client = world.attach(request("c")).await.unwrap();
    assert!(!client.grant.session_present);
    assert!(world.routes.filters().is_empty());
}

#[tokio::test]
async fn expired_sessions_are_swept_with_their_state_and_routes() {
    let world = World::new().await;
    for number in 0..300 {
        let client = world.subscriber(&number.to_string(), &format!("a/{number}")).await;
        world.detach(&client).await;
    }

    world.around.now_ms.store(3_600_000, Ordering::SeqCst);
    world.until(|| world.metrics.sessions.get() == 0).await;

    assert_eq!(world.metrics.expired_sessions.get(), 300);
    assert!(world.routes.filters().is_empty());
    world.stop().await;
    assert_eq!(world.state().await.len(), 2, "the owner's keys of two partitions");
}

#[tokio::test]
async fn a_disconnect_may_change_the_expiry() {
    let world = World::new().await;
    let client = world.attach(request("c")).await.unwrap();
    let (client_id, connection) = (client.id.clone(), client.grant.connection);
    tidemill_broker::owner::OwnerSide::detach(
        world.owner.as_ref(),
        Detach {
            client_id,
            connection,
            session_expiry_secs: Some(0),
            in_flight: None,
            will: WillOutcome::Over,
        },
    );

    assert!(!world.attach(request("c")).await.unwrap().grant.session_present);
}

#[tokio::test]
async fn the_end_of_an_old_connection_does_not_touch_the_new_one() {
    let world = World::new().await;
    let old = world.subscriber("c", "a").await;
    let new = world.attach(request("c")).await.unwrap();

    world.report_detach(&old);
    world.publish_text("a", "m").await;

    assert_eq!(payloads(&world.deliveries(&new, 1).await), ["m"]);
}

#[tokio::test]
async fn a_resumed_session_tells_its_subscriptions() {
    let world = World::new().await;
    let client = world.subscriber("c", "b").await;
    let zero = subscription("a", options(QoS::AtMostOnce));
    world.subscribe(&client, vec![zero.clone()]).await.unwrap();

    let world = world.crash(2).await;
    let client = world.attach(request("c")).await.unwrap();

    assert_eq!(client.grant.subscriptions, [zero, subscription("b", options(QoS::AtLeastOnce))]);
    assert_eq!(world.routes.filters(), ["b"], "QoS 0 takes the live path");
}

#[tokio::test]
async fn clean_clients_are_let_in_while_the_state_is_away_and_persistent_ones_wait_for_it() {
    let world =
        World::on(World::new().await.log.clone(), std::sync::Arc::default(), std::sync::Arc::default());
    world.log.make_unreadable();
    world.start(2).await;

    let clean_client = world.attach(clean("clean")).await.unwrap();
    let persistent = tokio::spawn(world.owner_attach(request("persistent")));
    assert!(!clean_client.grant.session_present);
    assert!(!persistent.is_finished());
    world.log.make_readable();

    assert!(!within(persistent).await.unwrap().unwrap().session_present);
}

#[tokio::test]
async fn groups_that_are_not_owned_answer_at_once() {
    let world = World::new().await;
    world.stop().await;

    assert_eq!(world.attach(request("c")).await.err(), Some(OwnerError::Unavailable));
}

#[tokio::test]
async fn a_connection_whose_host_is_dead_is_gone() {
    let world = World::new().await;
    let client = world.subscriber("c", "a").await;
    world.around.dead.lock().push(host(1));

    world.until(|| world.metrics.attached.get() == 0).await;
    world.publish_text("a", "m").await;
    world.around.dead.lock().clear();

    let client = world.attach(AttachRequest { host: host(2), ..request(&client.id) }).await.unwrap();
    assert_eq!(payloads(&world.deliveries(&client, 1).await), ["m"]);
}

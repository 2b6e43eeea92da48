//! Deadlines of sessions, by the clock of the test.

use super::values::{payloads, request};
use super::world::{Client, World};
use std::sync::atomic::Ordering;

/// When a session of [`request`] ends that is left at 0.
const DEADLINE_MS: u64 = 3_600_000;

/// A subscriber that has left at 0, for whom a message waits; all of it stored.
async fn left(world: &World) -> Client {
    let client = world.subscriber("c", "a").await;
    world.detach(&client).await;
    world.publish_text("a", "waiting").await;
    world.stored().await;
    client
}

#[tokio::test]
async fn a_session_is_resumed_with_its_messages_until_its_expiry_and_not_from_then_on() {
    for (now_ms, is_present) in [
        (DEADLINE_MS - 1_000, true),
        (DEADLINE_MS - 1, true),
        (DEADLINE_MS, false),
        (DEADLINE_MS + 1_000, false),
    ] {
        let world = World::new().await;
        let former = left(&world).await;

        world.around.now_ms.store(now_ms, Ordering::SeqCst);
        let client = world.attach(request("c")).await.unwrap();

        assert_eq!(client.grant.session_present, is_present, "at {now_ms}");
        if is_present {
            assert_eq!(client.grant.session, former.grant.session);
            assert_eq!(payloads(&world.deliveries(&client, 1).await), ["waiting"]);
        } else {
            assert!(client.grant.session > former.grant.session);
            assert!(world.routes.filters().is_empty(), "nothing is appended for it any more");
        }
    }
}

#[tokio::test]
async fn a_resumed_session_has_its_whole_expiry_again_when_it_is_left() {
    let world = World::new().await;
    left(&world).await;
    world.around.now_ms.store(DEADLINE_MS - 1_000, Ordering::SeqCst);
    let client = world.attach(request("c")).await.unwrap();
    world.deliveries(&client, 1).await;

    world.around.now_ms.store(DEADLINE_MS + 5_000, Ordering::SeqCst);
    world.detach(&client).await;
    world.around.now_ms.store(2 * DEADLINE_MS + 4_000, Ordering::SeqCst);

    let client = world.attach(request("c")).await.unwrap();
    assert!(client.grant.session_present, "1 s before the new deadline");
    assert_eq!(payloads(&world.deliveries(&client, 1).await), ["waiting"]);
}

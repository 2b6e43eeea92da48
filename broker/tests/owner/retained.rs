//! Who has not got all retained messages gets them, whatever died meanwhile.

use super::parts::NOTHING_RETAINED;
use super::values::{options, request, subscription};
use super::world::{Client, World};
use tidemill_core::attach::{AttachRequest, DeliveriesDone};
use tidemill_core::packet::{QoS, RetainHandling, SubscriptionOptions};
use tidemill_core::retained::Position;
use tidemill_core::session::in_flight::{InFlight, RetainedDue, RetainedFrom};
use tidemill_core::state::key::StateKey;
use tidemill_core::topic::TopicFilter;

fn filter(text: &str) -> TopicFilter {
    TopicFilter::parse(text).unwrap()
}

fn due(text: &str, from: RetainedFrom) -> RetainedDue {
    RetainedDue { filter: filter(text), from }
}

async fn subscribe(world: &World, client: &Client, text: &str, qos: QoS, retain_handling: RetainHandling) {
    let options = SubscriptionOptions { retain_handling, ..options(qos) };
    assert!(!world.subscribe(client, vec![subscription(text, options)]).await.unwrap()[0].is_failure());
}

fn granted(client: &Client) -> Vec<RetainedDue> {
    client.grant.in_flight.as_ref().map(|in_flight| in_flight.retained.clone()).unwrap_or_default()
}

async fn stored_filters(world: &World) -> Vec<String> {
    let keys = world.state().await.into_iter().map(|entry| StateKey::decode(entry.key).unwrap());
    let filters = keys.filter_map(|key| {
        let StateKey::RetainedDue { filter, .. } = key else { return None };
        Some(filter.to_string())
    });
    filters.collect()
}

#[tokio::test]
async fn a_subscription_at_qos_1_begins_anew_after_a_crash_until_its_client_has_everything() {
    let world = World::new().await;
    let client = world.attach(request("c")).await.unwrap();
    subscribe(&world, &client, "one", QoS::AtLeastOnce, RetainHandling::Send).await;
    subscribe(&world, &client, "two/#", QoS::AtLeastOnce, RetainHandling::SendIfNew).await;
    for (text, qos) in [("zero", QoS::AtMostOnce), ("exact", QoS::ExactlyOnce)] {
        subscribe(&world, &client, text, qos, RetainHandling::Send).await;
    }
    subscribe(&world, &client, "never", QoS::AtLeastOnce, RetainHandling::DoNotSend).await;
    subscribe(&world, &client, NOTHING_RETAINED, QoS::AtLeastOnce, RetainHandling::Send).await;

    let world = world.crash(2).await;
    let client = world.attach(request("c")).await.unwrap();
    assert_eq!(granted(&client), [due("one", RetainedFrom::Start), due("two/#", RetainedFrom::Start)]);

    world.report_done(
        &client,
        DeliveriesDone { retained: vec![filter("one"), filter("exact")], ..DeliveriesDone::default() },
    );
    // It is not new, so nothing is due of it again.
    subscribe(&world, &client, "never", QoS::AtLeastOnce, RetainHandling::SendIfNew).await;
    let world = world.crash(3).await;
    let client = world.attach(request("c")).await.unwrap();
    assert_eq!(granted(&client), [due("two/#", RetainedFrom::Start)]);

    subscribe(&world, &client, "one", QoS::AtLeastOnce, RetainHandling::Send).await;
    assert_eq!(world.unsubscribe(&client, "two/#").await.unwrap().len(), 1);
    let world = world.crash(4).await;
    let client = world.attach(request("c")).await.unwrap();
    assert_eq!(granted(&client), [due("one", RetainedFrom::Start)]);

    // What is left at QoS 2 goes on at QoS 1.
    subscribe(&world, &client, "exact", QoS::AtLeastOnce, RetainHandling::SendIfNew).await;
    subscribe(&world, &client, "one", QoS::ExactlyOnce, RetainHandling::DoNotSend).await;
    let world = world.crash(5).await;
    let client = world.attach(request("c")).await.unwrap();
    assert_eq!(granted(&client), [due("exact", RetainedFrom::Start)]);

    let retained = vec![filter("exact")];
    world.report_done(&client, DeliveriesDone { retained, ..DeliveriesDone::default() });
    world.stored().await;
    let world = world.crash(6).await;
    assert_eq!(granted(&world.attach(request("c")).await.unwrap()), []);
    assert_eq!(stored_filters(&world).await, [""; 0]);
}

#[tokio::test]
async fn the_next_connection_goes_on_where_the_last_one_was_if_the_owner_lives() {
    let world = World::new().await;
    let client = world.attach(request("c")).await.unwrap();
    subscribe(&world, &client, "one", QoS::AtLeastOnce, RetainHandling::Send).await;
    subscribe(&world, &client, "two", QoS::AtLeastOnce, RetainHandling::Send).await;
    subscribe(&world, &client, "exact", QoS::ExactlyOnce, RetainHandling::Send).await;
    let told = vec![
        due("one", RetainedFrom::Sent),
        due("exact", RetainedFrom::Position(Position::from_text("exact/7"))),
    ];
    world.report_in_flight(&client, InFlight { retained: told.clone(), ..InFlight::default() });

    let client = world.attach(request("c")).await.unwrap();

    // Of the other one the host had not heard: its SUBACK was not sent.
    let all = [told[0].clone(), told[1].clone(), due("two", RetainedFrom::Start)];
    assert_eq!(granted(&client), all);
}

#[tokio::test]
async fn what_a_former_connection_reports_is_not_believed_and_a_session_leaves_nothing() {
    let world = World::new().await;
    let former = world.attach(request("c")).await.unwrap();
    subscribe(&world, &former, "one", QoS::AtLeastOnce, RetainHandling::Send).await;
    let client = world.attach(request("c")).await.unwrap();

    world.report_done(&former, DeliveriesDone { retained: vec![filter("one")], ..DeliveriesDone::default() });
    world.detach(&client).await;
    world.stored().await;
    let world = world.crash(2).await;
    assert_eq!(granted(&world.attach(request("c")).await.unwrap()), [due("one", RetainedFrom::Start)]);

    let client = world.attach(AttachRequest { clean_start: true, ..request("c") }).await.unwrap();
    assert_eq!((granted(&client), stored_filters(&world).await), (Vec::new(), Vec::new()));
}

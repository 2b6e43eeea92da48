//! QoS 2 of persistent sessions over the death of host and owner together.

use super::values::{message, options, request, subscription};
use super::world::{Client, World, record, within};
use std::sync::Arc;
use tidemill_broker::log::Log;
use tidemill_broker::log::state::{CommitOutcome, State, StateWrite};
use tidemill_core::attach::{ConnectionEpoch, OwnerError};
use tidemill_core::message::Message;
use tidemill_core::packet::{PacketId, QoS};
use tidemill_core::partition::{PartitionGroup, QueueKind};
use tidemill_core::session::exactly_once::OWNER_IDS_FROM;
use tidemill_core::session::in_flight::{InFlight, Intent, SentFromQueue};
use tidemill_core::state::key::StateKey;
use tidemill_core::state::value::SessionOut;
use tokio::sync::oneshot;

fn id(number: u16) -> PacketId {
    PacketId::new(number).unwrap()
}

fn granted(client: &Client) -> InFlight {
    client.grant.in_flight.as_deref().cloned().unwrap_or_default()
}

fn exactly_once(topic: &str, payload: &str) -> Message {
    Message { qos: QoS::ExactlyOnce, ..message(topic, payload) }
}

async fn subscriber(world: &World, client_id: &str) -> Client {
    let client = world.attach(request(client_id)).await.unwrap();
    let granted = world.subscribe(&client, vec![subscription("t", options(QoS::ExactlyOnce))]).await;
    assert_eq!(granted.unwrap()[0].0, 2);
    client
}

impl World {
    /// As a router that publishes under a unique id that was stored.
    async fn append_known(&self, message: Message, unique_id: u128) {
        for partition in self.routes.partitions(&message.topic) {
            let (done, is_done) = oneshot::channel();
            let build = &mut |_| {
                let mut record = record(message.clone());
                record.unique_id = Some(unique_id);
                record.encode()
            };
            self.log.append(partition, build, Box::new(move |result| drop(done.send(result))));
            within(is_done).await.unwrap().unwrap();
        }
    }
}

#[tokio::test]
async fn a_delivery_goes_out_with_a_packet_id_that_is_stored_and_keeps_it_over_a_crash() {
    let world = World::new().await;
    let client = subscriber(&world, "c").await;
    for payload in ["1", "2"] {
        world.publish(exactly_once("t", payload)).await;
    }
    let first = world.deliveries(&client, 2).await;
    let ids: Vec<_> = first.iter().map(|delivery| delivery.packet_id).collect();
    assert_eq!(ids, [Some(id(OWNER_IDS_FROM)), Some(id(OWNER_IDS_FROM + 1))]);

    let world = world.crash(2).await;
    let client = world.attach(request("c")).await.unwrap();

    let sent = first.iter().map(|delivery| SentFromQueue {
        offset: delivery.offset,
        packet_id: delivery.packet_id.unwrap(),
        qos: QoS::ExactlyOnce,
    });
    assert_eq!(granted(&client).outgoing.queue, sent.collect::<Vec<_>>());
    let again = world.deliveries(&client, 2).await;
    assert_eq!(again.iter().map(|delivery| delivery.packet_id).collect::<Vec<_>>(), ids);
}

#[tokio::test]
async fn pubrel_is_asked_for_when_pubrec_is_stored_and_again_after_a_crash_until_pubcomp() {
    let world = World::new().await;
    let client = subscriber(&world, "c").await;
    for payload in ["1", "2", "3"] {
        world.publish(exactly_once("t", payload)).await;
    }
    let offsets: Vec<_> = world.deliveries(&client, 3).await.iter().map(|one| one.offset).collect();
    let ids = [0, 1, 2].map(|number| id(OWNER_IDS_FROM + number));

    world.step(&client, vec![offsets[1], offsets[0]], Vec::new());
    let released = |world: &World, connection: ConnectionEpoch| world.hosts.released("c", connection);
    world.until(|| released(&world, client.grant.connection).len() == 2).await;
    assert_eq!(released(&world, client.grant.connection), [ids[1], ids[0]], "in the order of PUBREC");
    world.step(&client, Vec::new(), vec![ids[1]]);
    world.stored().await;
    let world = world.crash(2).await;
    let client = world.attach(request("c")).await.unwrap();

    assert_eq!(granted(&client).outgoing.released, [ids[0]], "and the other one is complete");
    let again = world.deliveries(&client, 1).await;
    assert_eq!(again.iter().map(|one| one.offset).collect::<Vec<_>>(), [offsets[2]]);
    // What is complete leaves nothing behind.
    world.step(&client, vec![offsets[2]], vec![ids[0]]);
    world.until(|| !released(&world, client.grant.connection).is_empty()).await;
    world.step(&client, Vec::new(), vec![ids[2]]);
    world.stored().await;
    let world = world.crash(3).await;
    let in_flight = granted(&world.attach(request("c")).await.unwrap());
    assert!(in_flight.outgoing.released.is_empty() && in_flight.outgoing.queue.is_empty());
}

#[tokio::test]
async fn a_publish_that_was_under_way_is_looked_for_in_the_log_and_forgotten_if_it_is_nowhere() {
    let world = World::new().await;
    subscriber(&world, "receiver").await;
    let publisher = world.attach(request("p")).await.unwrap();
    let intents = [(1, 11), (2, 22), (3, 33)];
    let intents =
        intents.map(|(number, unique_id)| Intent { packet_id: id(number), unique_id, found: 0 }).to_vec();
    world.store_exactly_once(&publisher, intents, Vec::new()).await.unwrap();
    world.append_known(exactly_once("t", "1"), 11).await;
    world.append_known(exactly_once("t", "3"), 33).await;
    world.store_exactly_once(&publisher, Vec::new(), vec![id(3)]).await.unwrap();

    let world = world.crash(2).await;
    let publisher = world.attach(request("p")).await.unwrap();

    // Its repeat goes to the partitions that do not have it: there may have been several.
    let known = granted(&publisher);
    let found = 1 << world.partitioning.partition_of(QueueKind::Session, "receiver").0;
    assert_eq!(known.intents, [Intent { packet_id: id(1), unique_id: 11, found }]);
    assert!(known.received.is_empty(), "nobody knows whether it was in all that it is for");
    world.store_exactly_once(&publisher, Vec::new(), vec![id(1)]).await.unwrap();
    let world = world.crash(3).await;
    let publisher = world.attach(request("p")).await.unwrap();
    assert!(granted(&publisher).received.is_empty() && granted(&publisher).intents.is_empty());
}

#[tokio::test]
async fn what_the_host_knows_of_a_publish_holds_over_a_reconnect_and_a_crash() {
    let world = World::new().await;
    let publisher = world.attach(request("p")).await.unwrap();
    let intents = [(1, 11), (2, 22)];
    let intents =
        intents.map(|(number, unique_id)| Intent { packet_id: id(number), unique_id, found: 0 }).to_vec();
    world.store_exactly_once(&publisher, intents.clone(), Vec::new()).await.unwrap();
    world.report_in_flight(&publisher, InFlight { received: vec![id(2)], ..InFlight::default() });

    let publisher = world.attach(request("p")).await.unwrap();
    assert_eq!((granted(&publisher).received, granted(&publisher).intents), (vec![id(2)], intents.clone()));
    world.stored().await;
    let world = world.crash(2).await;
    let publisher = world.attach(request("p")).await.unwrap();
    assert_eq!(granted(&publisher).received, [id(2)], "of the other one nothing is in the log");
    assert_eq!(granted(&publisher).intents, intents[1..]);
}

/// Its records may be trimmed by then: only what is stored tells that it was published.
#[tokio::test]
async fn a_publish_whose_host_said_that_it_is_in_the_log_is_known_after_a_crash_whatever_the_log_has() {
    let world = World::new().await;
    let publisher = world.attach(request("p")).await.unwrap();
    let intent = Intent { packet_id: id(1), unique_id: 11, found: 0 };
    world.store_exactly_once(&publisher, vec![intent], Vec::new()).await.unwrap();

    let settled = Intent { found: u64::MAX, ..intent };
    world.store_exactly_once(&publisher, vec![settled], Vec::new()).await.unwrap();

    let world = world.crash(2).await;
    let publisher = world.attach(request("p")).await.unwrap();
    assert_eq!(granted(&publisher).received, [id(1)], "its repeat is not published");
    world.store_exactly_once(&publisher, Vec::new(), vec![id(1)]).await.unwrap();
    let world = world.crash(3).await;
    let publisher = world.attach(request("p")).await.unwrap();
    let InFlight { received, intents, .. } = granted(&publisher);
    assert_eq!((received, intents), (Vec::new(), Vec::new()), "PUBREL ends it");
}

#[tokio::test]
async fn exchanges_end_with_their_session_and_only_the_present_connection_has_a_word() {
    let world = World::new().await;
    let client = subscriber(&world, "c").await;
    world.publish(exactly_once("t", "1")).await;
    world.deliveries(&client, 1).await;
    let intent = vec![Intent { packet_id: id(1), unique_id: 11, found: 0 }];
    world.store_exactly_once(&client, intent.clone(), Vec::new()).await.unwrap();

    let anew = tidemill_core::attach::AttachRequest { clean_start: true, ..request("c") };
    let anew = world.attach(anew).await.unwrap();

    assert_eq!(granted(&anew), InFlight::default());
    assert_eq!(world.store_exactly_once(&client, intent, Vec::new()).await, Err(OwnerError::TakenOver));
    world.stored().await;
    let kinds = [5_u8, 6];
    let left = world.state().await.into_iter().filter(|entry| kinds.contains(&entry.key[1])).count();
    assert_eq!(left, 0, "no key of an exchange is left");
}

/// The cursor of a session may be stored after the packet id of what it was handed.
#[tokio::test]
async fn an_offset_that_only_an_exchange_names_is_known_too() {
    let world = World::new().await;
    let client = world.subscriber("c", "a").await;
    let before = world.publish_text("a", "before").await;
    world.deliveries(&client, 1).await;
    world.stop().await;
    let (partition, offset) = (before[0].0, before[0].1 + 1_000);
    let session = world.queue(&client);
    let out = SessionOut { queue: session.clone(), partition, offset, released: false };
    let packet_id = PacketId::new(40_000).unwrap();
    let write = StateWrite {
        partition,
        key: StateKey::SessionOut { session, packet_id }.encode(),
        value: Some(out.encode()),
    };
    let other = world.log.another_broker();
    let mut opened = other.open(PartitionGroup(0), vec![partition]).await.unwrap();
    assert_eq!(opened.writer.commit(vec![write].into()).await, CommitOutcome::Committed);
    // Nothing more: from now on the log is one that may lose.
    world.log.lose_from(partition, before[0].1 + 1);

    let log = Arc::new(world.log.another_broker());
    let world = World::on(log, world.around.clone(), world.routes.clone());
    world.start(5).await;
    world.attach(request("c")).await.unwrap();

    let after = world.publish_text("a", "after").await;
    assert!(after[0].1 > offset, "{after:?} comes after {offset}");
}

//! Restarts, failed commits, and changes of the owner.

use super::parts::host;
use super::values::{message, options, payloads, request, subscription};
use super::world::{World, within};
use std::sync::Arc;
use tidemill_broker::log::memory::UnknownCommit;
use tidemill_broker::log::state::{CommitOutcome, State, StateEntry, StateWrite};
use tidemill_broker::log::{AppendError, Log};
use tidemill_broker::owner::OwnerSide;
use tidemill_core::attach::{
    AttachRequest, Attachment, ConnectionEpoch, HostAttachments, OwnerError, SessionLifetime, SessionNumber,
};
use tidemill_core::member::OwnerEpoch;
use tidemill_core::packet::QoS;
use tidemill_core::partition::{Partition, PartitionGroup, QueueKind};
use tidemill_core::state::key::StateKey;
use tidemill_core::state::meta::SessionMeta;
use tidemill_core::state::value::PartitionOwner;

fn owner_value(state: &[StateEntry], partition: u16) -> PartitionOwner {
    let key = StateKey::Owner { partition: Partition(partition) }.encode();
    let entry = state.iter().find(|entry| entry.key == key).unwrap();
    PartitionOwner::decode(entry.value.clone()).unwrap()
}

#[tokio::test]
async fn a_restart_loses_nothing_and_acknowledged_messages_do_not_come_again() {
    let world = World::new().await;
    let client = world.subscriber("c", "a").await;
    world.publish_text("a", "done").await;
    world.publish_text("a", "open").await;
    let first = world.deliveries(&client, 2).await;
    world.ack(&client, vec![first[0].offset]);
    world.stored().await;

    let world = world.crash(2).await;
    world.publish_text("a", "new").await;
    let client = world.attach(request("c")).await.unwrap();

    let deliveries = world.deliveries(&client, 2).await;
    assert_eq!(payloads(&deliveries), ["open", "new"]);
    assert_eq!([deliveries[0].redelivery, deliveries[1].redelivery], [true, false]);
}

#[tokio::test]
async fn a_stopped_owner_stores_its_cursors_first() {
    let world = World::new().await;
    let client = world.subscriber("c", "a").await;
    world.publish_text("a", "done").await;
    let deliveries = world.deliveries(&client, 1).await;
    world.ack(&client, vec![deliveries[0].offset]);
    world.publish_text("a", "open").await;
    world.deliveries(&client, 2).await;

    world.stop().await;
    let world = world.crash(2).await;

    let client = world.attach(request("c")).await.unwrap();
    assert_eq!(payloads(&world.deliveries(&client, 1).await), ["open"]);
}

#[tokio::test]
async fn a_fenced_owner_grants_and_confirms_nothing_and_says_so() {
    let world = World::new().await;
    let client = world.subscriber("c", "a").await;
    let newer = world.log.another_broker();
    let opened = newer.open(PartitionGroup(0), vec![Partition(0), Partition(1)]).await.unwrap();

    let refused = world.subscribe(&client, vec![subscription("b", options(QoS::AtLeastOnce))]).await;

    assert_eq!(refused, Err(OwnerError::Unavailable));
    let mut fenced = world.around.fenced.subscribe();
    within(fenced.wait_for(|fenced| fenced == &[PartitionGroup(0)])).await.unwrap();
    assert_eq!(world.attach(request("d")).await.err(), Some(OwnerError::Unavailable));
    drop(opened);
}

#[tokio::test]
async fn a_commit_with_an_unknown_outcome_is_repeated_before_anything_is_answered() {
    for unknown in [UnknownCommit::Stored, UnknownCommit::Lost] {
        let world = World::new().await;
        world.subscriber("first", "a").await;
        world.log.lose_next_commit(unknown);

        let client = world.subscriber("c", "a").await;

        assert!(world.metrics.commits_unknown.get() >= 1);
        let world = world.crash(2).await;
        let resumed = world.attach(request("c")).await.unwrap();
        assert!(resumed.grant.session_present);
        assert_eq!(resumed.grant.session, client.grant.session);
    }
}

#[tokio::test]
async fn the_epoch_is_above_the_stored_one_and_written_back() {
    let world = World::new().await;
    let first = world.attach(request("c")).await.unwrap();

    // The lease was made anew and starts again at 1.
    let world = world.crash(1).await;
    let second = world.attach(request("c")).await.unwrap();

    assert!(second.grant.connection > first.grant.connection);
    assert_eq!(*world.around.raised.lock(), [(PartitionGroup(0), OwnerEpoch(2))]);
    assert_eq!(owner_value(&world.state().await, 0).epoch, OwnerEpoch(2));
}

#[tokio::test]
async fn the_log_is_trimmed_only_below_what_is_stored_as_needed_by_nobody() {
    let world = World::new().await;
    let client = world.attach(AttachRequest { window: u16::MAX, ..request("c") }).await.unwrap();
    world.subscribe(&client, vec![subscription("a", options(QoS::AtLeastOnce))]).await.unwrap();
    let partition = world.partitioning.partition_of(QueueKind::Session, "c");
    for number in 0..10_100 {
        world.publish_text("a", &number.to_string()).await;
    }
    let deliveries = world.deliveries(&client, 10_100).await;
    let kept = deliveries[10_050].offset;
    let done = deliveries.iter().map(|one| one.offset).filter(|offset| *offset != kept).collect();
    world.ack(&client, done);

    let (log, publishing) = (world.log.clone(), &world);
    let start = || async { log.bounds(partition).await.unwrap().start };
    for number in 0..10_100 {
        publishing.publish_text("a", &number.to_string()).await;
    }
    while start().await == 0 {
        world.publish_text("a", "more").await;
    }

    let stored = owner_value(&world.state().await, partition.0);
    assert!(start().await <= stored.trim_floor, "{} {}", start().await, stored.trim_floor);
    assert!(stored.trim_floor <= kept);
}

#[tokio::test]
async fn acknowledgements_alone_let_the_log_be_trimmed() {
    let world = World::new().await;
    let client = world.subscriber("c", "a").await;
    let partition = world.partitioning.partition_of(QueueKind::Session, "c");
    world.publish_text("a", "last for a long time").await;
    let deliveries = world.deliveries(&client, 1).await;
    // The floor is looked at while the message is open.
    world.stored().await;
    let last = deliveries[0].offset;
    assert!(world.log.bounds(partition).await.unwrap().start <= last);

    world.ack(&client, vec![last]);

    let trimmed = async {
        while world.log.bounds(partition).await.unwrap().start <= last {
            tokio::task::yield_now().await;
        }
    };
    super::world::within(trimmed).await;
}

#[tokio::test]
async fn a_log_that_ends_below_what_was_seen_or_starts_above_the_floor_is_refused() {
    let world = World::new().await;
    let client = world.subscriber("c", "a").await;
    world.publish_text("a", "m").await;
    world.deliveries(&client, 1).await;
    world.stop().await;
    let partition = world.partitioning.partition_of(QueueKind::Session, "c");
    let mut value = owner_value(&world.state().await, partition.0);
    value.processed += 1_000;
    let other = world.log.another_broker();
    let mut opened = other.open(PartitionGroup(0), vec![partition]).await.unwrap();
    let write =
        StateWrite { partition, key: StateKey::Owner { partition }.encode(), value: Some(value.encode()) };
    assert_eq!(opened.writer.commit(vec![write].into()).await, CommitOutcome::Committed);

    let mut epoch = 5;
    let mut world = World::on(Arc::new(world.log.another_broker()), Arc::default(), Arc::default());
    for _ in 0..2 {
        world.start(epoch).await;

        assert_eq!(world.attach(request("c")).await.err(), Some(OwnerError::Unavailable));
        assert_eq!(world.metrics.partitions_refused.get(), 1);
        // Its publishers learn it: what they would add would make the log look as if nothing were missing.
        assert_eq!(world.routes.partitions(&message("a", "").topic), [partition].into());
        for _ in 0..1_100 {
            let refused = world.try_append(partition, message("a", "not taken")).await;
            assert!(matches!(refused, Err(AppendError::Refused { partition: 0 | 1, .. })), "{refused:?}");
        }
        epoch += 1;
        world.stop().await;
        world = World::on(Arc::new(world.log.another_broker()), Arc::default(), Arc::default());
    }
    world.start(epoch).await;
    let clean = AttachRequest { clean_start: true, lifetime: SessionLifetime::Clean, ..request("c") };
    assert!(world.attach(clean).await.is_ok(), "the registry needs no queues");
}

#[tokio::test]
async fn records_lost_with_the_power_do_not_keep_a_partition_from_being_served_and_no_offset_comes_again() {
    let world = World::new().await;
    let client = world.subscriber("c", "a").await;
    for number in 0..20 {
        world.publish_text("a", &number.to_string()).await;
    }
    let deliveries = world.deliveries(&client, 20).await;
    world.ack(&client, deliveries[..5].iter().map(|delivery| delivery.offset).collect());
    world.stored().await;
    // It starts at the end of the log, above everything that was processed.
    world.subscribe(&client, vec![subscription("b", options(QoS::AtLeastOnce))]).await.unwrap();
    world.stop().await;
    let partition = world.partitioning.partition_of(QueueKind::Session, "c");
    world.log.lose_from(partition, deliveries[10].offset);

    let log = Arc::new(world.log.another_broker());
    let world = World::on(log, world.around.clone(), world.routes.clone());
    world.start(5).await;
    let client = world.attach(request("c")).await.unwrap();
    let after = world.publish_text("a", "after").await;
    world.publish_text("b", "after").await;

    let again = world.deliveries(&client, 7).await;
    assert_eq!(payloads(&again), ["5", "6", "7", "8", "9", "after", "after"]);
    assert!(after[0].1 > deliveries[19].offset, "{after:?}");
    assert_eq!(world.metrics.partitions_refused.get(), 0);
    assert_eq!(world.metrics.records_lost.get(), 10);
}

fn attachment(request: AttachRequest, session: SessionNumber, connection: ConnectionEpoch) -> Attachment {
    Attachment { request, session, connection, done: Vec::new(), in_flight: Vec::new() }
}

fn told(attached: Vec<Attachment>) -> HostAttachments {
    HostAttachments { attached, ..HostAttachments::default() }
}

#[tokio::test]
async fn connections_whose_end_was_lost_end_with_the_next_word_of_their_host_and_newer_ones_go_on() {
    let world = World::new().await;
    let mut clients = Vec::new();
    for id in ["gone", "attaching", "attached", "newest"] {
        clients.push(world.attach(request(id)).await.unwrap());
    }
    let elsewhere = AttachRequest { host: host(2), ..request("elsewhere") };
    world.attach(elsewhere).await.unwrap();
    let clean = AttachRequest { lifetime: SessionLifetime::Clean, clean_start: true, ..request("clean") };
    world.attach(clean).await.unwrap();
    let listed = &clients[2];
    let word = HostAttachments {
        attached: vec![attachment(request("attached"), listed.grant.session, listed.grant.connection)],
        attaching: vec!["attaching".into()],
        granted: Some(listed.grant.connection),
    };

    within(world.owner.reattach(PartitionGroup(0), host(1), word.clone())).await.unwrap();
    assert_eq!(world.metrics.attached.get(), 5, "one has ended");
    let all =
        HostAttachments { granted: Some(ConnectionEpoch { owner: OwnerEpoch(1), counter: 100 }), ..word };
    within(world.owner.reattach(PartitionGroup(0), host(1), all)).await.unwrap();
    assert_eq!(world.metrics.attached.get(), 3, "those of the host that it does not name have ended");

    world.stored().await;
    let ended = |id: &str| {
        let client = clients.iter().find(|client| client.id == id).unwrap();
        StateKey::Meta { queue: super::world::queue(id, client.grant.session) }.encode()
    };
    let state = world.state().await;
    for (id, is_over) in [("gone", true), ("attaching", false), ("attached", false), ("newest", true)] {
        let entry = state.iter().find(|entry| entry.key == ended(id)).unwrap();
        let meta = SessionMeta::decode(entry.value.clone()).unwrap();
        assert_eq!(meta.disconnected_at_ms.is_some(), is_over, "{id}");
    }
}

#[tokio::test]
async fn a_reattached_connection_goes_on_and_gets_nothing_that_it_has_or_is_done_with() {
    let world = World::new().await;
    let client = world.subscriber("c", "a").await;
    for text in ["done", "in flight", "lost on the way"] {
        world.publish_text("a", text).await;
    }
    let first = world.deliveries(&client, 3).await;
    world.stored().await;

    let world = world.crash(2).await;
    let mut word = attachment(request("c"), client.grant.session, client.grant.connection);
    word.done = vec![first[0].offset];
    word.in_flight = vec![first[1].offset];
    let answers =
        within(world.owner.reattach(PartitionGroup(0), host(1), told(vec![word.clone()]))).await.unwrap();
    let connection = answers[0].unwrap();

    assert!(connection > client.grant.connection);
    world.publish_text("a", "new").await;
    assert_eq!(payloads(&world.deliveries_to("c", connection, 2).await), ["lost on the way", "new"]);
    let again = within(world.owner.reattach(PartitionGroup(0), host(1), told(vec![word]))).await.unwrap();
    assert_eq!(again, [Ok(connection)], "a repeated frame changes nothing");
}

#[tokio::test]
async fn new_connections_wait_for_every_members_word_and_take_over_what_it_tells() {
    let world = World::new().await;
    let client = world.subscriber("c", "a").await;
    world.around.awaited.lock().push(host(1).id);
    let world = world.crash(2).await;

    let attach = tokio::spawn(world.owner_attach(AttachRequest { host: host(2), ..request("c") }));
    let word = attachment(request("c"), client.grant.session, client.grant.connection);
    let answers = within(world.owner.reattach(PartitionGroup(0), host(1), told(vec![word]))).await.unwrap();
    let adopted = answers[0].unwrap();

    let granted = within(attach).await.unwrap().unwrap();
    assert!(granted.connection > adopted && granted.session_present);
    assert_eq!(world.hosts.taken_over(), [("c".into(), adopted)]);
}

#[tokio::test]
async fn of_two_hosts_that_claim_a_client_the_newer_connection_stays() {
    let world = World::new().await;
    let number = SessionNumber::new(OwnerEpoch(7), 1);
    let clean = |at| AttachRequest { lifetime: SessionLifetime::Clean, host: host(at), ..request("c") };
    let connection = |counter| ConnectionEpoch { owner: OwnerEpoch(7), counter };

    let reattach = |at: u64, counter| {
        let words = vec![attachment(clean(at), number, connection(counter))];
        within(world.owner.reattach(PartitionGroup(0), host(at), told(words)))
    };
    let newer = reattach(1, 5).await.unwrap();
    let older = reattach(2, 4).await.unwrap();
    let newest = reattach(3, 6).await.unwrap();

    assert_eq!(older, [Err(OwnerError::TakenOver)]);
    assert!(newest[0].unwrap() > newer[0].unwrap());
    assert!(newer[0].unwrap().owner > OwnerEpoch(7), "raised above every connection that hosts tell of");
    assert_eq!(world.hosts.taken_over(), [("c".into(), newer[0].unwrap())]);
}

#[tokio::test]
async fn an_owner_whose_epoch_is_raised_while_it_serves_speaks_for_its_partitions_anew() {
    let world = World::new().await;
    world.subscriber("c", "a").await;
    assert_eq!(world.routes.epochs(), [OwnerEpoch(1); 2]);
    let formerly = ConnectionEpoch { owner: OwnerEpoch(7), counter: 1 };
    let clean = AttachRequest { lifetime: SessionLifetime::Clean, ..request("d") };

    let words = vec![attachment(clean, SessionNumber::new(OwnerEpoch(7), 1), formerly)];
    within(world.owner.reattach(PartitionGroup(0), host(1), told(words))).await.unwrap();

    assert_eq!(world.routes.epochs(), [OwnerEpoch(8); 2], "above what members may have heard");
    assert_eq!(world.routes.filters(), ["a"]);
}

#[tokio::test]
async fn gaps_in_the_sequence_of_an_origin_are_counted() {
    let world = World::new().await;
    let client = world.subscriber("c", "a").await;
    let partition = world.partitioning.partition_of(QueueKind::Session, "c");
    for sequence in [0, 1, 4] {
        let mut record = super::world::record(message("a", "m"));
        record.origin.member = host(9);
        record.origin.sequence = sequence;
        world.log.append(partition, &mut |_| record.encode(), Box::new(drop));
    }

    world.deliveries(&client, 3).await;

    assert_eq!(world.metrics.sequence_faults.get(), 2);
}

#[tokio::test]
async fn the_log_being_away_delays_deliveries_and_loses_none() {
    let world = World::new().await;
    let client = world.subscriber("c", "a").await;
    world.log.make_unreadable();
    world.publish_text("a", "m").await;
    world.log.make_readable();

    assert_eq!(payloads(&world.deliveries(&client, 1).await), ["m"]);
}

#[tokio::test]
async fn an_owner_whose_membership_is_over_answers_and_delivers_nothing() {
    let world = World::new().await;
    let client = world.subscriber("c", "a").await;
    world.validity.set(0);

    assert_eq!(world.attach(request("d")).await.err(), Some(OwnerError::Unavailable));
    world.publish_text("a", "m").await;
    world.until(|| world.metrics.groups.get() == 0).await;

    assert!(world.hosts.delivered(&client.id, client.grant.connection).is_empty());
    assert_eq!(world.attach(request("d")).await.err(), Some(OwnerError::Unavailable));
}

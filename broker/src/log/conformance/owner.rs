//! Promises about the state and its owner.

use super::{Store, commit, contents, delete, open_group, within, write};
use crate::log::state::{CommitOutcome, StateWriter};
use futures::FutureExt;
use tidemill_core::partition::{Partition, PartitionGroup};

const GROUP: PartitionGroup = PartitionGroup(1);

/// The first two partitions of the group, or its only one twice.
fn partitions(store: &dyn Store) -> (Partition, Partition) {
    let mut partitions = store.partitioning().partitions_of(GROUP);
    let first = partitions.next().expect("every group has a partition");
    (first, partitions.next().unwrap_or(first))
}

fn entry(partition: Partition, key: &str, value: &str) -> (u16, String, String) {
    (partition.0, key.to_owned(), value.to_owned())
}

/// A group that nobody wrote has no entries, and can be written.
pub async fn a_new_group_is_empty(store: &dyn Store) {
    let state = store.open().await.state;
    let (partition, _) = partitions(store);

    let mut opened = open_group(store, &*state, GROUP).await;

    assert_eq!(contents(&opened), []);
    let outcome = commit(&mut *opened.writer, vec![write(partition, "k", "v")]).await;
    assert_eq!(outcome, CommitOutcome::Committed);
}

/// Opening yields each key once, with the value of its last commit; deleted keys are not there. What ends a
/// transaction inside the store is never taken for the end of the state.
pub async fn open_loads_the_last_values_only_and_no_deleted_key(store: &dyn Store) {
    let state = store.open().await.state;
    let (one, two) = partitions(store);
    let mut opened = open_group(store, &*state, GROUP).await;
    for round in 0..10 {
        let writes = vec![
            write(one, "counter", &round.to_string()),
            write(two, &format!("key {round}"), "there"),
            write(one, "gone", "soon"),
        ];
        assert_eq!(commit(&mut *opened.writer, writes).await, CommitOutcome::Committed);
    }
    let last =
        vec![delete(one, "gone"), delete(two, "key 3"), write(one, "", "empty key"), write(one, "empty", "")];
    assert_eq!(commit(&mut *opened.writer, last).await, CommitOutcome::Committed);

    let opened = open_group(store, &*state, GROUP).await;

    let mut expected = vec![entry(one, "counter", "9"), entry(one, "", "empty key"), entry(one, "empty", "")];
    expected.extend(
        (0..10).filter(|round| *round != 3).map(|round| entry(two, &format!("key {round}"), "there")),
    );
    expected.sort();
    assert_eq!(contents(&opened), expected);
}

/// Whoever opens sees all writes of a commit or none, also of one that is under way.
pub async fn a_commit_is_all_or_nothing(store: &dyn Store) {
    let state = store.open().await.state;
    let (one, two) = partitions(store);
    let mut opened = open_group(store, &*state, GROUP).await;
    for round in 0..5 {
        let value = round.to_string();
        let mut writes: Vec<_> = (0..50).map(|key| write(one, &format!("a{key}"), &value)).collect();
        writes.extend((0..50).map(|key| write(two, &format!("b{key}"), &value)));

        // Under way while the group is opened again.
        let (outcome, reopened) =
            tokio::join!(commit(&mut *opened.writer, writes), open_group(store, &*state, GROUP));

        let seen = contents(&reopened);
        let of_round = seen.iter().filter(|(_, _, seen)| *seen == value).count();
        match outcome {
            CommitOutcome::Committed => assert_eq!(of_round, 100, "round {round}"),
            CommitOutcome::Fenced => assert!(of_round == 0, "{of_round} of 100 in round {round}"),
            CommitOutcome::Unknown => unreachable!("an unknown outcome is repeated"),
        }
        opened = reopened;
    }
}

/// After another owner opened the group the former one is refused for good and leaves no trace.
pub async fn a_zombie_owner_is_refused_and_its_writes_never_appear(store: &dyn Store) {
    let (partition, _) = partitions(store);
    let former = store.open().await.state;
    let mut zombie = open_group(store, &*former, GROUP).await;
    let written = vec![write(partition, "k", "of the former owner")];
    assert_eq!(commit(&mut *zombie.writer, written).await, CommitOutcome::Committed);
    let state = store.open().await.state;
    let mut owner = open_group(store, &*state, GROUP).await;

    for _ in 0..3 {
        let refused = commit(&mut *zombie.writer, vec![write(partition, "k", "of a zombie")]).await;
        assert_eq!(refused, CommitOutcome::Fenced);
    }

    assert_eq!(contents(&owner), [entry(partition, "k", "of the former owner")]);
    let own = commit(&mut *owner.writer, vec![write(partition, "own", "1")]).await;
    assert_eq!(own, CommitOutcome::Committed);
    let opened = open_group(store, &*state, GROUP).await;
    let expected = [entry(partition, "k", "of the former owner"), entry(partition, "own", "1")];
    assert_eq!(contents(&opened), expected);
}

/// Taking over fences first and loads then: whatever the former owner was told is committed is loaded.
pub async fn an_open_while_another_owner_commits_misses_nothing(store: &dyn Store) {
    let (partition, _) = partitions(store);
    let former = store.open().await.state;
    let mut opened = open_group(store, &*former, GROUP).await;
    let (started, first_committed) = tokio::sync::oneshot::channel();
    let mut started = Some(started);
    let committing = tokio::spawn(async move {
        let mut last = None;
        for number in 0..1_000_000_u32 {
            match commit(&mut *opened.writer, vec![write(partition, "n", &number.to_string())]).await {
                CommitOutcome::Committed => last = Some(number),
                CommitOutcome::Fenced => return last,
                CommitOutcome::Unknown => unreachable!("an unknown outcome is repeated"),
            }
            if let Some(started) = started.take() {
                started.send(()).expect("the test waits for the first commit");
            }
        }
        panic!("a former owner is never fenced");
    });
    within("first commit", first_committed).await.expect("the former owner commits");

    let state = store.open().await.state;
    let taken_over = open_group(store, &*state, GROUP).await;

    let last = within("former owner", committing).await.expect("the former owner does not panic");
    let last = last.expect("the first commit was awaited");
    assert_eq!(contents(&taken_over), [entry(partition, "n", &last.to_string())]);
}

/// A commit whose outcome is not known is repeated and then known, without harm, also when the first try was dropped.
pub async fn an_unknown_outcome_can_be_repeated(store: &dyn Store) {
    let state = store.open().await.state;
    let (one, two) = partitions(store);
    let mut opened = open_group(store, &*state, GROUP).await;
    for round in 0..10 {
        let writes = vec![write(one, "a", &round.to_string()), delete(two, "b")];
        // Polled once, then dropped: the owner does not learn what became of it.
        let _ = opened.writer.commit(writes.clone().into()).now_or_never();
        assert_eq!(commit(&mut *opened.writer, writes).await, CommitOutcome::Committed);
    }

    assert_eq!(contents(&open_group(store, &*state, GROUP).await), [entry(one, "a", "9")]);
}

/// Each group has its own owner.
pub async fn groups_do_not_fence_each_other(store: &dyn Store) {
    let state = store.open().await.state;
    let (partition, _) = partitions(store);
    let mut opened = open_group(store, &*state, GROUP).await;
    let mut neighbour = open_group(store, &*state, PartitionGroup(0)).await;

    assert_eq!(commit(&mut *opened.writer, vec![write(partition, "k", "1")]).await, CommitOutcome::Committed);
    let of_neighbour = vec![write(Partition(0), "k", "0")];
    assert_eq!(commit(&mut *neighbour.writer, of_neighbour).await, CommitOutcome::Committed);

    assert_eq!(contents(&open_group(store, &*state, GROUP).await), [entry(partition, "k", "1")]);
    assert_eq!(
        contents(&open_group(store, &*state, PartitionGroup(0)).await),
        [entry(Partition(0), "k", "0")]
    );
}

/// Committed state is there after all brokers were stopped.
pub async fn committed_state_survives_a_restart(store: &dyn Store) {
    let (one, two) = partitions(store);
    let handles = store.open().await;
    let mut opened = open_group(store, &*handles.state, GROUP).await;
    let mut writer: Box<dyn StateWriter> = opened.writer;
    assert_eq!(
        commit(&mut *writer, vec![write(one, "a", "1"), write(two, "b", "2")]).await,
        CommitOutcome::Committed
    );
    assert_eq!(commit(&mut *writer, vec![delete(two, "b")]).await, CommitOutcome::Committed);
    opened.entries.clear();
    drop((writer, handles));

    let state = store.restart().await.state;

    assert_eq!(contents(&open_group(store, &*state, GROUP).await), [entry(one, "a", "1")]);
}

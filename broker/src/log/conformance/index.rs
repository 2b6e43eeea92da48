//! Promises about the index beside the log.

use super::{Store, commit, contents, open_group, within, write};
use crate::log::index::{BLOCKS_BYTES_MAX, Index, IndexWrite};
use crate::log::state::{Commit, CommitOutcome, OpenedGroup};
use bytes::Bytes;
use std::sync::Arc;
use tidemill_core::partition::{Offset, Partition, PartitionGroup};
use tidemill_core::queue::index::Block;

/// Makes one test of every promise about the index, for a store whose state keeps one.
#[macro_export]
macro_rules! index_conformance {
    ($open:expr) => {
        $crate::log_conformance!(@tests $open;
            index: blocks_are_found_by_what_they_speak_for
            index: a_trim_forgets_blocks_below_the_floor_only
            index: a_block_is_committed_with_the_state_or_not_at_all
            index: large_blocks_come_a_few_at_a_time
        );
    };
}

const PARTITION: Partition = Partition(0);

fn block(first: Offset, end: Offset) -> Block {
    Block { first, end, bytes: Bytes::from(format!("{first}..{end}")) }
}

fn add(partition: Partition, block: Block) -> IndexWrite {
    IndexWrite::Block { partition, block }
}

/// Commits changes of the index alone.
async fn change(opened: &mut OpenedGroup, index: Vec<IndexWrite>) {
    let outcome = commit(&mut *opened.writer, Commit { writes: Vec::new(), index }).await;
    assert_eq!(outcome, CommitOutcome::Committed);
}

async fn blocks(index: &Arc<dyn Index>, partition: Partition, from: Offset) -> Vec<Block> {
    within("index", Arc::clone(index).blocks(partition, from)).await.expect("the index can be read")
}

/// Blocks are found from the one that reaches beyond the offset on, and hold over a restart; gaps between them stay.
pub async fn blocks_are_found_by_what_they_speak_for(store: &dyn Store) {
    let state = store.open().await.state;
    let index = state.index().expect("it keeps an index");
    let group = store.partitioning().group_of(PARTITION);
    let mut opened = open_group(store, &*state, group).await;
    let all = [block(0, 10), block(10, 20), block(30, 40)];

    change(&mut opened, all.iter().map(|block| add(PARTITION, block.clone())).collect()).await;

    for (from, first) in
        [(0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (29, 2), (39, 2), (40, 3), (Offset::MAX, 3)]
    {
        assert_eq!(blocks(&index, PARTITION, from).await, all[first..], "from {from}");
    }
    assert_eq!(blocks(&index, Partition(1), 0).await, [], "of another partition");
    drop((state, index, opened));
    let index = store.restart().await.state.index().expect("it has one");
    assert_eq!(blocks(&index, PARTITION, 0).await, all);
}

/// A floor takes the blocks with it that end there or below, and no other.
pub async fn a_trim_forgets_blocks_below_the_floor_only(store: &dyn Store) {
    let state = store.open().await.state;
    let index = state.index().expect("it keeps an index");
    let group = store.partitioning().group_of(PARTITION);
    let mut opened = open_group(store, &*state, group).await;
    let neighbour = store.partitioning().partitions_of(group).find(|one| *one != PARTITION);
    let neighbour = neighbour.expect("a group has several partitions");
    let trim = |floor| IndexWrite::Trim { partition: PARTITION, floor };
    let mut writes = vec![add(neighbour, block(0, 10))];
    writes.extend((0..5).map(|number| add(PARTITION, block(10 * number, 10 * number + 10))));
    change(&mut opened, writes).await;

    for (floor, first) in [(9, 0), (10, 10), (10, 10), (25, 20), (3, 20)] {
        change(&mut opened, vec![trim(floor)]).await;
        assert_eq!(blocks(&index, PARTITION, 0).await[0].first, first, "at {floor}");
    }
    // Added and trimmed in one step.
    change(&mut opened, vec![add(PARTITION, block(50, 60)), trim(60), add(PARTITION, block(60, 70))]).await;

    assert_eq!(blocks(&index, PARTITION, 0).await, [block(60, 70)]);
    assert_eq!(blocks(&index, neighbour, 0).await, [block(0, 10)]);
}

/// A block is there if the state of the same commit is, and a former owner adds none.
pub async fn a_block_is_committed_with_the_state_or_not_at_all(store: &dyn Store) {
    let state = store.open().await.state;
    let index = state.index().expect("it keeps an index");
    let group: PartitionGroup = store.partitioning().group_of(PARTITION);
    let mut former = open_group(store, &*state, group).await;
    let mut owner = open_group(store, &*state, group).await;
    let with = |key: &str, number: Offset| Commit {
        writes: vec![write(PARTITION, key, "v")],
        index: vec![add(PARTITION, block(number, number + 1))],
    };

    assert_eq!(commit(&mut *former.writer, with("former", 0)).await, CommitOutcome::Fenced);
    assert_eq!(blocks(&index, PARTITION, 0).await, []);
    assert_eq!(commit(&mut *owner.writer, with("owner", 1)).await, CommitOutcome::Committed);

    assert_eq!(blocks(&index, PARTITION, 0).await, [block(1, 2)]);
    let stored = contents(&open_group(store, &*state, group).await);
    assert_eq!(stored, [(PARTITION.0, "owner".to_owned(), "v".to_owned())]);
}

/// One answer is bounded, and the next one goes on where it ended.
pub async fn large_blocks_come_a_few_at_a_time(store: &dyn Store) {
    const BLOCKS: u64 = 5;
    let state = store.open().await.state;
    let index = state.index().expect("it keeps an index");
    let mut opened = open_group(store, &*state, store.partitioning().group_of(PARTITION)).await;
    let bytes = Bytes::from(vec![7; BLOCKS_BYTES_MAX / 2 + 1]);
    let large = |first| Block { first, end: first + 1, bytes: bytes.clone() };
    let writes = (0..BLOCKS).map(|first| add(PARTITION, large(first))).collect();
    change(&mut opened, writes).await;

    let (mut from, mut answers) = (0, Vec::new());
    while from < BLOCKS {
        let some = blocks(&index, PARTITION, from).await;
        from = some.last().expect("there are more").end;
        answers.push(some.len());
    }

    assert_eq!(answers, [2, 2, 1]);
}

//! Blocks against what was noted.

use super::*;
use crate::attach::SessionNumber;
use crate::partition::QueueKind;
use crate::state::hex;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn queue(slot: QueueSlot) -> QueueId {
    QueueId { kind: QueueKind::Session, name: format!("c{slot}").into(), number: SessionNumber(7) }
}

fn offsets(block: &Block, queue: &QueueId, from: Offset) -> Vec<Offset> {
    let mut offsets = Vec::new();
    block.offsets_of(queue, from, &mut offsets).unwrap();
    offsets
}

/// Notes what is wanted and ends the block at `end`.
fn block(first: Offset, wanted: &BTreeSet<(Offset, QueueSlot)>, end: Offset, names: &[QueueId]) -> Block {
    let mut open = OpenBlock::new(first, BLOCK_OFFSETS);
    for (offset, slot) in wanted {
        open.note(*offset, *slot);
    }
    open.end(end, |slot| names.get(slot as usize)).unwrap()
}

proptest! {
    #[test]
    fn a_block_lists_for_each_queue_what_was_noted_and_nothing_else(
        first in prop_oneof![Just(0), Just(u64::MAX - 10_000), 0..1_u64 << 40],
        notes in proptest::collection::btree_set((0_u64..300, 0_u32..6), 0..400),
        from in 0_u64..300,
    ) {
        let names: Vec<QueueId> = (0..6).map(queue).collect();
        let wanted = notes.iter().map(|(distance, slot)| (first + distance, *slot)).collect();
        let block = block(first, &wanted, first + 300, &names);

        for slot in 0..6 {
            let expected: Vec<Offset> =
                wanted.iter().filter(|(offset, of)| *of == slot && *offset >= first + from).map(|one| one.0).collect();
            prop_assert_eq!(offsets(&block, &names[slot as usize], first + from), expected);
        }
        prop_assert_eq!(offsets(&block, &queue(7), first), vec![]);
    }

    #[test]
    fn damaged_bytes_are_an_error_or_other_offsets_within_the_block_and_never_more(
        at in 0_usize..64,
        byte in any::<u8>(),
    ) {
        let names = [queue(0), queue(1)];
        let wanted = (0..200).flat_map(|offset| [(1_000 + 2 * offset, 0), (1_000 + 2 * offset, 1)]).collect();
        let mut block = block(1_000, &wanted, 1_400, &names);
        let mut bytes = block.bytes.to_vec();
        let at = at % bytes.len();
        bytes[at] = byte;
        block.bytes = bytes.into();

        for name in &names {
            let mut found = Vec::new();
            if block.offsets_of(name, 0, &mut found).is_ok() {
                prop_assert!(found.iter().all(|offset| (1_000..1_400).contains(offset)));
            } else {
                prop_assert_eq!(found, vec![]);
            }
        }
    }
}

#[test]
fn format_1_keeps_its_bytes() {
    let names = [queue(0), queue(1)];
    let wanted = [(10, 1), (11, 0), (11, 1), (12, 1), (300, 0)].into_iter().collect();

    let block = block(10, &wanted, 400, &names);

    // Version, two queues; of each its fingerprint and its runs: (0, 3) of c1, (1, 1) and (288, 1) of c0.
    let (c0, c1) = ("07367b850ca78522", "9e503d590f300589");
    assert_eq!(hex(&block.bytes), ["0102", c0, "050101a00201", c1, "020003"].concat());
}

#[test]
fn another_version_and_an_overlong_run_are_refused() {
    let with = |bytes: &[u8]| Block { first: 0, end: u64::MAX, bytes: Bytes::copy_from_slice(bytes) };
    let mut found = Vec::new();

    let other = with(&[2, 0]).offsets_of(&queue(0), 0, &mut found);
    assert_eq!(other, Err(FormatError::Unknown { field: "block version", value: 2 }));

    let mut long = vec![1, 1];
    long.extend(fingerprint(&queue(0)).to_le_bytes());
    long.extend([3, 0, 0x81, 0x20]); // a run of 4,097
    let overlong = with(&long).offsets_of(&queue(0), 0, &mut found);
    assert_eq!(overlong, Err(FormatError::Unknown { field: "length of a run", value: 4_097 }));
    assert_eq!(found, vec![]);
}

#[test]
fn a_block_ends_after_its_offsets() {
    let open = OpenBlock::new(100, BLOCK_OFFSETS);

    assert!(!open.is_full(100 + BLOCK_OFFSETS - 1));
    assert!(open.is_full(100 + BLOCK_OFFSETS));
    assert!(open.is_full(100 + BLOCK_OFFSETS));
}

#[test]
fn many_queues_that_want_everything_take_little_and_what_takes_too_much_speaks_for_nothing() {
    let names: Vec<QueueId> = (0..2_000).map(queue).collect();
    let name = |slot: QueueSlot| names.get(slot as usize);
    let mut open = OpenBlock::new(0, BLOCK_OFFSETS);
    for offset in 0..BLOCK_OFFSETS {
        (0..2_000).for_each(|slot| open.note(offset, slot));
    }
    let all = open.end(BLOCK_OFFSETS, name).unwrap();
    assert!((all.bytes.len() as u64) < 8 * BLOCK_OFFSETS, "{} bytes", all.bytes.len());
    assert_eq!(offsets(&all, &names[1_999], 0).len() as u64, BLOCK_OFFSETS);

    // Every second record for each: the notes are given up on the way, and the next block is a new start.
    for offset in BLOCK_OFFSETS..2 * BLOCK_OFFSETS {
        (0..2_000)
            .filter(|slot| (offset + u64::from(*slot)) % 2 == 0)
            .for_each(|slot| open.note(offset, slot));
    }
    assert!(open.is_too_dear && open.notes.is_empty());
    assert_eq!(open.end(2 * BLOCK_OFFSETS, name), None);
    open.note(2 * BLOCK_OFFSETS, 7);
    let next = open.end(2 * BLOCK_OFFSETS + 1, name).unwrap();
    assert_eq!(offsets(&next, &names[7], 0), vec![2 * BLOCK_OFFSETS]);

    // Many queues that want one record each.
    (0..2_000).for_each(|slot| open.note(2 * BLOCK_OFFSETS + 1, slot));
    assert_eq!(open.end(2 * BLOCK_OFFSETS + 2, name), None);
}

#[test]
fn nothing_is_a_block_of_no_offset_and_a_queue_that_is_gone_is_left_out() {
    let mut open = OpenBlock::new(5, BLOCK_OFFSETS);
    open.note(4, 1);
    open.note(5, 0);
    open.note(5, 1);
    let name = queue(1);

    let block = open.end(6, |slot| (slot == 1).then_some(&name)).unwrap();

    assert_eq!(offsets(&block, &name, 0), vec![5]);
    assert_eq!(offsets(&block, &queue(0), 0), vec![]);
    assert_eq!(open.end(6, |_| None), None, "the next one begins where this one ended");
}

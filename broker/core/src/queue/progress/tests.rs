use super::*;

const NEW: Turn = Turn::HandOut { redelivery: false };
const AGAIN: Turn = Turn::HandOut { redelivery: true };

fn sent(bytes: usize) -> Sent {
    Sent { bytes, at_ms: 0 }
}

#[test]
fn a_full_window_makes_the_queue_fall_behind_and_room_lets_it_go_on_in_order() {
    let mut progress = Progress::new(5);
    progress.attach(2, &[], &[], 0);
    assert_eq!(
        [5, 7, 9, 11].map(|offset| progress.take_at_head(offset, sent(1))),
        [NEW, NEW, Turn::Wait, Turn::Pass]
    );
    assert_eq!((progress.mode(), progress.wanted_from()), (Mode::Behind, None));

    assert!(progress.finish(7, true));

    assert_eq!(progress.wanted_from(), Some(9));
    assert_eq!(progress.floor(12), 5);
    assert_eq!(progress.take_behind(9, sent(1)), NEW);
    assert_eq!(progress.take_behind(11, sent(1)), Turn::Wait);
}

#[test]
fn open_offsets_are_handed_out_again_before_anything_new() {
    let mut progress = Progress::new(0);
    progress.attach(3, &[], &[], 0);
    for offset in 0..3 {
        assert_eq!(progress.take_at_head(offset, sent(1)), NEW);
    }
    progress.finish(1, true);
    progress.detach();
    assert_eq!(progress.take_at_head(3, sent(1)), Turn::Wait);

    progress.attach(2, &[], &[], 0);

    assert_eq!(progress.wanted_from(), Some(0));
    assert_eq!([0, 1, 2].map(|offset| progress.take_behind(offset, sent(1))), [AGAIN, Turn::Pass, AGAIN]);
    assert_eq!(progress.take_behind(3, sent(1)), Turn::Wait);
    progress.finish(0, true);
    assert_eq!(progress.take_behind(3, sent(1)), NEW);
    assert!(progress.reach_head(4));
    assert_eq!(progress.mode(), Mode::Tail);
}

#[test]
fn nothing_new_overtakes_what_is_handed_out_again() {
    let mut progress = Progress::new(0);
    progress.attach(10, &[], &[], 0);
    assert_eq!(progress.take_at_head(0, sent(1)), NEW);
    progress.detach();
    progress.attach(10, &[], &[], 0);

    assert_eq!(progress.take_at_head(1, sent(1)), Turn::Wait);

    assert_eq!([0, 1].map(|offset| progress.take_behind(offset, sent(1))), [AGAIN, NEW]);
}

#[test]
fn an_adopted_receiver_gets_nothing_that_it_has_or_is_done_with() {
    let stored = StoredCursor::plain(Cursor::restore(10, [3, 5, 7]), true);
    let mut progress = Progress::restore(&stored, 0);

    progress.attach(5, &[3], &[7, 99], 0);

    assert_eq!(
        [3, 5, 7].map(|offset| progress.take_behind(offset, sent(1))),
        [Turn::Pass, AGAIN, Turn::Pass]
    );
    assert_eq!(progress.floor(10), 5);
}

#[test]
fn a_former_receiver_cannot_acknowledge_what_a_newer_one_has() {
    let mut progress = Progress::new(0);
    progress.attach(5, &[], &[], 0);
    progress.take_at_head(0, sent(1));
    progress.take_at_head(1, sent(1));
    progress.attach(5, &[], &[], 0);
    assert_eq!(progress.take_behind(0, sent(1)), AGAIN);

    assert!(!progress.finish(0, false), "in flight at the newer one");
    assert!(progress.finish(1, false), "not handed out again yet");
    assert!(progress.finish(0, true));

    assert_eq!(progress.floor(2), 2);
}

#[test]
fn a_used_byte_budget_is_as_a_full_window_and_one_message_goes_out_however_large() {
    let mut progress = Progress::new(0);
    progress.attach(10, &[], &[], 0);
    assert_eq!(progress.take_at_head(0, sent(5 * IN_FLIGHT_BYTES)), NEW);
    assert_eq!(progress.take_at_head(1, sent(1)), Turn::Wait);
    assert_eq!((progress.mode(), progress.wanted_from()), (Mode::Behind, None));

    progress.finish(0, true);

    assert_eq!(progress.wanted_from(), Some(1));
    assert_eq!(progress.take_behind(1, sent(IN_FLIGHT_BYTES - 1)), NEW);
    assert_eq!(progress.take_behind(2, sent(IN_FLIGHT_BYTES - 1)), NEW, "below the budget one more goes");
    assert_eq!(progress.take_behind(3, sent(1)), Turn::Wait);
}

#[test]
fn what_is_handed_out_again_counts_and_what_a_receiver_keeps_counts_where_it_is_known() {
    let mut progress = Progress::new(0);
    progress.attach(10, &[], &[], 0);
    for offset in 0..2 {
        assert_eq!(progress.take_at_head(offset, sent(IN_FLIGHT_BYTES - 1)), NEW);
    }

    progress.attach(10, &[], &[1], 0);
    assert_eq!(progress.in_flight_bytes(), IN_FLIGHT_BYTES - 1);
    assert_eq!(progress.take_behind(0, sent(1)), AGAIN);
    assert_eq!(progress.take_at_head(2, sent(1)), Turn::Wait);

    progress.detach();
    progress.attach(10, &[], &[1], 0);
    assert_eq!(progress.in_flight_bytes(), 0, "not known any more");
    assert_eq!(progress.take_behind(0, sent(IN_FLIGHT_BYTES)), AGAIN);
    assert!(progress.finish(1, true));
    assert_eq!(progress.in_flight_bytes(), IN_FLIGHT_BYTES);
}

#[test]
fn the_trim_floor_is_a_lower_bound_of_every_restored_cursor() {
    let stored = StoredCursor::plain(Cursor::restore(10, [3, 8]), true);

    assert_eq!(Progress::restore(&stored, 5).floor(20), 8);
    assert_eq!(Progress::restore(&stored, 15).floor(20), 20);
    assert_eq!(Progress::restore(&StoredCursor { tail: false, ..stored }, 15).floor(20), 15);
}

use super::*;
use proptest::prelude::*;

fn limits(messages: u64, bytes: u64, policy: QueuePolicy) -> QueueLimits {
    QueueLimits { messages, bytes, policy, ..QueueLimits::NONE }
}

fn passing(offset: Offset, bytes: u64) -> Passing {
    Passing { offset, bytes, publish_ms: offset }
}

/// Counts `count` messages of `bytes` at the offsets from `from` on.
fn fill(backlog: &mut Backlog, from: Offset, count: u64, bytes: u64) {
    for offset in from..from + count {
        assert_eq!(backlog.count(passing(offset, bytes), &QueueLimits::NONE), None);
    }
}

#[test]
fn of_too_many_messages_exactly_the_oldest_are_given_up_and_the_log_is_let_go_of_by_an_eighth_at_the_latest()
{
    let limits = limits(1_000, u64::MAX, QueuePolicy::DropOldest);
    let mut backlog = Backlog::new(0);
    let mut head = 0;
    for offset in 0..10_000 {
        assert_eq!(backlog.count(passing(offset, 10), &limits), None);
        let given_up = backlog.give_up_excess(&limits);
        assert_eq!(given_up, (offset >= 1_000).then_some((DropReason::Messages, 1)));
        head = backlog.jump().unwrap_or(head);

        let waiting = (offset + 1).min(1_000);
        assert_eq!(backlog.waiting(), Tally { messages: waiting, bytes: 10 * waiting });
        assert!(backlog.given_up() <= 1_000 / 7, "{offset}: {}", backlog.given_up());
        assert!(head <= offset + 1 - waiting, "nothing that waits is let go of");
        assert!(backlog.memory_bytes() <= 1_024);
    }
}

#[test]
fn of_too_many_bytes_no_more_is_given_up_than_holds_them_when_all_are_of_one_size() {
    let limits = limits(u64::MAX, 1_000, QueuePolicy::DropOldest);
    let mut backlog = Backlog::new(0);
    fill(&mut backlog, 0, 25, 100);

    assert_eq!(backlog.give_up_excess(&limits), Some((DropReason::Bytes, 15)));
    assert_eq!(backlog.give_up_excess(&limits), None);
    assert_eq!(backlog.waiting(), Tally { messages: 10, bytes: 1_000 });

    fill(&mut backlog, 25, 1, 5_000);
    assert_eq!(backlog.give_up_excess(&limits), Some((DropReason::Bytes, 10)), "the newest stays");
    assert_eq!(backlog.waiting().messages, 1);
}

#[test]
fn a_full_queue_that_takes_nothing_takes_again_when_it_has_drained_an_eighth() {
    let limits = limits(16, u64::MAX, QueuePolicy::DropNewest);
    let mut backlog = Backlog::new(0);
    let count = |backlog: &mut Backlog, offset| backlog.count(passing(offset, 1), &limits);
    for offset in 0..16 {
        assert_eq!(count(&mut backlog, offset), None);
    }
    assert_eq!(count(&mut backlog, 16), Some(DropReason::Messages));
    let pass = |backlog: &mut Backlog, offset| {
        backlog.approach(offset, offset);
        backlog.pass(offset, 1);
    };
    pass(&mut backlog, 0);
    pass(&mut backlog, 1);
    assert_eq!(count(&mut backlog, 17), Some(DropReason::Messages), "14 of 16 wait");
    pass(&mut backlog, 2);

    assert_eq!(count(&mut backlog, 18), None);

    assert_eq!([15, 16, 17, 18].map(|offset| backlog.skips(offset)), [None, Some(18), Some(18), None]);
}

#[test]
fn a_queue_that_does_not_take_has_a_bounded_number_of_holes() {
    let limits = limits(8, u64::MAX, QueuePolicy::DropNewest);
    let mut backlog = Backlog::new(0);
    let mut taken: Vec<Offset> = Vec::new();
    let mut passed = 0;
    for offset in 0..1_000 {
        if backlog.count(passing(offset, 1), &limits).is_none() {
            taken.push(offset);
        }
        // The receiver takes one of three.
        if offset % 3 == 0 && passed < taken.len() {
            backlog.approach(taken[passed], taken[passed]);
            backlog.pass(taken[passed], 1);
            passed += 1;
        }
        assert!(backlog.skipped.len() <= SKIPPED_MAX);
        assert_eq!(backlog.waiting().messages, u64::try_from(taken.len() - passed).unwrap());
        assert!(taken[passed..].iter().all(|offset| backlog.skips(*offset).is_none()));
    }
    assert!(passed > 200, "it goes on taking: {passed}");
}

#[test]
fn the_oldest_are_given_up_by_age_as_far_as_the_marks_tell_and_all_when_the_newest_is_too_old() {
    let mut backlog = Backlog::new(0);
    fill(&mut backlog, 0, 100, 1);
    assert_eq!(backlog.oldest_ms(), Some(0));

    let (reason, messages) = backlog.give_up_older(50).unwrap();
    assert_eq!(reason, DropReason::Age);
    assert!((38..=50).contains(&messages), "{messages}: never one that is not too old");
    assert!(backlog.oldest_ms().is_some_and(|oldest| oldest <= messages));
    assert_eq!(backlog.give_up_older(50), None);

    assert_eq!(backlog.give_up_older(100), Some((DropReason::Age, 100 - messages)));
    assert_eq!((backlog.oldest_ms(), backlog.waiting()), (None, Tally::default()));
    assert_eq!(backlog.jump(), Some(100));
}

#[test]
fn what_was_counted_by_a_former_owner_is_not_counted_again() {
    let mut backlog = Backlog::new(0);
    fill(&mut backlog, 0, 10, 1);
    let mut restored = backlog.clone();

    fill(&mut restored, 5, 10, 1);

    assert_eq!(restored.waiting(), Tally { messages: 15, bytes: 15 });
}

proptest! {
    /// Model: all that was counted and neither passed nor given up.
    #[test]
    fn counts_follow_what_comes_what_is_passed_and_what_is_given_up(
        steps in proptest::collection::vec((1_u64..200, 0_usize..4), 1..400),
        bound in 1_u64..60,
    ) {
        let limits = limits(bound, u64::MAX, QueuePolicy::DropOldest);
        let mut backlog = Backlog::new(0);
        let mut model: Vec<(Offset, u64)> = Vec::new();
        let (mut next, mut head) = (0, 0);
        let (mut passed, mut dropped) = (0, 0);
        for (bytes, takes) in steps {
            backlog.count(passing(next, bytes), &limits);
            model.push((next, bytes));
            next += 2;
            if let Some((_, more)) = backlog.give_up_excess(&limits) {
                dropped = more + dropped.max(passed);
            }
            head = backlog.jump().unwrap_or(head).max(head);
            for _ in 0..takes {
                let Some((offset, bytes)) = model.iter().find(|(offset, _)| *offset >= head) else { break };
                backlog.approach(head, *offset);
                backlog.pass(*offset, *bytes);
                head = offset + 1;
            }
            let is_passed = |message: &&(Offset, u64)| message.0 < head;
            passed = model.iter().filter(is_passed).count() as u64;
            let bytes: u64 = model.iter().filter(is_passed).map(|(_, bytes)| bytes).sum();
            let all = model.len() as u64;

            prop_assert_eq!(backlog.passed, Tally { messages: passed, bytes });
            prop_assert_eq!(backlog.waiting().messages, all - passed.max(dropped));
            prop_assert!(backlog.waiting().messages <= bound);
            prop_assert!(all - dropped >= bound.min(all), "no more than needed");
        }
    }
}

use super::fixture::{Queues, filter, handed_out, id, receiver, record, subscription};
use super::offer::{CatchUp, ReadBehind};
use crate::packet::{QoS, SubscriptionOptions};
use crate::queue::subscription::Subscription;
use std::hash::BuildHasherDefault;

#[test]
fn a_record_goes_once_to_each_queue_that_matches() {
    let mut queues = Queues::new(0, BuildHasherDefault::default());
    let slots = ["one", "two", "three"].map(|name| queues.create(id(name)));
    for (slot, text) in [(0, "a/+"), (0, "a/b"), (1, "#"), (2, "c")] {
        queues.subscribe(slots[slot], filter(text), subscription(0, None));
    }
    for slot in slots {
        queues.attach(slot, receiver(10, &[]), 0);
    }

    queues.handle_record(5, &record("a/b"), 0);
    queues.handle_record(5, &record("a/b"), 0);

    assert_eq!(handed_out(&mut queues), [(slots[0], 5, false), (slots[1], 5, false)]);
    assert_eq!(queues.head(), 6);
}

/// MQTT-3.3.4-4: one copy, with the identifiers of all subscriptions that match.
#[test]
fn a_subscription_of_qos_0_adds_its_identifier_to_what_another_one_brings_at_the_head_and_behind() {
    let with = |qos, identifier| {
        let plain = subscription(0, None);
        let options = SubscriptionOptions { qos, ..plain.options };
        Subscription { options, identifier: Some(identifier), ..plain }
    };
    let identifiers = |queues: &mut Queues| {
        std::iter::from_fn(|| queues.poll_hand_out())
            .map(|hand_out| (hand_out.slot, hand_out.interest.identifiers))
            .collect::<Vec<_>>()
    };
    let mut queues = Queues::new(0, BuildHasherDefault::default());
    let (slot, live) = (queues.create(id("both")), queues.create(id("live")));
    queues.subscribe(slot, filter("k/#"), with(QoS::AtLeastOnce, 1));
    queues.subscribe(slot, filter("k/a"), with(QoS::AtMostOnce, 2));
    queues.subscribe(live, filter("k/a"), with(QoS::AtMostOnce, 3));
    for slot in [slot, live] {
        queues.attach(slot, receiver(1, &[]), 0);
    }

    queues.handle_record(0, &record("k/a"), 0);
    assert_eq!(identifiers(&mut queues), [(slot, vec![1, 2])]);

    queues.handle_record(1, &record("k/a"), 0);
    queues.handle_acked(slot, &[0], true, 0);
    queues.handle_behind(slot, ReadBehind { from: 1, offset: 1, record: &record("k/a") }, 0);
    assert_eq!(identifiers(&mut queues), [(slot, vec![1, 2])], "the window was full");

    queues.unsubscribe(slot, &filter("k/a"));
    queues.handle_acked(slot, &[1], true, 0);
    queues.handle_record(2, &record("k/a"), 0);
    assert_eq!(identifiers(&mut queues), [(slot, vec![1])]);
}

#[test]
fn a_subscription_counts_from_its_start_to_its_end() {
    let mut queues = Queues::new(0, BuildHasherDefault::default());
    let slot = queues.create(id("c"));
    queues.subscribe(slot, filter("a"), subscription(3, None));
    for offset in 0..3 {
        queues.handle_record(offset, &record("a"), 0);
    }
    assert_eq!(queues.floor(), 3, "below its start it is not wanted");

    for offset in 3..6 {
        queues.handle_record(offset, &record("a"), 0);
    }
    queues.subscribe(slot, filter("a"), subscription(3, Some(5)));
    assert!(!queues.has_route(&filter("a")));
    assert!(queues.take_ended().is_empty(), "still needed for what is behind");
    queues.attach(slot, receiver(10, &[]), 0);
    for offset in 3..6 {
        queues.handle_behind(slot, ReadBehind { from: offset, offset, record: &record("a") }, 0);
    }

    assert_eq!(handed_out(&mut queues), [(slot, 3, false), (slot, 4, false)]);
    assert_eq!(queues.take_ended(), [(id("c"), filter("a"), None)]);
}

#[test]
fn a_reader_at_the_wrong_place_is_told_so_and_loses_nothing() {
    let mut queues = Queues::new(0, BuildHasherDefault::default());
    let slot = queues.create(id("c"));
    queues.subscribe(slot, filter("a"), subscription(0, None));
    for offset in 0..4 {
        queues.handle_record(offset, &record("a"), 0);
    }
    queues.attach(slot, receiver(10, &[]), 0);
    assert_eq!(queues.next_lagging(None), Some(slot));
    assert_eq!(queues.wanted_from(slot), Some(0));

    let late = ReadBehind { from: 2, offset: 2, record: &record("a") };
    assert_eq!(queues.handle_behind(slot, late, 0), CatchUp::Misplaced);
    assert_eq!(queues.handle_behind_end(slot, 2, 4), CatchUp::Misplaced);

    assert!(handed_out(&mut queues).is_empty());
    assert_eq!(queues.wanted_from(slot), Some(0));
}

#[test]
fn an_open_offset_that_the_log_has_no_more_is_a_loss_and_does_not_stop_the_queue() {
    let mut queues = Queues::new(0, BuildHasherDefault::default());
    let slot = queues.create(id("c"));
    queues.subscribe(slot, filter("a"), subscription(0, None));
    queues.attach(slot, receiver(10, &[]), 0);
    for offset in 0..3 {
        queues.handle_record(offset, &record("a"), 0);
    }
    queues.attach(slot, receiver(10, &[]), 0);

    let second = ReadBehind { from: 0, offset: 1, record: &record("a") };
    assert_eq!(queues.handle_behind(slot, second, 0), CatchUp::Continue);
    assert_eq!(queues.handle_behind_end(slot, 2, 3), CatchUp::AtHead);

    assert_eq!(handed_out(&mut queues), [(slot, 1, true)]);
    assert_eq!(queues.take_lost(), 2);
}

#[test]
fn a_queue_that_goes_takes_its_routes_along_unless_others_have_them() {
    let mut queues = Queues::new(0, BuildHasherDefault::default());
    let slots = ["one", "two"].map(|name| queues.create(id(name)));
    for (slot, text) in [(0, "a"), (0, "b"), (1, "b")] {
        queues.subscribe(slots[slot], filter(text), subscription(0, None));
    }
    assert_eq!(queues.routes(), [filter("a"), filter("b")]);

    assert_eq!(queues.remove(slots[0]), [filter("a")]);
    assert_eq!(queues.remove(slots[1]), [filter("b")]);

    assert!(queues.is_empty() && queues.routes().is_empty());
    assert_eq!(queues.create(id("three")), slots[1], "places are used again");
}

/// A client that left right after its last message: its queue is behind, and nothing waits for it.
#[test]
fn a_queue_without_a_receiver_for_which_nothing_waits_goes_to_the_head_and_lets_go_of_the_log() {
    for (topics, expected) in [(["b", "b", "b"], 4), (["b", "a", "b"], 1)] {
        let mut queues = Queues::new(0, BuildHasherDefault::default());
        let slot = queues.create(id("c"));
        queues.subscribe(slot, filter("a"), subscription(0, None));
        queues.handle_record(0, &record("a"), 0);
        for (offset, topic) in (1..).zip(topics) {
            queues.handle_record(offset, &record(topic), 0);
        }
        queues.attach(slot, receiver(1, &[]), 0);
        queues.handle_behind(slot, ReadBehind { from: 0, offset: 0, record: &record("a") }, 0);
        assert_eq!(handed_out(&mut queues), [(slot, 0, false)]);
        queues.handle_acked(slot, &[0], true, 0);
        queues.detach(slot);

        let mut from = 1;
        while queues.next_lagging(None) == Some(slot) && queues.wanted_from(slot) == Some(from) {
            let record = record(topics[usize::try_from(from).unwrap() - 1]);
            if queues.handle_behind(slot, ReadBehind { from, offset: from, record: &record }, 0)
                != CatchUp::Continue
            {
                break;
            }
            from += 1;
        }

        assert_eq!(queues.next_lagging(None), None);
        assert!(queues.floor() >= expected, "{topics:?}");
        let waiting = queues.standing(slot).unwrap().waiting.messages;
        assert_eq!(waiting, topics.iter().filter(|topic| **topic == "a").count() as u64);
        assert_eq!(handed_out(&mut queues), []);
    }
}

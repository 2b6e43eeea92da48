use super::*;

const QOS_1: Stream = Stream { publisher: 7, qos: 1, topic: 0 };
const QOS_2: Stream = Stream { publisher: 7, qos: 2, topic: 0 };

/// Subscriber 0 at `qos` is subscribed; `count` messages of each stream are sent and acknowledged afterwards.
fn audited(qos: u8, count: u64) -> Auditor {
    let mut auditor = Auditor::default();
    auditor.record_asked(0, qos, 7);
    auditor.record_subscribed(0, 7);
    for stream in [QOS_1, QOS_2] {
        for sequence in 0..count {
            auditor.record_sent(stream, sequence);
            auditor.record_acknowledged(stream, sequence);
        }
    }
    auditor
}

fn arrive(auditor: &mut Auditor, stream: Stream, sequences: &[u64]) {
    let qos = stream.qos.min(auditor.subscribers[&0].qos);
    for sequence in sequences {
        auditor.record_arrived(Arrived { subscriber: 0, stream, sequence: *sequence, qos });
    }
}

#[test]
fn nothing_is_wrong_when_everything_arrives_in_order_and_qos_1_repeats() {
    let mut auditor = audited(1, 3);
    arrive(&mut auditor, QOS_1, &[0, 1, 0, 1, 2]);
    arrive(&mut auditor, QOS_2, &[0, 1, 2, 2]);

    let verdict = auditor.verdict();

    assert_eq!(verdict.violations, []);
    assert_eq!((verdict.acknowledged, verdict.due, verdict.arrived, verdict.repeated), (6, 6, 9, 3));
    assert_eq!(auditor.missing(), 0);
}

#[test]
fn an_acknowledged_message_that_never_arrives_is_lost() {
    let mut auditor = audited(1, 4);
    arrive(&mut auditor, QOS_1, &[0, 2]);
    arrive(&mut auditor, QOS_2, &[0, 1, 2, 3]);

    assert_eq!(auditor.missing(), 2);
    assert_eq!(
        auditor.verdict().violations,
        [Violation::Lost { subscriber: 0, stream: QOS_1, count: 2, first: 1 }]
    );
}

#[test]
fn a_message_that_was_sent_before_the_suback_or_is_not_acknowledged_is_due_to_nobody() {
    let mut auditor = Auditor::default();
    auditor.record_asked(0, 1, 7);
    auditor.record_sent(QOS_1, 0);
    auditor.record_subscribed(0, 7);
    auditor.record_acknowledged(QOS_1, 0);
    auditor.record_sent(QOS_1, 1);

    assert_eq!(auditor.missing(), 0);

    auditor.record_acknowledged(QOS_1, 1);

    assert_eq!(auditor.missing(), 1);
}

#[test]
fn exactly_once_is_broken_by_a_second_arrival_at_qos_2() {
    let mut auditor = audited(2, 1);
    arrive(&mut auditor, QOS_2, &[0, 0]);
    // Published at QoS 1 it is delivered so.
    arrive(&mut auditor, QOS_1, &[0, 0, 0]);

    assert_eq!(
        auditor.verdict().violations,
        [Violation::Duplicate { subscriber: 0, stream: QOS_2, sequence: 0, arrivals: 2 }]
    );
}

#[test]
fn order_is_broken_by_a_first_arrival_after_a_later_message_and_by_nothing_else() {
    let mut auditor = audited(1, 4);
    arrive(&mut auditor, QOS_1, &[0, 2, 1, 0, 3]);
    arrive(&mut auditor, QOS_2, &[0, 1, 2, 3]);

    assert_eq!(
        auditor.verdict().violations,
        [Violation::Reordered { subscriber: 0, stream: QOS_1, sequence: 1, after: 2 }]
    );
}

#[test]
fn a_message_that_was_sent_before_the_suback_may_come_after_later_ones() {
    let mut auditor = Auditor::default();
    auditor.record_asked(0, 1, 7);
    (0..3).for_each(|sequence| auditor.record_sent(QOS_1, sequence));
    arrive(&mut auditor, QOS_1, &[2]);
    auditor.record_subscribed(0, 7);
    (3..5).for_each(|sequence| auditor.record_sent(QOS_1, sequence));

    arrive(&mut auditor, QOS_1, &[0, 1, 2, 4, 3]);

    assert_eq!(
        auditor.verdict().violations,
        [Violation::Reordered { subscriber: 0, stream: QOS_1, sequence: 3, after: 4 }]
    );
}

#[test]
fn what_nobody_sent_or_asked_for_and_a_wrong_qos_are_found() {
    let mut auditor = audited(1, 1);
    arrive(&mut auditor, QOS_1, &[0, 5]);
    arrive(&mut auditor, QOS_2, &[0]);
    auditor.record_arrived(Arrived { subscriber: 0, stream: QOS_2, sequence: 0, qos: 2 });
    let other = Stream { publisher: 8, ..QOS_1 };
    auditor.record_sent(other, 0);
    arrive(&mut auditor, other, &[0]);

    assert_eq!(
        auditor.verdict().violations,
        [
            Violation::NeverSent { subscriber: 0, stream: QOS_1, sequence: 5 },
            Violation::WrongQos { subscriber: 0, stream: QOS_2, qos: 2 },
            Violation::NotSubscribed { subscriber: 0, stream: other },
        ]
    );
}

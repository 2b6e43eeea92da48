use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn id(number: u16) -> PacketId {
    PacketId::new(number).unwrap()
}

fn new(opened: Opened) -> Ticket {
    let Opened::New(ticket) = opened else { panic!("{opened:?} is not new") };
    ticket
}

fn acks(window: &mut AckWindow) -> Vec<(AckKind, u16, u8)> {
    std::iter::from_fn(|| window.poll_ack())
        .map(|ack| (ack.kind, ack.packet_id.get(), ack.reason.0))
        .collect()
}

#[test]
fn a_repeated_qos_2_publish_is_answered_and_not_taken_again_until_it_is_released() {
    let mut window = AckWindow::new(Version::V3_1_1, 10);
    let ticket = new(window.open(id(1), QoS::ExactlyOnce, 0));
    assert_eq!(window.open(id(1), QoS::ExactlyOnce, 0), Opened::Repeated);
    assert!(!window.release(id(1)), "PUBREC has not left");
    window.complete(ticket, ReasonCode::SUCCESS);
    assert_eq!(acks(&mut window), [(AckKind::PubRec, 1, 0)], "the first one answers both");

    assert_eq!(window.open(id(1), QoS::ExactlyOnce, 0), Opened::Repeated);
    assert_eq!(acks(&mut window), [(AckKind::PubRec, 1, 0)]);
    assert!(window.release(id(1)));
    assert!(!window.release(id(1)));

    new(window.open(id(1), QoS::ExactlyOnce, 0));
}

#[test]
fn a_repeated_publish_is_answered_in_its_turn() {
    let mut window = AckWindow::resume(Version::V5, 10, &[id(7)], &[]);
    let ticket = new(window.open(id(8), QoS::ExactlyOnce, 0));
    assert_eq!(window.open(id(7), QoS::ExactlyOnce, 0), Opened::Repeated);
    assert_eq!(acks(&mut window), []);

    window.complete(ticket, ReasonCode::SUCCESS);

    assert_eq!(acks(&mut window), [(AckKind::PubRec, 8, 0), (AckKind::PubRec, 7, 0)]);
}

#[test]
fn a_refusing_pubrec_frees_the_packet_id() {
    let mut window = AckWindow::new(Version::V5, 1);
    let ticket = new(window.open(id(1), QoS::ExactlyOnce, 0));
    window.complete(ticket, ReasonCode::TOPIC_NAME_INVALID);
    assert_eq!(acks(&mut window), [(AckKind::PubRec, 1, 0x90)]);

    new(window.open(id(1), QoS::ExactlyOnce, 0));
}

#[test]
fn a_5_0_quota_counts_until_pubcomp_and_a_3_x_bound_until_pubrec() {
    for (version, expected) in [(Version::V5, true), (Version::V3_1_1, false)] {
        let mut window = AckWindow::new(version, 2);
        for number in 1..=2 {
            let ticket = new(window.open(id(number), QoS::ExactlyOnce, 0));
            assert_eq!(window.is_full(), number == 2);
            window.complete(ticket, ReasonCode::SUCCESS);
        }
        assert_eq!(acks(&mut window).len(), 2);

        assert_eq!(window.is_full(), expected, "{version:?}");
        assert_eq!(window.open(id(2), QoS::ExactlyOnce, 0), Opened::Repeated, "a repeat needs no room");
        assert_eq!(acks(&mut window), [(AckKind::PubRec, 2, 0)]);
        assert!(window.release(id(1)));
        assert!(!window.is_full());
    }
}

#[test]
fn what_a_former_connection_received_does_not_count_against_the_quota() {
    let mut window = AckWindow::resume(Version::V5, 1, &[id(5), id(6)], &[]);
    assert!(!window.is_full());
    assert!(window.release(id(5)));

    let ticket = new(window.open(id(5), QoS::AtLeastOnce, 0));
    assert_eq!(window.open(id(9), QoS::AtLeastOnce, 0), Opened::Full);
    window.complete(ticket, ReasonCode::SUCCESS);

    assert_eq!(acks(&mut window), [(AckKind::PubAck, 5, 0)]);
    assert_eq!(window.take_received(), [id(6)]);
}

#[test]
fn a_qos_1_publish_under_the_id_of_a_qos_2_one_is_told_in_5_0_and_taken_in_3_x() {
    let mut window = AckWindow::resume(Version::V5, 10, &[id(5)], &[]);
    let Opened::InUse(ticket) = window.open(id(5), QoS::AtLeastOnce, 0) else { panic!("it is in use") };
    window.complete(ticket, ReasonCode::PACKET_IDENTIFIER_IN_USE);
    assert_eq!(acks(&mut window), [(AckKind::PubAck, 5, 0x91)]);
    assert_eq!(window.take_received(), [id(5)]);

    let mut old = AckWindow::resume(Version::V3_1_1, 10, &[id(5)], &[]);
    new(old.open(id(5), QoS::AtLeastOnce, 0));
}

#[test]
fn only_what_is_known_to_be_published_counts_as_received_after_the_connection() {
    let mut window = AckWindow::new(Version::V5, 10);
    let tickets: Vec<_> = (1..=3).map(|number| new(window.open(id(number), QoS::ExactlyOnce, 0))).collect();
    assert!(window.is_unsettled());
    window.complete(tickets[1], ReasonCode::SUCCESS);
    window.complete(tickets[2], ReasonCode::QUOTA_EXCEEDED);
    assert!(window.is_unsettled());

    assert_eq!(window.take_received(), [id(2)]);
}

#[test]
fn a_publish_whose_outcome_got_lost_is_published_again_under_its_unique_id_and_once() {
    let intents =
        [(5, 55), (6, 66)].map(|(number, unique_id)| Intent { packet_id: id(number), unique_id, found: 1 });
    let mut window = AckWindow::resume(Version::V5, 10, &[id(6)], &intents);
    assert_eq!(window.take_received(), [id(6)], "without its PUBLISH nothing is known of the other one");
    let mut window = AckWindow::resume(Version::V5, 10, &[id(6)], &intents);

    assert_eq!(window.open(id(6), QoS::ExactlyOnce, 0), Opened::Repeated);
    let Opened::Again(ticket, intent) = window.open(id(5), QoS::ExactlyOnce, 0) else {
        panic!("it is uncertain")
    };
    assert_eq!(intent, intents[0]);
    assert_eq!(window.open(id(5), QoS::ExactlyOnce, 0), Opened::Repeated);
    window.complete(ticket, ReasonCode::SUCCESS);

    let acks: Vec<_> = std::iter::from_fn(|| window.poll_ack()).map(|ack| ack.packet_id).collect();
    assert_eq!(acks, [id(6), id(5)]);
    assert!(window.release(id(5)) && window.release(id(6)));
}

#[test]
fn the_client_may_release_what_it_had_pubrec_for_before_the_outcome_got_lost() {
    let intents = [Intent { packet_id: id(5), unique_id: 55, found: 0 }];
    let mut window = AckWindow::resume(Version::V5, 10, &[], &intents);

    assert!(window.release(id(5)));

    assert!(matches!(window.open(id(5), QoS::ExactlyOnce, 0), Opened::New(_)));
}

#[derive(Debug, Clone)]
enum Step {
    Publish(QoS),
    Repeat(proptest::sample::Index),
    Complete(proptest::sample::Index, bool),
    Release(proptest::sample::Index),
    Reconnect,
}

fn step() -> impl Strategy<Value = Step> {
    let qos = prop_oneof![Just(QoS::AtLeastOnce), Just(QoS::ExactlyOnce)];
    let index = any::<proptest::sample::Index>;
    prop_oneof![
        5 => qos.prop_map(Step::Publish),
        2 => index().prop_map(Step::Repeat),
        5 => (index(), any::<bool>()).prop_map(|(pick, fails)| Step::Complete(pick, fails)),
        3 => index().prop_map(Step::Release),
        1 => Just(Step::Reconnect),
    ]
}

/// The client: what it has published and where each publish stands.
#[derive(Default)]
struct Model {
    next_id: u16,
    /// Acknowledgements that are due, in order: kind, id, and the outcome once it is there.
    due: Vec<(AckKind, PacketId, Option<ReasonCode>)>,
    /// Ticket and place in the order of all slots.
    tickets: Vec<(Ticket, PacketId, QoS)>,
    /// QoS 2 ids whose PUBLISH the broker has taken and that are not released.
    taken: BTreeSet<PacketId>,
    /// Of these, those with PUBREC.
    received: BTreeSet<PacketId>,
    /// Publishes of this connection that are not complete.
    counted: BTreeSet<PacketId>,
}

impl Model {
    fn drain(&mut self, window: &mut AckWindow) {
        while let Some(ack) = window.poll_ack() {
            let (kind, packet_id, outcome) = self.due.remove(0);
            assert_eq!((ack.kind, ack.packet_id, Some(ack.reason)), (kind, packet_id, outcome));
            match kind {
                AckKind::PubRec if ack.reason.is_failure() => {
                    self.taken.remove(&packet_id);
                    self.counted.remove(&packet_id);
                }
                AckKind::PubRec => {
                    self.received.insert(packet_id);
                }
                AckKind::PubAck => {
                    self.counted.remove(&packet_id);
                }
                AckKind::PubRel | AckKind::PubComp => panic!("{kind:?} is no first acknowledgement"),
            }
        }
        assert!(self.due.first().is_none_or(|(_, _, outcome)| outcome.is_none()));
        assert_eq!(window.len(), self.due.len());
    }

    fn publish(&mut self, window: &mut AckWindow, qos: QoS, maximum: usize) {
        let packet_id = id(self.next_id + 1);
        match window.open(packet_id, qos, 0) {
            Opened::New(ticket) => {
                assert!(self.counted.len() < maximum);
                self.next_id += 1;
                let kind = if qos == QoS::ExactlyOnce { AckKind::PubRec } else { AckKind::PubAck };
                self.due.push((kind, packet_id, None));
                self.tickets.push((ticket, packet_id, qos));
                self.counted.insert(packet_id);
                if qos == QoS::ExactlyOnce {
                    self.taken.insert(packet_id);
                }
            }
            Opened::Full => assert_eq!(self.counted.len(), maximum),
            unexpected @ (Opened::Repeated | Opened::Again(..) | Opened::InUse(_)) => {
                panic!("{unexpected:?}")
            }
        }
    }

    fn apply(&mut self, window: &mut AckWindow, step: &Step, maximum: u16) {
        match step {
            Step::Publish(qos) => self.publish(window, *qos, usize::from(maximum)),
            Step::Repeat(pick) if !self.taken.is_empty() => {
                let packet_id = *self.taken.iter().nth(pick.index(self.taken.len())).unwrap();
                assert_eq!(window.open(packet_id, QoS::ExactlyOnce, 0), Opened::Repeated);
                if self.received.remove(&packet_id) {
                    self.due.push((AckKind::PubRec, packet_id, Some(ReasonCode::SUCCESS)));
                }
            }
            Step::Complete(pick, fails) if !self.tickets.is_empty() => {
                let (ticket, packet_id, qos) = self.tickets.remove(pick.index(self.tickets.len()));
                let reason = if *fails { ReasonCode::TOPIC_NAME_INVALID } else { ReasonCode::SUCCESS };
                window.complete(ticket, reason);
                let kind = if qos == QoS::ExactlyOnce { AckKind::PubRec } else { AckKind::PubAck };
                let due = self.due.iter_mut().find(|due| (due.0, due.1) == (kind, packet_id)).unwrap();
                due.2 = Some(reason);
            }
            Step::Release(pick) if !self.received.is_empty() => {
                let packet_id = *self.received.iter().nth(pick.index(self.received.len())).unwrap();
                assert!(window.release(packet_id));
                self.received.remove(&packet_id);
                self.taken.remove(&packet_id);
                self.counted.remove(&packet_id);
            }
            Step::Reconnect => {
                // Without outcome: the client will publish it anew.
                for (_, packet_id, outcome) in self.due.drain(..) {
                    match outcome {
                        Some(reason) if !reason.is_failure() && self.taken.contains(&packet_id) => {
                            self.received.insert(packet_id);
                        }
                        _ => {
                            self.taken.remove(&packet_id);
                        }
                    }
                }
                let received = window.take_received();
                assert_eq!(received, self.taken.iter().copied().collect::<Vec<_>>());
                assert_eq!(self.taken, self.received);
                self.tickets.clear();
                self.counted.clear();
                *window = AckWindow::resume(Version::V5, maximum, &received, &[]);
            }
            Step::Repeat(_) | Step::Complete(..) | Step::Release(_) => {}
        }
        self.drain(window);
        assert_eq!(window.is_full(), self.counted.len() >= usize::from(maximum));
    }
}

proptest! {
    /// Every publish is taken once, acknowledged in order and not before its outcome, over any number of connections.
    #[test]
    fn publishes_are_taken_once_and_acknowledged_in_order_of_receipt(
        steps in proptest::collection::vec(step(), 0..200),
        maximum in 1_u16..20,
    ) {
        let mut window = AckWindow::new(Version::V5, maximum);
        let mut model = Model::default();
        for step in &steps {
            model.apply(&mut window, step, maximum);
        }
    }
}

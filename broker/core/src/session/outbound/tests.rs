use super::*;
use crate::message::Message;
use crate::session::offsets::DONE_OFFSETS_MAX;
use crate::topic::TopicName;
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;

fn window(window: u16) -> NonZeroU16 {
    NonZeroU16::new(window).unwrap()
}

fn id(number: u16) -> PacketId {
    PacketId::new(number).unwrap()
}

fn outgoing(number: u64, qos: QoS, source: Source) -> OutgoingDelivery {
    let message = Message {
        topic: TopicName::parse("t").unwrap(),
        payload: Bytes::copy_from_slice(&number.to_be_bytes()),
        qos,
        retain: false,
        properties: None,
        publisher: "p".into(),
        publish_time_ms: 0,
    };
    let message = Arc::new(message);
    OutgoingDelivery { message, qos, retain: false, identifiers: None, source, sent_as: None }
}

fn number_of(delivery: &OutgoingDelivery) -> u64 {
    u64::from_be_bytes(delivery.message.payload[..].try_into().unwrap())
}

fn admit(outbound: &mut Outbound, qos: QoS, source: Source) -> Admission {
    outbound.admit(qos, source, || outgoing(0, qos, source))
}

fn first(qos: QoS, number: u16) -> Admission {
    Admission::Send(Sending { qos, packet_id: PacketId::new(number), dup: false })
}

fn again(qos: QoS, number: u16) -> Admission {
    Admission::Send(Sending { qos, packet_id: PacketId::new(number), dup: true })
}

#[test]
fn a_packet_id_is_not_reused_while_it_is_in_use() {
    let mut outbound = Outbound::new(NonZeroU16::MAX);
    for number in 1..=u16::MAX {
        assert_eq!(admit(&mut outbound, QoS::AtLeastOnce, Source::Live), first(QoS::AtLeastOnce, number));
    }
    assert_eq!(admit(&mut outbound, QoS::AtLeastOnce, Source::Live), Admission::Wait);
    assert_eq!(outbound.poll_pending(), None);

    outbound.handle_puback(id(7)).unwrap();

    let (sending, _) = outbound.poll_pending().unwrap();
    assert_eq!(sending.packet_id, Some(id(7)));
    assert_eq!(outbound.handle_puback(id(7)), Ok(None));
    assert_eq!(outbound.handle_puback(id(7)), Err(AckError::Unknown(id(7))));
}

#[test]
fn a_qos_2_delivery_holds_its_packet_id_and_its_place_until_pubcomp() {
    let mut outbound = Outbound::new(window(1));
    let qos = QoS::ExactlyOnce;
    assert_eq!(admit(&mut outbound, qos, Source::Queue(5)), first(qos, 1));
    assert_eq!(admit(&mut outbound, qos, Source::Queue(6)), Admission::Wait);

    assert_eq!(outbound.handle_pubrec(id(1), false), Ok(Received::Release(Some(5))));
    assert_eq!(outbound.handle_pubrec(id(1), false), Ok(Received::Release(None)), "repeated");
    assert_eq!((outbound.in_flight_offsets(), outbound.done_offsets()), (vec![6], vec![5]));
    assert_eq!(outbound.poll_pending(), None, "the id is in use");
    assert_eq!(outbound.handle_pubcomp(id(1)), Ok(()));

    assert_eq!(outbound.poll_pending().unwrap().0.packet_id, Some(id(2)));
    assert_eq!(outbound.handle_pubcomp(id(1)), Err(AckError::Unknown(id(1))));
    assert_eq!(outbound.handle_pubrec(id(1), false), Err(AckError::Unknown(id(1))));
}

#[test]
fn a_refusing_pubrec_ends_the_delivery() {
    let mut outbound = Outbound::new(window(1));
    admit(&mut outbound, QoS::ExactlyOnce, Source::Queue(5));

    assert_eq!(outbound.handle_pubrec(id(1), true), Ok(Received::Refused(Some(5))));

    assert_eq!((outbound.in_use_count(), outbound.done_offsets()), (0, vec![5]));
}

#[test]
fn an_acknowledgement_of_the_wrong_kind_is_told_from_an_unknown_one() {
    let mut outbound = Outbound::new(window(10));
    admit(&mut outbound, QoS::AtLeastOnce, Source::Live);
    admit(&mut outbound, QoS::ExactlyOnce, Source::Live);
    admit(&mut outbound, QoS::ExactlyOnce, Source::Live);
    outbound.handle_pubrec(id(3), false).unwrap();

    let out_of_step = |number| AckError::OutOfStep(id(number));
    assert_eq!(outbound.handle_pubrec(id(1), false), Err(out_of_step(1)));
    assert_eq!(outbound.handle_pubcomp(id(1)), Err(out_of_step(1)));
    assert_eq!(outbound.handle_puback(id(2)), Err(out_of_step(2)));
    assert_eq!(outbound.handle_pubcomp(id(2)), Err(out_of_step(2)));
    assert_eq!(outbound.handle_puback(id(3)), Err(out_of_step(3)));
    assert_eq!(outbound.in_use_count(), 3, "nothing changed");
}

#[test]
fn an_offset_in_flight_or_done_is_not_sent_again() {
    let mut outbound = Outbound::new(window(2));
    let qos = QoS::AtLeastOnce;

    assert_eq!(admit(&mut outbound, qos, Source::Queue(5)), first(qos, 1));
    assert_eq!(admit(&mut outbound, qos, Source::Queue(5)), Admission::InFlight);
    assert_eq!(outbound.in_flight_offsets(), [5]);
    assert_eq!(outbound.handle_puback(PacketId::MIN), Ok(Some(5)));
    assert_eq!(admit(&mut outbound, qos, Source::Queue(5)), Admission::Done);
    assert_eq!((outbound.in_flight_offsets(), outbound.done_offsets()), (vec![], vec![5]));
}

#[test]
fn the_oldest_done_offsets_are_forgotten_at_the_bound() {
    let mut outbound = Outbound::new(NonZeroU16::MIN);
    let count = u64::try_from(DONE_OFFSETS_MAX).unwrap() + 1;
    for offset in 0..count {
        let Admission::Send(sending) = admit(&mut outbound, QoS::AtLeastOnce, Source::Queue(offset)) else {
            panic!("offset {offset} is new")
        };
        outbound.handle_puback(sending.packet_id.unwrap()).unwrap();
    }

    assert_eq!(outbound.done_offsets(), (1..count).collect::<Vec<_>>());
}

#[test]
fn a_resumed_session_goes_on_under_the_same_packet_ids() {
    let mut outbound = Outbound::resume(window(10), OutgoingInFlight::default());
    admit(&mut outbound, QoS::AtLeastOnce, Source::Queue(5));
    admit(&mut outbound, QoS::ExactlyOnce, Source::Queue(6));
    admit(&mut outbound, QoS::ExactlyOnce, Source::Queue(7));
    admit(&mut outbound, QoS::ExactlyOnce, Source::Queue(8));
    assert_eq!(admit(&mut outbound, QoS::AtLeastOnce, Source::Live), first(QoS::AtLeastOnce, 5));
    outbound.handle_pubrec(id(4), false).unwrap();
    outbound.handle_pubrec(id(3), false).unwrap();

    let mut resumed = Outbound::resume(window(10), outbound.take_in_flight());

    assert_eq!(resumed.released(), [id(4), id(3)], "in the order of PUBREC");
    let (sending, _) = resumed.poll_pending().unwrap();
    assert_eq!(Admission::Send(sending), again(QoS::AtLeastOnce, 5));
    // The subscription may have changed since; the delivery goes on at the QoS at which it was begun.
    assert_eq!(admit(&mut resumed, QoS::AtLeastOnce, Source::Queue(5)), again(QoS::AtLeastOnce, 1));
    assert_eq!(admit(&mut resumed, QoS::AtLeastOnce, Source::Queue(6)), again(QoS::ExactlyOnce, 2));
    assert_eq!(admit(&mut resumed, QoS::AtLeastOnce, Source::Queue(9)), first(QoS::AtLeastOnce, 6));
}

#[test]
fn a_smaller_window_holds_for_what_is_sent_again_and_keeps_its_ids() {
    let mut outbound = Outbound::resume(window(10), OutgoingInFlight::default());
    for offset in 0..3 {
        admit(&mut outbound, QoS::ExactlyOnce, Source::Queue(offset));
    }
    let mut resumed = Outbound::resume(window(1), outbound.take_in_flight());
    assert_eq!(admit(&mut resumed, QoS::ExactlyOnce, Source::Queue(0)), again(QoS::ExactlyOnce, 1));
    assert_eq!(admit(&mut resumed, QoS::ExactlyOnce, Source::Queue(1)), Admission::Wait);

    let mut resumed = Outbound::resume(window(2), resumed.take_in_flight());

    for offset in 0..2 {
        let expected = again(QoS::ExactlyOnce, u16::try_from(offset + 1).unwrap());
        assert_eq!(admit(&mut resumed, QoS::ExactlyOnce, Source::Queue(offset)), expected);
    }
    assert_eq!(admit(&mut resumed, QoS::ExactlyOnce, Source::Queue(2)), Admission::Wait);
    resumed.handle_pubrec(id(1), true).unwrap();
    assert_eq!(Admission::Send(resumed.poll_pending().unwrap().0), again(QoS::ExactlyOnce, 3));
}

#[test]
fn what_is_too_large_when_it_is_sent_again_is_released_and_else_ends() {
    let mut outbound = Outbound::resume(window(10), OutgoingInFlight::default());
    admit(&mut outbound, QoS::ExactlyOnce, Source::Queue(0));
    let sending = Sending { qos: QoS::ExactlyOnce, packet_id: Some(id(1)), dup: true };

    assert_eq!(outbound.handle_not_written(sending), Some(Received::Release(Some(0))));
    assert_eq!(outbound.released(), [id(1)]);

    admit(&mut outbound, QoS::ExactlyOnce, Source::Queue(1));
    let sending = Sending { packet_id: Some(id(2)), dup: false, ..sending };
    assert_eq!(outbound.handle_not_written(sending), Some(Received::Refused(Some(1))));
    assert_eq!(outbound.in_use_count(), 1);
}

#[derive(Debug, Clone)]
enum Step {
    Deliver {
        qos: QoS,
        is_live: bool,
    },
    /// The client takes the next step of one of its exchanges.
    Acknowledge(proptest::sample::Index),
    RepeatPubrec(proptest::sample::Index),
    Refuse(proptest::sample::Index),
    Reconnect(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let qos = prop_oneof![Just(QoS::AtLeastOnce), Just(QoS::ExactlyOnce)];
    prop_oneof![
        5 => (qos, any::<bool>()).prop_map(|(qos, is_live)| Step::Deliver { qos, is_live }),
        6 => any::<proptest::sample::Index>().prop_map(Step::Acknowledge),
        1 => any::<proptest::sample::Index>().prop_map(Step::RepeatPubrec),
        1 => any::<proptest::sample::Index>().prop_map(Step::Refuse),
        1 => (1_u16..8).prop_map(Step::Reconnect),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Puback,
    Pubrec,
    Pubcomp,
}

/// The client, and the owner that delivers again what is not done.
struct Model {
    outbound: Outbound,
    window: usize,
    next: u64,
    /// What the client has under each id.
    client: BTreeMap<PacketId, (u64, Due)>,
    /// Ids whose PUBLISH came on this connection: only those are acknowledged.
    present: BTreeSet<PacketId>,
    /// QoS and origin of every message; offset and number are the same.
    published: BTreeMap<u64, (QoS, Source)>,
    received: Vec<u64>,
    first: BTreeSet<u64>,
}

impl Model {
    fn new() -> Self {
        Self {
            outbound: Outbound::resume(window(3), OutgoingInFlight::default()),
            window: 3,
            next: 0,
            client: BTreeMap::new(),
            present: BTreeSet::new(),
            published: BTreeMap::new(),
            received: Vec::new(),
            first: BTreeSet::new(),
        }
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Deliver { qos, is_live } => {
                let source = if *is_live { Source::Live } else { Source::Queue(self.next) };
                self.published.insert(self.next, (*qos, source));
                self.deliver(self.next);
                self.next += 1;
            }
            Step::Acknowledge(pick) => {
                if let Some(packet_id) = self.pick(pick, |_| true) {
                    self.acknowledge(packet_id, false);
                }
            }
            Step::Refuse(pick) => {
                if let Some(packet_id) = self.pick(pick, |due| due == Due::Pubrec) {
                    self.acknowledge(packet_id, true);
                }
            }
            Step::RepeatPubrec(pick) => {
                if let Some(packet_id) = self.pick(pick, |due| due == Due::Pubcomp) {
                    let answer = self.outbound.handle_pubrec(packet_id, false);
                    assert_eq!(answer, Ok(Received::Release(None)));
                }
            }
            Step::Reconnect(window) => self.reconnect(*window),
        }
        self.poll();
        self.check();
    }

    fn pick(&self, pick: &proptest::sample::Index, is_due: impl Fn(Due) -> bool) -> Option<PacketId> {
        let present: Vec<_> = self.present.iter().filter(|id| is_due(self.client[*id].1)).collect();
        (!present.is_empty()).then(|| *present[pick.index(present.len())])
    }

    fn deliver(&mut self, number: u64) {
        let (qos, source) = self.published[&number];
        match self.outbound.admit(qos, source, || outgoing(number, qos, source)) {
            Admission::Send(sending) => self.send(sending, number),
            Admission::Wait => {}
            unexpected @ (Admission::InFlight | Admission::Done) => panic!("{unexpected:?}"),
        }
    }

    fn poll(&mut self) {
        while let Some((sending, delivery)) = self.outbound.poll_pending() {
            self.send(sending, number_of(&delivery));
        }
    }

    fn send(&mut self, sending: Sending, number: u64) {
        let (qos, source) = self.published[&number];
        let due = if qos == QoS::ExactlyOnce { Due::Pubrec } else { Due::Puback };
        let packet_id = sending.packet_id.unwrap();
        assert_eq!(sending.qos, qos);
        assert_eq!(
            self.client.get(&packet_id),
            sending.dup.then_some(&(number, due)),
            "an id is free, or it is the same packet again"
        );
        if self.first.insert(number) {
            let is_same_way =
                |other: &&u64| (self.published[*other].1 == Source::Live) == (source == Source::Live);
            assert_eq!(
                self.first.iter().filter(is_same_way).max(),
                Some(&number),
                "first deliveries in order"
            );
        } else {
            assert!(sending.dup, "{number} comes again under its id");
        }
        self.client.insert(packet_id, (number, due));
        self.present.insert(packet_id);
    }

    fn acknowledge(&mut self, packet_id: PacketId, is_refused: bool) {
        let (number, due) = self.client[&packet_id];
        let offset = (self.published[&number].1 != Source::Live).then_some(number);
        match due {
            Due::Puback => assert_eq!(self.outbound.handle_puback(packet_id), Ok(offset)),
            Due::Pubcomp => assert_eq!(self.outbound.handle_pubcomp(packet_id), Ok(())),
            Due::Pubrec if is_refused => {
                assert_eq!(self.outbound.handle_pubrec(packet_id, true), Ok(Received::Refused(offset)));
            }
            Due::Pubrec => {
                assert_eq!(self.outbound.handle_pubrec(packet_id, false), Ok(Received::Release(offset)));
                self.received.push(number);
                self.client.insert(packet_id, (number, Due::Pubcomp));
                return;
            }
        }
        if due != Due::Pubcomp {
            self.received.push(number);
        }
        self.client.remove(&packet_id);
        self.present.remove(&packet_id);
    }

    fn reconnect(&mut self, window_now: u16) {
        let in_flight = self.outbound.take_in_flight();
        let released: BTreeSet<_> = in_flight.released.iter().copied().collect();
        self.outbound = Outbound::resume(window(window_now), in_flight);
        self.window = usize::from(window_now).max(released.len());
        let in_step: BTreeSet<_> =
            self.client.iter().filter(|(_, (_, due))| *due == Due::Pubcomp).map(|(id, _)| *id).collect();
        assert_eq!(released, in_step, "PUBREL comes again for what the client has received");
        self.present = released;
        self.poll();
        let open: Vec<u64> = self
            .published
            .iter()
            .filter(|(number, (_, source))| *source != Source::Live && !self.received.contains(number))
            .map(|(number, _)| *number)
            .collect();
        for number in open {
            self.deliver(number);
            self.check();
        }
    }

    fn check(&self) {
        assert_eq!(self.outbound.in_use_count(), self.present.len());
        assert!(self.present.len() <= self.window);
        assert_eq!(self.outbound.pending_bytes(), self.outbound.pending_count() * 9);
        assert!(self.outbound.pending_count() == 0 || self.present.len() >= self.outbound.window);
    }

    /// In the end every message has been received, and once.
    fn finish(mut self) {
        while !self.client.is_empty() || self.outbound.pending_count() > 0 {
            for packet_id in self.present.clone() {
                self.acknowledge(packet_id, false);
            }
            self.poll();
        }
        self.received.sort_unstable();
        assert_eq!(self.received, (0..self.next).collect::<Vec<_>>());
    }
}

proptest! {
    #[test]
    fn deliveries_keep_order_window_and_packet_ids_over_any_number_of_connections(
        steps in proptest::collection::vec(step(), 0..300),
    ) {
        let mut model = Model::new();
        for step in &steps {
            model.apply(step);
        }
        model.finish();
    }
}

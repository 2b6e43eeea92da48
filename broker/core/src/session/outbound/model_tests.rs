//! A client and an owner against the outbound half, over any number of connections.

use super::fixture::{number_of, outgoing, window};
use super::*;
use crate::session::in_flight::OutgoingInFlight;
use proptest::prelude::*;
use std::collections::BTreeSet;

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
            self.send(sending, number_of(&delivery.message));
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
        assert!(
            self.outbound.pending_count() == 0
                || self.present.len() >= usize::from(self.outbound.window.get())
        );
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

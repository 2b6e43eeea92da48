//! A client and an owner against the outbound half, over any number of connections and over deaths of the host.

use super::fixture::{number_of, outgoing, window};
use super::*;
use crate::session::exactly_once::ExactlyOnce;
use crate::session::in_flight::{InFlight, OutgoingInFlight};
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
    /// The owner has stored one more PUBREC.
    Store,
    Reconnect(u16),
    /// Host and owner die together: only what the owner has stored is known.
    Crash(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let qos = prop_oneof![Just(QoS::AtLeastOnce), Just(QoS::ExactlyOnce)];
    prop_oneof![
        5 => (qos, any::<bool>()).prop_map(|(qos, is_live)| Step::Deliver { qos, is_live }),
        6 => any::<proptest::sample::Index>().prop_map(Step::Acknowledge),
        1 => any::<proptest::sample::Index>().prop_map(Step::RepeatPubrec),
        1 => any::<proptest::sample::Index>().prop_map(Step::Refuse),
        3 => Just(Step::Store),
        1 => (1_u16..8).prop_map(Step::Reconnect),
        1 => (1_u16..8).prop_map(Step::Crash),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Puback,
    Pubrec,
    /// PUBREC was sent; the broker has not released it.
    Pubrel,
    Pubcomp,
}

/// The client, and the owner that delivers again what is not done.
struct Model {
    outbound: Outbound,
    owner: ExactlyOnce,
    /// PUBRECs that the owner has not stored, in order.
    unstored: Vec<(u64, PacketId)>,
    window: usize,
    next: u64,
    /// What the client has under each id.
    client: BTreeMap<PacketId, (u64, Due)>,
    /// Ids whose PUBLISH came on this connection: only those are acknowledged.
    present: BTreeSet<PacketId>,
    /// QoS and origin of every message; offset and number are the same.
    published: BTreeMap<u64, (QoS, Source)>,
    /// What the client has passed on.
    received: Vec<u64>,
    /// What the owner does not deliver again.
    done: BTreeSet<u64>,
    first: BTreeSet<u64>,
}

impl Model {
    fn new() -> Self {
        Self {
            outbound: Outbound::resume(window(3), OutgoingInFlight::default()),
            owner: ExactlyOnce::default(),
            unstored: Vec::new(),
            window: 3,
            next: 0,
            client: BTreeMap::new(),
            present: BTreeSet::new(),
            published: BTreeMap::new(),
            received: Vec::new(),
            done: BTreeSet::new(),
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
                if let Some(packet_id) = self.pick(pick, |due| due != Due::Pubrel) {
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
                    assert_eq!(answer, Ok(Received::Release));
                }
                if let Some(packet_id) = self.pick(pick, |due| due == Due::Pubrel) {
                    let answer = self.outbound.handle_pubrec(packet_id, false);
                    assert_eq!(answer, Ok(Received::Waiting));
                }
            }
            Step::Store => self.store(),
            Step::Reconnect(window) => {
                let told = InFlight { outgoing: self.outbound.take_in_flight(), ..InFlight::default() };
                // What the host reports before the end of the connection comes first.
                while !self.unstored.is_empty() {
                    self.store_one();
                }
                self.resume(*window, self.owner.complete_in_flight(told).outgoing);
            }
            Step::Crash(window) => {
                self.unstored.clear();
                self.forget_what_only_the_host_knew();
                self.resume(*window, self.owner.complete_in_flight(InFlight::default()).outgoing);
            }
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
        let given = (qos == QoS::ExactlyOnce && source != Source::Live).then(|| {
            let given = self.owner.give_id(number).unwrap().packet_id;
            self.owner.note_stored(number);
            given
        });
        match self.outbound.admit((qos, given), source, || outgoing(number, qos, source)) {
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
        let known = self.client.get(&packet_id).copied();
        let is_same = known
            .is_some_and(|(known, due_then)| known == number && (due_then == due || due_then == Due::Pubrel));
        // After a crash the owner cannot know whether it had been sent.
        assert!(known.is_none() || (is_same && sending.dup), "an id is free, or it is the same packet again");
        if self.first.insert(number) {
            let is_same_way =
                |other: &&u64| (self.published[*other].1 == Source::Live) == (source == Source::Live);
            assert_eq!(
                self.first.iter().filter(is_same_way).max(),
                Some(&number),
                "first deliveries in order"
            );
        } else if qos == QoS::ExactlyOnce {
            assert!(sending.dup, "{number} comes again under its id");
        }
        if !is_same {
            self.client.insert(packet_id, (number, due));
        } else if known == Some((number, Due::Pubrel)) {
            // Its PUBREC leaves again.
            self.client.insert(packet_id, (number, Due::Pubrec));
        }
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
                let expected = offset.map_or(Received::Release, Received::Store);
                assert_eq!(self.outbound.handle_pubrec(packet_id, false), Ok(expected));
                self.pass_on(number);
                self.unstored.extend(offset.map(|offset| (offset, packet_id)));
                let due = if offset.is_some() { Due::Pubrel } else { Due::Pubcomp };
                self.client.insert(packet_id, (number, due));
                return;
            }
            Due::Pubrel => panic!("the broker is to speak"),
        }
        if due == Due::Pubcomp {
            self.owner.complete(packet_id);
        } else {
            self.pass_on(number);
            self.owner.finish(number);
            self.done.insert(number);
        }
        self.client.remove(&packet_id);
        self.present.remove(&packet_id);
    }

    /// At QoS 2 the client has passed it on when it first knew the packet id.
    fn pass_on(&mut self, number: u64) {
        let is_new = !self.received.contains(&number);
        assert!(is_new || self.published[&number].0 != QoS::ExactlyOnce || !self.done.contains(&number));
        if is_new {
            self.received.push(number);
        }
    }

    fn store(&mut self) {
        if !self.unstored.is_empty() {
            let packet_id = self.store_one();
            assert!(self.outbound.release_stored(packet_id));
            assert!(!self.outbound.release_stored(packet_id), "PUBREL leaves once");
        }
    }

    fn store_one(&mut self) -> PacketId {
        let (offset, packet_id) = self.unstored.remove(0);
        assert_eq!(self.owner.receive(offset), Some(packet_id));
        self.done.insert(offset);
        self.client.insert(packet_id, (offset, Due::Pubcomp));
        packet_id
    }

    /// Live deliveries die with the host; what the client had of QoS 1 it forgets with its connection.
    fn forget_what_only_the_host_knew(&mut self) {
        for (number, (_, source)) in &self.published {
            if *source == Source::Live && !self.received.contains(number) {
                self.received.push(*number);
            }
        }
        let published = &self.published;
        self.client.retain(|_, (number, due)| {
            let (qos, source) = published[number];
            source != Source::Live && qos == QoS::ExactlyOnce && *due != Due::Puback
        });
    }

    fn resume(&mut self, window_now: u16, in_flight: OutgoingInFlight) {
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
            .filter(|(number, (_, source))| *source != Source::Live && !self.done.contains(number))
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
                if self.client[&packet_id].1 != Due::Pubrel {
                    self.acknowledge(packet_id, false);
                }
            }
            self.store();
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

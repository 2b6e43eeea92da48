//! What the owner of a persistent session keeps of its QoS 2 exchanges, in both directions. It is stored before the
//! next packet of an exchange leaves, so that an exchange goes on where it stood when host and owner die together.
//!
//! Outgoing: the owner gives a delivery its packet id and stores both before the first PUBLISH; PUBREC is stored before
//! PUBREL leaves. Incoming: the packet id is stored with the unique id of the publish before the first append (the
//! *intent*), and its end before PUBCOMP.

use super::in_flight::{InFlight, Intent, SentFromQueue};
use crate::packet::{PacketId, QoS};
use crate::partition::Offset;
use std::collections::BTreeMap;

/// Packet ids from here on are given by the owner, to QoS 2 deliveries of the session's queue; those below by the host,
/// to all others of a persistent session. So neither asks the other, and an id that a client may still know from
/// before a crash is never taken for something else.
pub const OWNER_IDS_FROM: u16 = 0x8000;

/// The QoS 2 exchanges of one session.
///
/// Invariant: `by_offset` has exactly the outgoing exchanges that are not released.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExactlyOnce {
    outgoing: BTreeMap<PacketId, Outgoing>,
    by_offset: BTreeMap<Offset, PacketId>,
    /// Where to look for a free packet id, above [`OWNER_IDS_FROM`].
    next: u16,
    /// Counts releases: PUBREL is sent again in their order.
    releases: u64,
    incoming: BTreeMap<PacketId, Incoming>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Outgoing {
    offset: Offset,
    step: Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The id is given; nothing was sent.
    Given,
    /// The id is stored: PUBLISH may have been sent.
    Stored,
    /// PUBREC came. In the order of the number.
    Released(u64),
}

/// A publish that is not complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Incoming {
    /// Id of the publish, the same in each of its records.
    pub unique_id: u128,
    /// When the intent was stored, milliseconds since the Unix epoch: its records are not older.
    pub since_ms: u64,
    /// All its appends are known to be committed.
    pub is_settled: bool,
    /// Partitions whose log has its record, as bits; only of one that was under way at a crash.
    pub found: u64,
}

/// The packet id of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GivenId {
    /// The id.
    pub packet_id: PacketId,
    /// PUBLISH may leave; else only after the next commit, and [`ExactlyOnce::note_stored`].
    pub is_stored: bool,
}

impl ExactlyOnce {
    /// Whether no exchange is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.outgoing.is_empty() && self.incoming.is_empty()
    }

    /// A stored outgoing exchange.
    pub fn restore_outgoing(&mut self, packet_id: PacketId, offset: Offset, is_released: bool) {
        let step = if is_released { Step::Released(self.next_release()) } else { Step::Stored };
        self.outgoing.insert(packet_id, Outgoing { offset, step });
        if !is_released {
            self.by_offset.insert(offset, packet_id);
        }
    }

    /// A stored intent, or one that is being stored; replaces one of the same packet id.
    pub fn set_incoming(&mut self, packet_id: PacketId, incoming: Incoming) {
        self.incoming.insert(packet_id, incoming);
    }

    /// The packet id of the delivery at `offset`, a new one if it has none. `None` when all are in use: the delivery
    /// waits, which the window of a receiver never lets happen.
    pub fn give_id(&mut self, offset: Offset) -> Option<GivenId> {
        if let Some(packet_id) = self.by_offset.get(&offset).copied() {
            let step = self.outgoing.get(&packet_id).map(|outgoing| outgoing.step);
            return Some(GivenId { packet_id, is_stored: step == Some(Step::Stored) });
        }
        let packet_id = self.free_id()?;
        self.outgoing.insert(packet_id, Outgoing { offset, step: Step::Given });
        self.by_offset.insert(offset, packet_id);
        Some(GivenId { packet_id, is_stored: false })
    }

    fn free_id(&mut self) -> Option<PacketId> {
        for _ in OWNER_IDS_FROM..=u16::MAX {
            let packet_id = PacketId::new(OWNER_IDS_FROM | self.next)?;
            self.next = (self.next + 1) & !OWNER_IDS_FROM;
            if !self.outgoing.contains_key(&packet_id) {
                return Some(packet_id);
            }
        }
        None
    }

    /// The packet id of the delivery at `offset` is stored.
    pub fn note_stored(&mut self, offset: Offset) {
        if let Some(packet_id) = self.by_offset.get(&offset)
            && let Some(outgoing) = self.outgoing.get_mut(packet_id)
        {
            outgoing.step = Step::Stored;
        }
    }

    /// The client has received the delivery at `offset`: PUBREL may leave when this is stored. Its packet id, unless
    /// that is known already.
    pub fn receive(&mut self, offset: Offset) -> Option<PacketId> {
        let packet_id = self.by_offset.remove(&offset)?;
        let step = Step::Released(self.next_release());
        self.outgoing.insert(packet_id, Outgoing { offset, step });
        Some(packet_id)
    }

    /// The delivery at `offset` ended before the client had it, or was refused by it. Its packet id, to be deleted.
    pub fn finish(&mut self, offset: Offset) -> Option<PacketId> {
        let packet_id = self.by_offset.remove(&offset)?;
        self.outgoing.remove(&packet_id);
        Some(packet_id)
    }

    /// PUBCOMP came. False for an exchange that is not released.
    pub fn complete(&mut self, packet_id: PacketId) -> bool {
        let is_released =
            self.outgoing.get(&packet_id).is_some_and(|one| matches!(one.step, Step::Released(_)));
        if is_released {
            self.outgoing.remove(&packet_id);
        }
        is_released
    }

    /// PUBREL came: the packet id is free. The intent, to be deleted.
    pub fn release(&mut self, packet_id: PacketId) -> Option<Incoming> {
        self.incoming.remove(&packet_id)
    }

    /// After a crash: the log of these partitions has a record of a publish without a known outcome. What to store.
    pub fn note_found(&mut self, packet_id: PacketId, found: u64) -> Option<Incoming> {
        let incoming = self.incoming.get_mut(&packet_id).filter(|incoming| !incoming.is_settled)?;
        incoming.found |= found;
        Some(*incoming)
    }

    /// All appends of a publish are committed. What to store, if that is new.
    pub fn settle(&mut self, packet_id: PacketId) -> Option<Incoming> {
        let incoming = self.incoming.get_mut(&packet_id).filter(|incoming| !incoming.is_settled)?;
        incoming.is_settled = true;
        Some(*incoming)
    }

    /// Publishes of which nobody knows whether they are in the log.
    pub fn unsettled(&self) -> impl Iterator<Item = (PacketId, Incoming)> + '_ {
        self.incoming.iter().filter(|(_, incoming)| !incoming.is_settled).map(|(id, one)| (*id, *one))
    }

    /// All packet ids in use, outgoing and incoming: what is to be deleted with the session.
    pub fn packet_ids(&self) -> (impl Iterator<Item = PacketId> + '_, impl Iterator<Item = PacketId> + '_) {
        (self.outgoing.keys().copied(), self.incoming.keys().copied())
    }

    /// What the next connection goes on with: `told`, as the last host told, made good by what is stored here.
    #[must_use]
    pub fn complete_in_flight(&self, told: InFlight) -> InFlight {
        let InFlight { mut received, mut outgoing, retained, intents: _ } = told;
        outgoing.queue.retain(|sent| sent.packet_id.get() < OWNER_IDS_FROM);
        outgoing.queue.extend(self.by_offset.iter().map(|(offset, packet_id)| SentFromQueue {
            offset: *offset,
            packet_id: *packet_id,
            qos: QoS::ExactlyOnce,
        }));
        outgoing.queue.sort_unstable_by_key(|sent| sent.offset);
        let is_released =
            |id: &PacketId| matches!(self.outgoing.get(id), Some(Outgoing { step: Step::Released(_), .. }));
        outgoing.released.retain(|id| id.get() < OWNER_IDS_FROM || is_released(id));
        let mut further: Vec<(u64, PacketId)> = Vec::new();
        for (packet_id, one) in &self.outgoing {
            match one.step {
                Step::Released(order) if !outgoing.released.contains(packet_id) => {
                    further.push((order, *packet_id));
                }
                Step::Given | Step::Stored | Step::Released(_) => {}
            }
        }
        further.sort_unstable();
        outgoing.released.extend(further.into_iter().map(|(_, packet_id)| packet_id));
        for (packet_id, incoming) in &self.incoming {
            if incoming.is_settled && received.binary_search(packet_id).is_err() {
                received.push(*packet_id);
            }
        }
        received.sort_unstable();
        let intents = self.incoming.iter();
        let intents = intents.map(|(packet_id, one)| Intent {
            packet_id: *packet_id,
            unique_id: one.unique_id,
            found: one.found,
        });
        InFlight { received, intents: intents.collect(), outgoing, retained }
    }

    fn next_release(&mut self) -> u64 {
        self.releases += 1;
        self.releases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::in_flight::{OutgoingInFlight, RetainedDue, RetainedFrom};
    use crate::topic::TopicFilter;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn id(number: u16) -> PacketId {
        PacketId::new(number).unwrap()
    }

    fn incoming(unique_id: u128, is_settled: bool) -> Incoming {
        Incoming { unique_id, since_ms: 0, is_settled, found: 0 }
    }

    #[test]
    fn a_delivery_keeps_its_packet_id_until_it_is_complete() {
        let mut kept = ExactlyOnce::default();
        let given = kept.give_id(7).unwrap();
        assert_eq!(given, GivenId { packet_id: id(0x8000), is_stored: false });
        kept.note_stored(7);
        assert_eq!(kept.give_id(7), Some(GivenId { is_stored: true, ..given }));
        assert!(!kept.complete(given.packet_id), "PUBCOMP before PUBREC completes nothing");

        assert_eq!(kept.receive(7), Some(given.packet_id));
        assert_eq!(kept.receive(7), None, "PUBREC is stored once");
        assert_eq!(kept.give_id(8).unwrap().packet_id, id(0x8001));
        assert!(kept.complete(given.packet_id));

        assert_eq!(kept.finish(8), Some(id(0x8001)));
        assert!(kept.is_empty());
    }

    #[test]
    fn the_next_connection_goes_on_with_what_is_stored_and_with_what_only_the_host_knows() {
        let mut kept = ExactlyOnce::default();
        kept.restore_outgoing(id(0x8005), 50, false);
        kept.restore_outgoing(id(0x8002), 20, true);
        kept.restore_outgoing(id(0x8001), 30, true);
        kept.set_incoming(id(9), incoming(99, true));
        kept.set_incoming(id(4), incoming(44, false));
        let qos1 = SentFromQueue { offset: 60, packet_id: id(3), qos: QoS::AtLeastOnce };
        let outdated = SentFromQueue { offset: 10, packet_id: id(0x8009), qos: QoS::ExactlyOnce };
        let told = InFlight {
            received: vec![id(5)],
            intents: Vec::new(),
            outgoing: OutgoingInFlight {
                queue: vec![outdated, qos1],
                released: vec![id(7), id(0x8001), id(0x8009)],
                ..OutgoingInFlight::default()
            },
            retained: vec![RetainedDue {
                filter: TopicFilter::parse("a/#").unwrap(),
                from: RetainedFrom::Start,
            }],
        };
        let retained = told.retained.clone();

        let merged = kept.complete_in_flight(told);

        let qos2 = SentFromQueue { offset: 50, packet_id: id(0x8005), qos: QoS::ExactlyOnce };
        assert_eq!(merged.outgoing.queue, vec![qos2, qos1]);
        assert_eq!(merged.outgoing.released, vec![id(7), id(0x8001), id(0x8002)]);
        assert_eq!(merged.received, vec![id(5), id(9)]);
        assert_eq!(merged.retained, retained);
        let intents: Vec<_> = merged.intents.iter().map(|one| (one.packet_id, one.unique_id)).collect();
        assert_eq!(intents, vec![(id(4), 44), (id(9), 99)]);
    }

    proptest! {
        /// Model: which offsets have an id, and which ids are taken.
        #[test]
        fn no_packet_id_is_given_twice_at_the_same_time(
            steps in proptest::collection::vec((0_u8..5, any::<proptest::sample::Index>()), 0..300),
        ) {
            let mut kept = ExactlyOnce::default();
            let mut open: BTreeMap<Offset, PacketId> = BTreeMap::new();
            let mut released: BTreeSet<PacketId> = BTreeSet::new();
            let mut next = 0;
            for (step, pick) in steps {
                let chosen = (!open.is_empty()).then(|| *open.iter().nth(pick.index(open.len())).unwrap().0);
                match (step, chosen) {
                    (0 | 1, _) => {
                        let given = kept.give_id(next).unwrap().packet_id;
                        prop_assert!(given.get() >= OWNER_IDS_FROM);
                        prop_assert!(!open.values().any(|id| *id == given) && !released.contains(&given));
                        open.insert(next, given);
                        next += 1;
                    }
                    (2, Some(offset)) => {
                        prop_assert_eq!(kept.receive(offset), open.get(&offset).copied());
                        released.extend(open.remove(&offset));
                    }
                    (3, Some(offset)) => prop_assert_eq!(kept.finish(offset), open.remove(&offset)),
                    (_, _) => {
                        if let Some(id) = released.pop_first() {
                            prop_assert!(kept.complete(id));
                            prop_assert!(!kept.complete(id));
                        }
                    }
                }
            }
            let merged = kept.complete_in_flight(InFlight::default());
            let sent: BTreeMap<_, _> =
                merged.outgoing.queue.iter().map(|sent| (sent.offset, sent.packet_id)).collect();
            prop_assert_eq!(sent, open);
            prop_assert_eq!(merged.outgoing.released.into_iter().collect::<BTreeSet<_>>(), released);
        }
    }
}

//! The receiving half of a client's session: which QoS 2 messages it has, and which acknowledgements it owes.

use super::plan::Behaviour;
use super::stream::Stream;
use crate::wire::{Arrival, put_ack};
use bytes::BytesMut;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Kept over connections. A QoS 2 message is given to the application when it comes, and its packet id is kept until
/// PUBREL.
#[derive(Debug, Default)]
pub(super) struct Receiver {
    /// QoS 2 messages whose PUBREL has not come.
    held: BTreeMap<u16, (Stream, u64)>,
    /// Acknowledgements of this connection that are not written yet.
    owed: VecDeque<Owed>,
    /// Messages of this connection that are not acknowledged to the end.
    outstanding: BTreeSet<u16>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owed {
    Puback(u16),
    Pubrec(u16),
    Pubcomp(u16),
}

/// What a PUBLISH is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Received {
    /// For the application.
    New,
    /// The application has it.
    Repeat,
    /// The application has it, and the broker does not say that it was sent before.
    RepeatWithoutDup,
    /// Its packet id belongs to another message.
    PacketIdTaken,
}

impl Receiver {
    /// A connection begins. Without a session on the broker's side there is none here either.
    pub(super) fn begin(&mut self, session_present: bool) {
        self.owed.clear();
        self.outstanding.clear();
        if !session_present {
            self.held.clear();
        }
    }

    /// Messages that are under way in the broker's count.
    pub(super) fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    pub(super) fn handle_publish(&mut self, arrival: &Arrival, stream: Stream, sequence: u64) -> Received {
        let packet_id = arrival.packet_id;
        if arrival.qos == 0 {
            return Received::New;
        }
        // Without DUP a packet id that is under way on this connection cannot be of the same message.
        if !self.outstanding.insert(packet_id) && !arrival.dup {
            return Received::PacketIdTaken;
        }
        if arrival.qos == 1 {
            self.owed.push_back(Owed::Puback(packet_id));
            return if self.held.contains_key(&packet_id) { Received::PacketIdTaken } else { Received::New };
        }
        self.owed.push_back(Owed::Pubrec(packet_id));
        match self.held.get(&packet_id) {
            None => {
                self.held.insert(packet_id, (stream, sequence));
                Received::New
            }
            Some(held) if *held != (stream, sequence) => Received::PacketIdTaken,
            Some(_) if arrival.dup => Received::Repeat,
            Some(_) => Received::RepeatWithoutDup,
        }
    }

    pub(super) fn handle_pubrel(&mut self, packet_id: u16) {
        self.held.remove(&packet_id);
        self.owed.push_back(Owed::Pubcomp(packet_id));
    }

    /// Writes what a client that behaves so acknowledges now.
    pub(super) fn put_acks(&mut self, behaviour: Behaviour, maximum: Option<u16>, output: &mut BytesMut) {
        let is_owing = |owed: &Owed| match behaviour {
            Behaviour::Prompt | Behaviour::Flaky(_) => false,
            Behaviour::Silent | Behaviour::Offline => true,
            Behaviour::NoPubcomp => matches!(owed, Owed::Pubcomp(_)),
            // A full window would wait for ever.
            Behaviour::Batches(count) => {
                self.owed.len() < count
                    && maximum.is_none_or(|maximum| self.outstanding.len() < maximum.into())
            }
        };
        let (kept, due): (VecDeque<_>, Vec<_>) = {
            let (kept, due): (Vec<_>, Vec<_>) = self.owed.iter().partition(|owed| is_owing(owed));
            (kept.into(), due)
        };
        self.owed = kept;
        for owed in due {
            match owed {
                Owed::Puback(packet_id) => {
                    self.outstanding.remove(&packet_id);
                    put_ack(output, 0x40, packet_id);
                }
                Owed::Pubrec(packet_id) => put_ack(output, 0x50, packet_id),
                Owed::Pubcomp(packet_id) => {
                    self.outstanding.remove(&packet_id);
                    put_ack(output, 0x70, packet_id);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: Stream = Stream { publisher: 0, qos: 2, topic: 0 };

    fn arrival(qos: u8, packet_id: u16, dup: bool) -> Arrival {
        let topic = STREAM.to_string();
        Arrival { topic, qos, retain: false, dup, packet_id, payload: BytesMut::new() }
    }

    #[test]
    fn a_qos_2_message_is_new_once_over_all_connections_until_it_is_released() {
        let mut receiver = Receiver::default();
        receiver.begin(false);
        assert_eq!(receiver.handle_publish(&arrival(2, 5, false), STREAM, 0), Received::New);

        receiver.begin(true);
        assert_eq!(receiver.handle_publish(&arrival(2, 5, true), STREAM, 0), Received::Repeat);
        receiver.begin(true);
        assert_eq!(receiver.handle_publish(&arrival(2, 5, false), STREAM, 0), Received::RepeatWithoutDup);
        receiver.begin(true);
        assert_eq!(receiver.handle_publish(&arrival(2, 5, true), STREAM, 1), Received::PacketIdTaken);
        receiver.handle_pubrel(5);
        receiver.begin(true);

        assert_eq!(receiver.handle_publish(&arrival(2, 5, false), STREAM, 1), Received::New);
    }

    #[test]
    fn a_session_that_is_gone_takes_its_packet_ids_along() {
        let mut receiver = Receiver::default();
        receiver.handle_publish(&arrival(2, 5, false), STREAM, 0);

        receiver.begin(false);

        assert_eq!(receiver.handle_publish(&arrival(2, 5, false), STREAM, 1), Received::New);
    }

    #[test]
    fn behaviours_decide_what_is_acknowledged() {
        let written = |behaviour, maximum| {
            let (mut receiver, mut output) = (Receiver::default(), BytesMut::new());
            receiver.handle_publish(&arrival(1, 1, false), STREAM, 0);
            receiver.handle_publish(&arrival(2, 2, false), STREAM, 1);
            receiver.handle_pubrel(3);
            receiver.put_acks(behaviour, maximum, &mut output);
            (output.chunks(4).map(|packet| packet[0]).collect::<Vec<_>>(), receiver.outstanding())
        };

        assert_eq!(written(Behaviour::Prompt, None), (vec![0x40, 0x50, 0x70], 1));
        assert_eq!(written(Behaviour::Silent, None), (vec![], 2));
        assert_eq!(written(Behaviour::NoPubcomp, None), (vec![0x40, 0x50], 1));
        assert_eq!(written(Behaviour::Batches(4), None), (vec![], 2));
        assert_eq!(written(Behaviour::Batches(3), None), (vec![0x40, 0x50, 0x70], 1));
        assert_eq!(written(Behaviour::Batches(4), Some(2)), (vec![0x40, 0x50, 0x70], 1));
    }
}

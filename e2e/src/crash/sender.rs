//! The sending half of a client's session: what is not acknowledged yet is kept over connections and sent again.

use super::stream::{Stream, payload};
use crate::wire::{Publish, put_ack, put_publish};
use bytes::{BufMut, BytesMut};
use std::collections::VecDeque;

/// Messages under way, in the order in which they were published.
#[derive(Debug, Default)]
pub(super) struct Sender {
    in_flight: VecDeque<Sending>,
    last_packet_id: u16,
}

#[derive(Debug, Clone, Copy)]
struct Sending {
    packet_id: u16,
    message: Message,
    progress: Progress,
}

/// One message of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) stream: Stream,
    pub(super) sequence: u64,
    pub(super) filling_bytes: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Published,
    /// PUBREC has come: the message itself is not sent again.
    Received,
}

/// What an acknowledgement means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The broker has taken the message.
    Acknowledged(Message),
    /// It was taken before.
    Known,
    /// Nothing with this packet id is under way.
    Unexpected,
}

impl Sender {
    pub(super) fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// Writes a new message.
    pub(super) fn publish(&mut self, message: Message, is_v5: bool, output: &mut BytesMut) {
        let packet_id = self.free_packet_id();
        self.in_flight.push_back(Sending { packet_id, message, progress: Progress::Published });
        put_message(message, packet_id, Again::No, is_v5, output);
    }

    /// Writes everything under way again after a reconnect; answers what was published again.
    pub(super) fn resume(&mut self, again: Again, is_v5: bool, output: &mut BytesMut) -> Vec<Message> {
        let mut published = Vec::new();
        for Sending { packet_id, message, progress } in &mut self.in_flight {
            // Without a session the broker knows nothing of an exchange that was half done.
            if *progress == Progress::Received && again == Again::Yes {
                put_ack(output, 0x62, *packet_id);
                continue;
            }
            *progress = Progress::Published;
            put_message(*message, *packet_id, again, is_v5, output);
            published.push(*message);
        }
        published
    }

    /// PUBACK.
    pub(super) fn handle_puback(&mut self, packet_id: u16) -> Outcome {
        let Some(at) = self.position(packet_id) else { return Outcome::Unexpected };
        if self.in_flight[at].message.stream.qos != 1 {
            return Outcome::Unexpected;
        }
        self.in_flight
            .remove(at)
            .map_or(Outcome::Unexpected, |sending| Outcome::Acknowledged(sending.message))
    }

    /// PUBREC; PUBREL goes out unless it is unexpected.
    pub(super) fn handle_pubrec(&mut self, packet_id: u16, output: &mut BytesMut) -> Outcome {
        let Some(at) = self.position(packet_id) else { return Outcome::Unexpected };
        let sending = &mut self.in_flight[at];
        if sending.message.stream.qos != 2 {
            return Outcome::Unexpected;
        }
        put_ack(output, 0x62, packet_id);
        match std::mem::replace(&mut sending.progress, Progress::Received) {
            Progress::Published => Outcome::Acknowledged(sending.message),
            Progress::Received => Outcome::Known,
        }
    }

    /// PUBCOMP.
    pub(super) fn handle_pubcomp(&mut self, packet_id: u16) -> Outcome {
        let Some(at) = self.position(packet_id) else { return Outcome::Unexpected };
        if self.in_flight[at].progress != Progress::Received {
            return Outcome::Unexpected;
        }
        self.in_flight.remove(at);
        Outcome::Known
    }

    fn position(&self, packet_id: u16) -> Option<usize> {
        self.in_flight.iter().position(|sending| sending.packet_id == packet_id)
    }

    /// The next one after the last that is not in use; far fewer are in use than there are.
    fn free_packet_id(&mut self) -> u16 {
        loop {
            self.last_packet_id = self.last_packet_id % u16::MAX + 1;
            if self.position(self.last_packet_id).is_none() {
                return self.last_packet_id;
            }
        }
    }
}

/// Whether a PUBLISH says that it was sent before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    No,
    Yes,
}

fn put_message(message: Message, packet_id: u16, again: Again, is_v5: bool, output: &mut BytesMut) {
    let Message { stream, sequence, filling_bytes } = message;
    let payload = payload(sequence, filling_bytes);
    let topic = stream.to_string();
    let dup = again == Again::Yes;
    let publish = Publish { topic: &topic, qos: stream.qos, retain: false, dup, packet_id };
    put_publish(output, publish, is_v5, payload.len());
    output.put_slice(&payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(qos: u8, sequence: u64) -> Message {
        Message { stream: Stream { publisher: 0, qos, topic: 0 }, sequence, filling_bytes: 0 }
    }

    #[test]
    fn what_is_not_acknowledged_is_sent_again_with_its_packet_id_and_what_is_received_is_released() {
        let (mut sender, mut output) = (Sender::default(), BytesMut::new());
        for (qos, sequence) in [(1, 0), (2, 0), (2, 1), (1, 1)] {
            sender.publish(message(qos, sequence), false, &mut output);
        }
        assert_eq!(sender.handle_puback(1), Outcome::Acknowledged(message(1, 0)));
        assert_eq!(sender.handle_pubrec(2, &mut output), Outcome::Acknowledged(message(2, 0)));
        output.clear();

        let again = sender.resume(Again::Yes, false, &mut output);

        assert_eq!(again, [message(2, 1), message(1, 1)]);
        assert_eq!(output[..4], [0x62, 2, 0, 2]);
        assert_eq!(output[4], 0x3C, "PUBLISH with DUP at QoS 2");
        assert_eq!(sender.handle_pubcomp(2), Outcome::Known);
        assert_eq!(sender.handle_pubrec(3, &mut output), Outcome::Acknowledged(message(2, 1)));
        assert_eq!(sender.handle_pubrec(3, &mut output), Outcome::Known);
    }

    #[test]
    fn an_acknowledgement_of_nothing_is_unexpected() {
        let (mut sender, mut output) = (Sender::default(), BytesMut::new());
        sender.publish(message(2, 0), true, &mut output);

        assert_eq!(sender.handle_puback(1), Outcome::Unexpected);
        assert_eq!(sender.handle_pubcomp(1), Outcome::Unexpected);
        assert_eq!(sender.handle_pubrec(9, &mut output), Outcome::Unexpected);
    }

    #[test]
    fn a_packet_id_in_use_is_not_given_again() {
        let (mut sender, mut output) = (Sender::default(), BytesMut::new());
        sender.publish(message(2, 0), false, &mut output);
        sender.last_packet_id = u16::MAX;

        sender.publish(message(1, 0), false, &mut output);

        assert_eq!(sender.in_flight[1].packet_id, 2);
    }
}

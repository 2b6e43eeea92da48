//! Packets to bytes.

mod ack;
mod publish;
mod v3;
mod v5;

pub use publish::PublishParts;

use crate::EncodeError;
use crate::wire::VARINT_MAX;
use bytes::BytesMut;
use std::num::NonZeroU32;
use tidemill_core::packet::{Ack, Connect, Packet, Version};

/// Writes packets for one client. 8 bytes, to be copied to wherever something is written to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encoder {
    version: Version,
    client_bytes_max: Option<NonZeroU32>,
    /// 5.0: reason strings are welcome on acknowledgements (MQTT-3.1.2-29).
    explains: bool,
}

impl Encoder {
    /// An encoder for a client that speaks `version` and accepts packets of `client_bytes_max` (`None` = of any size).
    #[must_use]
    pub fn new(version: Version, client_bytes_max: Option<NonZeroU32>) -> Self {
        Self { version, client_bytes_max, explains: true }
    }

    /// The encoder that a client's CONNECT asks for: version, largest packet, and whether to give reasons in words.
    #[must_use]
    pub fn for_client(connect: &Connect) -> Self {
        Self {
            version: connect.version,
            client_bytes_max: connect.maximum_packet_bytes,
            explains: connect.request_problem_information,
        }
    }

    /// The client's protocol version.
    #[must_use]
    pub fn version(self) -> Version {
        self.version
    }

    /// Appends `packet` to `out`. What a version does not know is left out: properties and reason codes in 3.x.
    /// Reason codes become return codes in a 3.x CONNACK and 0x80 in a 3.x SUBACK; a code that 5.0 does not allow in
    /// this kind of packet is written as 0x80. A 5.0 SUBACK says in words why its first failed entry failed. Reason strings and user properties are left out where the client's
    /// limit leaves no room for them (MQTT-3.2.2-19 and the like), on acknowledgements also where it did not ask.
    ///
    /// # Errors
    ///
    /// [`EncodeError`]; `out` is then as it was.
    pub fn encode(self, packet: &Packet, out: &mut BytesMut) -> Result<(), EncodeError> {
        match packet {
            Packet::Publish(publish) => self.encode_publish(&PublishParts::from(publish), out),
            Packet::Ack(ack) => self.encode_ack(ack, out),
            Packet::Connect(_)
            | Packet::ConnAck(_)
            | Packet::Subscribe(_)
            | Packet::SubAck(_)
            | Packet::Unsubscribe(_)
            | Packet::UnsubAck(_)
            | Packet::PingReq
            | Packet::PingResp
            | Packet::Disconnect(_)
            | Packet::Auth(_) => self.encode_rare(packet, out),
        }
    }

    /// Bytes that `packet` takes, also when the client does not accept that many.
    ///
    /// # Errors
    ///
    /// [`EncodeError::Unrepresentable`] as [`Encoder::encode`] would say.
    pub fn encoded_len(self, packet: &Packet) -> Result<usize, EncodeError> {
        if let Packet::Publish(publish) = packet {
            return self.publish_len(&PublishParts::from(publish));
        }
        let mut scratch = BytesMut::new();
        Self { client_bytes_max: None, ..self }.encode(packet, &mut scratch)?;
        Ok(scratch.len())
    }

    /// Appends PUBACK, PUBREC, PUBREL or PUBCOMP to `out`, in its shortest form.
    ///
    /// # Errors
    ///
    /// [`EncodeError`]; `out` is then as it was.
    pub fn encode_ack(self, ack: &Ack, out: &mut BytesMut) -> Result<(), EncodeError> {
        ack::encode(self, ack, out)
    }

    /// Appends a PUBLISH to `out`: the size is known first, so that nothing is moved or allocated between.
    ///
    /// # Errors
    ///
    /// [`EncodeError::TooLarge`] if the client does not accept it: drop the message as if it had been sent.
    /// [`EncodeError::Unrepresentable`] if `parts` contradict themselves. `out` is then as it was.
    pub fn encode_publish(self, parts: &PublishParts<'_>, out: &mut BytesMut) -> Result<(), EncodeError> {
        publish::encode(self, parts, out)
    }

    /// Appends a PUBLISH without its payload to `out`: `parts.payload` must follow on the wire. For payloads that are
    /// queued as shared bytes.
    ///
    /// # Errors
    ///
    /// As [`Encoder::encode_publish`].
    pub fn encode_publish_head(
        self,
        parts: &PublishParts<'_>,
        out: &mut BytesMut,
    ) -> Result<(), EncodeError> {
        publish::encode_head(self, parts, out)
    }

    /// Bytes of a PUBLISH with its header and payload, also when the client does not accept that many.
    ///
    /// # Errors
    ///
    /// [`EncodeError::Unrepresentable`] if `parts` contradict themselves.
    pub fn publish_len(self, parts: &PublishParts<'_>) -> Result<usize, EncodeError> {
        publish::packet_len(self, parts)
    }

    /// What a packet may have, with its header.
    fn bytes_max(self) -> usize {
        self.client_bytes_max
            .and_then(|max| usize::try_from(max.get()).ok())
            .map_or(VARINT_MAX + 5, |max| max.min(VARINT_MAX + 5))
    }

    fn check_len(self, bytes: usize) -> Result<(), EncodeError> {
        let max = self.bytes_max();
        if bytes > max { Err(EncodeError::TooLarge { bytes, max }) } else { Ok(()) }
    }

    /// Packets that `rmqtt-codec` writes.
    fn encode_rare(self, packet: &Packet, out: &mut BytesMut) -> Result<(), EncodeError> {
        let start = out.len();
        let outcome =
            if self.version.is_v5() { v5::encode(self, packet, out) } else { v3::encode(self, packet, out) };
        let outcome = outcome.and_then(|()| self.check_len(out.len() - start));
        if outcome.is_err() {
            out.truncate(start);
        }
        outcome
    }
}

//! One connection's codec.

use crate::decode;
use crate::wire::{FixedHeader, kind};
use crate::{DecodeError, EncodeError, Encoder};
use bytes::{Buf, Bytes, BytesMut};
use std::num::NonZeroU32;
use tidemill_core::packet::{ConnAck, ConnAckProperties, Disconnect, Packet, Version};

/// Payloads from this size on are slices of the input; smaller ones are copied, so that a message that is kept does
/// not keep a whole read buffer.
pub const SHARED_PAYLOAD_BYTES_MIN: usize = 16 * 1024;

/// Largest packets accepted, with their fixed header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeLimits {
    /// For CONNECT, when nobody is authenticated yet.
    pub connect_bytes_max: u32,
    /// For everything after it.
    pub packet_bytes_max: u32,
}

/// Decodes what one client sends, and knows in which version to answer. 16 bytes.
#[derive(Debug, Clone)]
pub struct Codec {
    limits: DecodeLimits,
    /// What the client accepts; `None` = no limit.
    client_bytes_max: Option<NonZeroU32>,
    /// Known as soon as a CONNECT says it, also when the rest of that CONNECT is refused.
    version: Option<Version>,
    /// Whether CONNECT was decoded.
    is_connected: bool,
}

impl Codec {
    /// A codec for a new connection, which waits for CONNECT.
    #[must_use]
    pub fn new(limits: DecodeLimits) -> Self {
        Self { limits, client_bytes_max: None, version: None, is_connected: false }
    }

    /// The client's protocol version, once its CONNECT has told it.
    #[must_use]
    pub fn version(&self) -> Option<Version> {
        self.version
    }

    /// What to write to this client with. Before CONNECT it writes 3.1.1, which old and unknown clients understand
    /// best; take it again after CONNECT.
    #[must_use]
    pub fn encoder(&self) -> Encoder {
        Encoder::new(self.version.unwrap_or(Version::V3_1_1), self.client_bytes_max)
    }

    /// Size of the first packet in `input` with its header; `None` while the header is incomplete or when it is
    /// malformed. Tells how much room an unfinished packet needs.
    #[must_use]
    pub fn packet_bytes(input: &[u8]) -> Option<usize> {
        FixedHeader::read(input).ok().flatten().map(FixedHeader::packet_len)
    }

    /// Takes the first packet out of `input`; `None` while it is incomplete, and `input` is then untouched.
    ///
    /// The header is checked as soon as it is there, before the packet is complete, and nothing is reserved. Payloads
    /// from [`SHARED_PAYLOAD_BYTES_MIN`] on share memory with `input`; everything else is copied into allocations of
    /// its own size.
    ///
    /// # Errors
    ///
    /// [`DecodeError`]: the client broke the protocol. Send [`Codec::farewell`] and close; `input` and this codec are
    /// of no further use.
    pub fn decode(&mut self, input: &mut BytesMut) -> Result<Option<Packet>, DecodeError> {
        let Some(&first_byte) = input.first() else { return Ok(None) };
        decode::check_first_byte(first_byte, self.phase())?;
        let Some(header) = FixedHeader::read(input)? else { return Ok(None) };
        self.check_size(header)?;
        if input.len() < header.packet_len() {
            return Ok(None);
        }
        match self.phase() {
            None => self.decode_connect(header, input).map(Some),
            Some(version) => decode_after_connect(version, header, input).map(Some),
        }
    }

    /// Writes `packet` for this client; the same as `self.encoder().encode(packet, out)`.
    ///
    /// # Errors
    ///
    /// See [`Encoder::encode`].
    pub fn encode(&self, packet: &Packet, out: &mut BytesMut) -> Result<(), EncodeError> {
        self.encoder().encode(packet, out)
    }

    /// What MQTT lets the broker say before it closes because of `error`: CONNACK before CONNECT was accepted
    /// (3.x: only with a return code for it), DISCONNECT after it (5.0 only).
    #[must_use]
    pub fn farewell(&self, error: &DecodeError) -> Option<Packet> {
        let reason = error.reason();
        let is_v5 = self.version.is_some_and(Version::is_v5);
        let has_return_code =
            matches!(error, DecodeError::UnsupportedVersion | DecodeError::ClientIdNotValid);
        match (self.is_connected, is_v5) {
            (true, true) => Some(Packet::Disconnect(Disconnect::new(reason))),
            (false, true) => Some(refusal(reason)),
            (false, false) if has_return_code => Some(refusal(reason)),
            (false | true, false) => None,
        }
    }

    /// The version, once CONNECT was accepted.
    fn phase(&self) -> Option<Version> {
        self.version.filter(|_| self.is_connected)
    }

    fn check_size(&self, header: FixedHeader) -> Result<(), DecodeError> {
        let max =
            if self.is_connected { self.limits.packet_bytes_max } else { self.limits.connect_bytes_max };
        let bytes = u32::try_from(header.packet_len()).unwrap_or(u32::MAX);
        if bytes > max { Err(DecodeError::TooLarge { bytes, max }) } else { Ok(()) }
    }

    fn decode_connect(&mut self, header: FixedHeader, input: &mut BytesMut) -> Result<Packet, DecodeError> {
        let (packet, _) = input.split_at(header.packet_len());
        let version = decode::connect::read_version(packet.get(header.header_len..).unwrap_or_default())?;
        self.version = Some(version);
        let connect = decode::connect::decode(version, header, packet)?;
        input.advance(header.packet_len());
        self.is_connected = true;
        self.client_bytes_max = connect.maximum_packet_bytes;
        Ok(Packet::Connect(Box::new(connect)))
    }
}

fn refusal(reason: tidemill_core::packet::ReasonCode) -> Packet {
    let properties = ConnAckProperties::default();
    Packet::ConnAck(Box::new(ConnAck { session_present: false, reason, properties }))
}

fn decode_after_connect(
    version: Version,
    header: FixedHeader,
    input: &mut BytesMut,
) -> Result<Packet, DecodeError> {
    if version.is_v5() && !header.is_minimal() {
        return Err(DecodeError::Malformed("length is not in its shortest form"));
    }
    let (packet, _) = input.split_at(header.packet_len());
    let body = packet.get(header.header_len..).unwrap_or_default();
    if header.kind() != kind::PUBLISH {
        let decoded = decode::decode(version, header, packet)?;
        input.advance(header.packet_len());
        return Ok(decoded);
    }
    let (mut publish, payload) = decode::publish::decode(version, header.first_byte, body)?;
    let payload_start = header.packet_len() - payload.len();
    if payload.len() < SHARED_PAYLOAD_BYTES_MIN {
        publish.payload = Bytes::copy_from_slice(payload);
        input.advance(header.packet_len());
    } else {
        publish.payload = input.split_to(header.packet_len()).freeze().slice(payload_start..);
    }
    Ok(Packet::Publish(publish))
}

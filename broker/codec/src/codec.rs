//! One connection's codec.

use crate::decode;
use crate::wire::{FixedHeader, kind};
use crate::{DecodeError, EncodeError, Encoder};
use bytes::{Buf, Bytes, BytesMut};
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
    phase: Phase,
}

/// How far the connection is.
#[derive(Debug, Clone, Copy)]
enum Phase {
    /// CONNECT has not come.
    Waiting,
    /// A CONNECT of this version came, and the rest of it was refused.
    Refused(Version),
    /// CONNECT was decoded; this is what it asked for.
    Connected(Encoder),
}

impl Codec {
    /// A codec for a new connection, which waits for CONNECT.
    #[must_use]
    pub fn new(limits: DecodeLimits) -> Self {
        Self { limits, phase: Phase::Waiting }
    }

    /// The client's protocol version, once its CONNECT has told it.
    #[must_use]
    pub fn version(&self) -> Option<Version> {
        match self.phase {
            Phase::Waiting => None,
            Phase::Refused(version) => Some(version),
            Phase::Connected(encoder) => Some(encoder.version()),
        }
    }

    /// What to write to this client with. Before CONNECT it writes 3.1.1, which old and unknown clients understand
    /// best; take it again after CONNECT.
    #[must_use]
    pub fn encoder(&self) -> Encoder {
        match self.phase {
            Phase::Waiting => Encoder::new(Version::V3_1_1, None),
            Phase::Refused(version) => Encoder::new(version, None),
            Phase::Connected(encoder) => encoder,
        }
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
        let connected = match self.phase {
            Phase::Waiting | Phase::Refused(_) => None,
            Phase::Connected(encoder) => Some(encoder.version()),
        };
        decode::check_first_byte(first_byte, connected)?;
        let Some(header) = FixedHeader::read(input)? else { return Ok(None) };
        let limits = self.limits;
        check_size(header, connected.map_or(limits.connect_bytes_max, |_| limits.packet_bytes_max))?;
        if input.len() < header.packet_len() {
            return Ok(None);
        }
        match connected {
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
    /// (3.x: only with a return code for it), DISCONNECT after it (5.0 only). In 5.0 with the error in words.
    #[must_use]
    pub fn farewell(&self, error: &DecodeError) -> Option<Packet> {
        let has_return_code =
            matches!(error, DecodeError::UnsupportedVersion | DecodeError::ClientIdNotValid);
        match self.phase {
            Phase::Waiting if has_return_code => Some(refusal(error)),
            Phase::Waiting => None,
            Phase::Refused(version) if has_return_code || version.is_v5() => Some(refusal(error)),
            Phase::Refused(_) => None,
            Phase::Connected(encoder) if encoder.version().is_v5() => {
                let reason_string = Some(error.to_string().into());
                Some(Packet::Disconnect(Disconnect { reason_string, ..Disconnect::new(error.reason()) }))
            }
            Phase::Connected(_) => None,
        }
    }

    fn decode_connect(&mut self, header: FixedHeader, input: &mut BytesMut) -> Result<Packet, DecodeError> {
        let (packet, _) = input.split_at(header.packet_len());
        let version = decode::connect::read_version(packet.get(header.header_len..).unwrap_or_default())?;
        self.phase = Phase::Refused(version); // Until the rest of it is found right.
        let connect = decode::connect::decode(version, header, packet)?;
        input.advance(header.packet_len());
        self.phase = Phase::Connected(Encoder::for_client(&connect));
        Ok(Packet::Connect(Box::new(connect)))
    }
}

fn check_size(header: FixedHeader, max: u32) -> Result<(), DecodeError> {
    let bytes = u32::try_from(header.packet_len()).unwrap_or(u32::MAX);
    if bytes > max { Err(DecodeError::TooLarge { bytes, max }) } else { Ok(()) }
}

fn refusal(error: &DecodeError) -> Packet {
    let reason_string = Some(error.to_string().into());
    let properties = ConnAckProperties { reason_string, ..ConnAckProperties::default() };
    Packet::ConnAck(Box::new(ConnAck { session_present: false, reason: error.reason(), properties }))
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

//! Bytes to packets: what a client may send, and nothing else.

pub(crate) mod connect;
pub(crate) mod publish;
mod v3;
mod v5;

use crate::DecodeError;
use crate::wire::{FixedHeader, Reader, kind};
use bytes::{Bytes, BytesMut};
use bytestring::ByteString;
use tidemill_core::packet::{Ack, AckKind, Packet, PacketId, ReasonCode, Version};
use tidemill_core::topic::{SubscriptionTarget, TopicError};

/// Room behind a frame, because `rmqtt-codec` reserves as much once it has taken the frame.
const RESERVE_BYTES: usize = 5;

/// Checks type and flags of a packet (MQTT 5.0 section 2.1) as soon as its first byte is there. `version` is `None`
/// before CONNECT.
pub(crate) fn check_first_byte(first_byte: u8, version: Option<Version>) -> Result<(), DecodeError> {
    let (kind, flags) = (first_byte >> 4, first_byte & 0x0F);
    let Some(version) = version else {
        return match (kind, flags) {
            (kind::CONNECT, 0) => Ok(()),
            (kind::CONNECT, _) => Err(DecodeError::Malformed("reserved flags of the fixed header")),
            _ => Err(DecodeError::Protocol("the first packet is not CONNECT")),
        };
    };
    match kind {
        kind::PUBLISH => publish::check_flags(flags),
        kind::PUBREL | kind::SUBSCRIBE | kind::UNSUBSCRIBE => check_flags(flags, 0b0010),
        kind::PUBACK | kind::PUBREC | kind::PUBCOMP | kind::PINGREQ | kind::DISCONNECT => {
            check_flags(flags, 0)
        }
        kind::AUTH if version.is_v5() => check_flags(flags, 0),
        kind::CONNECT => Err(DecodeError::Protocol("second CONNECT")),
        kind::CONNACK | kind::SUBACK | kind::UNSUBACK | kind::PINGRESP => {
            Err(DecodeError::Protocol("packet that only a broker sends"))
        }
        _ => Err(DecodeError::Malformed("reserved packet type")),
    }
}

fn check_flags(flags: u8, expected: u8) -> Result<(), DecodeError> {
    if flags == expected { Ok(()) } else { Err(DecodeError::Malformed("reserved flags of the fixed header")) }
}

/// Decodes one complete `packet` that is neither CONNECT nor PUBLISH and whose first byte was checked.
pub(crate) fn decode(version: Version, header: FixedHeader, packet: &[u8]) -> Result<Packet, DecodeError> {
    let body = packet.get(header.header_len..).unwrap_or_default();
    if let Some(kind) = ack_kind(header.kind())
        && let [high, low] = body
    {
        let number = u16::from_be_bytes([*high, *low]);
        let packet_id = PacketId::new(number).ok_or(DecodeError::Malformed("packet id 0"))?;
        return Ok(Packet::Ack(Ack::new(kind, packet_id, ReasonCode::SUCCESS)));
    }
    if header.kind() == kind::PINGREQ {
        return if body.is_empty() {
            Ok(Packet::PingReq)
        } else {
            Err(DecodeError::Malformed("PINGREQ with a body"))
        };
    }
    if version.is_v5() { v5::decode(header, packet) } else { v3::decode(header, packet) }
}

fn ack_kind(kind: u8) -> Option<AckKind> {
    match kind {
        kind::PUBACK => Some(AckKind::PubAck),
        kind::PUBREC => Some(AckKind::PubRec),
        kind::PUBREL => Some(AckKind::PubRel),
        kind::PUBCOMP => Some(AckKind::PubComp),
        _ => None,
    }
}

/// A copy of `packet` for `rmqtt-codec` to take apart. Its strings are slices of this copy.
fn frame(packet: &[u8]) -> BytesMut {
    let mut frame = BytesMut::with_capacity(packet.len() + RESERVE_BYTES);
    frame.extend_from_slice(packet);
    frame
}

/// Translates what `rmqtt-codec` has to say.
fn refuse(error: rmqtt_codec::error::DecodeError) -> DecodeError {
    use rmqtt_codec::error::DecodeError as Inner;
    match error {
        Inner::InvalidProtocol => DecodeError::Malformed("protocol name"),
        Inner::InvalidLength => DecodeError::Malformed("field longer or shorter than its packet"),
        Inner::MalformedPacket => DecodeError::Malformed("field or property not allowed here"),
        Inner::UnsupportedProtocolLevel => DecodeError::UnsupportedVersion,
        Inner::ConnectReservedFlagSet | Inner::InvalidConnectFlags => {
            DecodeError::Malformed("flags of CONNECT")
        }
        Inner::ConnAckReservedFlagSet | Inner::UnsupportedPacketType | Inner::Io(_) => {
            DecodeError::Malformed("reserved packet type")
        }
        Inner::InvalidClientId => DecodeError::ClientIdNotValid,
        Inner::PacketIdRequired => DecodeError::Malformed("packet id 0"),
        Inner::MaxSizeExceeded { size, max } => DecodeError::TooLarge { bytes: size, max },
        Inner::InvalidTopicFilter => DecodeError::Protocol("no topic filter, or an empty one"),
        Inner::InvalidTopicName => DecodeError::TopicNameInvalid,
        Inner::Utf8Error => DecodeError::Malformed("string is not UTF-8"),
    }
}

/// Refuses what MQTT calls no topic filter; says whether it is a shared one. One that is only too deep for this broker
/// passes: it has an answer of its own.
fn check_topic_filter(text: &ByteString) -> Result<IsShared, DecodeError> {
    match SubscriptionTarget::parse(text) {
        Ok(SubscriptionTarget::Filter(_)) => Ok(IsShared::No),
        Ok(SubscriptionTarget::Shared(_)) => Ok(IsShared::Yes),
        Err(TopicError::TooDeep) if SubscriptionTarget::is_shared_text(text) => Ok(IsShared::Yes),
        Err(TopicError::TooDeep) => Ok(IsShared::No),
        Err(
            TopicError::Empty
            | TopicError::TooLong { .. }
            | TopicError::Null
            | TopicError::WildcardInName
            | TopicError::MisplacedWildcard
            | TopicError::MalformedShare,
        ) => Err(DecodeError::TopicFilterInvalid),
    }
}

/// Whether a filter is a shared subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IsShared {
    Yes,
    No,
}

/// A copy that keeps nothing but itself, for text that outlives its packet.
fn own(text: &str) -> ByteString {
    ByteString::from(text)
}

/// A copy that keeps nothing but itself.
fn own_bytes(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

/// Refuses U+0000 in any of `texts`.
fn check_texts<'a>(texts: impl IntoIterator<Item = &'a ByteString>) -> Result<(), DecodeError> {
    texts.into_iter().try_for_each(|text| crate::wire::check_text(text))
}

/// Both halves of every user property.
fn pairs(properties: &[(ByteString, ByteString)]) -> impl Iterator<Item = &ByteString> {
    properties.iter().flat_map(|(name, value)| [name, value])
}

/// Skips properties: `rmqtt-codec` reads them, but takes their length in any form.
pub(crate) fn skip_properties(reader: &mut Reader<'_>) -> Result<(), DecodeError> {
    let len = reader.varint()?;
    reader.take(len).map(|_properties| ())
}

//! PUBACK, PUBREC, PUBREL and PUBCOMP to bytes.

use super::Encoder;
use crate::EncodeError;
use crate::wire::{put_field, put_varint, varint_len};
use bytes::{BufMut, BytesMut};
use tidemill_core::packet::{Ack, AckKind, ReasonCode};

/// Property identifier of the reason string.
const REASON_STRING: u8 = 0x1F;

pub(super) fn encode(encoder: Encoder, ack: &Ack, out: &mut BytesMut) -> Result<(), EncodeError> {
    let text = reason_string_that_fits(encoder, ack);
    let is_plain = !encoder.version().is_v5() || (ack.reason == ReasonCode::SUCCESS && text.is_none());
    if is_plain {
        encoder.check_len(4)?;
        out.reserve(4);
        out.put_slice(&[first_byte(ack.kind), 2]);
        out.put_u16(ack.packet_id.get());
        return Ok(());
    }
    let Some(text) = text else {
        encoder.check_len(5)?;
        out.reserve(5);
        out.put_slice(&[first_byte(ack.kind), 3]);
        out.put_u16(ack.packet_id.get());
        out.put_u8(ack.reason.0);
        return Ok(());
    };
    let (properties_len, remaining) = lengths(text);
    out.reserve(5 + remaining);
    out.put_u8(first_byte(ack.kind));
    put_varint(remaining, out);
    out.put_u16(ack.packet_id.get());
    out.put_u8(ack.reason.0);
    put_varint(properties_len, out);
    out.put_u8(REASON_STRING);
    put_field(text.as_bytes(), out);
    Ok(())
}

/// A reason string must be welcome, and must not make the packet too large for the client (MQTT-3.4.2-2).
fn reason_string_that_fits(encoder: Encoder, ack: &Ack) -> Option<&str> {
    let text = ack.reason_string.as_deref()?;
    if !encoder.explains || text.len() > usize::from(u16::MAX) {
        return None;
    }
    let (_, remaining) = lengths(text);
    (1 + varint_len(remaining) + remaining <= encoder.bytes_max()).then_some(text)
}

/// Lengths of the properties and of everything behind the fixed header.
fn lengths(text: &str) -> (usize, usize) {
    let properties_len = 3 + text.len();
    (properties_len, 3 + varint_len(properties_len) + properties_len)
}

fn first_byte(kind: AckKind) -> u8 {
    match kind {
        AckKind::PubAck => 0x40,
        AckKind::PubRec => 0x50,
        // The flags of PUBREL are 0010 (MQTT-3.6.1-1).
        AckKind::PubRel => 0x62,
        AckKind::PubComp => 0x70,
    }
}

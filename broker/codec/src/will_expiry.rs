//! The message expiry 0 of a will, which is legal and which `rmqtt-codec` neither reads nor writes: it is 1 while
//! `rmqtt-codec` has the packet, and 0 before and after.

use crate::DecodeError;
use crate::wire::{FixedHeader, Reader, property};

const WILL: u8 = 0b0000_0100;
/// Bytes of a message expiry.
const EXPIRY_BYTES: usize = 4;

/// Whether a complete 5.0 CONNECT has a will with a message expiry of 0; it is then 1 in `packet`.
pub(crate) fn hide(packet: &mut [u8]) -> bool {
    replace(packet, 0, 1)
}

/// Undoes [`hide`].
pub(crate) fn restore(packet: &mut [u8]) {
    replace(packet, 1, 0);
}

fn replace(packet: &mut [u8], from: u32, to: u32) -> bool {
    // What cannot be walked through has no such place; whoever decodes it says what is wrong.
    let Some(place) = place(packet).ok().flatten() else { return false };
    let Some(field) = packet.get_mut(place..place + EXPIRY_BYTES) else { return false };
    if *field != from.to_be_bytes() {
        return false;
    }
    field.copy_from_slice(&to.to_be_bytes());
    true
}

/// Where the will's message expiry stands.
fn place(packet: &[u8]) -> Result<Option<usize>, DecodeError> {
    let Some(header) = FixedHeader::read(packet)? else { return Ok(None) };
    let mut reader = Reader::new(packet.get(header.header_len..).unwrap_or_default());
    reader.field()?;
    reader.u8()?;
    let flags = reader.u8()?;
    reader.u16()?;
    super::decode::skip_properties(&mut reader)?;
    reader.field()?;
    if flags & WILL == 0 {
        return Ok(None);
    }
    let len = reader.varint()?;
    let mut properties = Reader::new(reader.take(len)?);
    let behind = reader.rest().len();
    while !properties.is_empty() {
        match properties.u8()? {
            property::MESSAGE_EXPIRY => {
                return Ok(packet.len().checked_sub(behind + properties.rest().len()));
            }
            property::PAYLOAD_FORMAT => properties.take(1).map(|_skipped| ())?,
            property::WILL_DELAY => properties.take(4).map(|_skipped| ())?,
            property::CONTENT_TYPE | property::RESPONSE_TOPIC | property::CORRELATION_DATA => {
                properties.field().map(|_skipped| ())?;
            }
            property::USER => {
                properties.field()?;
                properties.field()?;
            }
            _ => return Ok(None),
        }
    }
    Ok(None)
}

//! The primitives of the wire: fixed header, lengths, strings.

use crate::DecodeError;
use bytes::{BufMut, BytesMut};

/// Largest value of a variable byte integer.
pub(crate) const VARINT_MAX: usize = 268_435_455;

/// Packet types as the upper half of the first byte.
pub(crate) mod kind {
    pub(crate) const CONNECT: u8 = 1;
    pub(crate) const CONNACK: u8 = 2;
    pub(crate) const PUBLISH: u8 = 3;
    pub(crate) const PUBACK: u8 = 4;
    pub(crate) const PUBREC: u8 = 5;
    pub(crate) const PUBREL: u8 = 6;
    pub(crate) const PUBCOMP: u8 = 7;
    pub(crate) const SUBSCRIBE: u8 = 8;
    pub(crate) const SUBACK: u8 = 9;
    pub(crate) const UNSUBSCRIBE: u8 = 10;
    pub(crate) const UNSUBACK: u8 = 11;
    pub(crate) const PINGREQ: u8 = 12;
    pub(crate) const PINGRESP: u8 = 13;
    pub(crate) const DISCONNECT: u8 = 14;
    pub(crate) const AUTH: u8 = 15;
}

/// Property identifiers that this crate reads or writes itself.
pub(crate) mod property {
    pub(crate) const PAYLOAD_FORMAT: u8 = 0x01;
    pub(crate) const MESSAGE_EXPIRY: u8 = 0x02;
    pub(crate) const CONTENT_TYPE: u8 = 0x03;
    pub(crate) const RESPONSE_TOPIC: u8 = 0x08;
    pub(crate) const CORRELATION_DATA: u8 = 0x09;
    pub(crate) const SUBSCRIPTION_IDENTIFIER: u8 = 0x0B;
    pub(crate) const WILL_DELAY: u8 = 0x18;
    pub(crate) const TOPIC_ALIAS: u8 = 0x23;
    pub(crate) const USER: u8 = 0x26;
}

/// The fixed header of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FixedHeader {
    /// Type and flags.
    pub(crate) first_byte: u8,
    /// Bytes of the header itself, 2 to 5.
    pub(crate) header_len: usize,
    /// Bytes behind it.
    pub(crate) remaining_len: usize,
}

impl FixedHeader {
    /// Reads the header; `None` while it is incomplete.
    ///
    /// # Errors
    ///
    /// [`DecodeError::Malformed`] when the length has more than four bytes.
    pub(crate) fn read(input: &[u8]) -> Result<Option<Self>, DecodeError> {
        let Some((&first_byte, rest)) = input.split_first() else { return Ok(None) };
        let Some((remaining_len, length_len)) = read_varint(rest)? else { return Ok(None) };
        Ok(Some(Self { first_byte, header_len: 1 + length_len, remaining_len }))
    }

    /// Bytes of the whole packet.
    pub(crate) fn packet_len(self) -> usize {
        self.header_len + self.remaining_len
    }

    /// The packet type.
    pub(crate) fn kind(self) -> u8 {
        self.first_byte >> 4
    }

    /// Whether the length has no byte too many (MQTT-1.5.5-1).
    pub(crate) fn is_minimal(self) -> bool {
        self.header_len == 1 + varint_len(self.remaining_len)
    }
}

/// Reads a variable byte integer: value and number of bytes, `None` while it is incomplete.
pub(crate) fn read_varint(input: &[u8]) -> Result<Option<(usize, usize)>, DecodeError> {
    let mut value = 0;
    for (index, byte) in input.iter().take(4).enumerate() {
        value |= usize::from(byte & 0x7F) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(Some((value, index + 1)));
        }
    }
    if input.len() < 4 { Ok(None) } else { Err(DecodeError::Malformed("length of more than four bytes")) }
}

/// Bytes that a variable byte integer takes.
pub(crate) fn varint_len(value: usize) -> usize {
    match value {
        0..=0x7F => 1,
        0x80..=0x3FFF => 2,
        0x4000..=0x1F_FFFF => 3,
        _ => 4,
    }
}

/// Writes a variable byte integer of at most [`VARINT_MAX`].
pub(crate) fn put_varint(mut value: usize, out: &mut BytesMut) {
    debug_assert!(value <= VARINT_MAX);
    loop {
        let digit = u8::try_from(value & 0x7F).expect("seven bits fit a byte");
        value >>= 7;
        if value == 0 {
            return out.put_u8(digit);
        }
        out.put_u8(digit | 0x80);
    }
}

/// Writes a length of two bytes and `bytes`, which the caller has checked to be at most 65,535.
pub(crate) fn put_field(bytes: &[u8], out: &mut BytesMut) {
    debug_assert!(bytes.len() <= usize::from(u16::MAX));
    out.put_u16(u16::try_from(bytes.len()).unwrap_or(u16::MAX));
    out.put_slice(bytes);
}

/// Reads one packet's bytes front to back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What was not read yet.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn is_empty(self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) =
            self.rest.split_at_checked(len).ok_or(DecodeError::Malformed("field longer than its packet"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (taken, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(DecodeError::Malformed("field longer than its packet"))?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    /// A variable byte integer in its shortest form.
    pub(crate) fn varint(&mut self) -> Result<usize, DecodeError> {
        let (value, len) = read_varint(self.rest)?.ok_or(DecodeError::Malformed("length is cut off"))?;
        if len != varint_len(value) {
            return Err(DecodeError::Malformed("length is not in its shortest form"));
        }
        self.take(len)?;
        Ok(value)
    }

    /// A field of binary data: two bytes of length, then that many.
    pub(crate) fn field(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = self.u16()?;
        self.take(usize::from(len))
    }
}

/// Refuses U+0000 (MQTT-1.5.4-2).
pub(crate) fn check_text(text: &str) -> Result<(), DecodeError> {
    if text.as_bytes().contains(&0) {
        return Err(DecodeError::Malformed("string contains U+0000"));
    }
    Ok(())
}

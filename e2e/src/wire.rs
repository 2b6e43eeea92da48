//! MQTT on the wire as clients of the tests and benchmarks need it: as few bytes as possible between a test and what it
//! sends, and nothing that the broker itself is built of.

use anyhow::{Result, ensure};
use bytes::{Buf, BufMut, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Packet types, the upper half of the first byte.
pub mod kind {
    /// CONNACK.
    pub const CONNACK: u8 = 2;
    /// PUBLISH.
    pub const PUBLISH: u8 = 3;
    /// PUBACK.
    pub const PUBACK: u8 = 4;
    /// PUBREC.
    pub const PUBREC: u8 = 5;
    /// PUBREL.
    pub const PUBREL: u8 = 6;
    /// PUBCOMP.
    pub const PUBCOMP: u8 = 7;
    /// SUBACK.
    pub const SUBACK: u8 = 9;
    /// UNSUBACK.
    pub const UNSUBACK: u8 = 11;
    /// PINGRESP.
    pub const PINGRESP: u8 = 13;
    /// DISCONNECT.
    pub const DISCONNECT: u8 = 14;
}

/// PINGREQ.
pub const PINGREQ: [u8; 2] = [0xC0, 0];

/// A control packet: its first byte and what follows the fixed header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawPacket {
    /// Type and flags.
    pub first_byte: u8,
    /// Variable header and payload.
    pub body: BytesMut,
}

impl RawPacket {
    /// The packet type; see [`kind`].
    #[must_use]
    pub fn kind(&self) -> u8 {
        self.first_byte >> 4
    }

    /// The QoS of a PUBLISH.
    #[must_use]
    pub fn qos(&self) -> u8 {
        self.first_byte >> 1 & 3
    }
}

/// What has come from a broker and is not taken yet.
#[derive(Debug, Default)]
pub struct Input {
    bytes: BytesMut,
}

/// Room for each read.
const READ_BYTES: usize = 16 * 1024;

impl Input {
    /// Reads what is there; cancel-safe.
    ///
    /// # Errors
    ///
    /// When the broker has closed the connection.
    pub async fn read_some(&mut self, stream: &mut (impl AsyncRead + Unpin)) -> Result<()> {
        // Else a read takes what happens to be free, 64 bytes at worst, and the load is one of small packets.
        self.bytes.reserve(READ_BYTES);
        ensure!(stream.read_buf(&mut self.bytes).await? > 0, "the broker closed the connection");
        Ok(())
    }

    /// The next whole packet.
    pub fn next_packet(&mut self) -> Option<RawPacket> {
        let mut length = 0;
        for index in 0..4 {
            let byte = *self.bytes.get(1 + index)?;
            length |= usize::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                let header = 2 + index;
                if self.bytes.len() < header + length {
                    return None;
                }
                let first_byte = self.bytes[0];
                self.bytes.advance(header);
                return Some(RawPacket { first_byte, body: self.bytes.split_to(length) });
            }
        }
        None
    }
}

/// What a PUBLISH says, without properties.
#[derive(Debug, Clone, Copy)]
pub struct Publish<'a> {
    /// Topic name.
    pub topic: &'a str,
    /// Quality of service.
    pub qos: u8,
    /// To be retained.
    pub retain: bool,
    /// Sent before, perhaps: the DUP flag.
    pub dup: bool,
    /// For QoS above 0; at QoS 0 it is not written.
    pub packet_id: u16,
}

/// A PUBLISH that has come from a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// Topic name.
    pub topic: String,
    /// Quality of service.
    pub qos: u8,
    /// The retain flag.
    pub retain: bool,
    /// The DUP flag.
    pub dup: bool,
    /// 0 at QoS 0.
    pub packet_id: u16,
    /// What follows the properties.
    pub payload: BytesMut,
}

impl Arrival {
    /// Reads a PUBLISH; of its properties nothing is kept.
    ///
    /// # Errors
    ///
    /// When it is malformed.
    pub fn parse(packet: RawPacket, is_v5: bool) -> Result<Self> {
        let (qos, first_byte, mut body) = (packet.qos(), packet.first_byte, packet.body);
        let topic_bytes = usize::from(body.try_get_u16()?);
        ensure!(body.len() >= topic_bytes, "a topic longer than its packet");
        let topic = String::from_utf8(body.split_to(topic_bytes).to_vec())?;
        let packet_id = if qos > 0 { body.try_get_u16()? } else { 0 };
        if is_v5 {
            let property_bytes = take_length(&mut body)?;
            ensure!(body.len() >= property_bytes, "properties longer than their packet");
            body.advance(property_bytes);
        }
        let (retain, dup) = (first_byte & 1 == 1, first_byte & 8 == 8);
        Ok(Self { topic, qos, retain, dup, packet_id, payload: body })
    }
}

/// Writes the head of a PUBLISH: `payload_bytes` of payload must follow. 5.0 has a byte for the properties.
pub fn put_publish(output: &mut BytesMut, publish: Publish<'_>, is_v5: bool, payload_bytes: usize) {
    let id_bytes = if publish.qos > 0 { 2 } else { 0 };
    output.put_u8(0x30 | u8::from(publish.dup) << 3 | publish.qos << 1 | u8::from(publish.retain));
    put_length(output, 2 + publish.topic.len() + id_bytes + usize::from(is_v5) + payload_bytes);
    put_text(output, publish.topic);
    if publish.qos > 0 {
        output.put_u16(publish.packet_id);
    }
    if is_v5 {
        output.put_u8(0);
    }
}

/// Writes a packet that has a packet id only: PUBACK (`0x40`), PUBREC (`0x50`), PUBREL (`0x62`), PUBCOMP (`0x70`).
pub fn put_ack(output: &mut BytesMut, first_byte: u8, packet_id: u16) {
    output.put_slice(&[first_byte, 2]);
    output.put_u16(packet_id);
}

/// Writes CONNECT of a client without will or credentials that keeps the connection alive itself for a minute.
pub fn put_connect(output: &mut BytesMut, level: u8, client_id: &str, clean: bool, properties: &[u8]) {
    let name = if level == 3 { "MQIsdp" } else { "MQTT" };
    let mut body = BytesMut::new();
    put_text(&mut body, name);
    body.put_slice(&[level, if clean { 2 } else { 0 }, 0, 60]);
    if level == 5 {
        put_length(&mut body, properties.len());
        body.put_slice(properties);
    }
    put_text(&mut body, client_id);
    output.put_u8(0x10);
    put_length(output, body.len());
    output.put_slice(&body);
}

/// Writes SUBSCRIBE of `(filter, options)`; the options of 3.x are the QoS.
pub fn put_subscribe(output: &mut BytesMut, is_v5: bool, packet_id: u16, entries: &[(&str, u8)]) {
    let entry_bytes: usize = entries.iter().map(|(filter, _)| 3 + filter.len()).sum();
    output.put_u8(0x82);
    put_length(output, 2 + usize::from(is_v5) + entry_bytes);
    output.put_u16(packet_id);
    if is_v5 {
        output.put_u8(0);
    }
    for (filter, options) in entries {
        put_text(output, filter);
        output.put_u8(*options);
    }
}

/// Writes UNSUBSCRIBE of one filter.
pub fn put_unsubscribe(output: &mut BytesMut, is_v5: bool, packet_id: u16, filter: &str) {
    output.put_u8(0xA2);
    put_length(output, 2 + usize::from(is_v5) + 2 + filter.len());
    output.put_u16(packet_id);
    if is_v5 {
        output.put_u8(0);
    }
    put_text(output, filter);
}

/// Writes a length of two bytes and the text.
pub fn put_text(output: &mut BytesMut, text: &str) {
    output.put_u16(u16::try_from(text.len()).expect("texts of tests have at most 65,535 bytes"));
    output.put_slice(text.as_bytes());
}

/// Writes a variable byte integer.
pub fn put_length(output: &mut BytesMut, mut length: usize) {
    loop {
        let low = u8::try_from(length & 0x7f).expect("seven bits fit");
        length >>= 7;
        output.put_u8(if length > 0 { low | 0x80 } else { low });
        if length == 0 {
            return;
        }
    }
}

/// Takes a variable byte integer from the front of `body`.
///
/// # Errors
///
/// When it does not end.
pub fn take_length(body: &mut BytesMut) -> Result<usize> {
    let mut length = 0;
    for index in 0..4 {
        ensure!(body.has_remaining(), "a length that does not end");
        let byte = body.get_u8();
        length |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(length);
        }
    }
    anyhow::bail!("a length of more than four bytes")
}

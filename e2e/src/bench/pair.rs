//! One publisher and one subscriber of its topic, MQTT 3.1.1, a bounded number of messages under way.

use crate::mosquitto::Endpoint;
use anyhow::{Context, Result, bail, ensure};
use bytes::{Buf, BufMut, BytesMut};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What one pair does.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Where both clients connect.
    pub endpoint: Endpoint,
    /// Quality of service of publish and subscription, 0 or 1.
    pub qos: u8,
    /// Whether the subscriber's session is persistent.
    pub persistent: bool,
    /// Messages under way at most.
    pub window: u64,
    /// Payload bytes, at least 8.
    pub payload_bytes: usize,
    /// How long new messages are sent.
    pub duration: Duration,
}

/// What one pair saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Messages sent.
    pub sent: u64,
    /// Messages received, each exactly the next one of its publisher.
    pub received: u64,
}

/// Runs pair `number`: connects, subscribes, publishes for the planned time and waits for what is under way.
///
/// # Errors
///
/// When a message is missing, repeated or out of order, or the broker does not answer for 20 s.
pub async fn run(plan: Plan, number: u32) -> Result<Tally> {
    let topic = format!("bench/{number}");
    let mut subscriber =
        Connection::open(&plan.endpoint, &format!("bench-s{number}"), !plan.persistent).await?;
    subscriber.subscribe(&topic, plan.qos).await?;
    let mut publisher = Connection::open(&plan.endpoint, &format!("bench-p{number}"), true).await?;

    let mut tally = Tally::default();
    let mut acknowledged = 0;
    let started = Instant::now();
    loop {
        let done = if plan.qos == 0 { tally.received } else { tally.received.min(acknowledged) };
        let is_sending = started.elapsed() < plan.duration;
        if !is_sending && done == tally.sent {
            return Ok(tally);
        }
        if is_sending && tally.sent - done < plan.window {
            while tally.sent - done < plan.window {
                put_publish(&mut publisher.output, &topic, plan.qos, tally.sent, plan.payload_bytes);
                tally.sent += 1;
            }
            publisher.flush().await?;
        }
        let step = async {
            tokio::select! {
                packet = subscriber.input.read_some(&mut subscriber.stream) => packet.map(|()| true),
                packet = publisher.input.read_some(&mut publisher.stream) => packet.map(|()| false),
            }
        };
        tokio::time::timeout(Duration::from_secs(20), step).await.context("no answer for 20 s")??;
        while let Some(packet) = subscriber.input.next_packet() {
            tally.received = take_message(packet, plan.qos, tally.received, &mut subscriber.output)?;
        }
        subscriber.flush().await?;
        while let Some(packet) = publisher.input.next_packet() {
            ensure!(packet.kind == 4, "publisher got packet type {}", packet.kind);
            acknowledged += 1;
        }
    }
}

/// Checks one PUBLISH and queues its acknowledgement; answers how many have arrived.
fn take_message(mut packet: RawPacket, qos: u8, received: u64, output: &mut BytesMut) -> Result<u64> {
    ensure!(packet.kind == 3, "subscriber got packet type {}", packet.kind);
    let topic_bytes = usize::from(packet.body.get_u16());
    packet.body.advance(topic_bytes);
    if qos > 0 {
        output.put_slice(&[0x40, 2]);
        output.put_u16(packet.body.get_u16());
    }
    let sequence = packet.body.get_u64();
    ensure!(sequence == received, "message {sequence} arrived instead of {received}");
    Ok(received + 1)
}

fn put_publish(output: &mut BytesMut, topic: &str, qos: u8, sequence: u64, payload_bytes: usize) {
    let packet_id_bytes = if qos > 0 { 2 } else { 0 };
    output.put_u8(0x30 | qos << 1);
    put_length(output, 2 + topic.len() + packet_id_bytes + payload_bytes);
    put_text(output, topic);
    if qos > 0 {
        // 1 to 65,535 in turn; the window is far below that.
        output.put_u16(u16::try_from(sequence % 65_535).expect("a remainder of 65,535 fits") + 1);
    }
    output.put_u64(sequence);
    output.put_bytes(b'x', payload_bytes - 8);
}

fn put_text(output: &mut BytesMut, text: &str) {
    output.put_u16(u16::try_from(text.len()).expect("texts of the benchmark are short"));
    output.put_slice(text.as_bytes());
}

fn put_length(output: &mut BytesMut, mut length: usize) {
    loop {
        let low = u8::try_from(length & 0x7f).expect("seven bits fit");
        length >>= 7;
        output.put_u8(if length > 0 { low | 0x80 } else { low });
        if length == 0 {
            return;
        }
    }
}

/// A control packet: its type and what follows the fixed header.
struct RawPacket {
    kind: u8,
    body: BytesMut,
}

#[derive(Default)]
struct Input {
    bytes: BytesMut,
}

impl Input {
    /// Reads what is there; cancel-safe.
    async fn read_some(&mut self, stream: &mut TcpStream) -> Result<()> {
        ensure!(stream.read_buf(&mut self.bytes).await? > 0, "the broker closed the connection");
        Ok(())
    }

    fn next_packet(&mut self) -> Option<RawPacket> {
        let mut length = 0;
        for index in 0..4 {
            let byte = *self.bytes.get(1 + index)?;
            length |= usize::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                let header = 2 + index;
                if self.bytes.len() < header + length {
                    return None;
                }
                let kind = self.bytes[0] >> 4;
                self.bytes.advance(header);
                return Some(RawPacket { kind, body: self.bytes.split_to(length) });
            }
        }
        None
    }
}

struct Connection {
    stream: TcpStream,
    input: Input,
    output: BytesMut,
}

impl Connection {
    async fn open(endpoint: &Endpoint, client_id: &str, clean: bool) -> Result<Self> {
        let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await?;
        stream.set_nodelay(true)?;
        let mut connection = Self { stream, input: Input::default(), output: BytesMut::new() };
        connection.output.put_u8(0x10);
        put_length(&mut connection.output, 12 + client_id.len());
        put_text(&mut connection.output, "MQTT");
        connection.output.put_slice(&[4, if clean { 2 } else { 0 }, 0, 60]);
        put_text(&mut connection.output, client_id);
        let answer = connection.exchange().await?;
        ensure!(answer.kind == 2 && answer.body.get(1) == Some(&0), "CONNECT of {client_id} was refused");
        Ok(connection)
    }

    async fn subscribe(&mut self, topic: &str, qos: u8) -> Result<()> {
        self.output.put_u8(0x82);
        put_length(&mut self.output, 5 + topic.len());
        self.output.put_u16(1);
        put_text(&mut self.output, topic);
        self.output.put_u8(qos);
        let answer = self.exchange().await?;
        ensure!(answer.kind == 9 && answer.body.get(2) == Some(&qos), "SUBSCRIBE was refused");
        Ok(())
    }

    async fn exchange(&mut self) -> Result<RawPacket> {
        self.flush().await?;
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(packet) = self.input.next_packet() {
                return Ok(packet);
            }
            if tokio::time::timeout_at(deadline, self.input.read_some(&mut self.stream)).await.is_err() {
                bail!("no answer for 20 s");
            }
        }
    }

    async fn flush(&mut self) -> Result<()> {
        while !self.output.is_empty() {
            self.stream.write_buf(&mut self.output).await?;
        }
        Ok(())
    }
}

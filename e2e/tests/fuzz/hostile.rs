//! One connection that sends whatever packets chance makes, and what a broker may answer.

use anyhow::{Context, Result, ensure};
use bytes::{Buf, BufMut, BytesMut};
use std::time::Duration;
use tidemill_e2e::mosquitto::Endpoint;
use tidemill_e2e::random::Numbers;
use tidemill_e2e::wire::{
    Input, PINGREQ, Publish, RawPacket, kind, put_length, put_publish, put_subscribe, put_text,
    put_unsubscribe,
};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// Few, so that connections meet: they take each other over and hear of each other.
const CLIENT_IDS: [&str; 6] = ["", "fuzz-a", "fuzz-b", "fuzz-c", "fuzz-d", "fuzz-\u{e9}"];
const TOPICS: [&str; 8] = ["fuzz", "fuzz/a", "fuzz/a/b", "/fuzz", "\u{e9}/fuzz", "$fuzz", "fuzz/+", ""];
const FILTERS: [&str; 10] = [
    "fuzz",
    "fuzz/+",
    "fuzz/#",
    "/fuzz",
    "\u{e9}/#",
    "+/+/+/+/+",
    "$share/g/fuzz/#",
    "$share/g",
    "a/#/b",
    "$SYS/#",
];
const PACKETS_MAX: usize = 40;
/// A broker that has not closed by then never will.
const PATIENCE: Duration = Duration::from_secs(15);

/// Everything that one connection sends, made from one seed.
pub(crate) struct Script {
    pub(crate) bytes: BytesMut,
    /// Where the writes end: packets are cut anywhere.
    cuts: Vec<usize>,
}

impl Script {
    pub(crate) fn new(seed: u64) -> Self {
        let mut numbers = Numbers::new(seed);
        let level = numbers.one_of(&[3, 4, 4, 5, 5, 5]);
        let mut bytes = BytesMut::new();
        if !numbers.once_in(30) {
            put_any_connect(&mut bytes, &mut numbers, level);
        }
        for _ in 0..numbers.below(PACKETS_MAX) {
            let from = bytes.len();
            put_any_packet(&mut bytes, &mut numbers, level == 5);
            if numbers.once_in(40) {
                damage(&mut bytes, from, &mut numbers);
            }
        }
        let mut cuts = vec![bytes.len()];
        for _ in 0..numbers.below(4) {
            cuts.push(numbers.below(bytes.len().max(1)));
        }
        cuts.sort_unstable();
        Self { bytes, cuts }
    }
}

fn put_any_connect(output: &mut BytesMut, numbers: &mut Numbers, level: u8) {
    let mut body = BytesMut::new();
    put_text(&mut body, if level == 3 { "MQIsdp" } else { "MQTT" });
    let has_will = numbers.once_in(4);
    let has_name = numbers.once_in(8);
    let clean = if numbers.once_in(3) { 0 } else { 2 };
    let will = if has_will { 4 | numbers.qos() << 3 | if numbers.once_in(3) { 0x20 } else { 0 } } else { 0 };
    body.put_slice(&[level, clean | will | if has_name { 0x80 } else { 0 }, 0, 30]);
    if level == 5 {
        put_connect_properties(&mut body, numbers);
    }
    put_text(&mut body, numbers.one_of(&CLIENT_IDS));
    if has_will {
        if level == 5 {
            body.put_slice(numbers.one_of(&[&[0][..], &[5, 0x18, 0, 0, 0, 1]]));
        }
        put_text(&mut body, numbers.one_of(&TOPICS));
        put_text(&mut body, "will");
    }
    if has_name {
        put_text(&mut body, "somebody");
    }
    output.put_u8(0x10);
    put_length(output, body.len());
    output.put_slice(&body);
}

fn put_connect_properties(body: &mut BytesMut, numbers: &mut Numbers) {
    let mut properties = BytesMut::new();
    if numbers.once_in(2) {
        properties.put_u8(0x11);
        properties.put_u32(numbers.one_of(&[0, 1, 60, u32::MAX]));
    }
    if numbers.once_in(3) {
        properties.put_u8(0x21);
        properties.put_u16(numbers.one_of(&[0, 1, 2, 100]));
    }
    if numbers.once_in(4) {
        properties.put_u8(0x27);
        properties.put_u32(numbers.one_of(&[0, 1, 20, 200, 100_000]));
    }
    if numbers.once_in(3) {
        properties.put_u8(0x22);
        properties.put_u16(numbers.one_of(&[0, 1, 10]));
    }
    put_length(body, properties.len());
    body.put_slice(&properties);
}

fn put_any_packet(output: &mut BytesMut, numbers: &mut Numbers, is_v5: bool) {
    // Few ids, so that they are in use, or are those of the broker.
    let packet_id = u16::try_from(numbers.below(8)).unwrap_or(1);
    match numbers.below(16) {
        0..=5 => put_any_publish(output, numbers, packet_id, is_v5),
        6..=8 => {
            let entries: Vec<_> = (0..=numbers.below(3))
                .map(|_| (numbers.one_of(&FILTERS), numbers.one_of(&[0, 1, 2, 0x04, 0x2A, 3, 0x40])))
                .map(|(filter, options)| (filter, if is_v5 || options < 3 { options } else { 1 }))
                .collect();
            put_subscribe(output, is_v5, packet_id, &entries);
        }
        9 => put_unsubscribe(output, is_v5, packet_id, numbers.one_of(&FILTERS)),
        10..=13 => {
            let first_byte = numbers.one_of(&[0x40, 0x50, 0x62, 0x70, 0x60]);
            let reason: &[u8] = if is_v5 { numbers.one_of(&[&[][..], &[0], &[0x92], &[0, 0]]) } else { &[] };
            output.put_u8(first_byte);
            put_length(output, 2 + reason.len());
            output.put_u16(packet_id);
            output.put_slice(reason);
        }
        14 => output.put_slice(&PINGREQ),
        _ => output.put_slice(numbers.one_of(&[
            &[0xE0, 0][..],
            &[0xE0, 1, 4],
            &[0xE0, 7, 0, 5, 0x11, 0, 0, 0, 9],
            &[0xF0, 2, 0x19, 0],
            &[0xF0, 0],
            &[0xC0, 0],
            &[0x10, 0],
        ])),
    }
}

fn put_any_publish(output: &mut BytesMut, numbers: &mut Numbers, packet_id: u16, is_v5: bool) {
    let (topic, qos, retain) = (numbers.one_of(&TOPICS), numbers.qos(), numbers.once_in(4));
    let payload_bytes = numbers.one_of(&[0, 1, 10, 10, 130, 20_000]);
    let publish = Publish { topic, qos, retain, dup: false, packet_id };
    if is_v5 && numbers.once_in(3) {
        // The same with properties: an alias, an expiry, two user properties.
        let properties = numbers.one_of(&[
            &[0x23, 0, 1][..],
            &[0x23, 0, 0],
            &[0x23, 0xFF, 0xFF],
            &[0x02, 0, 0, 0, 1],
            &[0x01, 1, 0x26, 0, 1, b'k', 0, 1, b'v', 0x26, 0, 1, b'k', 0, 1, b'w'],
            &[0x0B, 1],
        ]);
        let mut whole = BytesMut::new();
        put_publish(&mut whole, publish, false, 0);
        let header = 2;
        output.put_u8(whole[0]);
        put_length(output, whole.len() - header + 1 + properties.len() + payload_bytes);
        output.put_slice(&whole[header..]);
        put_length(output, properties.len());
        output.put_slice(properties);
    } else {
        put_publish(output, publish, is_v5, payload_bytes);
    }
    output.put_bytes(b'x', payload_bytes);
}

/// One byte of the packet from `from` on is another one.
fn damage(bytes: &mut BytesMut, from: usize, numbers: &mut Numbers) {
    let place = from + numbers.below((bytes.len() - from).min(40));
    bytes[place] = numbers.byte();
}

/// Sends the script, then nothing more, and reads until the broker closes.
///
/// # Errors
///
/// When the broker says what no broker may say, or does not close.
pub(crate) async fn attack(endpoint: &Endpoint, script: &Script) -> Result<()> {
    let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await?;
    stream.set_nodelay(true)?;
    let (mut reader, mut writer) = stream.into_split();
    let sending = async move {
        let mut sent = 0;
        for cut in &script.cuts {
            // The broker may have closed: what it said before is still there to be read.
            if writer.write_all(&script.bytes[sent..*cut]).await.is_err() {
                break;
            }
            sent = *cut;
            tokio::task::yield_now().await;
        }
        let _ = writer.shutdown().await;
        // Kept until the broker closes, so that the socket is not reset.
        std::future::pending::<Result<()>>().await
    };
    let reading = async {
        let (mut input, mut watch) = (Input::default(), Watch::default());
        while input.read_some(&mut reader).await.is_ok() {
            while let Some(packet) = input.next_packet() {
                watch.check(&packet)?;
            }
        }
        anyhow::Ok(())
    };
    let exchange = async {
        tokio::select! {
            outcome = reading => outcome,
            outcome = sending => outcome,
        }
    };
    tokio::time::timeout(PATIENCE, exchange).await.context("the broker does not close")?
}

/// What the broker has said so far.
#[derive(Default)]
struct Watch {
    is_connected: bool,
    has_ended: bool,
}

impl Watch {
    fn check(&mut self, packet: &RawPacket) -> Result<()> {
        ensure!(!self.has_ended, "{packet:?} after the end");
        let flags = packet.first_byte & 0xF;
        if packet.kind() == kind::CONNACK {
            ensure!(!self.is_connected && flags == 0, "{packet:?}");
            self.is_connected = true;
            self.has_ended = packet.body.get(1).is_none_or(|reason| *reason != 0);
            return Ok(());
        }
        ensure!(self.is_connected, "{packet:?} before CONNACK");
        match packet.kind() {
            kind::PUBLISH => check_publish(packet)?,
            kind::PUBREL => ensure!(flags == 2 && packet.body.len() >= 2, "{packet:?}"),
            kind::PUBACK | kind::PUBREC | kind::PUBCOMP | kind::SUBACK | kind::UNSUBACK => {
                ensure!(flags == 0 && packet.body.len() >= 2, "{packet:?}");
            }
            kind::PINGRESP => ensure!(flags == 0 && packet.body.is_empty(), "{packet:?}"),
            kind::DISCONNECT => {
                ensure!(
                    flags == 0 && packet.body.first().is_some_and(|reason| *reason >= 0x80),
                    "{packet:?}"
                );
                self.has_ended = true;
            }
            other => anyhow::bail!("a broker never sends type {other}: {packet:?}"),
        }
        Ok(())
    }
}

fn check_publish(packet: &RawPacket) -> Result<()> {
    ensure!(packet.qos() < 3, "{packet:?}");
    let mut body = packet.body.clone();
    let topic_bytes = usize::from(body.try_get_u16()?);
    ensure!(body.len() >= topic_bytes, "{packet:?}");
    let topic = String::from_utf8(body.split_to(topic_bytes).to_vec())?;
    ensure!(!topic.contains(['+', '#']), "{topic:?} is no topic name");
    if packet.qos() > 0 {
        ensure!(body.try_get_u16()? > 0, "{packet:?} has no packet id");
    }
    Ok(())
}

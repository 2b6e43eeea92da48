//! One publisher and one subscriber of its topic, MQTT 3.1.1: saturated with a bounded number of messages under way, or
//! at a fixed rate.

use crate::connection::{Connection, PATIENCE};
use crate::mosquitto::Endpoint;
use crate::wire::{Publish, RawPacket, kind, put_ack, put_publish};
use anyhow::{Context, Result, ensure};
use bytes::{Buf, BufMut};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tokio::time::{Interval, MissedTickBehavior};

/// Sequence number and time stamp.
const PAYLOAD_BYTES_MIN: usize = 16;

/// Messages that are sent earlier have no latency: the first ones share a connection with its own beginning.
const WARM_UP_MICROS: u64 = 200_000;

/// What one pair does.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Where both clients connect.
    pub endpoint: Endpoint,
    /// Quality of service of publish and subscription.
    pub qos: u8,
    /// Whether the subscriber's session is persistent.
    pub persistent: bool,
    /// When messages are sent.
    pub pace: Pace,
    /// Payload bytes, at least 16.
    pub payload_bytes: usize,
    /// How long new messages are sent.
    pub duration: Duration,
}

/// When a publisher sends.
#[derive(Debug, Clone, Copy)]
pub enum Pace {
    /// As soon as fewer than so many messages are under way.
    Window(u64),
    /// One message each time, whatever is under way.
    Every(Duration),
}

/// What one pair saw.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Messages received, each exactly the next one of its publisher; all that were sent.
    pub received: u64,
    /// From before the publisher's write until the subscriber has read, in µs, in order of arrival, without those of
    /// the first 200 ms.
    pub latencies_micros: Vec<u32>,
    /// From before the publisher's write until it has read PUBACK or PUBCOMP, likewise.
    pub ack_micros: Vec<u32>,
}

/// Runs pair `number`: connects, subscribes, publishes for the planned time and waits for what is under way.
///
/// # Errors
///
/// When a message is missing, repeated or out of order, or the broker does not answer for 20 s.
pub async fn run(plan: Plan, number: u32) -> Result<Tally> {
    ensure!(plan.payload_bytes >= PAYLOAD_BYTES_MIN, "a payload has at least {PAYLOAD_BYTES_MIN} bytes");
    let topic = format!("bench/{number}");
    let mut subscriber =
        Connection::open(&plan.endpoint, &format!("bench-s{number}"), !plan.persistent).await?;
    subscriber.subscribe(&[&topic], plan.qos).await?;
    let publisher = Connection::open(&plan.endpoint, &format!("bench-p{number}"), true).await?;
    let ticks = match plan.pace {
        Pace::Window(_) => None,
        Pace::Every(interval) => Some(spread(interval, number)),
    };
    let started = Instant::now();
    let progress = Progress::default();
    Pair { plan, topic, publisher, subscriber, ticks, started, progress }.drive().await
}

/// Ticks of many pairs do not fall together.
fn spread(interval: Duration, number: u32) -> Interval {
    let offset = interval * (number % 50) / 50;
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + offset, interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    ticks
}

#[derive(Default)]
struct Progress {
    sent: u64,
    /// By the publisher: PUBACK or PUBCOMP.
    acknowledged: u64,
    /// By the subscriber at QoS 2: PUBREL.
    released: u64,
    /// When what is not acknowledged was sent, in µs since the start: acknowledgements come in order.
    unacknowledged: VecDeque<u64>,
    tally: Tally,
}

struct Pair {
    plan: Plan,
    topic: String,
    publisher: Connection,
    subscriber: Connection,
    ticks: Option<Interval>,
    started: Instant,
    progress: Progress,
}

/// What a pair waits for.
enum Event {
    Read,
    Tick,
}

impl Pair {
    async fn drive(mut self) -> Result<Tally> {
        loop {
            let is_sending = self.started.elapsed() < self.plan.duration;
            if !is_sending && self.done() == self.progress.sent {
                return Ok(self.progress.tally);
            }
            if let (true, Pace::Window(window)) = (is_sending, self.plan.pace) {
                while self.progress.sent - self.done() < window {
                    self.put_message();
                }
                self.publisher.flush().await?;
            }
            let event =
                tokio::time::timeout(PATIENCE, self.next_event()).await.context("no answer for 20 s")??;
            match event {
                Event::Read => self.take_packets().await?,
                Event::Tick if is_sending => {
                    self.put_message();
                    self.publisher.flush().await?;
                }
                // Nothing more is sent: only what is under way is waited for.
                Event::Tick => self.ticks = None,
            }
        }
    }

    /// Messages of which nothing is under way any more.
    fn done(&self) -> u64 {
        let Progress { acknowledged, released, tally, .. } = &self.progress;
        match self.plan.qos {
            0 => tally.received,
            1 => tally.received.min(*acknowledged),
            _ => tally.received.min(*acknowledged).min(*released),
        }
    }

    async fn next_event(&mut self) -> Result<Event> {
        let Self { subscriber, publisher, ticks, .. } = self;
        let tick = async {
            match ticks {
                Some(ticks) => ticks.tick().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            read = subscriber.input.read_some(&mut subscriber.stream) => read.map(|()| Event::Read),
            read = publisher.input.read_some(&mut publisher.stream) => read.map(|()| Event::Read),
            _ = tick => Ok(Event::Tick),
        }
    }

    fn put_message(&mut self) {
        let sequence = self.progress.sent;
        self.progress.sent += 1;
        // 1 to 65,535 in turn; the window is far below that.
        let packet_id = u16::try_from(sequence % 65_535).expect("a remainder of 65,535 fits") + 1;
        let publish =
            Publish { topic: &self.topic, qos: self.plan.qos, retain: false, dup: false, packet_id };
        let output = &mut self.publisher.output;
        put_publish(output, publish, false, self.plan.payload_bytes);
        let now = micros(self.started);
        if self.plan.qos > 0 {
            self.progress.unacknowledged.push_back(now);
        }
        output.put_u64(sequence);
        output.put_u64(now);
        output.put_bytes(b'x', self.plan.payload_bytes - PAYLOAD_BYTES_MIN);
    }

    async fn take_packets(&mut self) -> Result<()> {
        while let Some(packet) = self.subscriber.input.next_packet() {
            self.take_delivery(packet)?;
        }
        self.subscriber.flush().await?;
        while let Some(mut packet) = self.publisher.input.next_packet() {
            match packet.kind() {
                kind::PUBACK | kind::PUBCOMP => {
                    self.progress.acknowledged += 1;
                    let sent_at = self.progress.unacknowledged.pop_front();
                    if let Some(sent_at) = sent_at.filter(|sent_at| *sent_at >= WARM_UP_MICROS) {
                        let took = micros(self.started).saturating_sub(sent_at);
                        self.progress.tally.ack_micros.push(u32::try_from(took).unwrap_or(u32::MAX));
                    }
                }
                kind::PUBREC => put_ack(&mut self.publisher.output, 0x62, packet.body.get_u16()),
                other => anyhow::bail!("publisher got packet type {other}"),
            }
        }
        self.publisher.flush().await
    }

    /// Checks one packet to the subscriber and queues its acknowledgement.
    fn take_delivery(&mut self, mut packet: RawPacket) -> Result<()> {
        let (output, tally) = (&mut self.subscriber.output, &mut self.progress.tally);
        if packet.kind() == kind::PUBREL {
            put_ack(output, 0x70, packet.body.get_u16());
            self.progress.released += 1;
            return Ok(());
        }
        ensure!(packet.kind() == kind::PUBLISH, "subscriber got packet type {}", packet.kind());
        ensure!(packet.qos() == self.plan.qos, "message came at QoS {}", packet.qos());
        let topic_bytes = usize::from(packet.body.get_u16());
        packet.body.advance(topic_bytes);
        match self.plan.qos {
            0 => {}
            1 => put_ack(output, 0x40, packet.body.get_u16()),
            _ => put_ack(output, 0x50, packet.body.get_u16()),
        }
        let sequence = packet.body.get_u64();
        ensure!(sequence == tally.received, "message {sequence} arrived instead of {}", tally.received);
        tally.received += 1;
        let sent_at = packet.body.get_u64();
        if sent_at >= WARM_UP_MICROS {
            let latency = micros(self.started).saturating_sub(sent_at);
            tally.latencies_micros.push(u32::try_from(latency).unwrap_or(u32::MAX));
        }
        Ok(())
    }
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

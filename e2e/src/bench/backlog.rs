//! Messages that are published for sessions, at full speed or at a rate, and read by them. QoS 1, MQTT 3.1.1.

use crate::connection::{Connection, PATIENCE};
use crate::mosquitto::Endpoint;
use crate::wire::{Arrival, Publish, RawPacket, kind, put_ack, put_publish};
use anyhow::{Context, Result, ensure};
use bytes::{Buf, BufMut};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

/// Number of the publisher, sequence number, time stamp.
const HEAD_BYTES: usize = 20;
/// Unacknowledged messages of one publisher: below the receive maximum of both brokers.
const WINDOW: u64 = 90;
/// SUBSCRIBE and the rest of many sessions at the same time.
const CONCURRENT: usize = 50;

/// What is published.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Where the clients connect.
    pub endpoint: Endpoint,
    /// Publishers; each takes the topics in turn.
    pub publishers: u32,
    /// Topics `bench/q/<number>`.
    pub topics: u32,
    /// Messages of all publishers together.
    pub messages: u64,
    /// Payload bytes, at least 20.
    pub payload_bytes: usize,
    /// Between two messages of one publisher; `None`: as fast as acknowledgements come.
    pub interval: Option<Duration>,
    /// What time stamps count from.
    pub epoch: Instant,
}

impl Plan {
    /// Bytes of topics, payloads and publishers' client ids of all messages: what any broker must store.
    #[must_use]
    pub fn message_bytes(&self) -> u64 {
        let bytes = |number: u64| {
            let publisher = number % u64::from(self.publishers);
            let topic = number / u64::from(self.publishers) % u64::from(self.topics);
            topic_name(topic).len() + publisher_id(publisher).len() + self.payload_bytes
        };
        (0..self.messages).map(|number| bytes(number) as u64).sum()
    }
}

/// The filter of session `number`.
#[must_use]
pub fn topic_name(number: u64) -> String {
    format!("bench/q/{number}")
}

fn publisher_id(number: u64) -> String {
    format!("bench-qp{number}")
}

/// Makes `count` sessions that are kept, session `n` subscribed to topic `n`, and leaves them.
///
/// # Errors
///
/// When one is refused.
pub async fn leave_sessions(endpoint: &Endpoint, count: u32) -> Result<()> {
    let mut opening = JoinSet::new();
    for number in 0..count {
        if opening.len() >= CONCURRENT
            && let Some(opened) = opening.join_next().await
        {
            opened??;
        }
        let endpoint = endpoint.clone();
        opening.spawn(async move {
            let mut session = Connection::open(&endpoint, &session_id(number), false).await?;
            session.subscribe(&[&topic_name(number.into())], 1).await?;
            session.output.put_slice(&[0xE0, 0]);
            session.flush().await?;
            // The broker closes: it has seen the DISCONNECT.
            while session.next_packet().await.is_ok() {}
            anyhow::Ok(())
        });
    }
    while let Some(opened) = opening.join_next().await {
        opened??;
    }
    Ok(())
}

/// Client id of session `number`.
#[must_use]
pub fn session_id(number: u32) -> String {
    format!("bench-q{number}")
}

/// Publishes everything and waits for the acknowledgements.
///
/// # Errors
///
/// When one does not come for 20 s.
pub async fn fill(plan: &Plan) -> Result<()> {
    let mut publishers = JoinSet::new();
    for number in 0..plan.publishers {
        publishers.spawn(publish(plan.clone(), number));
    }
    while let Some(published) = publishers.join_next().await {
        published??;
    }
    Ok(())
}

async fn publish(plan: Plan, number: u32) -> Result<()> {
    let mut connection = Connection::open(&plan.endpoint, &publisher_id(number.into()), true).await?;
    let own = plan.messages / u64::from(plan.publishers)
        + u64::from(u64::from(number) < plan.messages % u64::from(plan.publishers));
    let mut ticks = plan.interval.map(|interval| {
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        ticks
    });
    let (mut sent, mut acknowledged) = (0, 0);
    while acknowledged < own {
        while ticks.is_none() && sent < own && sent - acknowledged < WINDOW {
            put_message(&mut connection, &plan, number, sent);
            sent += 1;
        }
        connection.flush().await?;
        let tick = async {
            match &mut ticks {
                Some(ticks) if sent < own => ticks.tick().await,
                Some(_) | None => std::future::pending().await,
            }
        };
        tokio::select! {
            read = tokio::time::timeout(PATIENCE, connection.input.read_some(&mut connection.stream)) => {
                read.context("no PUBACK for 20 s")??;
            }
            _ = tick => {
                put_message(&mut connection, &plan, number, sent);
                sent += 1;
            }
        }
        while let Some(packet) = connection.input.next_packet() {
            ensure!(packet.kind() == kind::PUBACK, "publisher got packet type {}", packet.kind());
            acknowledged += 1;
        }
    }
    Ok(())
}

fn put_message(connection: &mut Connection, plan: &Plan, publisher: u32, sequence: u64) {
    let topic = topic_name(sequence % u64::from(plan.topics));
    let packet_id = u16::try_from(sequence % 65_535).expect("a remainder of 65,535 fits") + 1;
    let publish = Publish { topic: &topic, qos: 1, retain: false, dup: false, packet_id };
    let output = &mut connection.output;
    put_publish(output, publish, false, plan.payload_bytes);
    output.put_u32(publisher);
    output.put_u64(sequence);
    output.put_u64(u64::try_from(plan.epoch.elapsed().as_micros()).unwrap_or(u64::MAX));
    output.put_bytes(b'x', plan.payload_bytes - HEAD_BYTES);
}

/// Reads the messages of one topic that every publisher of a plan sends, and acknowledges them.
pub struct Reader {
    connection: Connection,
    /// By publisher: the sequence number that comes next.
    expected: Vec<u64>,
    /// From before the publisher's write until here, in µs, in order of arrival.
    pub latencies_micros: Vec<u32>,
    /// Messages taken.
    pub taken: u64,
    epoch: Instant,
}

impl Reader {
    /// On a connection that is subscribed to the only topic of `plan`.
    #[must_use]
    pub(crate) fn new(connection: Connection, plan: &Plan) -> Self {
        let expected = vec![0; usize::try_from(plan.publishers).unwrap_or(0)];
        Self { connection, expected, latencies_micros: Vec::new(), taken: 0, epoch: plan.epoch }
    }

    /// Reads until `count` messages are taken in all.
    ///
    /// # Errors
    ///
    /// When one is missing for 20 s, repeated or out of order.
    pub async fn read_until(&mut self, count: u64) -> Result<()> {
        while self.taken < count {
            while let Some(packet) = self.connection.input.next_packet() {
                self.take(packet)?;
            }
            self.connection.flush().await?;
            if self.taken < count {
                let read = self.connection.input.read_some(&mut self.connection.stream);
                tokio::time::timeout(PATIENCE, read).await.context("no message for 20 s")??;
            }
        }
        Ok(())
    }

    fn take(&mut self, packet: RawPacket) -> Result<()> {
        ensure!(packet.kind() == kind::PUBLISH, "subscriber got packet type {}", packet.kind());
        let mut arrival = Arrival::parse(packet, false)?;
        put_ack(&mut self.connection.output, 0x40, arrival.packet_id);
        ensure!(arrival.payload.len() >= HEAD_BYTES, "a payload that nobody sent");
        let (publisher, sequence) = (arrival.payload.get_u32(), arrival.payload.get_u64());
        let expected =
            self.expected.get_mut(usize::try_from(publisher)?).context("a publisher of the plan")?;
        ensure!(sequence == *expected, "message {sequence} of {publisher} arrived instead of {expected}");
        *expected += 1;
        self.taken += 1;
        let sent_at = Duration::from_micros(arrival.payload.get_u64());
        let latency = self.epoch.elapsed().saturating_sub(sent_at).as_micros();
        self.latencies_micros.push(u32::try_from(latency).unwrap_or(u32::MAX));
        Ok(())
    }
}

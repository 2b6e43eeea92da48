//! A few publishers at a fixed rate, each with many subscribers.

use crate::connection::{Connection, PATIENCE};
use crate::mosquitto::Endpoint;
use crate::wire::{Publish, kind, put_publish};
use anyhow::{Context, Result, ensure};
use bytes::{Buf, BufMut};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

/// What is sent to whom. QoS 0, MQTT 3.1.1.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Where the clients connect.
    pub endpoint: Endpoint,
    /// Publishers, each with a topic of its own.
    pub publishers: u32,
    /// Subscribers of each topic.
    pub subscribers: u32,
    /// Between two messages of one publisher.
    pub interval: Duration,
    /// Messages of each publisher.
    pub messages: u32,
    /// Payload bytes, at least 4.
    pub payload_bytes: usize,
}

/// Publishes and waits until every subscriber has every message of its topic; answers what a delivery cost of what
/// `used` counts, without the connecting.
///
/// # Errors
///
/// When a message is missing for 20 s, repeated or out of order.
pub async fn run(plan: Plan, used: impl Fn() -> Result<f64>) -> Result<f64> {
    let mut subscribers = JoinSet::new();
    let mut publishers = JoinSet::new();
    for topic in 0..plan.publishers {
        for number in 0..plan.subscribers {
            let client_id = format!("bench-f{topic}-{number}");
            let mut connection = Connection::open(&plan.endpoint, &client_id, true).await?;
            connection.subscribe(&[&format!("bench/fan/{topic}")], 0).await?;
            subscribers.spawn(receive(connection, plan.messages));
        }
    }
    let before = used()?;
    for topic in 0..plan.publishers {
        publishers.spawn(publish(plan.clone(), topic));
    }
    while let Some(published) = publishers.join_next().await {
        published??;
    }
    let mut deliveries = 0;
    while let Some(received) = subscribers.join_next().await {
        deliveries += received??;
    }
    Ok((used()? - before) / f64::from(deliveries))
}

async fn receive(mut connection: Connection, messages: u32) -> Result<u32> {
    for expected in 0..messages {
        let mut packet = connection.next_packet().await.with_context(|| format!("message {expected}"))?;
        ensure!(packet.kind() == kind::PUBLISH, "subscriber got packet type {}", packet.kind());
        let topic_bytes = usize::from(packet.body.get_u16());
        packet.body.advance(topic_bytes);
        let sequence = packet.body.get_u32();
        ensure!(sequence == expected, "message {sequence} arrived instead of {expected}");
    }
    Ok(messages)
}

async fn publish(plan: Plan, number: u32) -> Result<()> {
    let mut connection = Connection::open(&plan.endpoint, &format!("bench-fp{number}"), true).await?;
    let topic = format!("bench/fan/{number}");
    let offset = plan.interval * number / plan.publishers;
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + offset, plan.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for sequence in 0..plan.messages {
        ticks.tick().await;
        let publish = Publish { topic: &topic, qos: 0, retain: false, dup: false, packet_id: 0 };
        put_publish(&mut connection.output, publish, false, plan.payload_bytes);
        connection.output.put_u32(sequence);
        connection.output.put_bytes(b'x', plan.payload_bytes - 4);
        tokio::time::timeout(PATIENCE, connection.flush()).await.context("the broker reads nothing")??;
    }
    Ok(())
}

//! A million subscriptions, and a million retained messages.

use super::subject::Subject;
use crate::connection::Connection;
use crate::wire::{Publish, put_publish};
use anyhow::{Result, ensure};
use bytes::BufMut;
use std::time::{Duration, Instant};

/// Subscriptions of one client: the broker's default limit.
const FILTERS_PER_CLIENT: u32 = 10_000;
const FILTERS_PER_SUBSCRIBE: usize = 500;
/// PUBLISH packets between two round trips.
const BATCH: u32 = 500;
const RETAINED_PAYLOAD_BYTES: usize = 16;

/// What many subscriptions cost.
#[derive(Debug, Clone, Copy)]
pub struct SubscriptionCost {
    /// Resident bytes of one, without those of its filter.
    pub bytes_beyond_filter: f64,
    /// CPU µs of a PUBLISH at QoS 0 to a topic that was not used before and that nobody subscribed to.
    pub new_topic_micros: f64,
    /// The same, always to one topic.
    pub same_topic_micros: f64,
}

/// Subscribes to `count` filters, every tenth with a wildcard, and publishes to none of them.
///
/// # Errors
///
/// When the broker refuses one.
pub async fn subscriptions(subject: &Subject, count: u32, publishes: u32) -> Result<SubscriptionCost> {
    let mut clients = Vec::new();
    for number in 0..count.div_ceil(FILTERS_PER_CLIENT) {
        clients.push(Connection::open(subject.endpoint(), &format!("bench-m{number}"), true).await?);
    }
    let before = subject.resident_bytes()?;
    let mut filter_bytes = 0_u32;
    for (client, number) in clients.iter_mut().zip(0_u32..) {
        let range = number * FILTERS_PER_CLIENT..((number + 1) * FILTERS_PER_CLIENT).min(count);
        let filters: Vec<_> = range.map(filter).collect();
        for part in filters.chunks(FILTERS_PER_SUBSCRIBE) {
            let part: Vec<_> = part.iter().map(String::as_str).collect();
            client.subscribe(&part, 0).await?;
            filter_bytes += u32::try_from(part.iter().map(|filter| filter.len()).sum::<usize>())?;
        }
    }
    let bytes = (subject.resident_bytes()? - before - f64::from(filter_bytes)) / f64::from(count);

    let mut publisher = Connection::open(subject.endpoint(), "bench-mp", true).await?;
    let mut timed = async |topic_of: &dyn Fn(u32) -> String| -> Result<f64> {
        let before = subject.cpu_micros()?;
        for start in (0..publishes).step_by(usize::try_from(BATCH)?) {
            for number in start..(start + BATCH).min(publishes) {
                put_message(&mut publisher, &topic_of(number), false, 8);
            }
            publisher.round_trip().await?;
        }
        Ok((subject.cpu_micros()? - before) / f64::from(publishes))
    };
    let new_topic_micros = timed(&|number| format!("{}/none", topic(number * 5 % count))).await?;
    let same_topic_micros = timed(&|_| format!("{}/none", topic(0))).await?;
    Ok(SubscriptionCost { bytes_beyond_filter: bytes, new_topic_micros, same_topic_micros })
}

/// Filter `number`: 100 sites with 10,000 devices each.
#[must_use]
pub fn filter(number: u32) -> String {
    if number.is_multiple_of(10) {
        format!("site/{}/+/{}/temperature", number / 10_000, number % 10_000)
    } else {
        format!("{}/temperature", topic(number))
    }
}

/// The topic of device `number`, whose measurements are below it.
#[must_use]
pub fn topic(number: u32) -> String {
    format!("site/{}/device/{}", number / 10_000, number % 10_000)
}

/// What many retained messages cost.
#[derive(Debug, Clone, Copy)]
pub struct RetainedCost {
    /// Resident bytes of one, without those of its topic and payload.
    pub bytes_beyond_message: f64,
    /// CPU µs to keep one.
    pub keep_micros: f64,
    /// CPU µs of a SUBSCRIBE to `<group>/+/b`, with the delivery of the ten that match.
    pub search_micros: f64,
    /// The same as milliseconds until the last of the ten is there.
    pub search_millis: f64,
}

/// Retains `count` messages in groups of 1,000, of which ten match `<group>/+/b`, and searches for those.
///
/// # Errors
///
/// When what is found is not what was kept.
pub async fn retained(subject: &Subject, count: u32, searches: u32) -> Result<RetainedCost> {
    let mut publisher = Connection::open(subject.endpoint(), "bench-rp", true).await?;
    let (before, cpu_before) = (subject.resident_bytes()?, subject.cpu_micros()?);
    let mut message_bytes = 0_u32;
    for start in (0..count).step_by(usize::try_from(BATCH)?) {
        for number in start..(start + BATCH).min(count) {
            let leaf = if number.is_multiple_of(100) { 'b' } else { 'c' };
            let topic = format!("{}/{}/{leaf}", number / 1_000, number % 1_000);
            put_message(&mut publisher, &topic, true, RETAINED_PAYLOAD_BYTES);
            message_bytes += u32::try_from(topic.len() + RETAINED_PAYLOAD_BYTES)?;
        }
        publisher.round_trip().await?;
    }
    let keep_micros = (subject.cpu_micros()? - cpu_before) / f64::from(count);
    let bytes = (subject.resident_bytes()? - before - f64::from(message_bytes)) / f64::from(count);

    let mut reader = Connection::open(subject.endpoint(), "bench-rs", true).await?;
    let (cpu_before, mut took) = (subject.cpu_micros()?, Duration::ZERO);
    for number in 0..searches {
        let started = Instant::now();
        reader.subscribe(&[&format!("{}/+/b", number % (count / 1_000))], 0).await?;
        for _ in 0..10 {
            let packet = reader.next_packet().await?;
            ensure!(packet.first_byte == 0x31, "{packet:?} is no retained PUBLISH");
        }
        took += started.elapsed();
        ensure!(reader.round_trip().await? == 0, "more came than matches");
    }
    Ok(RetainedCost {
        bytes_beyond_message: bytes,
        keep_micros,
        search_micros: (subject.cpu_micros()? - cpu_before) / f64::from(searches),
        search_millis: took.as_secs_f64() * 1e3 / f64::from(searches),
    })
}

fn put_message(publisher: &mut Connection, topic: &str, retain: bool, payload_bytes: usize) {
    let publish = Publish { topic, qos: 0, retain, dup: false, packet_id: 0 };
    put_publish(&mut publisher.output, publish, false, payload_bytes);
    publisher.output.put_bytes(b'x', payload_bytes);
}

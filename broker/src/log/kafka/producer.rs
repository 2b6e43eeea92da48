//! Appends to the log in the order of the calls, through one idempotent producer at a time.
//!
//! What the client's queue does not take is kept in order per partition, bounded by the callers' windows, and handed
//! over by the pump thread. The pump also replaces a producer that failed and answers what can be answered at once.

mod pump;
mod reports;

use super::KafkaSettings;
use super::clients::log_producer;
use crate::log::congestion::Congestion;
use crate::log::{AppendDone, AppendError, BuildRecord, Sequence};
use bytes::Bytes;
use parking_lot::Mutex;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::producer::{BaseRecord, ThreadedProducer};
use reports::{Deliveries, Pending, Phase, Reports};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use tidemill_core::partition::Partition;
use tokio::sync::watch;

/// The handle of the appending side.
pub(super) struct Appender {
    shared: Arc<Shared>,
    pump: Option<JoinHandle<()>>,
}

/// What callers and the pump share.
struct Shared {
    settings: Arc<KafkaSettings>,
    topic: String,
    /// One of each partition. Held over building and sending: this is the partition's order. Locked before the signals.
    lanes: Vec<Mutex<Lane>>,
    reports: Arc<Reports>,
    closed: watch::Sender<bool>,
}

struct Lane {
    generation: Arc<Generation>,
    sequence: u64,
    /// What the client did not take yet; while there is anything, nothing goes past it.
    overflow: VecDeque<Waiting>,
}

/// One producer.
struct Generation {
    number: u32,
    producer: ThreadedProducer<Deliveries>,
}

/// A record that the client does not have yet.
struct Waiting {
    record: Bytes,
    pending: Pending,
}

impl Appender {
    /// Starts producer number 1. Kafka need not be there.
    pub(super) fn start(settings: Arc<KafkaSettings>) -> KafkaResult<Self> {
        let reports = Arc::new(Reports::new());
        let generation = Arc::new(Generation::start(&settings, 1, &reports)?);
        let lane = |_| {
            Mutex::new(Lane { generation: Arc::clone(&generation), sequence: 0, overflow: VecDeque::new() })
        };
        let shared = Arc::new(Shared {
            topic: settings.topics.log(),
            lanes: settings.partitioning.partitions().map(lane).collect(),
            settings,
            reports,
            closed: watch::Sender::new(false),
        });
        let for_pump = Arc::clone(&shared);
        let pump = std::thread::Builder::new()
            .name("tidemill-pump".to_owned())
            .spawn(move || for_pump.run_pump())
            .map_err(|error| KafkaError::ClientCreation(error.to_string()))?;
        Ok(Self { shared, pump: Some(pump) })
    }

    pub(super) fn append(&self, partition: Partition, build: BuildRecord<'_>, done: AppendDone) {
        self.shared.append(partition, build, done);
    }

    pub(super) fn congestion(&self) -> &Congestion {
        &self.shared.reports.congestion
    }

    /// Takes no more appends; what was taken is answered within a bound.
    pub(super) fn close(&self) {
        self.shared.reports.advance(Phase::Closing);
    }

    /// Tells when everything is answered and the log is closed.
    pub(super) fn closings(&self) -> watch::Receiver<bool> {
        self.shared.closed.subscribe()
    }
}

impl Drop for Appender {
    fn drop(&mut self) {
        self.shared.reports.advance(Phase::Ended);
        if let Some(pump) = self.pump.take()
            && pump.thread().id() != std::thread::current().id()
        {
            pump.join().expect("the pump does not panic");
        }
    }
}

impl Generation {
    fn start(settings: &KafkaSettings, number: u32, reports: &Arc<Reports>) -> KafkaResult<Self> {
        let producer = log_producer(settings, Deliveries::new(number, Arc::clone(reports)))?;
        Ok(Self { number, producer })
    }
}

impl Shared {
    fn append(&self, partition: Partition, build: BuildRecord<'_>, done: AppendDone) {
        let refused = |bytes, reason| AppendError::Refused { partition: partition.0, bytes, reason };
        let Some(lane) = self.lanes.get(usize::from(partition.0)) else {
            return self.reports.answer(done, refused(0, "there is no such partition".to_owned()));
        };
        let mut lane = lane.lock();
        if self.reports.phase() != Phase::Open {
            return self.reports.answer(done, AppendError::Closed);
        }
        let record = build(Sequence { producer: lane.generation.number, sequence: lane.sequence });
        let bytes = record.len();
        let bytes_max = self.settings.record_bytes_max();
        if bytes > bytes_max {
            return self.reports.answer(done, refused(bytes, format!("larger than {bytes_max} bytes")));
        }
        lane.sequence += 1;
        self.reports.congestion.add(bytes);
        let waiting = Waiting { record, pending: Pending { partition, bytes, done } };
        let left =
            if lane.overflow.is_empty() { self.send(&lane.generation, waiting) } else { Some(waiting) };
        if let Some(waiting) = left {
            lane.overflow.push_back(waiting);
            self.reports.overflowed();
        }
    }

    /// Hands a record to the client; gives it back if the client does not take it now.
    fn send(&self, generation: &Generation, waiting: Waiting) -> Option<Waiting> {
        let Waiting { record, pending } = waiting;
        let partition = i32::from(pending.partition.0);
        let outgoing = BaseRecord::<(), [u8], _>::with_opaque_to(&self.topic, Box::new(Mutex::new(pending)))
            .partition(partition)
            .payload(&record[..]);
        let (error, pending) = match generation.producer.send(outgoing) {
            Ok(()) => return None,
            Err((error, outgoing)) => (error, outgoing.delivery_opaque.into_inner()),
        };
        if error.rdkafka_error_code() != Some(RDKafkaErrorCode::QueueFull) {
            self.reports.fail(generation.number, &error.to_string());
        }
        Some(Waiting { record, pending })
    }
}

#[cfg(test)]
mod tests;

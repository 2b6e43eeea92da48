//! Reads one partition of the log. An offset that Kafka does not have is an error with bounds, never a jump.

use super::Inner;
use super::seats::{Seat, Taken};
use crate::log::{Bounds, LogReader, READ_BYTES_MAX, READ_RECORDS_MAX, ReadError, ReadEvent, StoredRecord};
use bytes::Bytes;
use futures::future::BoxFuture;
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Message};
use std::sync::Arc;
use std::time::Duration;
use tidemill_core::partition::{Offset, Partition};

/// How often a waiting reader looks at its queue although nothing woke it: a lost wake-up would be a record that is
/// acknowledged and never delivered.
const RECHECK: Duration = Duration::from_secs(5);

pub(super) struct KafkaReader {
    inner: Arc<Inner>,
    partition: Partition,
    position: Offset,
    seat: Arc<Seat>,
    /// The end was yielded at this position.
    end_yielded: bool,
}

/// What the queue had.
enum Polled {
    Records(Vec<StoredRecord>),
    End,
    Failed(KafkaError),
    Nothing,
}

impl KafkaReader {
    pub(super) fn new(inner: Arc<Inner>, partition: Partition, position: Offset) -> Self {
        let seat = inner.seats.add(partition);
        Self { inner, partition, position, seat, end_yielded: false }
    }

    async fn read(&mut self) -> Result<ReadEvent, ReadError> {
        let inner = Arc::clone(&self.inner);
        let seat = Arc::clone(&self.seat);
        let _asked = inner.seats.ask(&seat);
        let mut closings = inner.appender.closings();
        loop {
            if *closings.borrow() {
                seat.leave();
                return Err(ReadError::Closed);
            }
            let position = self.position;
            let looked = seat.with(|taken| {
                let polled = poll(taken, position);
                (polled, position == taken.end, Arc::clone(taken.attachment.wake()))
            });
            let Some((polled, at_known_end, wake)) = looked else {
                self.sit().await?;
                continue;
            };
            match polled {
                Polled::Records(records) => {
                    self.position = records.last().map_or(self.position, |last| last.offset + 1);
                    self.end_yielded = false;
                    return Ok(ReadEvent::Records(records));
                }
                Polled::Failed(error) => {
                    // Sitting down again finds out whether the position is out of range.
                    seat.leave();
                    let Bounds { start, end } = self.inner.bounds(self.partition).await?;
                    return Err(self
                        .check_range(start, end)
                        .err()
                        .unwrap_or_else(|| self.unavailable(&error)));
                }
                Polled::End if !self.end_yielded => return Ok(self.yield_end()),
                Polled::Nothing if at_known_end && !self.end_yielded => return Ok(self.yield_end()),
                Polled::End => continue,
                Polled::Nothing => {}
            }
            tokio::select! {
                () = wake.notified() => {}
                _ = closings.wait_for(|closed| *closed) => {}
                () = tokio::time::sleep(RECHECK) => {}
            }
        }
    }

    fn yield_end(&mut self) -> ReadEvent {
        self.end_yielded = true;
        ReadEvent::End(self.position)
    }

    async fn sit(&self) -> Result<(), ReadError> {
        let Bounds { start, end } = self.inner.bounds(self.partition).await?;
        self.check_range(start, end)?;
        self.inner.seats.sit(&self.seat, self.partition, self.position, end).await
    }

    fn check_range(&self, start: Offset, end: Offset) -> Result<(), ReadError> {
        if (start..=end).contains(&self.position) {
            return Ok(());
        }
        Err(ReadError::OutOfRange { partition: self.partition.0, offset: self.position, start, end })
    }

    fn unavailable(&self, error: &dyn std::error::Error) -> ReadError {
        ReadError::Unavailable { partition: self.partition.0, reason: error.to_string() }
    }
}

/// Takes from the queue what fits one event. A failure behind records takes their place: they are fetched again when
/// the reader goes on.
fn poll(taken: &mut Taken, position: Offset) -> Polled {
    let mut records: Vec<StoredRecord> = Vec::new();
    let mut bytes = 0;
    let Some(queue) = taken.attachment.queue() else { return Polled::Nothing };
    while records.len() < READ_RECORDS_MAX && bytes < READ_BYTES_MAX {
        match queue.poll(Duration::ZERO) {
            Some(Ok(message)) => {
                // What was fetched for a former position is not for this one.
                if let Some(record) = stored(&message).filter(|record| record.offset >= position) {
                    bytes += record.bytes.len();
                    records.push(record);
                }
            }
            Some(Err(KafkaError::PartitionEOF(_))) => {
                let Some(last) = records.last() else { return Polled::End };
                taken.end = last.offset + 1;
                break;
            }
            Some(Err(error)) => return Polled::Failed(error),
            None => break,
        }
    }
    if records.is_empty() { Polled::Nothing } else { Polled::Records(records) }
}

fn stored(message: &BorrowedMessage<'_>) -> Option<StoredRecord> {
    let offset = u64::try_from(message.offset()).ok()?;
    let append_time_ms = message.timestamp().to_millis().and_then(|time| u64::try_from(time).ok());
    let bytes = Bytes::copy_from_slice(message.payload().unwrap_or_default());
    Some(StoredRecord { offset, bytes, append_time_ms: append_time_ms.unwrap_or_default() })
}

impl LogReader for KafkaReader {
    fn next(&mut self) -> BoxFuture<'_, Result<ReadEvent, ReadError>> {
        Box::pin(self.read())
    }
}

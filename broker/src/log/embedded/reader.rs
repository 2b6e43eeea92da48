//! Reads one partition: at the head from memory, behind it from the segments.

use super::segment::{Positions, SegmentFault};
use super::segments::Found;
use super::shared::Shared;
use super::tail::TailRead;
use crate::log::{Bounds, LogReader, ReadError, ReadEvent, StoredRecord};
use futures::future::BoxFuture;
use std::sync::Arc;
use tidemill_core::partition::{Offset, Partition};

pub(super) struct EmbeddedReader {
    shared: Arc<Shared>,
    partition: Partition,
    position: Offset,
    end_yielded: bool,
    /// Where records of the segment are that was read last.
    cold: Option<(u64, Positions)>,
}

impl EmbeddedReader {
    pub(super) fn new(shared: Arc<Shared>, partition: Partition, position: Offset) -> Self {
        Self { shared, partition, position, end_yielded: false, cold: None }
    }

    /// Reads from the position on, or of that only what is `wanted`.
    async fn read(&mut self, wanted: Option<&[Offset]>) -> Result<ReadEvent, ReadError> {
        let mut ends = self.shared.tail(self.partition)?.ends();
        let mut closings = self.shared.health.closings();
        loop {
            if *closings.borrow_and_update() {
                return Err(ReadError::Closed);
            }
            ends.borrow_and_update();
            let records = match self.shared.tail(self.partition)?.read(self.position) {
                TailRead::Records(records) => records,
                TailRead::Cold => match self.read_segment(wanted).await? {
                    Some(records) => records,
                    // It was trimmed meanwhile, so now the position is out of range; or nothing ever was there.
                    None => continue,
                },
                TailRead::OutOfRange(Bounds { start, end }) => {
                    let (partition, offset) = (self.partition.0, self.position);
                    return Err(ReadError::OutOfRange { partition, offset, start, end });
                }
                TailRead::End if !self.end_yielded => {
                    self.end_yielded = true;
                    return Ok(ReadEvent::End(self.position));
                }
                TailRead::End => {
                    tokio::select! {
                        _ = ends.changed() => {}
                        _ = closings.changed() => {}
                    }
                    continue;
                }
            };
            let Some(last) = records.last() else {
                let (partition, offset) = (self.partition.0, self.position);
                let reason = "its segment does not have it".to_owned();
                return Err(ReadError::Damaged { partition, offset, reason });
            };
            self.position = last.offset + 1;
            self.end_yielded = false;
            return Ok(ReadEvent::Records(records));
        }
    }

    async fn read_segment(
        &mut self,
        wanted: Option<&[Offset]>,
    ) -> Result<Option<Vec<StoredRecord>>, ReadError> {
        let (partition, position) = (self.partition, self.position);
        let found = self.shared.segments.read().find(partition, position);
        let (segment, kind) = match found {
            Found::Record(segment, kind) => (segment, kind),
            Found::Skipped(next) => {
                self.position = next;
                return Ok(None);
            }
            Found::Gone => {
                let is_trimmed = self.shared.tail(partition)?.bounds().start > position;
                return Ok(if is_trimmed { None } else { Some(Vec::new()) });
            }
        };
        let number = segment.header.number;
        let known = self.cold.take().filter(|(of, positions)| *of == number && positions.has(position));
        let wanted = wanted.map(<[Offset]>::to_vec);
        let reading = tokio::task::spawn_blocking(move || {
            let positions = match known {
                Some((_, positions)) => positions,
                None => segment.positions(partition, kind, position)?,
            };
            let mut picks = positions.pick(position, wanted.as_deref());
            if picks.is_empty() {
                // What is wanted is in another one: goes on behind this record.
                picks = positions.pick(position, Some(&[position]));
            }
            if picks.is_empty() {
                return Err(segment.without(partition, position));
            }
            let records = segment.read(partition, &picks)?;
            Ok((positions, records))
        });
        let read: Result<_, SegmentFault> = reading.await.map_err(|_| ReadError::Closed)?;
        if read.is_err() && !self.shared.segments.read().has(number) {
            // It went while it was read: what is needed of it is elsewhere now.
            return Ok(None);
        }
        let (positions, mut records) = read.map_err(|fault| self.read_error(&fault))?;
        // The active segment may hold more than what is committed: that is nobody's yet, and may never be.
        let end = self.shared.tail(partition)?.bounds().end;
        records.truncate(records.partition_point(|record| record.offset < end));
        self.cold = Some((number, positions));
        Ok(Some(records))
    }

    fn read_error(&self, fault: &SegmentFault) -> ReadError {
        let partition = self.partition.0;
        match fault {
            SegmentFault::Damaged { .. } | SegmentFault::Index { .. } | SegmentFault::Missing { .. } => {
                ReadError::Damaged { partition, offset: self.position, reason: fault.to_string() }
            }
            SegmentFault::Io { source, .. } => {
                ReadError::Unavailable { partition, reason: format!("{fault}: {source}") }
            }
        }
    }
}

impl LogReader for EmbeddedReader {
    fn next(&mut self) -> BoxFuture<'_, Result<ReadEvent, ReadError>> {
        Box::pin(self.read(None))
    }

    fn next_of<'a>(&'a mut self, wanted: &'a [Offset]) -> BoxFuture<'a, Result<ReadEvent, ReadError>> {
        let first = wanted.first().copied().unwrap_or_default();
        self.position = self.position.max(first);
        Box::pin(self.read(Some(wanted)))
    }
}

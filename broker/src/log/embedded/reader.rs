//! Reads one partition: at the head from memory, behind it from the segments.

use super::segment::{Extent, Positions, SegmentFault};
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
    /// Where the records of the sealed segment are that was read last.
    cold: Option<(u64, Positions)>,
}

impl EmbeddedReader {
    pub(super) fn new(shared: Arc<Shared>, partition: Partition, position: Offset) -> Self {
        Self { shared, partition, position, end_yielded: false, cold: None }
    }

    async fn read(&mut self) -> Result<ReadEvent, ReadError> {
        let mut ends = self.shared.tail(self.partition)?.ends();
        let mut closings = self.shared.health.closings();
        loop {
            if *closings.borrow_and_update() {
                return Err(ReadError::Closed);
            }
            ends.borrow_and_update();
            let records = match self.shared.tail(self.partition)?.read(self.position) {
                TailRead::Records(records) => records,
                TailRead::Cold => match self.read_segment().await? {
                    Some(records) => records,
                    // It was trimmed meanwhile, so now the position is out of range.
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

    async fn read_segment(&mut self) -> Result<Option<Vec<StoredRecord>>, ReadError> {
        let (partition, position) = (self.partition, self.position);
        let Some(segment) = self.shared.segment_of(partition, position) else { return Ok(None) };
        let number = segment.header.number;
        let known = self.cold.take().filter(|(of, _)| *of == number).map(|(_, positions)| positions);
        let reading = tokio::task::spawn_blocking(move || {
            let positions = match known {
                Some(positions) => positions,
                None => segment.positions(partition, position)?,
            };
            let skipped = usize::try_from(position - positions.first).unwrap_or(usize::MAX);
            let rest = positions.list.get(skipped..).unwrap_or_default();
            let records = segment.read(partition, position, rest)?;
            Ok((Some(positions).filter(|positions| positions.extent == Extent::Whole), records))
        });
        let read: Result<_, SegmentFault> = reading.await.map_err(|_| ReadError::Closed)?;
        let (positions, records) = read.map_err(|fault| self.read_error(&fault))?;
        self.cold = positions.map(|positions| (number, positions));
        Ok(Some(records))
    }

    fn read_error(&self, fault: &SegmentFault) -> ReadError {
        let partition = self.partition.0;
        match fault {
            SegmentFault::Damaged { .. } => {
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
        Box::pin(self.read())
    }
}

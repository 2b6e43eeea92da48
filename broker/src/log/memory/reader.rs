//! Reads one partition of the memory log.

use super::Inner;
use crate::log::{LogReader, ReadError, ReadEvent};
use futures::future::BoxFuture;
use std::sync::Arc;
use tidemill_core::partition::{Offset, Partition};

pub(super) struct MemoryReader {
    inner: Arc<Inner>,
    partition: Partition,
    position: Offset,
    end_yielded: bool,
}

impl MemoryReader {
    pub(super) fn new(inner: Arc<Inner>, partition: Partition, position: Offset) -> Self {
        Self { inner, partition, position, end_yielded: false }
    }

    async fn read(&mut self) -> Result<ReadEvent, ReadError> {
        self.inner.check_readable(self.partition)?;
        let mut ends = self.inner.store.ends(self.partition);
        let mut closed = self.inner.closed.subscribe();
        loop {
            ends.borrow_and_update();
            self.inner.check_readable(self.partition)?;
            let (records, end) = self.inner.store.read(self.partition, self.position)?;
            if let Some(last) = records.last() {
                self.position = last.offset + 1;
                self.end_yielded = false;
                return Ok(ReadEvent::Records(records));
            }
            if !self.end_yielded {
                self.position = end;
                self.end_yielded = true;
                return Ok(ReadEvent::End(end));
            }
            tokio::select! {
                moved = ends.changed() => if moved.is_err() { return Err(ReadError::Closed) },
                _ = closed.wait_for(|closed| *closed) => return Err(ReadError::Closed),
            }
        }
    }
}

impl LogReader for MemoryReader {
    fn next(&mut self) -> BoxFuture<'_, Result<ReadEvent, ReadError>> {
        Box::pin(self.read())
    }

    fn next_of<'a>(&'a mut self, wanted: &'a [Offset]) -> BoxFuture<'a, Result<ReadEvent, ReadError>> {
        Box::pin(async move {
            self.position = wanted.first().map_or(self.position, |first| self.position.max(*first));
            let mut event = self.read().await?;
            if let ReadEvent::Records(records) = &mut event {
                let last = records.last().cloned();
                records.retain(|record| wanted.binary_search(&record.offset).is_ok());
                if records.is_empty() {
                    records.extend(last);
                }
                // What is not wanted behind them may be wanted by the next call.
                self.position = records.last().map_or(self.position, |last| last.offset + 1);
            }
            Ok(event)
        })
    }
}

impl Inner {
    /// Refuses reads while a fault asks for it, after the log was closed, and of partitions that do not exist.
    pub(super) fn check_readable(&self, partition: Partition) -> Result<(), ReadError> {
        let unavailable =
            |reason: &str| ReadError::Unavailable { partition: partition.0, reason: reason.to_owned() };
        if *self.closed.borrow() {
            Err(ReadError::Closed)
        } else if self.faults.is_unreadable() {
            Err(unavailable("injected"))
        } else if !self.store.has(partition) {
            Err(unavailable("there is no such partition"))
        } else {
            Ok(())
        }
    }
}

//! Reads what one queue wants behind the head: through the index, as far as its blocks go, and record by record where
//! nothing speaks for the offsets.

use crate::log::index::Index;
use crate::log::{Log, LogReader, READ_RECORDS_MAX, ReadError, ReadEvent, StoredRecord};
use std::sync::Arc;
use tidemill_core::attach::QueueId;
use tidemill_core::partition::{Offset, Partition};
use tracing::warn;

/// Blocks looked through in one step, so that a step that finds nothing ends, too.
const BLOCKS_MAX: usize = 256;

/// Where a queue reads.
pub(super) struct Source {
    pub(super) partition: Partition,
    pub(super) log: Arc<dyn Log>,
    pub(super) index: Option<Arc<dyn Index>>,
}

/// One step of reading.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum QueueRead {
    /// Every record from the place of the reader to `until`, in order.
    All(Vec<StoredRecord>),
    /// The records that the queue wants from the place of the reader to `until`, in order; maybe others, maybe none.
    Wanted {
        /// The records.
        records: Vec<StoredRecord>,
        /// Where the reader goes on.
        until: Offset,
    },
    /// The log ended here when asked, and everything below was read.
    End(Offset),
}

/// What lies ahead of a reader.
enum Ahead {
    Unknown,
    /// To be read record by record up to here.
    All(Offset),
    /// The queue wants these, and nothing else below `until`.
    Wanted {
        offsets: Vec<Offset>,
        until: Offset,
    },
}

/// Reads for one queue.
pub(super) struct QueueReader {
    source: Source,
    queue: QueueId,
    reader: Box<dyn LogReader>,
    /// Everything below was read.
    position: Offset,
    ahead: Ahead,
}

impl QueueReader {
    /// Starts at `from`. Below `new_from` the queue wants what it was offered before, which no index tells.
    pub(super) fn new(source: Source, queue: QueueId, from: Offset, new_from: Offset) -> Self {
        let reader = source.log.reader(source.partition, from);
        let ahead = match source.index {
            Some(_) if from < new_from => Ahead::All(new_from),
            Some(_) => Ahead::Unknown,
            None => Ahead::All(Offset::MAX),
        };
        Self { source, queue, reader, position: from, ahead }
    }

    /// The next step. Not to be called again after a dropped call.
    pub(super) async fn next(&mut self) -> Result<QueueRead, ReadError> {
        if matches!(self.ahead, Ahead::Unknown) {
            self.ahead = self.look_ahead().await;
            if matches!(self.ahead, Ahead::All(_)) {
                // It may stand before the place, where the last record was that was wanted.
                self.reader = self.source.log.reader(self.source.partition, self.position);
            }
        }
        match &mut self.ahead {
            Ahead::Unknown | Ahead::All(_) => {
                let event = self.reader.next().await?;
                Ok(match event {
                    ReadEvent::Records(records) => {
                        self.pass(records.last().map_or(self.position, |last| last.offset + 1));
                        QueueRead::All(records)
                    }
                    ReadEvent::End(end) => {
                        self.pass(end);
                        QueueRead::End(end)
                    }
                })
            }
            Ahead::Wanted { offsets, until } if offsets.is_empty() => {
                let until = *until;
                self.pass(until);
                Ok(QueueRead::Wanted { records: Vec::new(), until })
            }
            Ahead::Wanted { offsets, until } => {
                let until = *until;
                let records = match self.reader.next_of(offsets).await? {
                    ReadEvent::Records(records) => records,
                    ReadEvent::End(_) => Vec::new(),
                };
                let read_to = records.last().map_or(until, |last| last.offset + 1);
                offsets.drain(..offsets.partition_point(|offset| *offset < read_to));
                let until = if offsets.is_empty() { until.max(read_to) } else { read_to };
                self.pass(until);
                Ok(QueueRead::Wanted { records, until })
            }
        }
    }

    fn pass(&mut self, position: Offset) {
        self.position = position;
        let (Ahead::All(until) | Ahead::Wanted { until, .. }) = self.ahead else { return };
        if position >= until {
            self.ahead = Ahead::Unknown;
        }
    }

    /// What the index tells from the position on.
    async fn look_ahead(&mut self) -> Ahead {
        let Some(index) = &self.source.index else { return Ahead::All(Offset::MAX) };
        let partition = self.source.partition;
        let (mut offsets, mut until, mut seen) = (Vec::new(), self.position, 0);
        // From where it speaks again, if it does not speak for the position.
        let mut silent_until = Offset::MAX;
        'look: while offsets.len() < READ_RECORDS_MAX && seen < BLOCKS_MAX {
            let blocks = match Arc::clone(index).blocks(partition, until).await {
                Ok(blocks) if blocks.is_empty() => break,
                Ok(blocks) => blocks,
                Err(error) => {
                    warn!(partition = partition.0, %error, "index cannot be read; the log is");
                    break;
                }
            };
            for block in blocks {
                if block.first > until {
                    silent_until = block.first;
                    break 'look;
                }
                if let Err(error) = block.offsets_of(&self.queue, until, &mut offsets) {
                    warn!(partition = partition.0, first = block.first, %error, "block of the index is damaged");
                    silent_until = block.end;
                    break 'look;
                }
                until = block.end;
                seen += 1;
            }
        }
        if until > self.position { Ahead::Wanted { offsets, until } } else { Ahead::All(silent_until) }
    }
}

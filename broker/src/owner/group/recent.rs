//! The newest records of a partition, kept so that a queue that fell behind a little needs no reader.

use std::collections::VecDeque;
use std::sync::Arc;
use tidemill_core::partition::Offset;
use tidemill_core::record::Record;

const RECORDS_MAX: usize = 1_024;
const BYTES_MAX: usize = 4 << 20;

/// Every record of the partition from `from` on, up to the partition's head.
pub(super) struct Recent {
    from: Offset,
    records: VecDeque<(Offset, Arc<Record>)>,
    bytes: usize,
}

impl Recent {
    /// Nothing yet; what comes is at `from` or later.
    pub(super) fn new(from: Offset) -> Self {
        Self { from, records: VecDeque::new(), bytes: 0 }
    }

    /// Everything from here on is in it.
    pub(super) fn from(&self) -> Offset {
        self.from
    }

    /// Adds the record at the head; drops the oldest beyond the bounds.
    pub(super) fn push(&mut self, offset: Offset, record: Arc<Record>) {
        self.bytes += record.held_bytes();
        self.records.push_back((offset, record));
        while self.records.len() > RECORDS_MAX || self.bytes > BYTES_MAX {
            let Some((offset, record)) = self.records.pop_front() else { return };
            self.bytes -= record.held_bytes();
            self.from = offset + 1;
        }
    }

    /// Up to `limit` records at `from` or later, in order.
    pub(super) fn read(&self, from: Offset, limit: usize) -> Vec<(Offset, Arc<Record>)> {
        let start = self.records.partition_point(|(offset, _)| *offset < from);
        self.records.range(start..).take(limit).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use tidemill_core::member::{Incarnation, Member, MemberId};
    use tidemill_core::message::Message;
    use tidemill_core::packet::QoS;
    use tidemill_core::record::{Origin, RecordBody};
    use tidemill_core::topic::TopicName;

    fn record(payload_bytes: usize, publisher_bytes: usize) -> Arc<Record> {
        let member = Member { id: MemberId::new("m"), incarnation: Incarnation(1) };
        Arc::new(Record {
            body: RecordBody::Inline,
            retry: false,
            origin: Origin { member, producer: 1, sequence: 0 },
            unique_id: None,
            message: Message {
                topic: TopicName::parse("t").unwrap(),
                payload: Bytes::from(vec![0; payload_bytes]),
                qos: QoS::AtLeastOnce,
                retain: false,
                properties: None,
                publisher: "p".repeat(publisher_bytes).into(),
                publish_time_ms: 0,
            },
        })
    }

    #[test]
    fn it_keeps_the_newest_records_within_its_bounds_whatever_makes_them_large() {
        for (payload_bytes, publisher_bytes, expected) in
            [(0, 1, RECORDS_MAX), (1 << 20, 1, 3), (0, 60_000, BYTES_MAX / 60_001), (BYTES_MAX, 1, 0)]
        {
            let record = record(payload_bytes, publisher_bytes);
            let mut recent = Recent::new(0);

            for offset in 0..2_000 {
                recent.push(offset, Arc::clone(&record));
            }

            let kept: Vec<Offset> =
                recent.read(0, usize::MAX).into_iter().map(|(offset, _)| offset).collect();
            assert_eq!(kept.len(), expected);
            assert_eq!(kept, (recent.from()..2_000).collect::<Vec<_>>(), "without a gap up to the head");
        }
    }
}

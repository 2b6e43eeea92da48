//! All segments of the log, and which of them has a record.

use super::copies::{CopiedRun, Copies, share};
use super::format::RunKind;
use super::segment::{CopiedHere, Segment};
use std::sync::Arc;
use tidemill_core::partition::{Offset, Partition};

/// The segments in order, the last of which is written, and the copies in them.
pub(super) struct Segments {
    list: Vec<Arc<Segment>>,
    /// Of each partition.
    copies: Vec<Copies>,
}

/// Where the record at an offset is.
pub(super) enum Found {
    /// In this segment, as its own or as a copy.
    Record(Arc<Segment>, RunKind),
    /// There is none; the next one is at this offset or above it.
    Skipped(Offset),
    /// It was trimmed.
    Gone,
}

/// How much of the log is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Census {
    /// Segments that are not written any more.
    pub(super) sealed: usize,
    /// Bytes of all segments.
    pub(super) bytes: u64,
    /// Of these, bytes of records at or above the floors.
    pub(super) live_bytes: u64,
    /// Bytes of the oldest segment.
    pub(super) oldest_bytes: u64,
    /// Of these, bytes of records at or above the floors.
    pub(super) oldest_live_bytes: u64,
}

impl Segments {
    /// The segments in `list`, with the copied runs that their indexes name.
    pub(super) fn new(list: Vec<Arc<Segment>>, partitions: usize) -> Self {
        let mut segments = Self { list, copies: vec![Copies::default(); partitions] };
        for segment in segments.list.clone() {
            for CopiedHere { partition, first, count, bytes } in segment.copied_runs() {
                let run = CopiedRun { count, bytes, segment: segment.header.number };
                segments.note_copy(partition, first, run);
            }
        }
        segments
    }

    /// Takes the next segment, which is written from now on.
    pub(super) fn push(&mut self, segment: Arc<Segment>) {
        self.list.push(segment);
    }

    /// Whether the segment `number` is among them.
    pub(super) fn has(&self, number: u64) -> bool {
        self.oldest().is_some_and(|oldest| oldest.header.number <= number)
    }

    pub(super) fn oldest(&self) -> Option<&Arc<Segment>> {
        self.list.first()
    }

    /// The oldest segment, if it is not written any more, and the one after it.
    pub(super) fn oldest_sealed(&self) -> Option<(&Arc<Segment>, &Arc<Segment>)> {
        match self.list.as_slice() {
            [oldest, next, ..] => Some((oldest, next)),
            [_] | [] => None,
        }
    }

    /// Takes the oldest segment out.
    pub(super) fn remove_oldest(&mut self) {
        self.list.remove(0);
    }

    /// Notes that a segment has copies.
    pub(super) fn note_copy(&mut self, partition: Partition, first: Offset, run: CopiedRun) {
        if let Some(copies) = self.copies.get_mut(usize::from(partition.0)) {
            copies.insert(first, run);
        }
    }

    /// Forgets copies below the floors.
    pub(super) fn trim_copies(&mut self, floors: &[Offset]) {
        for (copies, floor) in self.copies.iter_mut().zip(floors) {
            copies.trim(*floor);
        }
    }

    /// Which segment has the record of `partition` at `offset`.
    pub(super) fn find(&self, partition: Partition, offset: Offset) -> Found {
        let behind = self.list.partition_point(|segment| segment.base(partition).offset <= offset);
        let next = self.list.get(behind).map(|segment| segment.base(partition));
        if let Some(index) = behind.checked_sub(1) {
            return match next {
                Some(next) if next.offset - next.skipped <= offset => Found::Skipped(next.offset),
                Some(_) | None => Found::Record(Arc::clone(&self.list[index]), RunKind::Own),
            };
        }
        let Some(copies) = self.copies.get(usize::from(partition.0)) else { return Found::Gone };
        if let Some(number) = copies.segment_of(offset) {
            let segment = self.list.iter().find(|segment| segment.header.number == number);
            return segment
                .map_or(Found::Gone, |segment| Found::Record(Arc::clone(segment), RunKind::Copied));
        }
        // The offsets between the copies and the oldest segment are those that were given up.
        let own = next.map_or(Offset::MAX, |base| base.offset);
        Found::Skipped(copies.next_above(offset).unwrap_or(own).min(own))
    }

    /// The first offset of `partition` at or above `floor` that may be here.
    pub(super) fn start(&self, partition: Partition, floor: Offset) -> Offset {
        let own = self.oldest().map_or(floor, |oldest| oldest.base(partition).offset);
        let copies = self.copies.get(usize::from(partition.0));
        let copied = copies.and_then(|copies| copies.within(floor, own).next());
        floor.max(copied.map_or(own, |(first, _)| first))
    }

    /// The live copied runs of the segment `number`: partition, first offset and records.
    pub(super) fn live_copies(&self, number: u64, floors: &[Offset]) -> Vec<(Partition, Offset, CopiedRun)> {
        let mut live = Vec::new();
        let Some(oldest) = self.oldest() else { return live };
        for ((partition, copies), floor) in (0..).map(Partition).zip(&self.copies).zip(floors) {
            let runs = copies.within(*floor, oldest.base(partition).offset);
            let of_segment = runs.filter(|(_, run)| run.segment == number);
            live.extend(of_segment.map(|(first, run)| (partition, first, run)));
        }
        live
    }

    /// Counts what is needed above `floors`.
    pub(super) fn census(&self, floors: &[Offset]) -> Census {
        let mut census = Census { sealed: self.list.len().saturating_sub(1), ..Census::default() };
        let Some(oldest) = self.oldest() else { return census };
        for segment in &self.list {
            let live = segment.own_live_bytes(floors);
            census.bytes += segment.bytes();
            census.live_bytes += live;
            if Arc::ptr_eq(segment, oldest) {
                census.oldest_bytes = segment.bytes();
                census.oldest_live_bytes += live;
            }
        }
        for ((partition, copies), floor) in (0..).map(Partition).zip(&self.copies).zip(floors) {
            for (_, run) in copies.within(*floor, oldest.base(partition).offset) {
                census.live_bytes += run.bytes;
                if run.segment == oldest.header.number {
                    census.oldest_live_bytes += run.bytes;
                }
            }
        }
        census
    }
}

/// What of `bytes` of `count` records from `first` on is at or above `floor`.
pub(super) fn live_part(bytes: u64, first: Offset, count: u64, floor: Offset) -> u64 {
    share(bytes, (first + count).saturating_sub(floor.max(first)), count)
}

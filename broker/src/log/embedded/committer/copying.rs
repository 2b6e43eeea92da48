//! Copying what is still needed of the oldest segment to the one that is written, a piece per turn.

use super::super::copies::CopiedRun;
use super::super::copy_forward::{Space, is_worth_it};
use super::super::format::RunKind;
use super::super::metrics::gauged;
use super::super::segment::{PlacedRecord, Positions, Segment, SegmentFault};
use super::{Committer, Stopped};
use crate::log::StoredRecord;
use std::collections::VecDeque;
use std::sync::Arc;
use tidemill_core::partition::{Offset, Partition};

/// The oldest segment, and what of it is still to be copied.
pub(super) struct Copying {
    segment: Arc<Segment>,
    runs: VecDeque<LiveRun>,
}

/// Records that follow each other and are needed.
struct LiveRun {
    partition: Partition,
    /// Offset of the next one to copy.
    next: Offset,
    end: Offset,
    positions: Positions,
}

impl Copying {
    /// Whether `segment` is the one.
    pub(super) fn is_of(&self, segment: &Arc<Segment>) -> bool {
        Arc::ptr_eq(&self.segment, segment)
    }
}

impl Committer {
    /// Begins to copy the oldest segment if the rule says so. Also tells how much of the log is live.
    pub(super) fn plan_copying(&mut self) {
        let shared = Arc::clone(&self.shared);
        let segments = shared.segments.read();
        let census = segments.census(&self.floors);
        shared.metrics.bytes.set(gauged(census.bytes));
        shared.metrics.live_bytes.set(gauged(census.live_bytes));
        let Some((oldest, _)) = segments.oldest_sealed() else { return };
        let is_planned = self.copying.is_some() || self.uncopyable == Some(oldest.header.number);
        if is_planned || !is_worth_it(&census, self.space()) {
            return;
        }
        let copies = segments.live_copies(oldest.header.number, &self.floors);
        match self.live_runs(oldest, copies) {
            Ok(runs) => self.copying = Some(Copying { segment: Arc::clone(oldest), runs }),
            Err(fault) => self.give_up_copying(oldest.header.number, &fault),
        }
    }

    fn live_runs(
        &self,
        oldest: &Segment,
        copies: Vec<(Partition, Offset, CopiedRun)>,
    ) -> Result<VecDeque<LiveRun>, SegmentFault> {
        let mut runs = VecDeque::new();
        let mut add = |partition, kind, next: Offset, end: Offset| -> Result<(), SegmentFault> {
            let mut next = next;
            // A run of the map may be several in the segment; each turn takes at least one record.
            while next < end {
                let positions = oldest.positions(partition, kind, next)?;
                let known = positions.count_from(next);
                if known == 0 {
                    return Err(oldest.without(partition, next));
                }
                let until = end.min(next + known);
                runs.push_back(LiveRun { partition, next, end: until, positions });
                next = until;
            }
            Ok(())
        };
        for (partition, first, run) in copies {
            add(partition, RunKind::Copied, first, first + run.count)?;
        }
        for (partition, floor) in (0..).map(Partition).zip(&self.floors) {
            let first = oldest.base(partition).offset.max(*floor);
            add(partition, RunKind::Own, first, oldest.own_end(partition))?;
        }
        Ok(runs)
    }

    fn give_up_copying(&mut self, number: u64, fault: &SegmentFault) {
        tracing::error!(
            error = fault as &dyn std::error::Error,
            "records that are needed cannot be copied; the segment and all later ones stay until it is trimmed"
        );
        self.uncopyable = Some(number);
        self.copying = None;
    }

    /// The next records to copy: what one read gives, about [`READ_BYTES_MAX`](crate::log::READ_BYTES_MAX) or one
    /// larger record, so that appends are not held up for long. None while that would take the space of appends.
    pub(super) fn next_copies(&mut self) -> Vec<(Partition, StoredRecord)> {
        if self.copying.is_none() || self.space() == Space::Full {
            self.copying = None;
            return Vec::new();
        }
        let Some(copying) = &mut self.copying else { return Vec::new() };
        while let Some(run) = copying.runs.front_mut() {
            run.next = run.next.max(self.floors[usize::from(run.partition.0)]);
            if run.next >= run.end {
                copying.runs.pop_front();
                continue;
            }
            let wanted = usize::try_from(run.end - run.next).unwrap_or(usize::MAX);
            let mut picks = run.positions.pick(run.next, None);
            picks.truncate(wanted);
            let partition = run.partition;
            return match copying.segment.read(partition, &picks) {
                Ok(records) if !records.is_empty() => {
                    run.next += records.len() as u64;
                    records.into_iter().map(|record| (partition, record)).collect()
                }
                Ok(_) => {
                    let (number, fault) =
                        (copying.segment.header.number, copying.segment.without(partition, run.next));
                    self.give_up_copying(number, &fault);
                    Vec::new()
                }
                Err(fault) => {
                    let number = copying.segment.header.number;
                    self.give_up_copying(number, &fault);
                    Vec::new()
                }
            };
        }
        Vec::new()
    }

    /// Lets readers find the copies of a committed batch.
    pub(super) fn note_copies(&mut self, records: &[PlacedRecord]) {
        let mut copied = records.iter().filter(|record| record.kind == RunKind::Copied).peekable();
        if copied.peek().is_none() {
            return;
        }
        let segment = self.active.header.number;
        let mut segments = self.shared.segments.write();
        for record in copied {
            self.shared.metrics.copied_bytes.inc_by(record.bytes);
            let run = CopiedRun { count: 1, bytes: record.bytes, segment };
            segments.note_copy(record.partition, record.offset, run);
        }
    }

    /// Removes the oldest segment once everything that is needed of it was copied.
    pub(super) fn end_copying(&mut self) -> Result<(), Stopped> {
        let Some(copying) = &self.copying else { return Ok(()) };
        if !copying.runs.iter().all(|run| run.next.max(self.floors[usize::from(run.partition.0)]) >= run.end)
        {
            return Ok(());
        }
        let segment = Arc::clone(&copying.segment);
        self.copying = None;
        // The copies must outlive what goes.
        self.sync()?;
        self.shared.segments.write().remove_oldest();
        if let Err(error) = segment.remove() {
            tracing::warn!(segment = %segment.path.display(), %error, "segment that was copied was not removed");
        }
        self.remove_segments()?;
        self.plan_copying();
        Ok(())
    }
}

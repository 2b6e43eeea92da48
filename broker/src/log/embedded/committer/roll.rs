//! The end of one segment and the beginning of the next.

use super::super::format::{Base, Layout, SegmentHeader};
use super::super::segment::Segment;
use super::super::shared::LossRequest;
use super::{Committer, Durability, Stopped, new_salt, now_ms};
use crate::log::{Bounds, ReadError};
use std::sync::Arc;
use tidemill_core::partition::{Offset, Partition};

impl Committer {
    /// Seals the active segment and begins the next; the offsets of `skipped` are given up in between. What is sealed
    /// is synced, so that only the last segment can be torn.
    pub(super) fn roll(&mut self, skipped: &[(Partition, Offset)]) -> Result<(), Stopped> {
        self.sync()?;
        let mut bases: Vec<_> = self
            .next
            .iter()
            .zip(&self.floors)
            .map(|(offset, floor)| Base { offset: *offset, floor: *floor, skipped: 0 })
            .collect();
        for (partition, until) in skipped {
            let base = &mut bases[usize::from(partition.0)];
            let more = until.saturating_sub(base.offset);
            base.skipped += more;
            base.offset += more;
        }
        let number = self.active.header.number + 1;
        let layout = Layout::Compact { created_ms: now_ms() };
        let header = SegmentHeader { number, salt: new_salt(), layout, bases };
        let mut created = None;
        self.when_there_is_space(&mut |shared| {
            created =
                Some(Segment::create(&shared.directory, header.clone(), &shared.disk, &shared.metrics)?);
            Ok(())
        })?;
        let next = Arc::new(created.expect("there is space, so it was created"));
        self.next = next.header.bases.iter().map(|base| base.offset).collect();
        self.shared.segments.write().push(Arc::clone(&next));
        let sealed = std::mem::replace(&mut self.active, next);
        self.batch = 0;
        // Without the index a later start makes it from the segment.
        self.when_there_is_space(&mut |shared| sealed.seal(&shared.metrics))?;
        self.remove_segments()?;
        self.plan_copying();
        Ok(())
    }

    pub(super) fn take_losses(&self) -> Vec<LossRequest> {
        std::mem::take(&mut *self.shared.losses.lock())
    }

    /// Lets partitions go on above the offsets that the state knows and the log has lost.
    pub(super) fn give_up(&mut self, losses: Vec<LossRequest>) -> Result<(), Stopped> {
        let mut skipped = Vec::new();
        let mut replies = Vec::new();
        for LossRequest { partition, until, reply } in losses {
            let Some(tail) = self.shared.tails.get(usize::from(partition.0)) else { continue };
            let Bounds { start, end } = tail.bounds();
            if until <= end {
                // Who asked may have stopped waiting; what was given up stays so.
                let _ = reply.send(Ok(()));
            } else if self.unsynced.durability() == Durability::Fsync {
                let (partition, offset) = (partition.0, until);
                let _ = reply.send(Err(ReadError::OutOfRange { partition, offset, start, end }));
            } else {
                tracing::error!(
                    partition = partition.0,
                    lost = until - end,
                    from = end,
                    until,
                    "the log ends below what was processed: records were lost with the power"
                );
                self.shared.metrics.lost_offsets.inc_by(until - end);
                skipped.push((partition, until));
                replies.push(reply);
            }
        }
        if skipped.is_empty() {
            return Ok(());
        }
        let rolled = self.roll(&skipped);
        if rolled.is_ok() {
            for (partition, until) in skipped {
                self.shared.tails[usize::from(partition.0)].skip(until);
            }
        }
        for reply in replies {
            let _ = reply.send(if rolled.is_ok() { Ok(()) } else { Err(ReadError::Closed) });
        }
        rolled
    }
}

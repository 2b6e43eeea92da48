//! Floors that move, and segments that go.

use super::super::shared::TrimRequest;
use super::{Committer, Stopped};
use crate::log::{Bounds, ReadError};
use std::sync::Arc;

/// Segments that one turn removes at most: the file system takes its time for each, and appends wait meanwhile.
const REMOVED_PER_TURN: usize = 8;

impl Committer {
    pub(super) fn take_trims(&self) -> Vec<TrimRequest> {
        std::mem::take(&mut *self.shared.trims.lock())
    }

    /// Answers floors that are out of range or old; what is left moves the floors.
    pub(super) fn check_trims(&mut self, trims: Vec<TrimRequest>) -> Vec<TrimRequest> {
        let mut moving = Vec::new();
        for trim in trims {
            let partition = usize::from(trim.partition.0);
            let Some(tail) = self.shared.tails.get(partition) else { continue };
            let Bounds { start, end } = tail.bounds();
            let floor = &mut self.floors[partition];
            if trim.floor > end {
                let (partition, offset) = (trim.partition.0, trim.floor);
                let error = ReadError::OutOfRange { partition, offset, start, end };
                answer(trim, Err(error));
            } else if trim.floor <= *floor {
                answer(trim, Ok(()));
            } else {
                *floor = trim.floor;
                moving.push(trim);
            }
        }
        moving
    }

    pub(super) fn apply_trims(&mut self, trims: Vec<TrimRequest>) -> Result<(), Stopped> {
        if trims.is_empty() {
            return Ok(());
        }
        for trim in &trims {
            self.shared.tails[usize::from(trim.partition.0)].trim(trim.floor);
        }
        self.shared.segments.write().trim_copies(&self.floors);
        if let Err(stopped) = self.remove_segments() {
            super::refuse_trims(trims);
            return Err(stopped);
        }
        self.plan_copying();
        for trim in trims {
            answer(trim, Ok(()));
        }
        Ok(())
    }

    /// Removes the oldest segments as long as every floor is at or beyond the beginning of the next one; what is too
    /// much for one turn is left to the next.
    pub(super) fn remove_segments(&mut self) -> Result<(), Stopped> {
        self.is_removing = false;
        for _ in 0..REMOVED_PER_TURN {
            let oldest = {
                let segments = self.shared.segments.read();
                let Some((oldest, next)) = segments.oldest_sealed() else { return Ok(()) };
                if next.header.bases.iter().zip(&self.floors).any(|(base, floor)| base.offset > *floor) {
                    return Ok(());
                }
                Arc::clone(oldest)
            };
            // The floors, and the copies of what goes, must outlive it.
            self.sync()?;
            self.shared.segments.write().remove_oldest();
            if self.copying.as_ref().is_some_and(|copying| copying.is_of(&oldest)) {
                self.copying = None;
            }
            // A file that stays is removed after the next start or by the administrator; nothing reads it.
            if let Err(error) = oldest.remove() {
                tracing::warn!(segment = %oldest.path.display(), %error, "segment that is not needed was not removed");
            }
        }
        self.is_removing = true;
        Ok(())
    }
}

pub(super) fn answer(trim: TrimRequest, result: Result<(), ReadError>) {
    // Who asked may have stopped waiting; the floor counts anyway.
    let _ = trim.reply.send(result);
}

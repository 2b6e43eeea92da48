//! Waiting for space on the disk.

use super::super::copy_forward::Space;
use super::super::disk::is_full;
use super::super::shared::Shared;
use super::{Committer, Stopped};
use crate::log::intake::Phase;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Pause between two tries while the disk is full.
const FULL_PAUSE: Duration = Duration::from_secs(1);

impl Committer {
    /// Repeats `action` until the disk is not full. Meanwhile the log is congested and floors are still applied,
    /// because they make space.
    pub(super) fn when_there_is_space(
        &mut self,
        action: &mut dyn FnMut(&Shared) -> io::Result<()>,
    ) -> Result<(), Stopped> {
        let shared = Arc::clone(&self.shared);
        let mut full = Full { shared: &shared, is_full: false };
        loop {
            let outcome = match self.space() {
                Space::Full => Err(io::ErrorKind::StorageFull.into()),
                Space::Ample | Space::Short => action(&shared),
            };
            match outcome {
                Ok(()) => break,
                Err(error) if is_full(&error) => full.begin(),
                Err(error) => {
                    shared.health.fail(format!("write in {}: {error}", shared.directory.display()));
                    return Err(Stopped);
                }
            }
            let trims = self.take_trims();
            let trims = self.check_trims(trims);
            self.apply_trims(trims)?;
            shared.intake.pause(FULL_PAUSE);
            if shared.intake.phase() != Phase::Open || shared.health.is_closed() {
                return Err(Stopped);
            }
        }
        if full.is_full {
            tracing::info!(directory = %shared.directory.display(), "disk has space again");
        }
        Ok(())
    }

    /// How much is free. A file system that does not tell is written to until it refuses.
    pub(super) fn space(&self) -> Space {
        let reserved = self.shares.reserved_bytes;
        match self.shared.disk.available(&self.shared.directory) {
            Ok(free) if free < reserved => Space::Full,
            Ok(free) if free < reserved.saturating_mul(2) => Space::Short,
            Ok(_) | Err(_) => Space::Ample,
        }
    }
}

/// Tells that the disk is full, and when it ends that it is not any more.
struct Full<'a> {
    shared: &'a Shared,
    is_full: bool,
}

impl Full<'_> {
    fn begin(&mut self) {
        if !self.is_full {
            let directory = &self.shared.directory;
            tracing::error!(directory = %directory.display(), "disk is full; durable publishes wait");
            self.shared.metrics.waits_for_space.set(1);
            self.shared.intake.congestion.stall();
        }
        self.is_full = true;
    }
}

impl Drop for Full<'_> {
    fn drop(&mut self) {
        if self.is_full {
            self.shared.metrics.waits_for_space.set(0);
            self.shared.intake.congestion.unstall();
        }
    }
}

//! Whether the watch can be believed: only while it shows what this broker itself wrote.

use std::collections::VecDeque;
use std::time::Duration;

use super::lease::ResourceVersion;
use crate::time::BootTime;

/// How long an own renewal may be missing from the watch before it is no longer believed.
const SHOWN_WITHIN: Duration = Duration::from_secs(5);
/// Own writes that the watch has not shown yet. Any later one shows the earlier ones, too, so the oldest may be dropped.
const UNSHOWN_MAX: usize = 16;

/// Follows the own writes through the watch.
#[derive(Debug, Default)]
pub(super) struct WatchTrust {
    /// Start of the newest own write that the watch has shown: everything stored before it has been read.
    pub(super) shown: BootTime,
    /// Newest version of the own lease that the watch has shown.
    version: Option<ResourceVersion>,
    unshown: VecDeque<(ResourceVersion, BootTime)>,
}

impl WatchTrust {
    /// A new incarnation starts: the watch has [`SHOWN_WITHIN`] to show it.
    pub(super) fn reset(&mut self, now: BootTime) {
        self.shown = self.shown.max(now);
    }

    /// An own write, started at `started`, was stored as `version`.
    pub(super) fn wrote(&mut self, version: ResourceVersion, started: BootTime) {
        if self.unshown.len() == UNSHOWN_MAX {
            self.unshown.pop_front();
        }
        self.unshown.push_back((version, started));
        self.settle();
    }

    /// The watch showed the own lease at `version`.
    pub(super) fn saw(&mut self, version: ResourceVersion) {
        self.version = self.version.max(Some(version));
        self.settle();
    }

    /// Until when the watch is believed if renewals come every `renew`.
    pub(super) fn believed_until(&self, renew: Duration) -> BootTime {
        self.shown + renew + SHOWN_WITHIN
    }

    fn settle(&mut self) {
        while let Some((version, started)) = self.unshown.front().copied()
            && self.version >= Some(version)
        {
            self.shown = self.shown.max(started);
            self.unshown.pop_front();
        }
    }
}

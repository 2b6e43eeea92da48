//! How fast a member renews, stops by itself and may be expired, and what it does when it cannot renew.

use std::time::Duration;

/// What a member does when it can no longer renew its lease. Every lease names its own mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// It stays valid while more than half of its view grants that, for at most [`Timings::hold_limit`].
    Hold,
    /// It closes when [`Timings::stop_after`] has passed.
    Disconnect,
}

/// The timings a member lease announces. Observers judge a lease by these, never by their own.
///
/// Safe while `stop_after` plus the longest pause between a check and its act is below `duration`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timings {
    /// Between two renewals.
    pub renew: Duration,
    /// After the start of the last successful renewal the member is no longer valid by its lease.
    pub stop_after: Duration,
    /// A lease seen unchanged for this long may be expired.
    pub duration: Duration,
    /// Longest time after its last renewal that a member stays valid by grants.
    pub hold_limit: Duration,
}

/// Default of [`Timings::hold_limit`].
pub const HOLD_LIMIT_DEFAULT: Duration = Duration::from_secs(300);

impl Timings {
    /// The defaults for a cluster of `member_count` brokers: up to 16 brokers 2/6/9 s, up to 64 5/15/20 s, above
    /// 10/30/40 s.
    #[must_use]
    pub fn for_members(member_count: usize) -> Self {
        let (renew, stop_after, duration) = match member_count {
            0..=16 => (2, 6, 9),
            17..=64 => (5, 15, 20),
            _ => (10, 30, 40),
        };
        Self {
            renew: Duration::from_secs(renew),
            stop_after: Duration::from_secs(stop_after),
            duration: Duration::from_secs(duration),
            hold_limit: HOLD_LIMIT_DEFAULT,
        }
    }
}

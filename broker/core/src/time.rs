//! Time as core sees it: handed in, never read.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

/// A moment of a monotonic clock that runs through suspend (`CLOCK_BOOTTIME`), in nanoseconds since boot. Moments of
/// two machines must never be compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BootTime(pub u64);

impl BootTime {
    /// Before every other moment: what is valid until then is not valid.
    pub const ZERO: Self = Self(0);
    /// Never reached.
    pub const MAX: Self = Self(u64::MAX);

    /// How much later `self` is than `earlier`; zero if it is not later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for BootTime {
    type Output = Self;

    /// Saturates at [`BootTime::MAX`].
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Debug for BootTime {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{:06}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000 / 1_000)
    }
}

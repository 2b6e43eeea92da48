//! One process of a broker: the shell of the membership, as thin as it gets, with a clock of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidemill_core::member::{Member, MemberId, OwnerEpoch};
use tidemill_core::membership::Membership;
use tidemill_core::membership::event::InvalidReason;
use tidemill_core::membership::lease::NamedMember;
use tidemill_core::partition::PartitionGroup;
use tidemill_core::time::BootTime;

use super::happening::Input;

/// A clock that is wrong in origin and in rate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    pub(crate) origin: u64,
    /// Parts per million faster than true time.
    pub(crate) ppm: i64,
}

impl Clock {
    pub(crate) fn local(self, at: Duration) -> BootTime {
        let true_nanos = i128::try_from(at.as_nanos()).unwrap();
        let local = true_nanos + true_nanos * i128::from(self.ppm) / 1_000_000 + i128::from(self.origin);
        BootTime(u64::try_from(local).unwrap())
    }

    /// The first true moment at which the clock shows at least `local`.
    pub(crate) fn truth(self, local: BootTime) -> Duration {
        let nanos = (i128::from(local.0) - i128::from(self.origin)).max(0);
        let truth = nanos * 1_000_000 / (1_000_000 + i128::from(self.ppm)) + 1;
        Duration::from_nanos(u64::try_from(truth).unwrap_or(u64::MAX))
    }
}

/// How the shell breaks a rule of the protocol, to show that the checker sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// It goes on after its validity has ended and renews the lease as if nothing had been (F1).
    RenewsAfterItsEnd,
    /// It consents to every expiry and grants all the same.
    ConsentsToEverything,
    /// It goes on owning a group after it sent the release.
    ServesAfterRelease,
}

#[derive(Debug)]
pub(crate) struct Process {
    /// Which member it is, as an index.
    pub(crate) slot: usize,
    pub(crate) pod_uid: String,
    pub(crate) container_id: String,
    pub(crate) clock: Clock,
    pub(crate) membership: Membership,
    pub(crate) is_alive: bool,
    pub(crate) is_paused: bool,
    /// What happened to it while it was paused.
    pub(crate) backlog: Vec<Input>,
    /// Groups that it serves, with the epoch.
    pub(crate) owned: BTreeMap<PartitionGroup, OwnerEpoch>,
    /// What it believed after the last input: the word that the hot path reads.
    pub(crate) valid_until: BootTime,
    /// Who it was after the last input.
    pub(crate) own: Option<NamedMember>,
    pub(crate) was_serving: bool,
    pub(crate) has_left: bool,
    pub(crate) watch_position: usize,
    pub(crate) timer: u64,
    pub(crate) timer_due: BootTime,
    /// Timeouts in a row after which something was due at once.
    pub(crate) idle_timeouts: u32,
    pub(crate) heard: BTreeMap<MemberId, Duration>,
    pub(crate) reachable: BTreeSet<MemberId>,
    /// Who it was when it went on after its end, by mutation.
    pub(crate) undead: Option<NamedMember>,
    pub(crate) lists_asked: usize,
    pub(crate) joins: Vec<Member>,
    /// Every start of a group, with the epoch of the claim.
    pub(crate) starts: Vec<(PartitionGroup, OwnerEpoch)>,
    pub(crate) ends: Vec<InvalidReason>,
}

impl Process {
    pub(crate) fn now(&self, at: Duration) -> BootTime {
        self.clock.local(at)
    }

    /// Whether it may act at `at`, as far as it knows. A paused process counts: it may be about to act.
    pub(crate) fn is_valid(&self, at: Duration) -> bool {
        self.is_alive && self.now(at) < self.valid_until
    }
}

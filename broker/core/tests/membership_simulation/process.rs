//! One process of a broker: the shell of the membership, as thin as it gets, with a clock of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidemill_core::member::{Member, MemberId, OwnerEpoch};
use tidemill_core::membership::Membership;
use tidemill_core::membership::lease::NamedMember;
use tidemill_core::partition::PartitionGroup;
use tidemill_core::time::BootTime;

use super::world::Happening;

/// A clock that is wrong in origin and in rate.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    pub origin: u64,
    /// Parts per million faster than true time.
    pub ppm: i64,
}

impl Clock {
    pub fn local(self, at: Duration) -> BootTime {
        let true_nanos = i128::try_from(at.as_nanos()).unwrap();
        let local = true_nanos + true_nanos * i128::from(self.ppm) / 1_000_000 + i128::from(self.origin);
        BootTime(u64::try_from(local).unwrap())
    }

    /// The first true moment at which the clock shows at least `local`.
    pub fn truth(self, local: BootTime) -> Duration {
        let nanos = (i128::from(local.0) - i128::from(self.origin)).max(0);
        let truth = nanos * 1_000_000 / (1_000_000 + i128::from(self.ppm)) + 1;
        Duration::from_nanos(u64::try_from(truth).unwrap_or(u64::MAX))
    }
}

/// How the shell breaks a rule of the protocol, to show that the checker sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// It goes on after its validity has ended and renews the lease as if nothing had been (F1).
    RenewsAfterItsEnd,
    /// It consents to every expiry and grants all the same.
    ConsentsToEverything,
    /// It goes on owning a group after it sent the release.
    ServesAfterRelease,
}

#[derive(Debug)]
pub struct Process {
    /// Which member it is, as an index.
    pub slot: usize,
    pub pod_uid: String,
    pub container_id: String,
    pub clock: Clock,
    pub membership: Membership,
    pub is_alive: bool,
    pub is_paused: bool,
    /// What happened to it while it was paused.
    pub backlog: Vec<Happening>,
    /// Groups that it serves, with the epoch.
    pub owned: BTreeMap<PartitionGroup, OwnerEpoch>,
    /// What it believed after the last input: the word that the hot path reads.
    pub valid_until: BootTime,
    /// Who it was after the last input.
    pub own: Option<NamedMember>,
    pub was_serving: bool,
    pub has_left: bool,
    pub watch_position: usize,
    pub timer: u64,
    pub heard: BTreeMap<MemberId, Duration>,
    pub reachable: BTreeSet<MemberId>,
    /// Who it was when it went on after its end, by mutation.
    pub undead: Option<NamedMember>,
    pub invalid_count: usize,
    pub lists_asked: usize,
    pub joins: Vec<Member>,
}

impl Process {
    pub fn now(&self, at: Duration) -> BootTime {
        self.clock.local(at)
    }

    /// Whether it may act at `at`, as far as it knows. A paused process counts: it may be about to act.
    pub fn is_valid(&self, at: Duration) -> bool {
        self.is_alive && self.now(at) < self.valid_until
    }
}

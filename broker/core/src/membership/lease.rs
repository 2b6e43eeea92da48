//! What the lease objects say. The API keeps them; every change is a compare-and-swap on the resource version.

use std::collections::{BTreeMap, BTreeSet};

use super::timings::{Mode, Timings};
use crate::member::{Incarnation, Member, MemberEpoch, MemberId, OwnerEpoch};
use crate::partition::PartitionGroup;

/// Which lease object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeaseKey {
    /// The lease of one member.
    Member(MemberId),
    /// The lease of one partition group.
    Group(PartitionGroup),
    /// The lease that holds the view.
    View,
}

/// Version of one stored object. Grows with every write to the API, also across deletion and re-creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResourceVersion(pub u64);

/// A lease object as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// Which object.
    pub key: LeaseKey,
    /// Its version then.
    pub version: ResourceVersion,
    /// What it said; of the kind that `key` names.
    pub content: LeaseContent,
}

/// What one lease object says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseContent {
    /// Under [`LeaseKey::Member`].
    Member(MemberLease),
    /// Under [`LeaseKey::Group`].
    Group(GroupLease),
    /// Under [`LeaseKey::View`].
    View(View),
}

/// One start of one member in one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The member's name and boot id.
    pub member: Member,
    /// UID of the pod; without pods an id of the data directory, whose lock makes it mean the same.
    pub pod_uid: String,
    /// Id of the running container; unknown until the pod's status shows it.
    pub container_id: Option<String>,
}

/// How far a member's life has gone. The names are persisted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemberState {
    /// Has a lease, does not own groups yet.
    Joining,
    /// May own groups.
    Serving,
    /// Gives its groups away, still serves.
    Draining,
    /// Gives its groups away and then its lease.
    Leaving,
}

/// Versions of the peer protocol that a member speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProtocolRange {
    /// Lowest.
    pub min: u16,
    /// Highest.
    pub max: u16,
}

/// The lease of one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberLease {
    /// Who holds it. `None`: nobody; the last holder left or was expired, or the object is new.
    pub holder: Option<Holder>,
    /// Grows with every join and every expiry. An incarnation with a lower epoch is dead.
    pub epoch: MemberEpoch,
    /// Counts the renewals of the holder, so that every renewal changes the object.
    pub renewal: u64,
    /// `host:port` that peers dial.
    pub endpoint: String,
    /// How far its life has gone.
    pub state: MemberState,
    /// Peer protocol.
    pub protocol: ProtocolRange,
    /// Members whose peer link works, by name.
    pub reachable: BTreeSet<MemberId>,
    /// Order-free sum over its routes.
    pub route_digest: u128,
    /// Number of the view it goes by; 0 = none.
    pub view_number: u64,
    /// What it does when it cannot renew.
    pub mode: Mode,
    /// By which observers judge it.
    pub timings: Timings,
    /// UID of a pod that an administrator declared dead. Written by the operator only; brokers read it.
    pub declared_dead: Option<String>,
}

impl MemberLease {
    /// A lease that nobody holds.
    #[must_use]
    pub fn vacant(epoch: MemberEpoch) -> Self {
        Self {
            holder: None,
            epoch,
            renewal: 0,
            endpoint: String::new(),
            state: MemberState::Joining,
            protocol: ProtocolRange { min: 1, max: 1 },
            reachable: BTreeSet::new(),
            route_digest: 0,
            view_number: 0,
            mode: Mode::Disconnect,
            timings: Timings::for_members(1),
            declared_dead: None,
        }
    }

    /// The holder's boot id, if somebody holds the lease.
    #[must_use]
    pub fn incarnation(&self) -> Option<Incarnation> {
        self.holder.as_ref().map(|holder| holder.member.incarnation)
    }
}

/// A member as views and group leases name it: the incarnation with the epoch under which it joined.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamedMember {
    /// Name and boot id.
    pub member: Member,
    /// Member epoch under which it joined.
    pub epoch: MemberEpoch,
}

/// The lease of one partition group. Not renewed: valid as long as its holder is not dead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupLease {
    /// The owner. `None`: released, or with epoch 0 a new object that proves nothing.
    pub holder: Option<NamedMember>,
    /// Owner epoch of the last holder.
    pub epoch: OwnerEpoch,
}

/// The numbered list of members that a hold and a split verdict count in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct View {
    /// Grows with every change; exceeds every number that a member lease names.
    pub number: u64,
    /// Who is in, by name.
    pub members: BTreeMap<MemberId, NamedMember>,
    /// The newest verdict, for people: members obey `members`.
    pub verdict: Option<Verdict>,
    /// Earlier views that a member lease may still name.
    pub history: BTreeMap<u64, BTreeMap<MemberId, NamedMember>>,
}

/// Which members a network split has cost their place in the view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Number of the view that carried it first.
    pub number: u64,
    /// Who wrote it.
    pub by: MemberId,
    /// Who was dropped.
    pub dropped: Vec<Member>,
}

/// Identifies one write until its result is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriteId(pub u64);

/// Identifies one list until its result is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListId(pub u64);

/// A compare-and-swap: replace `key` by `content` if its version is still `expected`. Must be sent at most once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseWrite {
    /// Which object.
    pub key: LeaseKey,
    /// Version it must still have.
    pub expected: ResourceVersion,
    /// What it shall say.
    pub content: LeaseContent,
}

/// What became of a write. The reaction differs for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteResult {
    /// It was done; the object has this version now.
    Written(ResourceVersion),
    /// It was not done: the object has another version.
    Conflict,
    /// It was not done: the object does not exist.
    NotFound,
    /// It was not done for another reason (refused, throttled, never sent).
    Refused,
    /// It may have been done, or may be done later: deadline passed, connection broken, server error.
    NoAnswer,
}

/// One event of the watch.
#[allow(clippy::large_enum_variant, reason = "handed over once and taken apart at once")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// The object was created or changed.
    Changed(Observed),
    /// The object was deleted; its version then.
    Deleted(LeaseKey, ResourceVersion),
}

/// What the API says about a pod that bears a member's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodStatus {
    /// The pod's name.
    pub member: MemberId,
    /// Its UID.
    pub pod_uid: String,
    /// Version of the pod object. Comparable with those of leases, because one API server stores both; where it is not, a
    /// pod of another UID must not be reported.
    pub version: ResourceVersion,
    /// Ids of containers of the broker whose status is `terminated` (current and last state). Phase `Failed` and a missing
    /// pod prove nothing and are not reported.
    pub terminated: BTreeSet<String>,
}

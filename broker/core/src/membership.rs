//! Membership and ownership by leases, without I/O: who is a member, who owns which partition group, and until when this
//! broker may act as either.
//!
//! The shell feeds what it reads and what became of its writes (`handle_*`), carries out what comes out (`poll_*`), and
//! asks [`Membership::valid_until`] before every exclusive act. After **every** `handle_*` call it polls all outputs until
//! each returns `None`, and calls [`Membership::handle_timeout`] at [`Membership::poll_timeout`].

pub mod annotations;
pub mod lease;
pub mod message;
pub mod timings;

use std::collections::{BTreeMap, BTreeSet};

use crate::member::{Incarnation, Member, MemberEpoch, MemberId, OwnerEpoch};
use crate::partition::PartitionGroup;
use crate::time::BootTime;
use lease::{
    LeaseWrite, ListId, MemberLease, NamedMember, Observed, PodStatus, ProtocolRange, WatchEvent, WriteId,
    WriteResult,
};
use message::PeerMessage;
use timings::{Mode, Timings};

/// What one start of a broker brings along.
#[derive(Debug, Clone)]
pub struct MembershipConfig {
    /// Name of this member; names its lease.
    pub member: MemberId,
    /// UID of the pod; without pods an id of the data directory.
    pub pod_uid: String,
    /// `host:port` that peers dial.
    pub endpoint: String,
    /// Peer protocol spoken.
    pub protocol: ProtocolRange,
    /// Number of partition groups.
    pub group_count: u16,
    /// What to do when renewing is not possible.
    pub mode: Mode,
    /// `None`: derived from the number of member leases.
    pub timings: Option<Timings>,
    /// Whether members go by a view (needed for [`Mode::Hold`] and for split verdicts). The same for all members.
    pub view: ViewUse,
    /// Whether a pod of the same name with another UID proves the death of a lease's holder.
    pub identity: StatefulSetIdentity,
    /// Fresh random number of this start; every boot id is derived from it.
    pub seed: u64,
}

/// Whether a member goes by the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ViewUse {
    /// It serves only while it is in the view and obeys split verdicts.
    Obeyed,
    /// The view object is not needed and not read. Not allowed with [`Mode::Hold`].
    Ignored,
}

/// Whether Kubernetes' promise of one pod per StatefulSet name counts as proof of death.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatefulSetIdentity {
    /// It does. Broken by force-deleting a pod whose process still runs.
    Trusted,
    /// It does not (`membership.strictIdentity: true`).
    Doubted,
}

/// What the shell must do or know. In the order in which it became true.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembershipEvent {
    /// This broker has a lease under a new boot id; a consistent list was read after the lease was written, so that
    /// [`Membership::members`] and [`Membership::owners`] are complete. Its validity runs.
    Joined {
        /// This broker's name and new boot id: what it names itself to peers.
        member: Member,
        /// Its epoch.
        epoch: MemberEpoch,
    },
    /// This broker's lease says `Serving` now (and it is in the view, where one is obeyed).
    Serving,
    /// This broker claimed the group; a consistent list was read after the claim. Take it over: open its state, and report
    /// a higher stored epoch by [`Membership::handle_epoch_raised`].
    StartGroup {
        /// Which group.
        group: PartitionGroup,
        /// Owner epoch that the lease carries: above every earlier one that this broker knows of.
        epoch: OwnerEpoch,
    },
    /// Stop owning the group for good, then call [`Membership::handle_group_stopped`]. Nothing may be acknowledged for it
    /// after that call.
    StopGroup {
        /// Which group.
        group: PartitionGroup,
        /// Whether what is pending may still be flushed.
        urgency: StopUrgency,
    },
    /// [`Membership::members`] or [`Membership::owners`] changed.
    MembersChanged,
    /// This incarnation is over: close every client and stop every group at once, give up all acknowledgements, then call
    /// [`Membership::handle_closed`].
    Invalid {
        /// Why.
        reason: InvalidReason,
    },
    /// The lease was given up after [`Membership::handle_leave`]; the process may end.
    Left,
}

/// How a group must be stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopUrgency {
    /// This broker still owns it: flush, then stop.
    Handover,
    /// It no longer owns it: stop at once.
    Lost,
}

/// Why an incarnation is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InvalidReason {
    /// Neither renewals nor grants reached far enough.
    ValidityEnded,
    /// The member lease carries a higher epoch or another holder.
    Expired,
    /// A split verdict dropped it from the view.
    Dropped,
    /// An administrator declared its pod dead.
    DeclaredDead,
}

/// A member whose lease has a holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownMember {
    /// Name and boot id.
    pub member: Member,
    /// Epoch under which it joined.
    pub epoch: MemberEpoch,
    /// Whether its lease was seen to change within the duration it names. Not renewed is not dead.
    pub renewed: Renewed,
    /// All that its lease says.
    pub lease: MemberLease,
}

/// Whether a lease was seen to change within its duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewed {
    /// It was.
    Lately,
    /// It was not: its holder may be held, dead, or about to be expired.
    NotLately,
}

/// The membership protocol of one broker.
#[derive(Debug)]
pub struct Membership {
    config: MembershipConfig,
}

impl Membership {
    /// Starts as nobody: the first thing it asks for is a list.
    #[must_use]
    pub fn new(config: MembershipConfig, now: BootTime) -> Self {
        unimplemented!()
    }

    // --- what was read -------------------------------------------------------------------------------------------

    /// Takes one event of the watch of all of the cluster's leases, in the order of the watch.
    pub fn handle_watch(&mut self, event: WatchEvent, now: BootTime) {
        unimplemented!()
    }

    /// Takes the answer to [`Self::poll_list`]: all leases of the cluster from one consistent list (no resource version
    /// given, not from a cache), or `None` if it failed.
    pub fn handle_list(&mut self, id: ListId, objects: Option<Vec<Observed>>, now: BootTime) {
        unimplemented!()
    }

    /// Takes what became of a write. Exactly one result per write, [`WriteResult::NoAnswer`] after the shell's deadline
    /// (at most 3 s).
    pub fn handle_write_result(&mut self, id: WriteId, result: WriteResult, now: BootTime) {
        unimplemented!()
    }

    /// Takes what the API says about a pod of this cluster, whenever it changes. Proofs of death come from here.
    pub fn handle_pod_status(&mut self, status: PodStatus, now: BootTime) {
        unimplemented!()
    }

    // --- what this broker is -------------------------------------------------------------------------------------

    /// Takes the id of the broker's own container, once its pod's status shows it running.
    pub fn handle_container(&mut self, container_id: String, now: BootTime) {
        unimplemented!()
    }

    /// Takes the set of members whose peer link works in both directions, whenever it changes.
    pub fn handle_reachable(&mut self, reachable: BTreeSet<MemberId>, now: BootTime) {
        unimplemented!()
    }

    /// Takes the digest of this broker's routes; goes out with the next renewal.
    pub fn handle_route_digest(&mut self, digest: u128) {
        unimplemented!()
    }

    /// Takes mode and timings from now on (`timings: None` derives them); they bind from the next renewal.
    pub fn handle_settings(&mut self, mode: Mode, timings: Option<Timings>, now: BootTime) {
        unimplemented!()
    }

    /// Takes a message of the peer that the link names (its newest `Hello`).
    pub fn handle_message(&mut self, from: &Member, message: &PeerMessage, now: BootTime) {
        unimplemented!()
    }

    // --- what the shell has done ---------------------------------------------------------------------------------

    /// The broker has the routes of all serving peers and may own groups. Call it after every
    /// [`MembershipEvent::Joined`], when it is so.
    pub fn handle_ready_to_serve(&mut self, now: BootTime) {
        unimplemented!()
    }

    /// The owner of `group` has stopped for good: answers [`MembershipEvent::StopGroup`], or tells that the owner cannot go
    /// on (fenced, state unreadable). The group is given back.
    pub fn handle_group_stopped(&mut self, group: PartitionGroup, now: BootTime) {
        unimplemented!()
    }

    /// The owner's state knew a higher epoch: it goes by `epoch` from now on, and the lease shall carry it.
    pub fn handle_epoch_raised(&mut self, group: PartitionGroup, epoch: OwnerEpoch, now: BootTime) {
        unimplemented!()
    }

    /// Everything is closed: answers [`MembershipEvent::Invalid`]. Joining starts anew under another boot id.
    pub fn handle_closed(&mut self, now: BootTime) {
        unimplemented!()
    }

    /// Gives the groups away and keeps serving clients (`Draining`). Ends with `handle_leave`.
    pub fn handle_drain(&mut self, now: BootTime) {
        unimplemented!()
    }

    /// Gives the groups away, then the lease; [`MembershipEvent::Left`] tells the end. Clients are closed by then.
    pub fn handle_leave(&mut self, now: BootTime) {
        unimplemented!()
    }

    /// Time has passed; due at [`Self::poll_timeout`].
    pub fn handle_timeout(&mut self, now: BootTime) {
        unimplemented!()
    }

    // --- what to do ----------------------------------------------------------------------------------------------

    /// The next write to send, at once and at most once.
    pub fn poll_write(&mut self) -> Option<(WriteId, LeaseWrite)> {
        unimplemented!()
    }

    /// A list to ask for; at most one at a time.
    pub fn poll_list(&mut self) -> Option<ListId> {
        unimplemented!()
    }

    /// The next message to a peer; dropped if no link is up.
    pub fn poll_message(&mut self) -> Option<(MemberId, PeerMessage)> {
        unimplemented!()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<MembershipEvent> {
        unimplemented!()
    }

    /// When to call [`Self::handle_timeout`] at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> BootTime {
        unimplemented!()
    }

    // --- what is so ----------------------------------------------------------------------------------------------

    /// Until when this broker is valid, as far as known now; [`BootTime::ZERO`] if it is not. An exclusive act is allowed
    /// only while `now < valid_until()`.
    #[must_use]
    pub fn valid_until(&self) -> BootTime {
        unimplemented!()
    }

    /// This broker under its current boot id, once joined.
    #[must_use]
    pub fn own(&self) -> Option<NamedMember> {
        unimplemented!()
    }

    /// All members whose lease has a holder, this one included, by name. In doubt the last known holder.
    #[must_use]
    pub fn members(&self) -> BTreeMap<MemberId, KnownMember> {
        unimplemented!()
    }

    /// Owners of all groups that are held by somebody who is not dead, with their epochs.
    #[must_use]
    pub fn owners(&self) -> BTreeMap<PartitionGroup, (NamedMember, OwnerEpoch)> {
        unimplemented!()
    }

    /// Whether the incarnation of `member` that joined under `epoch` is known to be dead.
    #[must_use]
    pub fn is_dead(&self, member: &MemberId, epoch: MemberEpoch) -> bool {
        unimplemented!()
    }
}

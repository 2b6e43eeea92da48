//! What the membership tells the shell.

use super::lease::MemberLease;
use crate::member::{Member, MemberEpoch, OwnerEpoch};
use crate::partition::PartitionGroup;

/// What the shell must do or know. In the order in which it became true.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembershipEvent {
    /// This broker has a lease under a new boot id; a consistent list was read after the lease was written, so that
    /// [`super::Membership::members`] and [`super::Membership::owners`] are complete. Its validity runs.
    Joined {
        /// This broker's name and new boot id: what it names itself to peers.
        member: Member,
        /// Its epoch.
        epoch: MemberEpoch,
    },
    /// This broker's lease says `Serving` now (and it is in the view, where one is obeyed).
    Serving,
    /// This broker claimed the group; a consistent list was read after the claim. Take it over: open its state, and report
    /// a higher stored epoch by [`super::Membership::handle_epoch_raised`].
    StartGroup {
        /// Which group.
        group: PartitionGroup,
        /// Owner epoch that the lease carries: above every earlier one that this broker knows of.
        epoch: OwnerEpoch,
    },
    /// Stop owning the group for good, then call [`super::Membership::handle_group_stopped`]. Nothing may be acknowledged for it
    /// after that call.
    StopGroup {
        /// Which group.
        group: PartitionGroup,
        /// Whether what is pending may still be flushed.
        urgency: StopUrgency,
    },
    /// [`super::Membership::members`] or [`super::Membership::owners`] changed.
    MembersChanged,
    /// This incarnation is over: close every client and stop every group at once, give up all acknowledgements, then call
    /// [`super::Membership::handle_closed`].
    Invalid {
        /// Why.
        reason: InvalidReason,
    },
    /// The lease was given up after [`super::Membership::handle_leave`]; the process may end.
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

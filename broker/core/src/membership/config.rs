//! What one start of a broker brings along to be a member.

use super::lease::ProtocolRange;
use super::timings::{Mode, Timings};
use crate::member::MemberId;

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

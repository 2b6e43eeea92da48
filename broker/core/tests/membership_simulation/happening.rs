//! What can happen at a moment.

use std::time::Duration;

use tidemill_core::member::{Member, OwnerEpoch};
use tidemill_core::membership::lease::{LeaseWrite, ListId, Observed, PodStatus, WriteId, WriteResult};
use tidemill_core::membership::message::PeerMessage;
use tidemill_core::partition::PartitionGroup;

/// Something that happens at a moment.
#[allow(clippy::large_enum_variant, reason = "a few hundred exist at a time")]
#[derive(Debug, Clone)]
pub(crate) enum Happening {
    /// A request arrives at the API.
    Write {
        process: usize,
        id: WriteId,
        write: LeaseWrite,
        answer: Answer,
    },
    List {
        process: usize,
        id: ListId,
        answer: Answer,
    },
    Heartbeats,
    Act(super::faults::Action),
    /// A process gets something, if it is alive, and when it is awake.
    Input(usize, Input),
}

/// What a process gets.
#[derive(Debug, Clone)]
pub(crate) enum Input {
    Timer { generation: u64 },
    WriteAnswer { id: WriteId, result: WriteResult },
    ListAnswer { id: ListId, objects: Option<Vec<Observed>> },
    Watch { upto: usize },
    Message { from: usize, sender: Member, message: PeerMessage },
    Ready { member: Member },
    GroupStopped { group: PartitionGroup },
    StateOpened { group: PartitionGroup, epoch: OwnerEpoch },
    Closed,
    PodSeen { status: PodStatus },
    ContainerSeen,
}

/// What becomes of an answer of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    After(Duration),
    Lost,
}

/// How the way of a broker to the API is disturbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ApiPath {
    Works,
    /// Nothing arrives.
    RequestsLost,
    /// Everything arrives, no answer comes back; the watch is dead, too.
    AnswersLost,
    /// Requests arrive after this long, when nobody waits for them any more; the watch is dead, too.
    RequestsLate(Duration),
    /// Writes work; lists and the watch do not.
    ReadsLost,
}

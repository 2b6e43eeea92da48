//! Membership and ownership by leases, without I/O: who is a member, who owns which partition group, and until when this
//! broker may act as either.
//!
//! The shell feeds what it reads and what became of its writes (`handle_*`), carries out what comes out (`poll_*`), and
//! asks [`Membership::valid_until`] before every exclusive act. After **every** `handle_*` call it polls all outputs until
//! each returns `None`, and calls [`Membership::handle_timeout`] at [`Membership::poll_timeout`].

pub mod annotations;
pub mod config;
pub mod event;
pub mod lease;
pub mod message;
pub mod split;
pub mod timings;

mod decision;
mod expiry;
mod join;
mod knowledge;
mod outbox;
mod ownership;
mod renewal;
mod trust;
mod validity;
mod view_change;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use crate::member::{Member, MemberEpoch, MemberId, OwnerEpoch};
use crate::partition::PartitionGroup;
use crate::time::BootTime;
use config::MembershipConfig;
use event::{KnownMember, MembershipEvent, Renewed};
use expiry::Promises;
use knowledge::Knowledge;
use lease::{
    LeaseKey, LeaseWrite, ListId, NamedMember, Observed, PodStatus, WatchEvent, WriteId, WriteResult,
};
use message::PeerMessage;
use outbox::{Lists, Outbox, Purpose};
use ownership::Ownership;
use split::SplitWatch;
use timings::{Mode, Timings};
use trust::WatchTrust;
use validity::{Grants, OwnLease};

/// What the shell wants this broker to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Desired {
    Serve,
    Drain,
    Leave,
}

/// The incarnation that holds the own lease.
#[derive(Debug)]
struct Tenancy {
    own: OwnLease,
    joined_at: BootTime,
    was_announced: bool,
    serving_was_announced: bool,
    leave_was_sent: bool,
}

/// Where this broker stands.
#[derive(Debug)]
enum Phase {
    /// It has no lease. A list that was asked for at `since` or later comes first.
    Joining { since: BootTime },
    /// It has one.
    Member(Box<Tenancy>),
    /// Its incarnation is over, and the shell is closing.
    Closing,
    /// It left on purpose.
    Left,
}

/// The membership protocol of one broker.
#[derive(Debug)]
pub struct Membership {
    config: MembershipConfig,
    phase: Phase,
    knowledge: Knowledge,
    outbox: Outbox,
    lists: Lists,
    trust: WatchTrust,
    grants: Grants,
    promises: Promises,
    ownership: Ownership,
    split: SplitWatch,
    desired: Desired,
    ready: bool,
    container_id: Option<String>,
    reachable: BTreeSet<MemberId>,
    route_digest: u128,
    /// Members whom this broker expired and takes out of the view.
    expired: BTreeSet<MemberId>,
    /// Members that were not renewed when [`MembershipEvent::MembersChanged`] was last decided.
    unrenewed: BTreeSet<MemberId>,
    consent_round: bool,
    asked_grants_at: BootTime,
    /// Boot ids used.
    boots: u64,
    /// The earliest moment at which something is due.
    wake: BootTime,
}

impl Membership {
    /// Starts as nobody, and asks for a list.
    #[must_use]
    pub fn new(config: MembershipConfig, now: BootTime) -> Self {
        let mut membership = Self {
            config,
            phase: Phase::Joining { since: now },
            knowledge: Knowledge::default(),
            outbox: Outbox::default(),
            lists: Lists::default(),
            trust: WatchTrust::default(),
            grants: Grants::default(),
            promises: Promises::default(),
            ownership: Ownership::default(),
            split: SplitWatch::default(),
            desired: Desired::Serve,
            ready: false,
            container_id: None,
            reachable: BTreeSet::new(),
            route_digest: 0,
            expired: BTreeSet::new(),
            unrenewed: BTreeSet::new(),
            consent_round: false,
            asked_grants_at: BootTime::ZERO,
            boots: 0,
            wake: BootTime::MAX,
        };
        membership.decide(now);
        membership
    }

    // --- what was read -----------------------------------------------------------------------------------------

    /// Takes one event of the watch of all of the cluster's leases, in the order of the watch.
    pub fn handle_watch(&mut self, event: WatchEvent, now: BootTime) {
        self.decide_validity(now);
        match event {
            WatchEvent::Changed(observed) => {
                if observed.key == LeaseKey::Member(self.config.member.clone()) {
                    self.trust.saw(observed.version);
                }
                self.learn(observed, now);
            }
            WatchEvent::Deleted(key, version) => self.knowledge.forget(&key, version, now),
        }
        self.decide(now);
    }

    /// Takes the answer to [`Self::poll_list`]: all leases of the cluster from one consistent list (no resource version
    /// given, not from a cache), or `None` if it failed.
    pub fn handle_list(&mut self, id: ListId, objects: Option<Vec<Observed>>, now: BootTime) {
        self.decide_validity(now);
        let Some(started) = self.lists.answered(id, objects.is_none(), now) else { return };
        if let Some(objects) = objects {
            self.outbox.was_listed(started);
            self.knowledge.learn_all(objects, started, now);
            let versions: Vec<_> = self
                .knowledge
                .members
                .iter()
                .map(|(member, known)| (member.clone(), known.version))
                .collect();
            for (member, version) in versions {
                self.promises.saw_version(&member, version);
            }
        }
        self.decide(now);
    }

    /// Takes what became of a write. Exactly one result per write, [`WriteResult::NoAnswer`] after the shell's deadline
    /// (at most 3 s).
    pub fn handle_write_result(&mut self, id: WriteId, result: WriteResult, now: BootTime) {
        self.decide_validity(now);
        let Some(write) = self.outbox.take_outstanding(id) else { return };
        match result {
            WriteResult::Written(version) => self.take_written(id, version, write, now),
            WriteResult::Conflict | WriteResult::NotFound => {
                self.disprove(id);
                self.must_read(&write, now);
            }
            WriteResult::Refused => {
                self.disprove(id);
                self.outbox.must_pause(write.key, now);
            }
            // The own lease is renewed again at once: its unanswered content binds, but reading would not end that.
            WriteResult::NoAnswer if write.purpose == Purpose::Renew => {}
            WriteResult::NoAnswer => self.must_read(&write, now),
        }
        self.decide(now);
    }

    /// Takes what the API says about a pod of this cluster, whenever it changes. Proofs of death come from here.
    pub fn handle_pod_status(&mut self, status: PodStatus, now: BootTime) {
        self.knowledge.pods.insert(status.member.clone(), status);
        self.decide(now);
    }

    // --- what this broker is -----------------------------------------------------------------------------------

    /// Takes the id of the broker's own container, once its pod's status shows it running.
    pub fn handle_container(&mut self, container_id: String, now: BootTime) {
        self.container_id = Some(container_id);
        self.decide(now);
    }

    /// Takes the set of members whose peer link works in both directions, whenever it changes.
    pub fn handle_reachable(&mut self, reachable: BTreeSet<MemberId>, now: BootTime) {
        self.reachable = reachable;
        self.decide(now);
    }

    /// Takes the digest of this broker's routes; goes out with the next renewal.
    pub fn handle_route_digest(&mut self, digest: u128) {
        self.route_digest = digest;
    }

    /// Takes mode and timings from now on (`timings: None` derives them); they bind from the next renewal.
    pub fn handle_settings(&mut self, mode: Mode, timings: Option<Timings>, now: BootTime) {
        self.config.mode = mode;
        self.config.timings = timings;
        self.decide(now);
    }

    /// Takes a message of the peer that the link names (its newest `Hello`).
    pub fn handle_message(&mut self, from: &Member, message: &PeerMessage, now: BootTime) {
        self.decide_validity(now);
        let Phase::Member(tenancy) = &self.phase else { return };
        if tenancy.leave_was_sent {
            return;
        }
        match message {
            PeerMessage::GrantAsk { asked_at } => {
                if self.knowledge.lives(from) && self.promises.grant(from, now) {
                    self.outbox.send(from.id.clone(), PeerMessage::Grant { asked_at: *asked_at });
                }
            }
            PeerMessage::Grant { asked_at } => self.grants.take(from, *asked_at),
            PeerMessage::ConsentAsk { victim, version, duration } => {
                self.handle_consent_ask(from, (victim, *version, *duration), now);
            }
            PeerMessage::Consent { victim, version } => {
                self.promises.take_consent(from, victim, *version);
                self.decide(now);
            }
        }
    }

    // --- what the shell has done -------------------------------------------------------------------------------

    /// The broker has the routes of all serving peers and may own groups. Call it after every
    /// [`MembershipEvent::Joined`], when it is so.
    pub fn handle_ready_to_serve(&mut self, now: BootTime) {
        self.ready = matches!(&self.phase, Phase::Member(tenancy) if tenancy.was_announced);
        self.decide(now);
    }

    /// The owner of `group` has stopped for good: answers [`MembershipEvent::StopGroup`], or tells that the owner cannot go
    /// on (fenced, state unreadable). The group is given back; in the second case this broker does not claim it again for
    /// 10 s.
    pub fn handle_group_stopped(&mut self, group: PartitionGroup, now: BootTime) {
        self.ownership.stopped(group, now);
        self.decide(now);
    }

    /// The owner's state knew a higher epoch: it goes by `epoch` from now on, and the lease shall carry it.
    pub fn handle_epoch_raised(&mut self, group: PartitionGroup, epoch: OwnerEpoch, now: BootTime) {
        self.ownership.raise(group, epoch);
        self.knowledge.raise_owner_epoch(group, epoch);
        self.decide(now);
    }

    /// Everything is closed: answers [`MembershipEvent::Invalid`]. Joining starts anew under another boot id; after
    /// [`Self::handle_leave`] it does not.
    pub fn handle_closed(&mut self, now: BootTime) {
        if matches!(self.phase, Phase::Closing) {
            if self.desired == Desired::Leave {
                self.phase = Phase::Left;
                self.outbox.emit(MembershipEvent::Left);
            } else {
                self.phase = Phase::Joining { since: now };
            }
        }
        self.decide(now);
    }

    /// Gives the groups away and keeps serving clients (`Draining`). Ends with `handle_leave`.
    pub fn handle_drain(&mut self, now: BootTime) {
        if self.desired == Desired::Serve {
            self.desired = Desired::Drain;
        }
        self.decide(now);
    }

    /// Gives the groups away, then the lease; [`MembershipEvent::Left`] tells the end. Clients are closed by then.
    pub fn handle_leave(&mut self, now: BootTime) {
        self.desired = Desired::Leave;
        if matches!(self.phase, Phase::Joining { .. }) {
            // A join that is on its way expires by itself.
            self.phase = Phase::Left;
            self.outbox.emit(MembershipEvent::Left);
        }
        self.decide(now);
    }

    /// Time has passed; due at [`Self::poll_timeout`].
    pub fn handle_timeout(&mut self, now: BootTime) {
        self.decide(now);
    }

    /// The next write to send, at once and at most once.
    pub fn poll_write(&mut self) -> Option<(WriteId, LeaseWrite)> {
        self.outbox.poll_write()
    }

    /// A list to ask for; at most one at a time.
    pub fn poll_list(&mut self) -> Option<ListId> {
        self.lists.poll()
    }

    /// The next message to a peer; dropped if no link is up.
    pub fn poll_message(&mut self) -> Option<(MemberId, PeerMessage)> {
        self.outbox.poll_message()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<MembershipEvent> {
        self.outbox.poll_event()
    }

    /// When to call [`Self::handle_timeout`] at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> BootTime {
        self.wake
    }

    /// Until when this broker is valid, as far as known now; [`BootTime::ZERO`] if it is not. An exclusive act is allowed
    /// only while `now < valid_until()`.
    #[must_use]
    pub fn valid_until(&self) -> BootTime {
        match &self.phase {
            Phase::Member(tenancy) if !tenancy.leave_was_sent => {
                tenancy.own.valid_until(&self.knowledge.views, &self.grants)
            }
            Phase::Member(_) | Phase::Joining { .. } | Phase::Closing | Phase::Left => BootTime::ZERO,
        }
    }

    /// This broker under its current boot id, once joined.
    #[must_use]
    pub fn own(&self) -> Option<NamedMember> {
        match &self.phase {
            Phase::Member(tenancy) => Some(tenancy.own.named.clone()),
            Phase::Joining { .. } | Phase::Closing | Phase::Left => None,
        }
    }

    /// All members whose lease has a holder, this one included, by name. A lease that was re-created under its holder
    /// counts as held until the holder is dead.
    #[must_use]
    pub fn members(&self, now: BootTime) -> BTreeMap<MemberId, KnownMember> {
        let mut members = BTreeMap::new();
        for (id, known) in &self.knowledge.members {
            let Some(lease) = self.lease_to_judge(id).map(Cow::into_owned) else { continue };
            let Some(member) = lease.holder.as_ref().map(|holder| holder.member.clone()) else { continue };
            let renewed = if known.is_renewed(now) { Renewed::Lately } else { Renewed::NotLately };
            members.insert(id.clone(), KnownMember { member, epoch: lease.epoch, renewed, lease });
        }
        members
    }

    /// Owners of all groups that are held by somebody who is not dead, with their epochs.
    #[must_use]
    pub fn owners(&self) -> BTreeMap<PartitionGroup, (NamedMember, OwnerEpoch)> {
        let mut owners = BTreeMap::new();
        for (group, known) in &self.knowledge.groups {
            if let Some(holder) = &known.content.holder
                && !self.knowledge.is_dead(&holder.member.id, holder.epoch)
            {
                owners.insert(*group, (holder.clone(), known.content.epoch));
            }
        }
        owners
    }

    /// Whether the incarnation of `member` that joined under `epoch` is known to be dead.
    #[must_use]
    pub fn is_dead(&self, member: &MemberId, epoch: MemberEpoch) -> bool {
        self.knowledge.is_dead(member, epoch)
    }
}

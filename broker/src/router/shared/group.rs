//! One group: who is in it, who gets a message, and what waits when nobody can take one.

use super::MemberLeaves;
use crate::mailbox::{LiveDelivery, Mailbox, MailboxLimits, Offer, Turn};
use crate::metrics::{DropReason, Metrics};
use bytestring::ByteString;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidemill_core::message::Message;
use tidemill_core::packet::{QoS, SubscriptionOptions};
use tidemill_core::shared::backlog::Backlog;
use tidemill_core::shared::strategy::Strategy;
use tidemill_core::shared::{Members, PublishKeys, ShareId};
use tidemill_core::topic::SharedFilter;

/// One group. Cached matches hold it, so that who is in it may change without making them stale.
pub(in crate::router) struct ShareGroup {
    id: ShareId,
    target: SharedFilter,
    metrics: Metrics,
    /// Groups of the broker in which messages wait.
    backlogs: Arc<AtomicUsize>,
    state: Mutex<State>,
}

struct State {
    connected: Members<ConnectedMember>,
    /// Persistent sessions without connection, with the QoS of their subscription.
    away: BTreeMap<ByteString, QoS>,
    /// Older than anything that is published now. Not empty only while no member takes its first message.
    backlog: Backlog,
    /// Of a xorshift generator; never 0.
    random: u64,
}

/// A member that is connected here.
#[derive(Debug)]
pub(super) struct ConnectedMember {
    mailbox: Arc<Mailbox>,
    qos: QoS,
    retain_as_published: bool,
    identifiers: Option<Arc<[u32]>>,
}

impl ConnectedMember {
    pub(super) fn new(mailbox: &Arc<Mailbox>, options: SubscriptionOptions, identifier: Option<u32>) -> Self {
        Self {
            mailbox: Arc::clone(mailbox),
            qos: options.qos,
            retain_as_published: options.retain_as_published,
            identifiers: identifier.map(|identifier| [identifier].into()),
        }
    }
}

impl ShareGroup {
    pub(super) fn new(
        (id, target): (ShareId, SharedFilter),
        strategy: Strategy,
        limits: MailboxLimits,
        metrics: &Metrics,
        backlogs: &Arc<AtomicUsize>,
    ) -> Self {
        let state = State {
            connected: Members::new(strategy),
            away: BTreeMap::new(),
            backlog: Backlog::new(limits.messages, limits.bytes),
            random: RandomState::new().hash_one(id) | 1,
        };
        let (metrics, backlogs) = (metrics.clone(), Arc::clone(backlogs));
        Self { id, target, metrics, backlogs, state: Mutex::new(state) }
    }

    pub(in crate::router) fn id(&self) -> ShareId {
        self.id
    }

    pub(super) fn target(&self) -> &SharedFilter {
        &self.target
    }

    /// Adds a member, or replaces what is known of it. True if it was not connected.
    pub(super) fn join(&self, client_id: ByteString, member: ConnectedMember) -> bool {
        let mut state = self.state.lock();
        state.away.remove(&client_id);
        state.connected.insert(client_id, member).is_none()
    }

    /// Takes the member with this mailbox out. False if it is not one.
    pub(super) fn leave(&self, client_id: &ByteString, mailbox_id: u64, leaves: MemberLeaves) -> bool {
        let mut state = self.state.lock();
        if state.connected.get(client_id).is_none_or(|member| member.mailbox.id() != mailbox_id) {
            return false;
        }
        let Some(gone) = state.connected.remove(client_id) else { return false };
        match leaves {
            MemberLeaves::ForGood => {}
            MemberLeaves::UntilReturn { .. } => {
                state.away.insert(client_id.clone(), gone.qos);
            }
        }
        true
    }

    /// The session will not come back.
    pub(super) fn forget_away(&self, client_id: &ByteString) {
        self.state.lock().away.remove(client_id);
    }

    /// True if nobody is left. What waited is dropped then.
    pub(super) fn dissolve_if_deserted(&self) -> bool {
        self.change(|state| {
            if !state.connected.is_empty() || !state.away.is_empty() {
                return false;
            }
            self.metrics.count_drops(DropReason::NoSharedMember, state.backlog.len());
            while state.backlog.take_first().is_some() {}
            true
        })
    }

    /// Delivers a message to one member; see [`State::keep`] for one that nobody takes.
    pub(in crate::router) fn deliver(&self, message: &Arc<Message>, turn: &mut Turn) {
        self.change(|state| {
            if message.qos == QoS::AtMostOnce {
                if !state.hand_out(self.id, message, turn) && !state.connected.is_empty() {
                    self.metrics.count_drop(DropReason::MailboxFull);
                }
                return;
            }
            state.drain(self.id, turn);
            if !state.backlog.is_empty() || !state.hand_out(self.id, message, turn) {
                state.keep(message, &self.metrics);
            }
        });
    }

    /// Messages that a lost member had: others get them before anything newer.
    pub(super) fn take_back(&self, messages: Vec<Arc<Message>>, turn: &mut Turn) {
        self.change(|state| {
            if !state.keeps() {
                return self.metrics.count_drops(DropReason::NoSharedMember, messages.len());
            }
            self.metrics.count_redistributed(messages.len());
            // Those that are handed out at once need no room.
            let mut messages = messages.into_iter().peekable();
            while let Some(message) = messages.peek()
                && state.hand_out(self.id, message, turn)
            {
                messages.next();
            }
            let gone = state.backlog.push_older(messages);
            self.metrics.count_drops(DropReason::SharedBacklogFull, gone);
            state.drain(self.id, turn);
        });
    }

    /// Hands out what waits, as far as members take it.
    pub(super) fn drain(&self, turn: &mut Turn) {
        self.change(|state| state.drain(self.id, turn));
    }

    /// Does something to the state and keeps the count of groups in which messages wait.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let had_backlog = !state.backlog.is_empty();
        let result = change(&mut state);
        match (had_backlog, !state.backlog.is_empty()) {
            (false, true) => drop(self.backlogs.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(self.backlogs.fetch_sub(1, Ordering::Relaxed)),
            (false, false) | (true, true) => {}
        }
        result
    }
}

impl State {
    /// Offers a message to the member that is chosen, then to the others in order. False if none takes it.
    fn hand_out(&mut self, share: ShareId, message: &Arc<Message>, turn: &mut Turn) -> bool {
        let keys = PublishKeys {
            publisher: &message.publisher,
            topic: message.topic.as_str(),
            random: next_random(&mut self.random),
        };
        for place in self.connected.choose(keys, |member| member.mailbox.load()) {
            let Some(member) = self.connected.at(place) else { continue };
            let delivery = LiveDelivery {
                message,
                qos: message.qos.min(member.qos),
                retain: message.retain && member.retain_as_published,
                identifiers: member.identifiers.as_ref(),
            };
            match member.mailbox.offer(delivery, share, turn) {
                Offer::Taken => {
                    self.connected.handle_taken(place);
                    return true;
                }
                Offer::Full | Offer::Closed => {}
            }
        }
        false
    }

    fn drain(&mut self, share: ShareId, turn: &mut Turn) {
        while let Some(first) = self.backlog.first().cloned() {
            if !self.hand_out(share, &first, turn) {
                return;
            }
            self.backlog.take_first();
        }
    }

    /// Keeps a message above QoS 0 until a member takes it: while all that are connected are full, or while nobody is
    /// and a persistent session above QoS 0 may come back. Else it is for nobody.
    fn keep(&mut self, message: &Arc<Message>, metrics: &Metrics) {
        if self.keeps() {
            let gone = self.backlog.push(Arc::clone(message));
            metrics.count_drops(DropReason::SharedBacklogFull, gone);
        }
    }

    fn keeps(&self) -> bool {
        !self.connected.is_empty() || self.away.values().any(|qos| *qos != QoS::AtMostOnce)
    }
}

/// Xorshift: not for secrets, but even enough to choose a member.
fn next_random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

impl fmt::Debug for ShareGroup {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ShareGroup")
            .field("id", &self.id)
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}

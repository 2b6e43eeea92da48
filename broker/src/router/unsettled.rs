//! QoS 2 publishes of persistent sessions that are on their way into the log, by their unique ids. A connection that
//! ends leaves them behind; the next one of the client waits for the same outcome instead of publishing again.

use crate::mailbox::Mailbox;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tidemill_core::packet::ReasonCode;
use tidemill_core::session::ack_window::Ticket;

/// Outcomes that nobody has asked for; the oldest is forgotten beyond it. A publish of which it was one may be repeated
/// by a client that comes back after so many others.
const ENDED_MAX: usize = 65_536;

/// Publishes under way: as many as there are tickets. Share it behind an `Arc`.
#[derive(Debug, Default)]
pub(super) struct Unsettled(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    publishes: HashMap<u128, State>,
    /// Ids whose outcome waits, the oldest first.
    ended: VecDeque<u128>,
}

#[derive(Debug)]
enum State {
    UnderWay(Arc<Mailbox>, Ticket),
    /// Its connection was gone.
    Ended(ReasonCode),
}

/// What is known of a publish that a client repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joined {
    /// It is under way: the ticket hears of its end.
    UnderWay,
    /// It has ended, so.
    Ended(ReasonCode),
    /// It never went on its way, or with a process that is gone: publish it.
    Unknown,
}

impl Unsettled {
    /// Goes on its way.
    pub(super) fn begin(&self, unique_id: u128, mailbox: &Arc<Mailbox>, ticket: Ticket) {
        let state = State::UnderWay(Arc::clone(mailbox), ticket);
        self.0.lock().publishes.insert(unique_id, state);
    }

    /// Has ended, on the thread of its connection, which hears of it otherwise.
    pub(super) fn forget(&self, unique_id: u128) {
        self.0.lock().publishes.remove(&unique_id);
    }

    /// Has ended, on any other thread. The connection that waits for it hears of it, or a later one asks. Locked until it
    /// has: a repeat finds one or the other.
    pub(super) fn end(&self, unique_id: u128, reason: ReasonCode) {
        let mut inner = self.0.lock();
        let Some(State::UnderWay(mailbox, ticket)) = inner.publishes.remove(&unique_id) else { return };
        if mailbox.complete_elsewhere(ticket, reason) {
            return;
        }
        inner.publishes.insert(unique_id, State::Ended(reason));
        inner.ended.push_back(unique_id);
        if inner.ended.len() > ENDED_MAX
            && let Some(oldest) = inner.ended.pop_front()
            && let Some(State::Ended(_)) = inner.publishes.get(&oldest)
        {
            inner.publishes.remove(&oldest);
        }
    }

    /// The client repeats a publish on a new connection.
    pub(super) fn join(&self, unique_id: u128, mailbox: &Arc<Mailbox>, ticket: Ticket) -> Joined {
        let mut inner = self.0.lock();
        match inner.publishes.get_mut(&unique_id) {
            Some(under_way @ State::UnderWay(..)) => {
                *under_way = State::UnderWay(Arc::clone(mailbox), ticket);
                Joined::UnderWay
            }
            Some(State::Ended(reason)) => {
                let reason = *reason;
                inner.publishes.remove(&unique_id);
                inner.ended.retain(|ended| *ended != unique_id);
                Joined::Ended(reason)
            }
            None => Joined::Unknown,
        }
    }
}

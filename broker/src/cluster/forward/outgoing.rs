//! Numbered forwards to one peer.

use crate::cluster::ForwardDone;
use crate::cluster::peer::lane::{Crowding, PushError};
use crate::cluster::peer::link::Link;
use crate::cluster::wire::deliver::Forward;
use crate::cluster::wire::{Body, WireError};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use tidemill_core::member::Member;

/// Ticks of 250 ms without an answer after which the link is broken: 2 s. Counted, not timed: a pause of this process
/// is no silence of the peer.
const TICKS_MAX: u64 = 8;

struct Unacknowledged {
    sequence: u64,
    tick: u64,
    done: ForwardDone,
}

/// What this broker forwards to one incarnation of a peer.
#[derive(Default)]
pub(super) struct Outgoing {
    peer: Option<Member>,
    link: Option<Arc<Link>>,
    last_sent: u64,
    ticks: u64,
    unacknowledged: VecDeque<Unacknowledged>,
}

impl Outgoing {
    /// Takes a new link; another incarnation starts the numbering anew. Returns what nobody will answer any more.
    pub(super) fn start(&mut self, link: &Arc<Link>) -> Vec<ForwardDone> {
        let stale = self.give_up_all();
        if self.peer.as_ref() != Some(link.peer()) {
            self.peer = Some(link.peer().clone());
            self.last_sent = 0;
        }
        self.link = Some(Arc::clone(link));
        stale
    }

    /// The link is down. Returns what was given up.
    pub(super) fn stop(&mut self, link: &Arc<Link>) -> Vec<ForwardDone> {
        if !self.is_over(link) {
            return Vec::new();
        }
        self.link = None;
        self.give_up_all()
    }

    pub(super) fn give_up_all(&mut self) -> Vec<ForwardDone> {
        self.unacknowledged.drain(..).map(|waiting| waiting.done).collect()
    }

    pub(super) fn last_sent(&self) -> u64 {
        self.last_sent
    }

    pub(super) fn link(&self) -> Option<Arc<Link>> {
        self.link.clone()
    }

    pub(super) fn is_to(&self, member: &Member) -> bool {
        self.peer.as_ref() == Some(member)
    }

    fn is_over(&self, link: &Arc<Link>) -> bool {
        self.link.as_ref().is_some_and(|current| Arc::ptr_eq(current, link))
    }

    /// Sends a numbered forward. Returns `done` when it cannot be sent now, or never over this link; its number is used
    /// up all the same. A full lane has broken the link, whose end gives up this one with all others.
    pub(super) fn send(&mut self, record: Bytes, done: ForwardDone) -> Option<ForwardDone> {
        self.last_sent += 1;
        let Some(link) = &self.link else { return Some(done) };
        let forward = Forward { sequence: self.last_sent, record };
        if let Err(PushError::TooLarge { .. }) = link.send(Body::Forward(forward), Crowding::Waits) {
            return Some(done);
        }
        self.unacknowledged.push_back(Unacknowledged { sequence: self.last_sent, tick: self.ticks, done });
        None
    }

    /// Takes out what the peer acknowledged.
    pub(super) fn take_up_to(&mut self, link: &Arc<Link>, up_to: u64) -> Result<Vec<ForwardDone>, WireError> {
        if !self.is_over(link) {
            return Ok(Vec::new());
        }
        if up_to > self.last_sent {
            return Err(WireError::Value { field: "up_to", value: up_to });
        }
        let count = self.unacknowledged.partition_point(|waiting| waiting.sequence <= up_to);
        Ok(self.unacknowledged.drain(..count).map(|waiting| waiting.done).collect())
    }

    /// Counts a tick; whether the oldest forward has waited too long.
    pub(super) fn tick(&mut self, link: &Arc<Link>) -> bool {
        if !self.is_over(link) {
            return false;
        }
        self.ticks += 1;
        self.unacknowledged.front().is_some_and(|oldest| self.ticks - oldest.tick > TICKS_MAX)
    }
}

//! Numbered forwards from one peer, and what of them was acknowledged.

use crate::cluster::peer::end::LinkEnd;
use crate::cluster::peer::link::Link;
use crate::cluster::wire::WireError;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tidemill_core::member::Member;

/// A connection that ended while the peer had answered a ping this lately was not given up by the peer before.
const SILENCE_MAX: Duration = Duration::from_secs(2);

/// What one incarnation of a peer forwards to this broker.
#[derive(Default)]
pub(super) struct Incoming {
    peer: Option<Member>,
    link: Option<Arc<Link>>,
    last_received: u64,
    /// Received over this link, not in the mailboxes yet.
    open: BTreeSet<u64>,
    acknowledged: u64,
    /// The reader is between two frames of one read; acknowledgements wait for its end.
    in_batch: bool,
    /// A link ended in a way in which the peer may have given up forwards, and no `Resume` has told since.
    suspect: bool,
    /// `Resume` has come over the present link.
    resumed: bool,
}

/// What a forward turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Received {
    /// Others before it are missing.
    pub(super) is_gap: bool,
    /// It was not received before.
    pub(super) is_new: bool,
}

impl Incoming {
    /// Takes a new link. Returns the former incarnation of the peer, if that may have given up forwards: nobody will
    /// tell any more.
    pub(super) fn begin(&mut self, link: &Arc<Link>) -> Option<Member> {
        let former = self.peer.clone().filter(|former| former != link.peer());
        let lost = former.filter(|_| self.suspect);
        if self.peer.as_ref() != Some(link.peer()) {
            self.peer = Some(link.peer().clone());
            self.last_received = 0;
            self.suspect = false;
        }
        self.open.clear();
        self.in_batch = false;
        self.resumed = false;
        self.link = Some(Arc::clone(link));
        lost
    }

    /// The sender has numbered `last_sent` forwards before this link; whether some of them are missing.
    pub(super) fn resume(&mut self, link: &Arc<Link>, last_sent: u64) -> bool {
        if !self.is_over(link) {
            return false;
        }
        let is_gap = last_sent > self.last_received;
        self.last_received = self.last_received.max(last_sent);
        self.acknowledged = self.last_received;
        self.suspect = false;
        self.resumed = true;
        is_gap
    }

    /// The link is down: notes whether the peer may have given up forwards that never arrived.
    pub(super) fn stop(&mut self, link: &Arc<Link>, end: &LinkEnd) {
        if !self.is_over(link) {
            return;
        }
        self.link = None;
        let unresolved = self.suspect && !self.resumed;
        self.suspect = unresolved
            || match end {
                LinkEnd::ByPeer { gives_up_forwards, .. } => *gives_up_forwards,
                LinkEnd::Connection(_) => link.silence() >= SILENCE_MAX,
                LinkEnd::NoAnswer | LinkEnd::Overflow | LinkEnd::Protocol(_) => true,
                LinkEnd::Replaced | LinkEnd::NotMember | LinkEnd::Stopping => false,
            };
    }

    pub(super) fn is_from(&self, member: &Member) -> bool {
        self.peer.as_ref() == Some(member)
    }

    pub(super) fn is_suspect(&self) -> bool {
        self.suspect
    }

    fn is_over(&self, link: &Arc<Link>) -> bool {
        self.link.as_ref().is_some_and(|current| Arc::ptr_eq(current, link))
    }

    /// A forward arrived.
    pub(super) fn receive(&mut self, link: &Arc<Link>, sequence: u64) -> Result<Received, WireError> {
        if !self.is_over(link) || !self.resumed {
            return Err(WireError::Missing { field: "resume" });
        }
        if sequence <= self.last_received {
            return Ok(Received { is_gap: false, is_new: false });
        }
        let is_gap = sequence > self.last_received + 1;
        self.last_received = sequence;
        self.open.insert(sequence);
        self.in_batch = true;
        Ok(Received { is_gap, is_new: true })
    }

    /// A forward is in the mailboxes. Returns up to where to acknowledge now.
    pub(super) fn taken(&mut self, link: &Arc<Link>, sequence: u64) -> Option<u64> {
        if !self.is_over(link) {
            return None;
        }
        self.open.remove(&sequence);
        if self.in_batch { None } else { self.advance() }
    }

    /// The reader has handled all that had arrived. Returns up to where to acknowledge now.
    pub(super) fn flush(&mut self, link: &Arc<Link>) -> Option<u64> {
        if !self.is_over(link) {
            return None;
        }
        self.in_batch = false;
        self.advance()
    }

    fn advance(&mut self) -> Option<u64> {
        let up_to = self.open.first().map_or(self.last_received, |lowest| lowest - 1);
        let is_news = up_to > self.acknowledged;
        self.acknowledged = self.acknowledged.max(up_to);
        is_news.then_some(up_to)
    }
}

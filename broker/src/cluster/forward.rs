//! Forwards to peers and from peers: numbered at QoS > 0, acknowledged when they are in the mailboxes, never lost in
//! silence.
//!
//! Each incarnation numbers what it forwards at QoS > 0 to each incarnation of a peer. A number is used up even when the
//! message cannot be sent, so that the receiver finds the gap: in the numbers, in the `Resume` of the next link, or, if
//! the sender never comes back, from how its last link ended.

mod incoming;
mod outgoing;

use super::peer::end::LinkEnd;
use super::peer::lane::{Crowding, PushError};
use super::peer::link::Link;
use super::wire::deliver::{Forward, ForwardAck, Resume};
use super::wire::{Body, WireError};
use super::{ForwardDone, Forwarder};
use bytes::Bytes;
use incoming::Incoming;
use outgoing::Outgoing;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidemill_core::member::{Member, MemberId};
use tidemill_core::record::Record;

/// Takes what peers forward. Must not wait.
pub trait ForwardSink: Send + Sync + 'static {
    /// Puts the message into the mailboxes of the local receivers; it is never forwarded again. `encoded` is the record
    /// as it came. `taken` (QoS > 0) is called when it is in the mailboxes, by the design's high-water rule up to 2 s
    /// later; dropping it uncalled breaks the link in the end.
    fn deliver_forwarded(
        &self,
        from: &Member,
        record: Arc<Record>,
        encoded: Bytes,
        taken: Option<ForwardDone>,
    );

    /// QoS > 0 messages that `from` forwarded may have been lost: clean sessions that may have missed one are closed.
    fn on_gap(&self, from: &Member);
}

/// What forwarding has cost so far; for metrics.
#[derive(Debug, Default)]
pub struct ForwardCounts {
    /// QoS 0 messages dropped because a lane was crowded or a link down.
    pub shed: AtomicU64,
    /// QoS > 0 messages acknowledged to the publisher although a peer did not take them.
    pub given_up: AtomicU64,
    /// Gaps found in what peers sent.
    pub gaps: AtomicU64,
}

/// Both directions of forwarding.
#[derive(Default)]
pub struct Forwards {
    outgoing: RwLock<BTreeMap<MemberId, Arc<Mutex<Outgoing>>>>,
    incoming: Mutex<BTreeMap<MemberId, Arc<Mutex<Incoming>>>>,
    counts: ForwardCounts,
}

impl Forwards {
    /// What it has cost so far.
    #[must_use]
    pub fn counts(&self) -> &ForwardCounts {
        &self.counts
    }

    /// A link is up: forwards go over it, beginning with where the numbering stands.
    pub fn link_up(&self, link: &Arc<Link>, sink: &dyn ForwardSink) {
        let entry = Arc::clone(self.incoming.lock().entry(link.peer().id.clone()).or_default());
        let lost = entry.lock().begin(link);
        if let Some(former) = lost {
            self.report_gap(&former, sink);
        }
        let entry = Arc::clone(self.outgoing.write().entry(link.peer().id.clone()).or_default());
        let mut outgoing = entry.lock();
        let stale = outgoing.start(link);
        let resume = Resume { last_forward_sent: outgoing.last_sent() };
        let _ = link.send(Body::Resume(resume), Crowding::Waits);
        drop(outgoing);
        self.give_up(stale);
    }

    /// A link is down: what the peer did not take is given up.
    pub fn link_down(&self, link: &Arc<Link>, end: &LinkEnd) {
        let entry = self.outgoing.read().get(&link.peer().id).cloned();
        let given_up = entry.map(|entry| entry.lock().stop(link)).unwrap_or_default();
        self.give_up(given_up);
        let entry = self.incoming.lock().get(&link.peer().id).cloned();
        if let Some(entry) = entry {
            entry.lock().stop(link, end);
        }
    }

    /// A quarter of a second has passed: breaks a link whose peer has not taken a forward for 2 s.
    pub fn tick(&self, link: &Arc<Link>) {
        let entry = self.outgoing.read().get(&link.peer().id).cloned();
        if entry.is_some_and(|entry| entry.lock().tick(link)) {
            link.break_off(LinkEnd::NoAnswer);
        }
    }

    /// The peer has taken forwards.
    ///
    /// # Errors
    ///
    /// [`WireError::Value`] when it acknowledges what was not sent.
    pub fn handle_ack(&self, link: &Arc<Link>, ack: ForwardAck) -> Result<(), WireError> {
        let entry = self.outgoing.read().get(&link.peer().id).cloned();
        let taken = match entry {
            Some(entry) => entry.lock().take_up_to(link, ack.up_to)?,
            None => Vec::new(),
        };
        taken.into_iter().for_each(|done| done());
        Ok(())
    }

    /// The numbering of the peer stands here as its link starts.
    pub fn handle_resume(&self, link: &Arc<Link>, resume: Resume, sink: &dyn ForwardSink) {
        let entry = self.incoming.lock().get(&link.peer().id).cloned();
        if entry.is_some_and(|entry| entry.lock().resume(link, resume.last_forward_sent)) {
            self.report_gap(link.peer(), sink);
        }
    }

    /// A forwarded message.
    ///
    /// # Errors
    ///
    /// [`WireError::Record`] when the record is malformed, [`WireError::Missing`] before `Resume`.
    pub fn handle_forward(
        &self,
        link: &Arc<Link>,
        forward: Forward,
        sink: &dyn ForwardSink,
    ) -> Result<(), WireError> {
        let record = Arc::new(Record::decode(forward.record.clone())?);
        if forward.sequence == 0 {
            sink.deliver_forwarded(link.peer(), record, forward.record, None);
            return Ok(());
        }
        let entry = self.incoming.lock().get(&link.peer().id).cloned();
        let entry = entry.ok_or(WireError::Missing { field: "resume" })?;
        let received = entry.lock().receive(link, forward.sequence)?;
        if received.is_gap {
            self.report_gap(link.peer(), sink);
        }
        if received.is_new {
            let (link_of_ack, sequence) = (Arc::clone(link), forward.sequence);
            let taken: ForwardDone = Box::new(move || {
                let ack = entry.lock().taken(&link_of_ack, sequence);
                send_ack(&link_of_ack, ack);
            });
            sink.deliver_forwarded(link.peer(), record, forward.record, Some(taken));
        }
        Ok(())
    }

    /// All data frames that had arrived were handled: what they acknowledge goes out in one frame.
    pub fn data_processed(&self, link: &Arc<Link>) {
        let entry = self.incoming.lock().get(&link.peer().id).cloned();
        if let Some(entry) = entry {
            let ack = entry.lock().flush(link);
            send_ack(link, ack);
        }
    }

    /// This incarnation is no member any more. If it may have given up forwards to us, that is a gap.
    pub fn drop_member(&self, member: &Member, sink: &dyn ForwardSink) {
        let mut outgoing = self.outgoing.write();
        if outgoing.get(&member.id).is_some_and(|entry| entry.lock().is_to(member)) {
            let entry = outgoing.remove(&member.id);
            drop(outgoing);
            self.give_up(entry.map(|entry| entry.lock().give_up_all()).unwrap_or_default());
        } else {
            drop(outgoing);
        }
        let mut incoming = self.incoming.lock();
        let suspect = match incoming.get(&member.id) {
            Some(entry) if entry.lock().is_from(member) => {
                incoming.remove(&member.id).is_some_and(|entry| entry.lock().is_suspect())
            }
            Some(_) | None => false,
        };
        drop(incoming);
        if suspect {
            self.report_gap(member, sink);
        }
    }

    fn report_gap(&self, sender: &Member, sink: &dyn ForwardSink) {
        self.counts.gaps.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(member = %sender.id, "forwards of a peer were lost; closing clean sessions that may miss them");
        sink.on_gap(sender);
    }

    fn give_up(&self, done: Vec<ForwardDone>) {
        self.counts.given_up.fetch_add(done.len() as u64, Ordering::Relaxed);
        done.into_iter().for_each(|done| done());
    }
}

impl Forwarder for Forwards {
    fn forward(&self, to: &MemberId, _record: &Arc<Record>, encoded: &Bytes, done: Option<ForwardDone>) {
        let entry = self.outgoing.read().get(to).cloned();
        let Some(entry) = entry else {
            // Never linked: it cannot have announced a route. Whoever asks counts it as gone.
            return self.give_up(done.into_iter().collect());
        };
        let record = encoded.clone();
        match done {
            None => {
                let link = entry.lock().link();
                let sent = link
                    .map(|link| link.send(Body::Forward(Forward { sequence: 0, record }), Crowding::Shed));
                if sent != Some(Ok(())) {
                    self.counts.shed.fetch_add(1, Ordering::Relaxed);
                }
            }
            Some(done) => {
                let given_up = entry.lock().send(record, done);
                self.give_up(given_up.into_iter().collect());
            }
        }
    }
}

fn send_ack(link: &Arc<Link>, up_to: Option<u64>) {
    if let Some(up_to) = up_to {
        // A full control lane has broken the link; the sender then gives up what was not acknowledged.
        let _: Result<(), PushError> = link.send(Body::ForwardAck(ForwardAck { up_to }), Crowding::Waits);
    }
}

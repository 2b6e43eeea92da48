//! When a publish has ended, and who hears of it.

use super::unsettled::Unsettled;
use crate::log::AppendError;
use crate::log::retained::StoreDone;
use crate::mailbox::{CloseReason, Mailbox, Turn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use tidemill_core::packet::ReasonCode;
use tidemill_core::session::ack_window::Ticket;

/// Who waits for the end of a publish.
#[derive(Debug, Clone, Copy)]
pub enum PublishDone<'a> {
    /// Nobody: QoS 0, or a will.
    Nobody,
    /// The window of unacknowledged publishes of a connection.
    Ticket(&'a Arc<Mailbox>, Ticket),
    /// The same, of a QoS 2 publish whose owner has stored this unique id.
    Stored(&'a Arc<Mailbox>, Ticket, u128),
}

impl<'a> PublishDone<'a> {
    /// The window, if somebody waits.
    pub(super) fn ticket(self) -> Option<(&'a Arc<Mailbox>, Ticket)> {
        match self {
            Self::Nobody => None,
            Self::Ticket(mailbox, ticket) | Self::Stored(mailbox, ticket, _) => Some((mailbox, ticket)),
        }
    }

    /// The unique id that is stored.
    pub(super) fn stored(self) -> Option<u128> {
        match self {
            Self::Nobody | Self::Ticket(..) => None,
            Self::Stored(_, _, unique_id) => Some(unique_id),
        }
    }
}

/// What of one publish has not ended: appends, forwards, the store of retained messages, and the thread that publishes.
/// The last one to end completes the ticket.
pub(super) struct Countdown {
    remaining: AtomicUsize,
    mailbox: Arc<Mailbox>,
    ticket: Ticket,
    /// Of the acknowledgement, set before the thread that publishes ends.
    reason: AtomicU8,
    /// Of a publish whose outcome a later connection may wait for.
    stored: Option<(u128, Arc<Unsettled>)>,
}

impl Countdown {
    /// Of the thread that calls, which ends with [`Countdown::end_here`], so that it ends there or later, but not in
    /// between. `None` if nobody waits.
    pub(super) fn begin(done: PublishDone<'_>, unsettled: &Arc<Unsettled>) -> Option<Arc<Self>> {
        let (mailbox, ticket) = done.ticket()?;
        done.stored().inspect(|unique_id| unsettled.begin(*unique_id, mailbox, ticket));
        Some(Arc::new(Self {
            remaining: AtomicUsize::new(1),
            mailbox: Arc::clone(mailbox),
            ticket,
            reason: AtomicU8::new(ReasonCode::SUCCESS.0),
            stored: done.stored().map(|unique_id| (unique_id, Arc::clone(unsettled))),
        }))
    }

    /// So many more have not ended.
    pub(super) fn add(&self, parts: usize) {
        self.remaining.fetch_add(parts, Ordering::AcqRel);
    }

    /// One more part: the store.
    pub(super) fn store_done(self: &Arc<Self>) -> StoreDone {
        self.add(1);
        let countdown = Arc::clone(self);
        Box::new(move |outcome| match outcome {
            Ok(_) => countdown.release_elsewhere(),
            Err(error) => countdown.fail(&error),
        })
    }

    /// The thread that publishes is through.
    pub(super) fn end_here(&self, reason: ReasonCode, turn: &mut Turn) {
        self.reason.store(reason.0, Ordering::Release);
        if self.release() {
            self.stored.as_ref().inspect(|(unique_id, unsettled)| unsettled.forget(*unique_id));
            self.mailbox.complete(self.ticket, reason, turn);
        }
    }

    /// The message goes nowhere: the thread that publishes tells its client otherwise.
    pub(super) fn call_off(&self) {
        self.stored.as_ref().inspect(|(unique_id, unsettled)| unsettled.forget(*unique_id));
    }

    /// True for the last one.
    fn release(&self) -> bool {
        self.remaining.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// One part ended, on some other thread or later in this one.
    pub(super) fn release_elsewhere(&self) {
        if self.release() {
            self.end(ReasonCode(self.reason.load(Ordering::Acquire)));
        }
    }

    fn end(&self, reason: ReasonCode) {
        match &self.stored {
            Some((unique_id, unsettled)) => unsettled.end(*unique_id, reason),
            None => drop(self.mailbox.complete_elsewhere(self.ticket, reason)),
        }
    }

    /// One part ended without a commit: the publisher is closed, and hears nothing of this publish.
    pub(super) fn fail(&self, error: &AppendError) {
        let reason = match error {
            AppendError::Refused { .. } => ReasonCode::QUOTA_EXCEEDED,
            AppendError::ProducerFailed { .. } => ReasonCode::UNSPECIFIED_ERROR,
            AppendError::Closed => ReasonCode::SERVER_SHUTTING_DOWN,
        };
        tracing::warn!(client_id = %self.mailbox.client_id(), %error, "append failed; closing publisher");
        self.mailbox.close(CloseReason::Broker(reason));
        // Nothing is sent any more; but a persistent session must not take the publish for done.
        self.end(reason);
    }
}

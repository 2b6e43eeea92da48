//! When a publish has ended, and who hears of it.

use super::unsettled::Unsettled;
use crate::log::AppendError;
use crate::log::retained::StoreDone;
use crate::mailbox::{CloseReason, Mailbox, Turn};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use tidemill_core::packet::ReasonCode;
use tidemill_core::session::ack_window::Ticket;
use tidemill_core::session::in_flight::Intent;

/// Who waits for the end of a publish.
#[derive(Debug, Clone, Copy)]
pub enum PublishDone<'a> {
    /// Nobody: QoS 0, or a will.
    Nobody,
    /// The window of unacknowledged publishes of a connection.
    Ticket(&'a Arc<Mailbox>, Ticket),
    /// The same, of a QoS 2 publish whose owner has stored this intent.
    Stored(&'a Arc<Mailbox>, Ticket, Intent),
    /// Somebody in the broker, of a message that is not retained.
    Told(&'a Arc<dyn PublishEnd>),
}

/// Hears how a publish of the broker itself ended.
pub trait PublishEnd: fmt::Debug + Send + Sync + 'static {
    /// Every append is committed and every peer has the message, or one append never will be: then this may be called
    /// more than once. Must not block.
    fn ended(&self, outcome: Result<(), AppendError>);
}

impl<'a> PublishDone<'a> {
    /// The window, if somebody waits.
    pub(super) fn ticket(self) -> Option<(&'a Arc<Mailbox>, Ticket)> {
        match self {
            Self::Nobody | Self::Told(_) => None,
            Self::Ticket(mailbox, ticket) | Self::Stored(mailbox, ticket, _) => Some((mailbox, ticket)),
        }
    }

    /// The intent that is stored.
    pub(super) fn stored(self) -> Option<Intent> {
        match self {
            Self::Nobody | Self::Ticket(..) | Self::Told(_) => None,
            Self::Stored(_, _, intent) => Some(intent),
        }
    }

    /// Whether it is somebody in the broker.
    pub(super) fn is_told(self) -> bool {
        matches!(self, Self::Told(_))
    }
}

/// Who hears of the end.
enum Waits {
    Ticket {
        mailbox: Arc<Mailbox>,
        ticket: Ticket,
        /// Of a publish whose outcome a later connection may wait for.
        stored: Option<(u128, Arc<Unsettled>)>,
    },
    Told(Arc<dyn PublishEnd>),
}

/// What of one publish has not ended: appends, forwards, the store of retained messages, and the thread that publishes.
/// The last one to end completes the ticket.
pub(super) struct Countdown {
    remaining: AtomicUsize,
    waits: Waits,
    /// Of the acknowledgement, set before the thread that publishes ends.
    reason: AtomicU8,
}

impl Countdown {
    /// Of the thread that calls, which ends with [`Countdown::end_here`], so that it ends there or later, but not in
    /// between. `None` if nobody waits.
    pub(super) fn begin(done: PublishDone<'_>, unsettled: &Arc<Unsettled>) -> Option<Arc<Self>> {
        let waits = if let PublishDone::Told(end) = done {
            Waits::Told(Arc::clone(end))
        } else {
            let (mailbox, ticket) = done.ticket()?;
            done.stored().inspect(|intent| unsettled.begin(intent.unique_id, mailbox, ticket));
            let stored = done.stored().map(|intent| (intent.unique_id, Arc::clone(unsettled)));
            Waits::Ticket { mailbox: Arc::clone(mailbox), ticket, stored }
        };
        let reason = AtomicU8::new(ReasonCode::SUCCESS.0);
        Some(Arc::new(Self { remaining: AtomicUsize::new(1), waits, reason }))
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
        if !self.release() {
            return;
        }
        self.call_off();
        match &self.waits {
            Waits::Ticket { mailbox, ticket, .. } => mailbox.complete(*ticket, reason, turn),
            Waits::Told(end) => end.ended(Ok(())),
        }
    }

    /// The thread that publishes tells its client itself how it ended, such as that the message goes nowhere.
    pub(super) fn call_off(&self) {
        if let Waits::Ticket { stored: Some((unique_id, unsettled)), .. } = &self.waits {
            unsettled.forget(*unique_id);
        }
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
        match &self.waits {
            Waits::Ticket { stored: Some((unique_id, unsettled)), .. } => unsettled.end(*unique_id, reason),
            Waits::Ticket { mailbox, ticket, stored: None } => {
                mailbox.complete_elsewhere(*ticket, reason);
            }
            Waits::Told(end) => end.ended(Ok(())),
        }
    }

    /// One part ended without a commit: the publisher is closed, and hears nothing of this publish.
    pub(super) fn fail(&self, error: &AppendError) {
        let mailbox = match &self.waits {
            Waits::Ticket { mailbox, .. } => mailbox,
            Waits::Told(end) => return end.ended(Err(error.clone())),
        };
        let reason = match error {
            AppendError::Refused { .. } => ReasonCode::QUOTA_EXCEEDED,
            AppendError::ProducerFailed { .. } => ReasonCode::UNSPECIFIED_ERROR,
            AppendError::Closed => ReasonCode::SERVER_SHUTTING_DOWN,
        };
        tracing::warn!(client_id = %mailbox.client_id(), %error, "append failed; closing publisher");
        mailbox.close(CloseReason::Broker(reason));
        // Nothing is sent any more; but a persistent session must not take the publish for done.
        self.end(reason);
    }
}

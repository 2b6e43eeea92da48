//! QoS 2 publishes of a persistent session that go to the log. The owner stores the packet id of each before it is
//! appended, and forgets it before PUBCOMP, so that a repeat is recognised whatever dies in between.
//!
//! One request is under way at a time; what comes meanwhile goes with the next one. Bounded by the receive maximum.

use super::Connection;
use crate::mailbox::{CloseReason, Turn};
use crate::router::{Joined, PublishDone};
use futures::FutureExt;
use futures::future::BoxFuture;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tidemill_core::attach::{ExactlyOnceRequest, OwnerError};
use tidemill_core::message::Message;
use tidemill_core::packet::{Ack, AckKind, PacketId, QoS, ReasonCode};
use tidemill_core::session::ack_window::Ticket;
use tidemill_core::session::in_flight::Intent;
use tokio::time::{Sleep, sleep};

/// Pause before an owner that cannot store now is asked again. It is asked until the connection ends: meanwhile nothing
/// is acknowledged.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// How long a client may take from PUBREC to PUBREL before the owner is told that the publish is in the log. Far shorter than
/// what the log keeps for sure: after a crash the owner looks there for publishes of which it was told nothing, and its
/// clients wait so long.
const SETTLE_AFTER: Duration = Duration::from_secs(2);

/// Nothing but a pointer for a client that does not publish so.
#[derive(Default)]
pub(super) struct ExactlyOnceWork(Option<Box<Work>>);

#[derive(Default)]
struct Work {
    /// What the owner has stored, or is asked to store.
    stored: BTreeMap<PacketId, Stored>,
    /// When it is looked at, while the outcome of some is not stored.
    settle_at: Option<Pin<Box<Sleep>>>,
    waiting: Steps,
    under_way: Option<(BoxFuture<'static, Result<(), OwnerError>>, Steps)>,
}

struct Stored {
    unique_id: u128,
    /// The owner knows, or is told, that it is in the log.
    is_settled: bool,
}

/// What goes on when it is stored.
#[derive(Default)]
struct Steps {
    publishes: Vec<Held>,
    /// Publishes that are in the log.
    settled: Vec<Intent>,
    releases: Vec<PacketId>,
}

struct Held {
    intent: Intent,
    ticket: Ticket,
    message: Arc<Message>,
}

impl Steps {
    fn is_empty(&self) -> bool {
        self.publishes.is_empty() && self.settled.is_empty() && self.releases.is_empty()
    }
}

impl Work {
    /// Takes note of publishes that are in the log and not complete, from time to time.
    fn poll_settled(
        &mut self,
        context: &mut Context<'_>,
        after: Duration,
        is_in_log: impl Fn(PacketId) -> bool,
    ) {
        if self.stored.values().all(|stored| stored.is_settled) {
            self.settle_at = None;
            return;
        }
        let settle_at = self.settle_at.get_or_insert_with(|| Box::pin(sleep(after)));
        if settle_at.as_mut().poll(context).is_pending() {
            return;
        }
        for (packet_id, stored) in &mut self.stored {
            if !stored.is_settled && is_in_log(*packet_id) {
                stored.is_settled = true;
                let (packet_id, unique_id) = (*packet_id, stored.unique_id);
                self.waiting.settled.push(Intent { packet_id, unique_id, found: u64::MAX });
            }
        }
        // Wakes it again for those whose outcome is not there yet.
        let mut again = Box::pin(sleep(after));
        let is_over = again.as_mut().poll(context).is_ready();
        self.settle_at = Some(again).filter(|_| !is_over);
    }
}

impl ExactlyOnceWork {
    /// Goes on with what the owner has stored on former connections.
    pub(super) fn resume(intents: &[Intent]) -> Self {
        if intents.is_empty() {
            return Self(None);
        }
        let stored = |intent: &Intent| Stored { unique_id: intent.unique_id, is_settled: false };
        let stored = intents.iter().map(|intent| (intent.packet_id, stored(intent))).collect();
        Self(Some(Box::new(Work { stored, ..Work::default() })))
    }

    fn is_idle(&self) -> bool {
        let is_idle = |work: &Work| work.under_way.is_none() && work.waiting.publishes.is_empty();
        self.0.as_ref().is_none_or(|work| is_idle(work))
    }
}

impl Connection {
    /// Whether a publish waits until its packet id is stored: a crash between its appends and its PUBREC must not make two
    /// of it. What follows one that waits keeps behind it.
    pub(super) fn is_stored_first(&mut self, message: &Message) -> bool {
        message.qos == QoS::ExactlyOnce
            && self.registered.is_persistent()
            && (message.retain
                || !self.exactly_once.is_idle()
                || self.services.router.needs_log(&message.topic, &mut self.cache))
    }

    /// Publishes when the packet id is stored.
    pub(super) fn publish_stored(&mut self, packet_id: PacketId, ticket: Ticket, message: Arc<Message>) {
        let intent = Intent { packet_id, unique_id: self.services.router.unique_id(), found: 0 };
        let work = self.exactly_once.0.get_or_insert_default();
        work.stored.insert(packet_id, Stored { unique_id: intent.unique_id, is_settled: false });
        work.waiting.publishes.push(Held { intent, ticket, message });
    }

    /// A publish whose packet id is stored comes again on a new connection: waits for what is under way, or publishes it.
    pub(super) fn publish_again(
        &mut self,
        (intent, ticket): (Intent, Ticket),
        message: &Arc<Message>,
        turn: &mut Turn,
    ) {
        let router = &self.services.router;
        match router.join(intent.unique_id, &self.mailbox, ticket) {
            Joined::UnderWay => {}
            Joined::Ended(reason) => self.mailbox.complete(ticket, reason, turn),
            Joined::Unknown => {
                let done = PublishDone::Stored(&self.mailbox, ticket, intent);
                router.publish(message, &mut self.cache, done, turn);
            }
        }
    }

    /// PUBREL came. True if its PUBCOMP waits until that is stored.
    pub(super) fn release_stored(&mut self, packet_id: PacketId) -> bool {
        let Some(work) = &mut self.exactly_once.0 else { return false };
        if !work.stored.contains_key(&packet_id) {
            return false;
        }
        let under_way = work.under_way.iter().flat_map(|(_, steps)| &steps.releases);
        let is_repeated = under_way.chain(&work.waiting.releases).any(|release| *release == packet_id);
        if !is_repeated && self.mailbox.is_releasable(packet_id) {
            work.waiting.releases.push(packet_id);
            return true;
        }
        is_repeated
    }

    /// Asks the owner, and goes on with what it has stored.
    pub(super) fn poll_exactly_once(&mut self, context: &mut Context<'_>) {
        // Ends: each round takes what waits, or waits for the owner.
        while let Some(work) = &mut self.exactly_once.0 {
            if let Some((storing, _)) = &mut work.under_way {
                let Poll::Ready(answer) = storing.as_mut().poll(context) else { return };
                let steps = work.under_way.take().map(|(_, steps)| steps).unwrap_or_default();
                self.handle_stored(answer, steps);
                continue;
            }
            work.poll_settled(context, SETTLE_AFTER, |packet_id| self.mailbox.is_releasable(packet_id));
            let steps = std::mem::take(&mut work.waiting);
            if steps.is_empty() {
                if work.stored.is_empty() {
                    self.exactly_once.0 = None;
                }
                return;
            }
            let request = ExactlyOnceRequest {
                client_id: self.registered.request.client_id.clone(),
                connection: *self.registered.connection.lock(),
                intents: steps
                    .publishes
                    .iter()
                    .map(|held| held.intent)
                    .chain(steps.settled.clone())
                    .collect(),
                releases: steps.releases.clone(),
            };
            let owner = self.services.owner.clone();
            let storing = async move {
                loop {
                    match owner.store_exactly_once(request.clone()).await {
                        Err(OwnerError::Unavailable) => tokio::time::sleep(ASK_AGAIN).await,
                        answer => return answer,
                    }
                }
            };
            work.under_way = Some((storing.boxed(), steps));
        }
    }

    fn handle_stored(&mut self, answer: Result<(), OwnerError>, steps: Steps) {
        if let Err(error) = answer {
            tracing::debug!(client_id = %self.registered.request.client_id, %error, "closing connection");
            return self.mailbox.close(CloseReason::Broker(match error {
                OwnerError::TakenOver => ReasonCode::SESSION_TAKEN_OVER,
                OwnerError::NotAuthorized => ReasonCode::NOT_AUTHORIZED,
                OwnerError::QuotaExceeded => ReasonCode::QUOTA_EXCEEDED,
                OwnerError::Unavailable => ReasonCode::UNSPECIFIED_ERROR,
            }));
        }
        let mut turn = Turn::begin(&self.services.metrics);
        for Held { intent, ticket, message } in steps.publishes {
            let done = PublishDone::Stored(&self.mailbox, ticket, intent);
            self.services.router.publish(&message, &mut self.cache, done, &mut turn);
        }
        for packet_id in steps.releases {
            if let Some(work) = &mut self.exactly_once.0 {
                work.stored.remove(&packet_id);
            }
            let release = Ack::new(AckKind::PubRel, packet_id, ReasonCode::SUCCESS);
            let known = self.mailbox.handle_ack(&release, &mut turn, &mut self.done);
            debug_assert!(known.is_ok(), "the packet id was looked at before");
        }
        turn.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::poll_fn;
    use std::cell::Cell;

    const SOON: Duration = Duration::from_millis(1);

    #[tokio::test]
    async fn a_publish_that_is_in_the_log_is_settled_once_if_its_pubrel_does_not_come() {
        let (early, late) = (PacketId::new(1).unwrap(), PacketId::new(2).unwrap());
        let stored = |unique_id| Stored { unique_id, is_settled: false };
        let stored = BTreeMap::from([(early, stored(7)), (late, stored(8))]);
        let mut work = Work { stored, ..Work::default() };
        let late_is_in_log = Cell::new(false);

        for (packet_id, unique_id) in [(early, 7), (late, 8)] {
            let settled = poll_fn(|context| {
                work.poll_settled(context, SOON, |id| id == early || late_is_in_log.get());
                let settled = std::mem::take(&mut work.waiting.settled);
                if settled.is_empty() { Poll::Pending } else { Poll::Ready(settled) }
            });
            assert_eq!(settled.await, [Intent { packet_id, unique_id, found: u64::MAX }]);
            late_is_in_log.set(true);
        }
        let all = poll_fn(|context| {
            work.poll_settled(context, SOON, |_| true);
            Poll::Ready(work.waiting.settled.is_empty() && work.settle_at.is_none())
        });
        assert!(all.await, "nothing is left to look at");
    }
}

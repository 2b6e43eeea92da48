//! Letting connections in: one at a time for each client id, the old connection closed before the new one is granted.

use super::commit::CommitWaiter;
use super::inbox::Answer;
use super::job::Job;
use super::registry::Attached;
use super::{Group, Queues};
use crate::log::state::KEY_BYTES_MAX;
use bytestring::ByteString;
use std::collections::VecDeque;
use std::time::Duration;
use tidemill_core::attach::{
    AttachGrant, AttachRequest, OwnerError, QueueId, SessionLifetime, SessionNumber, StoredSubscription,
    WillOutcome,
};
use tidemill_core::partition::{Partition, QueueKind};
use tidemill_core::state::key::StateKey;
use tidemill_core::state::meta::SessionMeta;
use tokio::time::{Instant, timeout};
use tracing::debug;

/// How long an attach waits for the state, or for the hosts' words after a change of owner.
const WAIT: Duration = Duration::from_secs(10);
/// Attaches that wait for that; more are refused.
const WAITING_MAX: usize = 10_000;
/// Longest client id of a persistent session: its keys must fit the store, those of its shorter filters included.
const CLIENT_ID_BYTES_MAX: usize = KEY_BYTES_MAX / 2;
/// Bound on closing the old connection; the host's own bound is above it, so that its answer means that it is closed.
const TAKE_OVER_WAIT: Duration = Duration::from_secs(5);

/// An attach that has not begun.
pub(super) struct WaitingAttach {
    request: AttachRequest,
    answer: Answer<AttachGrant>,
    deadline: Instant,
}

/// An attach that is under way: the old connection is being closed, then the session is being stored.
pub(super) struct PendingAttach {
    request: AttachRequest,
    answer: Answer<AttachGrant>,
    turn: u64,
    /// The old connection, while its host has not reported its end.
    pub(super) replaced: Option<Attached>,
    granted: Option<(AttachGrant, IsPersistent)>,
}

/// Whether a session has a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IsPersistent {
    Yes,
    No,
}

impl WaitingAttach {
    pub(super) fn new(request: AttachRequest, answer: Answer<AttachGrant>) -> Self {
        Self { request, answer, deadline: Instant::now() + WAIT }
    }

    /// A newer connection has won.
    pub(super) fn lose(self) {
        self.refuse(OwnerError::TakenOver);
    }

    fn refuse(self, error: OwnerError) {
        // Whoever asked may have given up.
        drop(self.answer.send(Err(error)));
    }

    fn needs_state(&self) -> bool {
        self.request.lifetime != SessionLifetime::Clean || !self.request.clean_start
    }
}

impl Group {
    /// Begins an attach, or lets it wait.
    pub(super) fn handle_attach(&mut self, attach: WaitingAttach) {
        if attach.answer.is_closed() {
            return;
        }
        let is_loading = matches!(self.queues, Queues::Loading) && attach.needs_state();
        if is_loading || self.reattachment.is_open() {
            if self.waiting.len() >= WAITING_MAX {
                return attach.refuse(OwnerError::Unavailable);
            }
            return self.waiting.push_back(attach);
        }
        let client_id = attach.request.client_id.clone();
        if attach.request.lifetime != SessionLifetime::Clean && client_id.len() > CLIENT_ID_BYTES_MAX {
            return attach.refuse(OwnerError::QuotaExceeded);
        }
        let partition = self.partition_of(&client_id);
        if attach.needs_state() && self.served(partition).is_none() {
            return attach.refuse(OwnerError::Unavailable);
        }
        if self.registry.pending(&client_id).is_some() {
            return self.registry.wait(&client_id, attach);
        }
        if !self.is_of_user(partition, &attach.request) {
            return attach.refuse(OwnerError::NotAuthorized);
        }
        self.begin_attach(partition, attach);
    }

    fn begin_attach(&mut self, partition: Partition, attach: WaitingAttach) {
        let client_id = attach.request.client_id.clone();
        let turn = self.jobs.next_ticket();
        let WaitingAttach { request, answer, .. } = attach;
        self.registry.client(&client_id).pending =
            Some(Box::new(PendingAttach { request, answer, turn, replaced: None, granted: None }));
        let Some(old) = self.registry.set_attached(&client_id, None, &self.parts.metrics) else {
            return self.handle_taken_over(&client_id, turn);
        };
        debug!(%client_id, host = %old.host.id, "connection is taken over");
        self.parts.metrics.taken_over.inc();
        self.stop_delivery(partition, &client_id);
        let closed = self.parts.hosts.take_over(&old.host, &client_id, old.connection);
        if let Some(pending) = self.registry.pending(&client_id) {
            pending.replaced = Some(old);
        }
        self.jobs.push(async move {
            // After the bound the old connection counts as closed: its host drops what is not for the newest one.
            let is_closed = timeout(TAKE_OVER_WAIT, closed).await.is_ok();
            Job::TakenOver { client_id, turn, is_closed }
        });
    }

    /// The old connection's host did not report its end. If the host answered, that connection had not begun: what was
    /// granted to it holds. Else nobody knows what it had in flight, and what was granted is not true any more.
    pub(super) fn forget_replaced(&mut self, client_id: &ByteString, turn: u64, is_closed: bool) {
        let Some(pending) = self.registry.pending(client_id).filter(|pending| pending.turn == turn) else {
            return;
        };
        let Some(silent) = pending.replaced.take() else { return };
        if !is_closed || self.parts.surroundings.is_dead(&silent.host) {
            let partition = self.partition_of(client_id);
            self.keep_in_flight(partition, client_id, silent.session, Some(Box::default()));
        }
    }

    /// The old connection is closed: finds or makes the session, and grants when it is stored.
    pub(super) fn handle_taken_over(&mut self, client_id: &ByteString, turn: u64) {
        let Some(pending) = self.registry.pending(client_id).filter(|pending| pending.turn == turn) else {
            return;
        };
        let request = pending.request.clone();
        let partition = self.partition_of(client_id);
        let was_stored = self.served(partition).is_some_and(|run| run.sessions.contains_key(client_id));
        let granted = if self.served(partition).is_some() {
            Some(self.find_session(partition, &request))
        } else if request.lifetime == SessionLifetime::Clean && request.clean_start {
            let session = self.next_session();
            Some((self.grant(session, None), IsPersistent::No))
        } else {
            None
        };
        let Some(granted) = granted else {
            return self.end_attach(client_id, Some(OwnerError::Unavailable));
        };
        let is_persistent = granted.1;
        self.store_will(partition, &request, (granted.0.session, granted.0.connection));
        if let Some(pending) = self.registry.pending(client_id) {
            pending.granted = Some(granted);
        }
        // A session that was discarded must not come back, whatever happens to this owner.
        if is_persistent == IsPersistent::Yes || was_stored {
            self.ledger.wait(CommitWaiter::Attach { client_id: client_id.clone(), turn });
        } else {
            self.end_attach(client_id, None);
        }
    }

    /// The session is stored.
    pub(super) fn handle_attach_committed(&mut self, client_id: &ByteString, turn: u64) {
        if self.registry.pending(client_id).is_some_and(|pending| pending.turn == turn) {
            self.end_attach(client_id, None);
        }
    }

    fn grant(&mut self, session: SessionNumber, resumed: Option<Vec<StoredSubscription>>) -> AttachGrant {
        AttachGrant {
            session,
            connection: self.next_connection(),
            session_present: resumed.is_some(),
            subscriptions: resumed.unwrap_or_default(),
            in_flight: None,
        }
    }

    /// Discards, resumes or makes the session, as the client asked.
    fn find_session(&mut self, partition: Partition, request: &AttachRequest) -> (AttachGrant, IsPersistent) {
        let now_ms = self.parts.surroundings.now_ms();
        let client_id = &request.client_id;
        let sessions = self.served(partition).map(|run| &run.sessions);
        let is_expired = sessions
            .and_then(|sessions| sessions.get(client_id))
            .map(|session| session.meta.is_expired(now_ms));
        if is_expired == Some(true) || (is_expired.is_some() && request.clean_start) {
            self.delete_session(partition, client_id);
        } else if is_expired.is_some() {
            return (self.resume_session(partition, request), IsPersistent::Yes);
        }
        let session = self.next_session();
        let grant = self.grant(session, None);
        if let SessionLifetime::Persistent { expiry_secs } = request.lifetime {
            let id = QueueId { kind: QueueKind::Session, name: client_id.clone(), number: session };
            let meta = SessionMeta {
                expiry_secs,
                disconnected_at_ms: None,
                user: request.user.clone(),
                version: request.version,
                created_at_ms: now_ms,
                connection: grant.connection,
                will: None,
            };
            self.create_session(partition, id, meta);
            return (grant, IsPersistent::Yes);
        }
        (grant, IsPersistent::No)
    }

    fn resume_session(&mut self, partition: Partition, request: &AttachRequest) -> AttachGrant {
        let connection = self.next_connection();
        let mut grant = AttachGrant {
            session: SessionNumber(0),
            connection,
            session_present: true,
            subscriptions: Vec::new(),
            in_flight: None,
        };
        let client_id = &request.client_id;
        let Some(run) = self.served(partition) else { return grant };
        let Some(session) = run.sessions.get_mut(client_id) else { return grant };
        let former = session.meta.expires_at_ms();
        grant.session = session.id.number;
        grant.subscriptions =
            run.queues.subscriptions(session.slot).map(|all| all.in_force()).unwrap_or_default();
        grant.in_flight = session.granted_in_flight(connection);
        run.retained_dues.complete(session.slot, &mut grant.in_flight);
        if let (Some(in_flight), Some(progress)) = (&mut grant.in_flight, run.queues.progress(session.slot)) {
            // What is not delivered again needs no packet id.
            in_flight.outgoing.queue.retain(|sent| progress.is_open(sent.offset));
        }
        session.meta = SessionMeta {
            // A clean connection that resumes: the session ends with it.
            expiry_secs: request.lifetime.expiry_secs(),
            disconnected_at_ms: None,
            user: request.user.clone(),
            version: request.version,
            created_at_ms: session.meta.created_at_ms,
            connection,
            will: None,
        };
        let key = StateKey::Meta { queue: session.id.clone() };
        let value = session.meta.encode();
        run.note_deadline(client_id, former);
        self.ledger.write(partition, &key, Some(value));
        grant
    }

    /// Answers the attach that is under way and begins the next one of this client id.
    fn end_attach(&mut self, client_id: &ByteString, refused: Option<OwnerError>) {
        let (pending, next) = self.registry.take_pending(client_id);
        if let Some(pending) = pending {
            match (pending.granted.clone(), refused) {
                (Some((grant, is_persistent)), None) => self.answer_attach(pending, grant, is_persistent),
                // Whoever asked may have given up.
                (granted, error) => {
                    drop(pending.answer.send(Err(error.unwrap_or(OwnerError::Unavailable))));
                    if let Some((grant, _)) = granted {
                        self.note_will(client_id, (grant.session, grant.connection), WillOutcome::Over);
                    }
                }
            }
        }
        self.registry.forget_if_idle(client_id);
        if let Some(next) = next {
            self.handle_attach(next);
        }
    }

    fn answer_attach(&mut self, pending: PendingAttach, grant: AttachGrant, is_persistent: IsPersistent) {
        let PendingAttach { request, answer, .. } = pending;
        let client_id = request.client_id;
        let partition = self.partition_of(&client_id);
        let attached = Attached {
            host: request.host,
            connection: grant.connection,
            former: grant.connection,
            session: grant.session,
            is_persistent: is_persistent == IsPersistent::Yes,
            window: request.window,
            user: request.user,
        };
        if !self.parts.validity.is_valid() {
            // Dropped unanswered: the group ends with this turn.
            return;
        }
        let (session, connection) = (attached.session, attached.connection);
        let (window, is_persistent) = (attached.window, attached.is_persistent);
        self.registry.set_attached(&client_id, Some(attached), &self.parts.metrics);
        if answer.send(Ok(grant)).is_err() {
            // The connection is gone already.
            self.registry.set_attached(&client_id, None, &self.parts.metrics);
            self.note_will(&client_id, (session, connection), WillOutcome::Over);
            return self.end_connection(partition, &client_id, is_persistent, None);
        }
        if is_persistent {
            self.start_delivery(partition, &client_id, session, (window, &[], &[]));
        }
    }

    /// A session belongs to its user, connected or not.
    fn is_of_user(&mut self, partition: Partition, request: &AttachRequest) -> bool {
        let now_ms = self.parts.surroundings.now_ms();
        if let Some(attached) = self.registry.attached(&request.client_id) {
            return attached.user == request.user;
        }
        let session = self.served(partition).and_then(|run| run.sessions.get(&request.client_id));
        session.is_none_or(|session| session.meta.is_expired(now_ms) || session.meta.user == request.user)
    }

    /// Begins the attaches that waited.
    pub(super) fn retry_waiting(&mut self) {
        for attach in std::mem::take(&mut self.waiting) {
            self.handle_attach(attach);
        }
    }

    /// Refuses the attaches that have waited too long.
    pub(super) fn expire_waiting(&mut self) {
        let now = Instant::now();
        let (expired, waiting): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|attach| attach.deadline <= now);
        self.waiting = waiting;
        for attach in expired {
            attach.refuse(OwnerError::Unavailable);
        }
    }
}

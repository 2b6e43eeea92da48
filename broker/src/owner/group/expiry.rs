//! The life of sessions: made, left by their connection, ended by their deadline or their client.

use super::partition_run::Session;
use super::registry::Attached;
use super::{Group, Queues};
use crate::cluster::{Route, RouteChange};
use bytestring::ByteString;
use tidemill_core::attach::{Detach, QueueId, SessionNumber, WillOutcome};
use tidemill_core::partition::Partition;
use tidemill_core::session::in_flight::InFlight;
use tidemill_core::state::key::StateKey;
use tidemill_core::state::meta::SessionMeta;
use tidemill_core::topic::TopicFilter;
use tracing::info;

/// Sessions ended in one pass; the deadline itself is checked at use.
const EXPIRED_MAX: usize = 256;

impl Group {
    /// Makes a session with its queue; stored with the next commit.
    pub(super) fn create_session(&mut self, partition: Partition, id: QueueId, meta: SessionMeta) {
        let Some(run) = self.served(partition) else { return };
        let slot = run.queues.create(id.clone());
        let cursor = run.queues.progress(slot).map(|progress| progress.stored().encode());
        let stored_meta = meta.encode();
        let session =
            Session { id: id.clone(), slot, meta, in_flight: None, exactly_once: None, is_restored: false };
        run.sessions.insert(id.name.clone(), session);
        run.note_deadline(&id.name, None);
        self.parts.metrics.sessions.inc();
        self.ledger.write(partition, &StateKey::Cursor { queue: id.clone() }, cursor);
        self.ledger.write(partition, &StateKey::Meta { queue: id }, Some(stored_meta));
    }

    /// Ends a session: its state goes with the next commit, its routes at once.
    pub(super) fn delete_session(&mut self, partition: Partition, client_id: &ByteString) {
        let Some(run) = self.served(partition) else { return };
        let Some(session) = run.sessions.remove(client_id) else { return };
        if let Some(at) = session.meta.expires_at_ms() {
            run.deadlines.remove(&(at, client_id.clone()));
        }
        run.catch_ups.forget_queue(session.slot);
        let parked = run.queues.parked(session.slot);
        let dues = run.retained_dues.remove_all(session.slot);
        let targets = run.queues.subscriptions(session.slot).map(|all| all.targets()).unwrap_or_default();
        let orphans = run.queues.remove(session.slot);
        self.parts.metrics.sessions.dec();
        let exchanges = session.exactly_once_keys();
        let queue = session.id;
        for key in exchanges {
            self.ledger.write(partition, &key, None);
        }
        for target in targets {
            self.ledger.write(partition, &StateKey::Subscription { queue: queue.clone(), target }, None);
        }
        for filter in dues {
            self.ledger.write(partition, &StateKey::RetainedDue { session: queue.clone(), filter }, None);
        }
        for offset in parked {
            self.ledger.write(partition, &StateKey::Parked { queue: queue.clone(), offset }, None);
        }
        self.ledger.write(partition, &StateKey::Cursor { queue: queue.clone() }, None);
        self.ledger.write(partition, &StateKey::Meta { queue }, None);
        self.withdraw_routes(partition, orphans);
    }

    /// No queue of the partition wants these any more.
    pub(super) fn withdraw_routes(&mut self, partition: Partition, filters: Vec<TopicFilter>) {
        if filters.is_empty() {
            return;
        }
        let remove = |filter| RouteChange::Remove(Route::Durable { partition, filter });
        let announced = self.parts.route_exchange.announce_durable(filters.into_iter().map(remove).collect());
        self.jobs.push(async move {
            // Nobody waits for a withdrawal: a member that keeps the route appends what nobody takes.
            drop(announced.await);
            super::job::Job::Nothing
        });
    }

    /// A connection ended, as its host says.
    pub(super) fn handle_detach(&mut self, detach: Detach) {
        let client_id = &detach.client_id;
        let partition = self.partition_of(client_id);
        let is_meant = |one: &&Attached| one.is(detach.connection);
        let Some(attached) = self.registry.attached(client_id).filter(is_meant) else {
            // The connection that an attach under way replaces.
            if let Some(replaced) = self.registry.take_replaced(client_id, detach.connection) {
                self.note_will(client_id, (replaced.session, replaced.former), detach.will);
                self.keep_in_flight(partition, client_id, replaced.session, detach.in_flight);
            }
            return;
        };
        let (is_persistent, session) = (attached.is_persistent, attached.session);
        let stored_as = attached.former;
        self.note_will(client_id, (session, stored_as), detach.will);
        self.keep_in_flight(partition, client_id, session, detach.in_flight);
        self.registry.set_attached(client_id, None, &self.parts.metrics);
        self.registry.forget_if_idle(client_id);
        self.end_connection(partition, client_id, is_persistent, detach.session_expiry_secs);
    }

    /// Keeps what a session goes on with when its client returns. `None`: the connection had not begun, so what was
    /// granted to it holds.
    pub(super) fn keep_in_flight(
        &mut self,
        partition: Partition,
        client_id: &ByteString,
        number: SessionNumber,
        in_flight: Option<Box<InFlight>>,
    ) {
        let Some(in_flight) = in_flight else { return };
        self.settle_received(partition, (client_id, number), &in_flight.received);
        let session = self.served(partition).and_then(|run| run.sessions.get_mut(client_id));
        if let Some(session) = session.filter(|session| session.id.number == number) {
            session.in_flight = (!in_flight.is_empty()).then_some(in_flight);
            session.is_restored = false;
        }
    }

    /// The session, if it is persistent, lives on without connection.
    pub(super) fn end_connection(
        &mut self,
        partition: Partition,
        client_id: &ByteString,
        is_persistent: bool,
        expiry_secs: Option<u32>,
    ) {
        if !is_persistent {
            return;
        }
        self.stop_delivery(partition, client_id);
        let now_ms = self.parts.surroundings.now_ms();
        let Some(run) = self.served(partition) else { return };
        let Some(session) = run.sessions.get_mut(client_id) else { return };
        let former = session.meta.expires_at_ms();
        session.meta.disconnected_at_ms = Some(now_ms);
        session.meta.expiry_secs = expiry_secs.unwrap_or(session.meta.expiry_secs);
        let is_over = session.meta.is_expired(now_ms);
        let key = StateKey::Meta { queue: session.id.clone() };
        let value = session.meta.encode();
        run.note_deadline(client_id, former);
        if is_over {
            return self.delete_session(partition, client_id);
        }
        self.ledger.write(partition, &key, Some(value));
    }

    /// Sessions that were connected when the former owner ended, and whose host has not spoken for them: their
    /// connection counts as ended now.
    pub(super) fn note_lost_connections(&mut self) {
        if self.reattachment.is_open() {
            return;
        }
        let Queues::Loaded(partitions) = &self.queues else { return };
        let mut lost: Vec<(Partition, ByteString)> = Vec::new();
        for (partition, run) in partitions {
            for (client_id, session) in &run.sessions {
                if session.meta.disconnected_at_ms.is_none() && !self.registry.is_known(client_id) {
                    lost.push((*partition, client_id.clone()));
                }
            }
        }
        for (partition, client_id) in lost {
            self.end_connection(partition, &client_id, true, None);
        }
    }

    /// Ends the sessions whose deadline has passed, within the bound of one pass.
    pub(super) fn expire_sessions(&mut self) {
        let now_ms = self.parts.surroundings.now_ms();
        let Queues::Loaded(partitions) = &mut self.queues else { return };
        let mut expired: Vec<(Partition, ByteString)> = Vec::new();
        for (partition, run) in partitions.iter_mut().filter(|(_, run)| !run.is_refused()) {
            while expired.len() < EXPIRED_MAX
                && run.deadlines.first().is_some_and(|(at, _)| *at <= now_ms)
                && let Some((_, client_id)) = run.deadlines.pop_first()
            {
                if run.sessions.get(&client_id).is_some_and(|session| session.meta.is_expired(now_ms)) {
                    expired.push((*partition, client_id));
                }
            }
        }
        for (partition, client_id) in expired {
            info!(%client_id, "session expired");
            self.parts.metrics.expired_sessions.inc();
            self.delete_session(partition, &client_id);
        }
    }

    /// Connections whose host has ended are gone.
    pub(super) fn detach_dead_hosts(&mut self) {
        let mut hosts = std::collections::BTreeMap::new();
        let mut gone: Vec<Detach> = Vec::new();
        for (client_id, attached) in self.registry.iter_attached() {
            let is_dead = *hosts
                .entry(&attached.host)
                .or_insert_with(|| self.parts.surroundings.is_dead(&attached.host));
            if is_dead {
                let (client_id, connection) = (client_id.clone(), attached.connection);
                // What was in flight is not known any more.
                let in_flight = Some(Box::default());
                let (session_expiry_secs, will) = (None, WillOutcome::Over);
                gone.push(Detach { client_id, connection, session_expiry_secs, in_flight, will });
            }
        }
        for detach in gone {
            self.handle_detach(detach);
        }
    }

    /// A clean connection that was let in before the state was there has ended the session that was stored.
    pub(super) fn discard_replaced_sessions(&mut self) {
        let clean: Vec<(ByteString, SessionNumber)> = self
            .registry
            .iter_attached()
            .filter(|(_, attached)| !attached.is_persistent)
            .map(|(client_id, attached)| (client_id.clone(), attached.session))
            .collect();
        for (client_id, number) in clean {
            let partition = self.partition_of(&client_id);
            let stored = self.served(partition).and_then(|run| run.sessions.get(&client_id));
            if stored.is_some_and(|stored| stored.id.number != number) {
                self.delete_session(partition, &client_id);
            }
        }
    }
}

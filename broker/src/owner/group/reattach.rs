//! After a change of owner: every host tells its attachments of the group, so that connections go on and a client id
//! still has one connection only.

use super::inbox::{Answer, Reattached};
use super::partition_run::Session;
use super::registry::Attached;
use super::{Group, Queues};
use bytestring::ByteString;
use std::collections::{BTreeSet, HashSet};
use std::time::Duration;
use tidemill_core::attach::{
    Attachment, ConnectionEpoch, Detach, HostAttachments, OwnerError, SessionLifetime, SessionNumber,
    WillOutcome,
};
use tidemill_core::member::{Member, MemberId, OwnerEpoch};
use tidemill_core::partition::Offset;
use tidemill_core::state::key::StateKey;
use tokio::time::Instant;
use tracing::{debug, info, warn};

/// How long new connections wait for the hosts' words.
const WAIT: Duration = Duration::from_secs(2);
/// Frames that wait for the state; more are refused, and the hosts repeat them.
const UNBOUND_MAX: usize = 1_024;

/// Which hosts have spoken since this owner began, and what waits for the state.
pub(super) struct Reattachment {
    open_until: Option<Instant>,
    heard: BTreeSet<MemberId>,
    unbound: Vec<Frame>,
}

/// A frame whose connections are known, and whose queues are not there yet.
struct Frame {
    answer: Answer<Reattached>,
    results: Reattached,
    bindings: Vec<Binding>,
}

/// A connection that goes on with its queue.
struct Binding {
    index: usize,
    client_id: ByteString,
    session: SessionNumber,
    done: Vec<Offset>,
    in_flight: Vec<Offset>,
}

impl Reattachment {
    pub(super) fn new(now: Instant) -> Self {
        Self { open_until: Some(now + WAIT), heard: BTreeSet::new(), unbound: Vec::new() }
    }

    /// Whether new connections wait.
    pub(super) fn is_open(&self) -> bool {
        self.open_until.is_some()
    }
}

impl Group {
    /// All attachments of a host, in one frame.
    pub(super) fn handle_reattach(
        &mut self,
        host: &Member,
        word: HostAttachments,
        answer: Answer<Reattached>,
    ) {
        self.reattachment.heard.insert(host.id.clone());
        self.detach_missing(host, &word);
        let attachments = word.attached;
        let highest = attachments.iter().map(|attachment| attachment.connection.owner.0).max();
        if highest.is_some_and(|highest| highest >= self.epoch.0) {
            // Connections of a former owner must not count as newer than what this one grants.
            self.raise_epoch(OwnerEpoch(highest.unwrap_or(0).saturating_add(1)));
            self.ledger.store_soon();
        }
        let mut frame = Frame { answer, results: Vec::new(), bindings: Vec::new() };
        for (index, attachment) in attachments.into_iter().enumerate() {
            let (result, binding) = self.adopt(index, attachment);
            frame.results.push(result);
            frame.bindings.extend(binding);
        }
        let is_loading = matches!(self.queues, Queues::Loading);
        if frame.bindings.is_empty() || !is_loading {
            self.bind(frame);
        } else if self.reattachment.unbound.len() < UNBOUND_MAX {
            self.reattachment.unbound.push(frame);
        } else {
            warn!(group = self.group.0, host = %host.id, "re-attach refused: too many wait for the state");
        }
        self.end_reattachment_if_due();
    }

    /// Connections that the host had, and that it does not name: their end was lost on the way.
    fn detach_missing(&mut self, host: &Member, word: &HostAttachments) {
        let Some(granted) = word.granted else { return };
        let attached = word.attached.iter().map(|attachment| &attachment.request.client_id);
        let named: HashSet<&ByteString> = attached.chain(&word.attaching).collect();
        let missing = self.registry.iter_attached().filter(|(client_id, attached)| {
            // What was granted later may have begun after the host made its list.
            attached.host == *host && attached.former <= granted && !named.contains(client_id)
        });
        let missing: Vec<Detach> = missing
            .map(|(client_id, attached)| Detach {
                client_id: client_id.clone(),
                connection: attached.connection,
                session_expiry_secs: None,
                in_flight: None,
                will: WillOutcome::Over,
            })
            .collect();
        for detach in missing {
            debug!(client_id = %detach.client_id, host = %host.id, "connection has ended unheard");
            self.handle_detach(detach);
        }
    }

    /// Takes a connection over from the former owner, unless a newer one of the client id is known.
    fn adopt(
        &mut self,
        index: usize,
        attachment: Attachment,
    ) -> (Result<ConnectionEpoch, OwnerError>, Option<Binding>) {
        let Attachment { request, session: session_number, connection, done, in_flight } = attachment;
        let client_id = request.client_id.clone();
        let is_stored = |session: &Session| session.id.number == session_number;
        let partition = self.partition_of(&client_id);
        let is_persistent = request.lifetime != SessionLifetime::Clean
            // A clean connection that resumed a persistent session.
            || self.served(partition).and_then(|run| run.sessions.get(&client_id)).is_some_and(is_stored);
        let binding =
            Binding { index, client_id: client_id.clone(), session: session_number, done, in_flight };
        if let Some(known) = self.registry.attached(&client_id) {
            if known.host == request.host && known.is(connection) {
                return (Ok(known.connection), is_persistent.then_some(binding));
            }
            if known.former > connection {
                return (Err(OwnerError::TakenOver), None);
            }
        }
        if self.registry.pending(&client_id).is_some() {
            return (Err(OwnerError::TakenOver), None);
        }
        let granted = self.next_connection();
        let attached = Attached {
            host: request.host,
            connection: granted,
            former: connection,
            session: session_number,
            is_persistent,
            window: request.window,
            user: request.user,
        };
        let replaced = self.registry.set_attached(&client_id, Some(attached), &self.parts.metrics);
        if let Some(replaced) = replaced {
            debug!(%client_id, host = %replaced.host.id, "connection is taken over at re-attach");
            self.parts.metrics.taken_over.inc();
            let closed = self.parts.hosts.take_over(&replaced.host, &client_id, replaced.connection);
            self.jobs.push(async move {
                closed.await;
                super::job::Job::Nothing
            });
        }
        (Ok(granted), is_persistent.then_some(binding))
    }

    /// Gives the connections of a frame their queues, and answers.
    fn bind(&mut self, mut frame: Frame) {
        for binding in std::mem::take(&mut frame.bindings) {
            let index = binding.index;
            let bound = self.bind_one(binding);
            if let (Err(error), Some(result)) = (bound, frame.results.get_mut(index)) {
                *result = Err(error);
            }
        }
        // Whoever asked may have given up; it asks again.
        drop(frame.answer.send(Ok(frame.results)));
    }

    fn bind_one(&mut self, binding: Binding) -> Result<(), OwnerError> {
        let Binding { client_id, session, done, in_flight, .. } = binding;
        let partition = self.partition_of(&client_id);
        let Some(attached) = self.registry.attached(&client_id).filter(|one| one.session == session) else {
            return Err(OwnerError::TakenOver);
        };
        let (window, connection) = (attached.window, attached.connection);
        let is_served = self.served(partition).is_some();
        let found = self.served(partition).and_then(|run| run.sessions.get_mut(&client_id));
        let Some(found) = found.filter(|found| found.id.number == session) else {
            self.registry.set_attached(&client_id, None, &self.parts.metrics);
            self.registry.forget_if_idle(&client_id);
            return Err(if is_served { OwnerError::TakenOver } else { OwnerError::Unavailable });
        };
        let former = found.meta.expires_at_ms();
        found.meta.disconnected_at_ms = None;
        found.meta.connection = connection;
        let key = StateKey::Meta { queue: found.id.clone() };
        let value = found.meta.encode();
        self.ledger.write(partition, &key, Some(value));
        if let Some(run) = self.served(partition) {
            run.note_deadline(&client_id, former);
        }
        self.start_delivery(partition, &client_id, session, (window, &done, &in_flight));
        Ok(())
    }

    /// The queues are there.
    pub(super) fn bind_unbound(&mut self) {
        for frame in std::mem::take(&mut self.reattachment.unbound) {
            self.bind(frame);
        }
    }

    /// The queues will not be there: the frames' askers learn it.
    pub(super) fn refuse_unbound(&mut self) {
        self.reattachment.unbound.clear();
    }

    /// Lets new connections in when every member has spoken, or after the bound.
    pub(super) fn end_reattachment_if_due(&mut self) {
        let Some(until) = self.reattachment.open_until else { return };
        let awaited = self.parts.surroundings.awaited_members();
        let missing = awaited.iter().filter(|member| !self.reattachment.heard.contains(member)).count();
        if missing > 0 && Instant::now() < until {
            return;
        }
        self.reattachment.open_until = None;
        if missing > 0 {
            info!(group = self.group.0, missing, "not every member has told its connections in time");
        }
        self.note_lost_connections();
        self.restore_wills();
        self.retry_waiting();
    }
}

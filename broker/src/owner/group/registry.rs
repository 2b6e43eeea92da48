//! Who is connected where: one connection for each client id. It needs neither log nor state.

use super::attach::{PendingAttach, WaitingAttach};
use crate::owner::metrics::OwnerMetrics;
use bytestring::ByteString;
use std::collections::{HashMap, VecDeque};
use tidemill_core::attach::{ConnectionEpoch, SessionNumber};
use tidemill_core::member::Member;

/// Attaches of one client id that wait for each other; the oldest beyond it has lost.
const WAITING_MAX: usize = 8;

/// The connection of a client.
pub(super) struct Attached {
    /// Where it is connected.
    pub(super) host: Member,
    /// Names the connection.
    pub(super) connection: ConnectionEpoch,
    /// Name that a former owner gave it, or itself.
    pub(super) former: ConnectionEpoch,
    /// Its session.
    pub(super) session: SessionNumber,
    /// Whether the session has a queue.
    pub(super) is_persistent: bool,
    /// QoS > 0 deliveries that may be outstanding.
    pub(super) window: u16,
    /// Whose session it is.
    pub(super) user: Option<ByteString>,
}

impl Attached {
    /// Whether `connection` names it, as this owner or a former one does.
    pub(super) fn is(&self, connection: ConnectionEpoch) -> bool {
        self.connection == connection || self.former == connection
    }
}

/// One client id.
#[derive(Default)]
pub(super) struct Client {
    /// Its connection.
    pub(super) attached: Option<Attached>,
    /// The attach that is under way. Boxed: a client that is connected pays for it too.
    pub(super) pending: Option<Box<PendingAttach>>,
    /// Attaches that wait for it.
    waiting: VecDeque<WaitingAttach>,
}

/// All client ids of the group that are connected or connecting. Boxed: a table has up to twice as many places as
/// clients.
#[derive(Default)]
pub(super) struct Registry {
    clients: HashMap<ByteString, Box<Client>>,
}

impl Registry {
    /// The client, made if it is new. Call [`Self::forget_if_idle`] when it may have become idle.
    pub(super) fn client(&mut self, client_id: &ByteString) -> &mut Client {
        self.clients.entry(client_id.clone()).or_default()
    }

    /// The client's connection.
    pub(super) fn attached(&self, client_id: &str) -> Option<&Attached> {
        self.clients.get(client_id)?.attached.as_ref()
    }

    /// Whether anything is known of the client.
    pub(super) fn is_known(&self, client_id: &str) -> bool {
        self.clients.contains_key(client_id)
    }

    /// The attach that is under way.
    pub(super) fn pending(&mut self, client_id: &str) -> Option<&mut PendingAttach> {
        self.clients.get_mut(client_id)?.pending.as_deref_mut()
    }

    /// Sets the client's connection; returns the one before.
    pub(super) fn set_attached(
        &mut self,
        client_id: &ByteString,
        attached: Option<Attached>,
        metrics: &OwnerMetrics,
    ) -> Option<Attached> {
        let before = std::mem::replace(&mut self.client(client_id).attached, attached);
        let after = self.attached(client_id);
        let is_persistent = |attached: &&Attached| attached.is_persistent;
        metrics.attached.add(i64::from(after.is_some()) - i64::from(before.is_some()));
        metrics.attached_sessions.add(
            i64::from(after.filter(is_persistent).is_some())
                - i64::from(before.as_ref().filter(is_persistent).is_some()),
        );
        before
    }

    /// Puts an attach behind the one that is under way.
    pub(super) fn wait(&mut self, client_id: &ByteString, attach: WaitingAttach) {
        let waiting = &mut self.client(client_id).waiting;
        waiting.push_back(attach);
        if waiting.len() > WAITING_MAX
            && let Some(oldest) = waiting.pop_front()
        {
            oldest.lose();
        }
    }

    /// Ends the attach that is under way; returns it and the next one.
    pub(super) fn take_pending(&mut self, client_id: &str) -> (Option<PendingAttach>, Option<WaitingAttach>) {
        let Some(client) = self.clients.get_mut(client_id) else { return (None, None) };
        (client.pending.take().map(|pending| *pending), client.waiting.pop_front())
    }

    /// The connection that the attach under way replaces, once, if it is `connection`.
    pub(super) fn take_replaced(&mut self, client_id: &str, connection: ConnectionEpoch) -> Option<Attached> {
        let replaced = &mut self.pending(client_id)?.replaced;
        replaced.take_if(|replaced| replaced.is(connection))
    }

    /// Drops a client of whom nothing is known.
    pub(super) fn forget_if_idle(&mut self, client_id: &str) {
        let is_idle = |client: &Client| {
            client.attached.is_none() && client.pending.is_none() && client.waiting.is_empty()
        };
        if self.clients.get(client_id).is_some_and(|client| is_idle(client)) {
            self.clients.remove(client_id);
            // Memory goes back when clients go, at a distance that keeps it cheap.
            if self.clients.len() < self.clients.capacity() / 4 {
                self.clients.shrink_to(self.clients.len() * 2);
            }
        }
    }

    /// All connections.
    pub(super) fn iter_attached(&self) -> impl Iterator<Item = (&ByteString, &Attached)> {
        self.clients.iter().filter_map(|(client_id, client)| Some((client_id, client.attached.as_ref()?)))
    }

    /// Forgets everybody; who waits learns it.
    pub(super) fn clear(&mut self, metrics: &OwnerMetrics) {
        let attached = self.iter_attached().count();
        let sessions = self.iter_attached().filter(|(_, attached)| attached.is_persistent).count();
        metrics.attached.sub(i64::try_from(attached).unwrap_or(i64::MAX));
        metrics.attached_sessions.sub(i64::try_from(sessions).unwrap_or(i64::MAX));
        self.clients.clear();
    }
}

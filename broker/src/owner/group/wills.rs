//! Wills over the death of their broker. The host of a connection publishes its will; what is stored here is for the
//! owner that comes after a crash, which hands the wills of the dead to this broker's own clock.

use super::{Group, Queues};
use bytestring::ByteString;
use std::collections::HashSet;
use tidemill_core::attach::{AttachRequest, ConnectionEpoch, QueueId, SessionNumber, WillOutcome, WillOver};
use tidemill_core::packet::Will;
use tidemill_core::partition::{Partition, QueueKind};
use tidemill_core::state::key::StateKey;
use tidemill_core::state::will::{StoredWill, WillDue, is_stored};

/// A will that was stored by a former owner of the group.
pub(super) struct LeftWill {
    pub(super) session: QueueId,
    pub(super) connection: ConnectionEpoch,
    pub(super) stored: StoredWill,
    /// When it is due; `None` when its connection was there to the end.
    pub(super) due: Option<WillDue>,
}

/// The wills of one group that are stored.
#[derive(Default)]
pub(super) struct StoredWills {
    /// Their connections.
    known: HashSet<(ByteString, ConnectionEpoch)>,
    /// Those of a former owner, until it is clear whose connections are gone.
    left: Vec<LeftWill>,
}

/// A will that this broker is to publish, unless its client comes back before.
#[derive(Debug, Clone, PartialEq)]
pub struct RestoredWill {
    /// Names it to the owner, when it is over.
    pub name: WillOver,
    /// What to publish.
    pub will: Will,
    /// Seconds that its session outlives its connection.
    pub session_expiry_secs: u32,
    /// When it is due, in milliseconds from now; `None` when its connection died with its broker.
    pub due_in_ms: Option<u64>,
    /// Any CONNECT of the client calls it off, one with clean start too.
    pub is_brokers_own: bool,
}

fn session_id(client_id: &ByteString, number: SessionNumber) -> QueueId {
    QueueId { kind: QueueKind::Session, name: client_id.clone(), number }
}

impl Group {
    /// A connection is let in: its will is stored with the attach, or soon.
    pub(super) fn store_will(
        &mut self,
        partition: Partition,
        request: &AttachRequest,
        (session, connection): (SessionNumber, ConnectionEpoch),
    ) {
        let Some(will) = request.will.as_deref().filter(|will| is_stored(will, request.lifetime)) else {
            return;
        };
        // Without the state a clean session goes without.
        if self.served(partition).is_none() {
            return;
        }
        let session_expiry_secs = request.lifetime.expiry_secs();
        let stored = StoredWill { session_expiry_secs, will: will.clone() };
        let key = StateKey::Will { session: session_id(&request.client_id, session), connection };
        self.ledger.write(partition, &key, Some(stored.encode()));
        self.wills.known.insert((request.client_id.clone(), connection));
    }

    /// A connection has ended: its host has dealt with its will, or will.
    pub(super) fn note_will(
        &mut self,
        client_id: &ByteString,
        (session, connection): (SessionNumber, ConnectionEpoch),
        outcome: WillOutcome,
    ) {
        if !self.wills.known.contains(&(client_id.clone(), connection)) {
            return;
        }
        match outcome {
            WillOutcome::Over => {
                self.forget_will(WillOver { client_id: client_id.clone(), session, connection });
            }
            WillOutcome::Due { in_ms, is_brokers_own } => {
                let at_ms = self.parts.surroundings.now_ms().saturating_add(in_ms);
                let key = StateKey::WillDue { session: session_id(client_id, session), connection };
                let partition = self.partition_of(client_id);
                self.ledger.write(partition, &key, Some(WillDue { at_ms, is_brokers_own }.encode()));
            }
        }
    }

    /// Nobody will publish it any more.
    pub(super) fn forget_will(&mut self, over: WillOver) {
        let WillOver { client_id, session, connection } = over;
        let partition = self.partition_of(&client_id);
        let session = session_id(&client_id, session);
        if self.wills.known.remove(&(client_id, connection)) {
            let key = StateKey::Will { session: session.clone(), connection };
            self.ledger.write(partition, &key, None);
            self.ledger.write(partition, &StateKey::WillDue { session, connection }, None);
        }
    }

    /// The wills that the former owner left.
    pub(super) fn take_left_wills(&mut self, left: Vec<LeftWill>) {
        let known = left.iter().map(|will| (will.session.name.clone(), will.connection));
        self.wills.known.extend(known);
        self.wills.left = left;
    }

    /// Every host has spoken for its connections: the wills of all others go to this broker's clock.
    pub(super) fn restore_wills(&mut self) {
        if self.reattachment.is_open() || !matches!(self.queues, Queues::Loaded(_)) {
            return;
        }
        let now_ms = self.parts.surroundings.now_ms();
        for LeftWill { session, connection, stored, due } in std::mem::take(&mut self.wills.left) {
            // One that goes on has its will still, and its host.
            if self.registry.attached(&session.name).is_some_and(|attached| attached.is(connection)) {
                continue;
            }
            self.parts.surroundings.restore_will(RestoredWill {
                name: WillOver { client_id: session.name, session: session.number, connection },
                will: stored.will,
                session_expiry_secs: stored.session_expiry_secs,
                due_in_ms: due.map(|due| due.at_ms.saturating_sub(now_ms)),
                is_brokers_own: due.is_none_or(|due| due.is_brokers_own),
            });
        }
    }
}

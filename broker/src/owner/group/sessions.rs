//! Telling an administrator about the sessions of the group, also those of partitions that are refused. One look takes as long as it takes to go through the client
//! ids of the group once.

use super::partition_run::{PartitionRun, Session};
use super::{Group, Queues};
use crate::owner::sessions::{SessionDetail, SessionQuery, SessionStanding};
use bytestring::ByteString;
use std::collections::BTreeMap;
use std::ops::Bound;
use tidemill_core::attach::OwnerError;
use tidemill_core::partition::Partition;

impl Group {
    /// The first sessions that are asked for, in the order of their client ids.
    pub(super) fn list_sessions(&self, query: &SessionQuery) -> Result<Vec<SessionStanding>, OwnerError> {
        let Queues::Loaded(partitions) = &self.queues else { return Err(OwnerError::Unavailable) };
        let after = query.after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        // Holds the lowest so far, one more than are asked for at most.
        let mut found: BTreeMap<&ByteString, (Partition, &Session)> = BTreeMap::new();
        for (partition, run) in partitions {
            for (client_id, session) in &run.sessions {
                let is_after = match after {
                    Bound::Excluded(after) => **client_id > *after,
                    Bound::Included(_) | Bound::Unbounded => true,
                };
                if !is_after || !client_id.starts_with(&query.prefix) {
                    continue;
                }
                found.insert(client_id, (*partition, session));
                if found.len() > query.limit {
                    found.pop_last();
                }
            }
        }
        let standing = |(partition, session): (Partition, &Session)| {
            self.session_standing(partitions.get(&partition)?, session)
        };
        Ok(found.into_values().filter_map(standing).collect())
    }

    /// One session.
    pub(super) fn show_session(&self, client_id: &str) -> Result<Option<SessionDetail>, OwnerError> {
        let Queues::Loaded(partitions) = &self.queues else { return Err(OwnerError::Unavailable) };
        let run = partitions.get(&self.partition_of(client_id)).ok_or(OwnerError::Unavailable)?;
        let Some(session) = run.sessions.get(client_id) else { return Ok(None) };
        let subscriptions = run.queues.subscriptions(session.slot).map(|all| all.in_force());
        Ok(self.session_standing(run, session).map(|one| (one, subscriptions.unwrap_or_default())))
    }

    fn session_standing(&self, run: &PartitionRun, session: &Session) -> Option<SessionStanding> {
        let client_id = &session.id.name;
        let attached = self.registry.attached(client_id);
        let attached = attached.filter(|attached| attached.session == session.id.number);
        let meta = &session.meta;
        Some(SessionStanding {
            client_id: client_id.clone(),
            host: attached.map(|attached| attached.host.clone()),
            version: meta.version,
            user: meta.user.clone(),
            expiry_secs: meta.expiry_secs,
            created_at_ms: meta.created_at_ms,
            disconnected_at_ms: meta.disconnected_at_ms.filter(|_| attached.is_none()),
            subscription_count: run.queues.subscriptions(session.slot)?.count(),
            queue: run.queues.standing(session.slot)?,
            now_ms: self.parts.surroundings.now_ms(),
        })
    }
}

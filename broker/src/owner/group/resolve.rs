//! What became of QoS 2 publishes that were under way when their host died: whoever opens the group of a publisher looks
//! for their records in the logs of all partitions, of which some may have it and others not. No host repeats a publish
//! before that, so the answer is final.

use super::exactly_once::publisher_in;
use super::partition_run::PartitionRun;
use crate::log::ReadError;
use crate::log::state::StateWrite;
use crate::owner::intent_search::IntentSearch;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_core::partition::{Partition, PartitionGroup, Partitioning};
use tracing::debug;

/// Records of a publish are not older than its intent, but for what clocks may have stepped back.
const CLOCK_SLACK_MS: u64 = 2_000;

/// Notes for each intent without a known outcome which partitions have its record, and forgets it if none has: a repeat of its
/// client goes to the others, or to all. Returns what to store. Reads the log of every partition from the oldest such
/// intent on, and nothing when there is none.
///
/// # Errors
///
/// [`ReadError`]: the log cannot be read now.
pub(super) async fn resolve_intents(
    search: &IntentSearch,
    (group, partitioning): (PartitionGroup, Partitioning),
    partitions: &mut BTreeMap<Partition, PartitionRun>,
) -> Result<Vec<StateWrite>, ReadError> {
    let mut wanted = BTreeSet::new();
    let mut since_ms = u64::MAX;
    for session in partitions.values().flat_map(|run| run.sessions.values()) {
        for (_, incoming) in session.exactly_once.iter().flat_map(|one| one.unsettled()) {
            wanted.insert(incoming.unique_id);
            since_ms = since_ms.min(incoming.since_ms);
        }
    }
    let mut found: BTreeMap<u128, u64> = BTreeMap::new();
    if !wanted.is_empty() {
        let since_ms = since_ms.saturating_sub(CLOCK_SLACK_MS);
        for partition in partitioning.partitions() {
            for unique_id in search.find(group, (partition, since_ms), &wanted).await? {
                *found.entry(unique_id).or_default() |= 1_u64 << (partition.0 % 64);
            }
        }
        debug!(intents = wanted.len(), found = found.len(), "QoS 2 publishes under way were looked for");
    }
    Ok(partitions.values_mut().flat_map(|run| note_found(run, &found)).collect())
}

fn note_found(run: &mut PartitionRun, found: &BTreeMap<u128, u64>) -> Vec<StateWrite> {
    let partition = run.partition;
    let mut writes = Vec::new();
    for session in run.sessions.values_mut() {
        let Some(mut exactly_once) = session.exactly_once.take() else { continue };
        let unsettled: Vec<_> = exactly_once.unsettled().collect();
        for (packet_id, incoming) in unsettled {
            let bits = found.get(&incoming.unique_id).copied().unwrap_or(0);
            let noted = exactly_once.note_found(packet_id, bits).filter(|noted| noted.found != 0);
            if noted.is_none() {
                exactly_once.release(packet_id);
            }
            let key = session.in_key(packet_id).encode();
            let value = noted.map(|noted| publisher_in(noted).encode());
            writes.push(StateWrite { partition, key, value });
        }
        session.exactly_once = (!exactly_once.is_empty()).then_some(exactly_once);
    }
    writes
}

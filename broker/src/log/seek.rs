//! Finds a place in a partition by time.

use super::{Bounds, Log, ReadError, ReadEvent};
use tidemill_core::partition::{Offset, Partition};

/// An offset of `partition` from which on everything is that was appended at `time_ms` (milliseconds since the Unix
/// epoch) or later: at most twice as far from the end as the first such record. Takes append times to rise with offsets.
///
/// # Errors
///
/// [`ReadError`] of the log.
pub async fn offset_at(log: &dyn Log, partition: Partition, time_ms: u64) -> Result<Offset, ReadError> {
    let Bounds { start, end } = log.bounds(partition).await?;
    // Gallops back from the end: what is looked for is young.
    let mut step = 1;
    loop {
        let probe = end.saturating_sub(step).max(start);
        let is_older = append_time_ms(log, partition, probe).await?.is_some_and(|time| time < time_ms);
        if is_older || probe == start {
            return Ok(probe);
        }
        step *= 2;
    }
}

/// Append time of the first record at `from` or behind it; `None` at the end.
async fn append_time_ms(log: &dyn Log, partition: Partition, from: Offset) -> Result<Option<u64>, ReadError> {
    match log.reader(partition, from).next().await? {
        ReadEvent::Records(records) => Ok(records.first().map(|record| record.append_time_ms)),
        ReadEvent::End(_) => Ok(None),
    }
}

//! Finds a place in a partition by time.

use super::{Bounds, Log, ReadError, ReadEvent};
use tidemill_core::partition::{Offset, Partition};

/// So many records too many are cheaper than looking for a closer place.
const CLOSE: Offset = 1_024;

/// An offset of `partition` from which on everything is that was appended at `time_ms` (milliseconds since the Unix
/// epoch) or later: at most 1,024 before the first such record, or farther where the log is damaged. Takes append times
/// to rise with offsets.
///
/// # Errors
///
/// [`ReadError`]: the log cannot be read now.
pub async fn offset_at(log: &dyn Log, partition: Partition, time_ms: u64) -> Result<Offset, ReadError> {
    let Bounds { start, end } = log.bounds(partition).await?;
    // Gallops back from the end: what is looked for is young.
    let (mut older, mut younger, mut step) = (end, end, 1);
    while older > start {
        older = end.saturating_sub(step).max(start);
        if is_older(log, (partition, older), time_ms).await? {
            break;
        }
        younger = older;
        step *= 2;
    }
    while younger - older > CLOSE {
        let middle = older + (younger - older) / 2;
        if is_older(log, (partition, middle), time_ms).await? {
            older = middle;
        } else {
            younger = middle;
        }
    }
    Ok(older)
}

/// Whether the first record at `from` or behind it was appended before `time_ms`; false at the end, and where nobody can
/// say.
async fn is_older(
    log: &dyn Log,
    (partition, from): (Partition, Offset),
    time_ms: u64,
) -> Result<bool, ReadError> {
    match log.reader(partition, from).next().await {
        Ok(ReadEvent::Records(records)) => {
            Ok(records.first().is_some_and(|record| record.append_time_ms < time_ms))
        }
        Ok(ReadEvent::End(_)) | Err(ReadError::Damaged { .. } | ReadError::OutOfRange { .. }) => Ok(false),
        Err(error @ (ReadError::Unavailable { .. } | ReadError::Closed)) => Err(error),
    }
}

//! A seat is a reader's place in a consumer. A reader that is not being asked may lose it to one that is: it keeps its
//! position and takes a seat again when it goes on.

use super::consumers::{AttachError, Attachment, Consumers};
use crate::log::ReadError;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tidemill_core::partition::{Offset, Partition};

/// How long a reader waits for a seat.
const SEAT_MAX: Duration = Duration::from_secs(10);
/// Pause between two looks for a seat; a seat that comes free ends it.
const SEAT_PAUSE: Duration = Duration::from_millis(50);

/// All seats of one log.
pub(super) struct Seats {
    consumers: Arc<Consumers>,
    of_partition: Mutex<BTreeMap<Partition, Vec<Weak<Seat>>>>,
    clock: AtomicU64,
}

/// Where a reader sits, if it does.
#[derive(Default)]
pub(super) struct Seat {
    taken: Mutex<Option<Taken>>,
    /// Reading of the clock when the reader was last asked; 0 while it is being asked.
    left_at: AtomicU64,
}

/// What a seated reader has.
pub(super) struct Taken {
    pub(super) attachment: Attachment,
    /// An end of the partition that is known and was not yielded: from sitting down, or told behind records.
    pub(super) end: Offset,
}

/// Keeps a seat from being given away while its reader is being asked.
pub(super) struct Asked<'a> {
    seats: &'a Seats,
    seat: &'a Seat,
}

impl Seats {
    pub(super) fn new(consumers: Consumers) -> Self {
        Self { consumers: Arc::new(consumers), of_partition: Mutex::default(), clock: AtomicU64::new(1) }
    }

    /// A place for one more reader of `partition`, not seated yet.
    pub(super) fn add(&self, partition: Partition) -> Arc<Seat> {
        let seat = Arc::new(Seat::default());
        let mut seats = self.of_partition.lock();
        let seats = seats.entry(partition).or_default();
        seats.retain(|seat| seat.strong_count() > 0);
        seats.push(Arc::downgrade(&seat));
        seat
    }

    pub(super) fn ask<'a>(&'a self, seat: &'a Seat) -> Asked<'a> {
        seat.left_at.store(0, Ordering::SeqCst);
        Asked { seats: self, seat }
    }

    /// Seats a reader, if need be in the place of the one that was not asked for longest.
    pub(super) async fn sit(
        &self,
        seat: &Seat,
        partition: Partition,
        position: Offset,
        end: Offset,
    ) -> Result<(), ReadError> {
        let unavailable =
            |error: AttachError| ReadError::Unavailable { partition: partition.0, reason: error.to_string() };
        let deadline = Instant::now() + SEAT_MAX;
        loop {
            let freed = self.consumers.freed().notified();
            let consumers = Arc::clone(&self.consumers);
            let attaching = tokio::task::spawn_blocking(move || consumers.attach(partition, position));
            match attaching.await.map_err(|_| ReadError::Closed)? {
                Ok(attachment) => {
                    *seat.taken.lock() = Some(Taken { attachment, end });
                    return Ok(());
                }
                Err(AttachError::Busy) if Instant::now() < deadline => self.make_room(partition),
                Err(error) => return Err(unavailable(error)),
            }
            // Whether it was freed for this reader or the pause is over, the next look tells.
            let _ = tokio::time::timeout(SEAT_PAUSE, freed).await;
        }
    }

    fn make_room(&self, partition: Partition) {
        let seats = self.of_partition.lock();
        let seats = seats.get(&partition).into_iter().flatten().filter_map(Weak::upgrade);
        let left =
            seats.filter(|seat| seat.left_at.load(Ordering::SeqCst) > 0 && seat.taken.lock().is_some());
        if let Some(longest) = left.min_by_key(|seat| seat.left_at.load(Ordering::SeqCst)) {
            longest.leave();
        }
    }
}

impl Seat {
    /// Looks at what the reader has, if it is seated.
    pub(super) fn with<T>(&self, look: impl FnOnce(&mut Taken) -> T) -> Option<T> {
        self.taken.lock().as_mut().map(look)
    }

    /// Gives the seat up.
    pub(super) fn leave(&self) {
        drop(self.taken.lock().take());
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let now = self.seats.clock.fetch_add(1, Ordering::SeqCst);
        self.seat.left_at.store(now, Ordering::SeqCst);
    }
}

//! One sweep per thread of connections: keep alives, whether this broker may still act, and retained messages that
//! have expired.

use super::Services;
use crate::cluster::Validity;
use crate::mailbox::{CloseReason, Mailbox, monotonic_us, unix_ms};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tidemill_core::packet::ReasonCode;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// How long after its end of validity a broker may still have clients.
const VALIDITY_EVERY: Duration = Duration::from_millis(200);
/// A keep alive is found expired about so much late, at most.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Larger than any block that the allocator takes from a shared page.
const LARGE_BLOCK_BYTES: usize = 4 << 20;

thread_local! {
    static WATCHED: RefCell<HashMap<u64, Arc<Mailbox>>> = RefCell::new(HashMap::new());
}

/// Keeps a mailbox in the sweep of this thread until it is dropped, on this thread.
#[derive(Debug)]
pub(super) struct Watched(u64);

pub(super) fn watch(mailbox: &Arc<Mailbox>) -> Watched {
    WATCHED.with_borrow_mut(|watched| watched.insert(mailbox.id(), Arc::clone(mailbox)));
    Watched(mailbox.id())
}

impl Drop for Watched {
    fn drop(&mut self) {
        // At the end of the thread the map may be gone first.
        let _ = WATCHED.try_with(|watched| {
            if let Ok(mut watched) = watched.try_borrow_mut() {
                watched.remove(&self.0);
                if watched.len() * 4 < watched.capacity() {
                    watched.shrink_to_fit();
                }
            }
        });
    }
}

/// The allocator looks for memory to give back to the system when a large block is freed, and only then: without this,
/// what a burst or many clients took stays until the next burst. The block is never touched, so it costs no memory.
fn give_memory_back() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(LARGE_BLOCK_BYTES)));
}

/// Says when the threads of connections are to sweep, and sweeps what they share. A timer on each of them would be looked
/// at whenever the thread rests.
pub(super) async fn time_sweeps(services: &Services, rounds: &watch::Sender<()>) {
    time_rounds(&services.validity, || {
        services.router.sweep_retained(unix_ms());
        rounds.send_replace(());
    })
    .await;
}

async fn time_rounds(validity: &Validity, begin_round: impl Fn()) {
    let mut swept = Instant::now();
    loop {
        // A broker that is valid for good need not look.
        sleep(if validity.is_for_good() { SWEEP_EVERY } else { VALIDITY_EVERY }).await;
        if !validity.is_valid() || swept.elapsed() >= SWEEP_EVERY {
            swept = Instant::now();
            begin_round();
        }
    }
}

/// Sweeps the connections of this thread in each round, until it is dropped. Start it once on each thread of connections.
pub(super) async fn sweep_thread(services: Arc<Services>, mut rounds: watch::Receiver<()>) {
    while rounds.changed().await.is_ok() {
        give_memory_back();
        let is_valid = services.validity.is_valid();
        let now_ms = monotonic_us() / 1_000;
        WATCHED.with_borrow(|watched| {
            for mailbox in watched.values() {
                if is_valid {
                    mailbox.sweep(now_ms);
                } else {
                    mailbox.close(CloseReason::Broker(ReasonCode::SERVER_SHUTTING_DOWN));
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use tokio::time::timeout;

    async fn rounds_within(validity: &Validity, time: Duration) -> u32 {
        let rounds = Cell::new(0);
        let timed = time_rounds(validity, || rounds.set(rounds.get() + 1));
        assert!(timeout(time, timed).await.is_err());
        rounds.get()
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_begins_every_second_and_soon_after_the_end_of_validity() {
        let half = Duration::from_millis(10_500);
        let validity = Validity::always();
        assert_eq!(rounds_within(&validity, half).await, 10);

        validity.set(u64::MAX - 1);
        assert_eq!(rounds_within(&validity, half).await, 10);

        validity.set(0);
        assert_eq!(rounds_within(&validity, VALIDITY_EVERY + Duration::from_millis(1)).await, 1);
    }
}

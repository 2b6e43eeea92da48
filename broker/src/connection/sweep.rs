//! One sweep per thread of connections: keep alives, whether this broker may still act, and retained messages that
//! have expired.

use super::Services;
use crate::mailbox::{CloseReason, Mailbox, monotonic_us, unix_ms};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tidemill_core::packet::ReasonCode;
use tokio::time::MissedTickBehavior;

/// How long after its end of validity a broker may still have clients.
const VALIDITY_EVERY: Duration = Duration::from_millis(200);
/// A keep alive is found expired at most this many rounds late.
const KEEP_ALIVE_ROUNDS: u32 = 5;

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

/// Sweeps the connections of this thread until it is dropped. Start it once on each thread of connections.
pub(super) async fn sweep_thread(services: Arc<Services>) {
    let mut every = tokio::time::interval(VALIDITY_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut round = 0_u32;
    loop {
        every.tick().await;
        round = round.wrapping_add(1);
        let is_valid = services.validity.is_valid();
        if is_valid && !round.is_multiple_of(KEEP_ALIVE_ROUNDS) {
            continue;
        }
        services.router.sweep_retained(unix_ms());
        give_memory_back();
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

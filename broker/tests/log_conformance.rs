//! The promises of [`tidemill_broker::log`], kept by the implementations that need nothing but this machine.

use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::sync::Arc;
use tidemill_broker::log::conformance::{Handles, Store};
use tidemill_broker::log::memory::{MemoryLog, Offsets};
use tidemill_core::partition::Partitioning;

fn partitioning() -> Partitioning {
    Partitioning::new(6, 3).unwrap()
}

struct Memory {
    first: MemoryLog,
    brokers: Mutex<Vec<Arc<MemoryLog>>>,
}

impl Memory {
    fn new(offsets: Offsets) -> Self {
        Self { first: MemoryLog::new(partitioning(), offsets), brokers: Mutex::default() }
    }
}

impl Store for Memory {
    fn partitioning(&self) -> Partitioning {
        partitioning()
    }

    fn open(&self) -> BoxFuture<'_, Handles> {
        let broker = Arc::new(self.first.another_broker());
        self.brokers.lock().push(Arc::clone(&broker));
        Box::pin(async { Handles { log: Arc::clone(&broker) as _, state: broker } })
    }

    fn restart(&self) -> BoxFuture<'_, Handles> {
        self.brokers.lock().clear();
        self.open()
    }
}

mod memory {
    use super::*;
    tidemill_broker::log_conformance!(Memory::new(Offsets::Contiguous));
}

mod memory_with_gaps {
    use super::*;
    tidemill_broker::log_conformance!(Memory::new(Offsets::WithGaps));
}

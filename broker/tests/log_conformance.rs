//! The promises of [`tidemill_broker::log`], kept by the implementations that need nothing but this machine.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tidemill_broker::log::conformance::retained::RetainingStore;
use tidemill_broker::log::conformance::{Handles, Store};
use tidemill_broker::log::embedded::{DataDirectory, Durability, EmbeddedLog};
use tidemill_broker::log::memory::{MemoryLog, Offsets};
use tidemill_broker::log::retained::RetainedLog;
use tidemill_core::partition::Partitioning;

fn partitioning() -> Partitioning {
    Partitioning::new(6, 3).expect("three groups of two partitions")
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

impl RetainingStore for Memory {
    fn retained(&self) -> Arc<dyn RetainedLog> {
        let mut brokers = self.brokers.lock();
        if brokers.is_empty() {
            brokers.push(Arc::new(self.first.another_broker()));
        }
        brokers.last().expect("there is one now").retained()
    }
}

mod memory {
    use super::*;
    tidemill_broker::log_conformance!(Memory::new(Offsets::Contiguous));
    tidemill_broker::retained_conformance!(Memory::new(Offsets::Contiguous));
    tidemill_broker::index_conformance!(Memory::new(Offsets::Contiguous));
}

mod memory_with_gaps {
    use super::*;
    tidemill_broker::log_conformance!(Memory::new(Offsets::WithGaps));
}

/// One process alone has the data directory, so every broker of a test is the same.
struct Embedded {
    temporary: tempfile::TempDir,
    durability: Durability,
    log: Mutex<Option<Arc<EmbeddedLog>>>,
}

impl Embedded {
    fn new(durability: Durability) -> Self {
        Self {
            temporary: tempfile::tempdir().expect("there is a temporary directory"),
            durability,
            log: Mutex::new(None),
        }
    }

    fn log(&self) -> Arc<EmbeddedLog> {
        let mut log = self.log.lock();
        let open = || {
            let directory =
                DataDirectory::lock(self.temporary.path()).expect("nobody else has the directory");
            EmbeddedLog::open(&directory, partitioning(), self.durability).expect("the log can be opened")
        };
        Arc::clone(log.get_or_insert_with(open))
    }
}

impl Store for Embedded {
    fn partitioning(&self) -> Partitioning {
        partitioning()
    }

    fn open(&self) -> BoxFuture<'_, Handles> {
        let log = self.log();
        Box::pin(async { Handles { log: Arc::clone(&log) as _, state: log } })
    }

    fn restart(&self) -> BoxFuture<'_, Handles> {
        // The test has dropped its handles, so this ends the log and its lock.
        drop(self.log.lock().take());
        self.open()
    }
}

impl RetainingStore for Embedded {
    fn retained(&self) -> Arc<dyn RetainedLog> {
        self.log().retained()
    }
}

mod embedded {
    use super::*;
    tidemill_broker::retained_conformance!(Embedded::new(Durability::Fsync));
    tidemill_broker::index_conformance!(Embedded::new(Durability::Fsync));
    tidemill_broker::log_conformance!(Embedded::new(Durability::Fsync));
}

mod embedded_synced_at_intervals {
    use super::*;
    tidemill_broker::retained_conformance!(Embedded::new(Durability::Interval(Duration::from_millis(5))));
    tidemill_broker::log_conformance!(Embedded::new(Durability::Interval(Duration::from_millis(5))));
}

mod embedded_synced_by_the_system {
    use super::*;
    tidemill_broker::log_conformance!(Embedded::new(Durability::None));
}

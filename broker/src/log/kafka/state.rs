//! The state in a compacted topic. One transactional id per partition group: whoever initialises it fences all former
//! owners in Kafka itself.

mod load;
mod owner;

use super::KafkaSettings;
use super::clients::{Consumer, state_producer};
use crate::log::state::{Commit, CommitOutcome, OpenError, OpenedGroup, StateWriter};
use futures::future::BoxFuture;
use load::load;
use owner::{CommitLimits, Owner, PendingCommit};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::Producer as _;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_core::partition::{Partition, PartitionGroup};
use tokio::sync::{mpsc, oneshot};

/// Bound of opening a group. A group that is not loaded by then is not served.
const OPEN_MAX: Duration = Duration::from_secs(30);
/// Bound of one attempt to fence.
const FENCE_MAX: Duration = Duration::from_secs(10);
/// Pause between two attempts.
const FENCE_PAUSE: Duration = Duration::from_millis(100);

/// What an open needs.
pub(super) struct Opening {
    pub(super) settings: Arc<KafkaSettings>,
    pub(super) probe: Arc<Consumer>,
    pub(super) group: PartitionGroup,
    pub(super) partitions: Vec<Partition>,
}

/// Fences, then loads. The order is what makes the load complete: after fencing nobody else commits, and the end that
/// is asked for then is behind everything that anybody committed.
pub(super) fn open(opening: Opening) -> BoxFuture<'static, Result<OpenedGroup, OpenError>> {
    Box::pin(async move {
        let group = opening.group.0;
        let ended = |_| OpenError::Unavailable { group, reason: "the broker is stopping".to_owned() };
        let opened = tokio::task::spawn_blocking(move || opening.open()).await.map_err(ended)??;
        Ok(opened)
    })
}

impl Opening {
    fn open(&self) -> Result<OpenedGroup, OpenError> {
        let deadline = Instant::now() + OPEN_MAX;
        let unavailable = |reason: String| OpenError::Unavailable { group: self.group.0, reason };
        let producer =
            state_producer(&self.settings, self.group).map_err(|error| unavailable(error.to_string()))?;
        self.fence(&producer, deadline)?;
        let entries = load(self, deadline).map_err(unavailable)?;
        let (commits, taken) = mpsc::channel(1);
        let owner = Owner::new(producer, self.settings.topics.state(), CommitLimits::default());
        std::thread::Builder::new()
            .name(format!("tidemill-pg-{}", self.group.0))
            .spawn(move || owner.run(taken))
            .map_err(|error| unavailable(error.to_string()))?;
        Ok(OpenedGroup { entries, writer: Box::new(Writer { commits }) })
    }

    fn fence(
        &self,
        producer: &super::clients::TransactionalProducer,
        deadline: Instant,
    ) -> Result<(), OpenError> {
        let group = self.group.0;
        loop {
            let error = match producer.init_transactions(FENCE_MAX) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if is_fenced(&error) {
                return Err(OpenError::Fenced { group });
            }
            let retriable = matches!(&error, KafkaError::Transaction(error) if error.is_retriable());
            if !retriable || Instant::now() > deadline {
                return Err(OpenError::Unavailable { group, reason: format!("fencing: {error}") });
            }
            std::thread::sleep(FENCE_PAUSE);
        }
    }
}

/// Whether `error` says that another owner has taken the transactional id.
fn is_fenced(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            RDKafkaErrorCode::Fenced
                | RDKafkaErrorCode::ProducerFenced
                | RDKafkaErrorCode::InvalidProducerEpoch
        )
    )
}

struct Writer {
    /// To the thread of this owner, which ends with the writer.
    commits: mpsc::Sender<PendingCommit>,
}

impl StateWriter for Writer {
    fn commit(&mut self, commit: Commit) -> BoxFuture<'_, CommitOutcome> {
        Box::pin(async move {
            debug_assert!(commit.index.is_empty(), "there is no index in Kafka");
            let writes = commit.writes;
            let (reply, replied) = oneshot::channel();
            if self.commits.send(PendingCommit { writes, reply }).await.is_err() {
                return CommitOutcome::Unknown;
            }
            replied.await.unwrap_or(CommitOutcome::Unknown)
        })
    }
}

//! The thread of one owner: one transaction per commit, one at a time.

use super::is_fenced;
use crate::log::kafka::clients::TransactionalProducer;
use crate::log::state::{CommitOutcome, StateWrite};
use rdkafka::error::{KafkaError, RDKafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseRecord, Producer as _};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// How long a commit may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct CommitLimits {
    /// Bound of one commit, with everything that is tried for it.
    pub(super) commit: Duration,
    /// Bound of one request to the transaction coordinator.
    pub(super) step: Duration,
}

impl Default for CommitLimits {
    fn default() -> Self {
        Self { commit: Duration::from_secs(15), step: Duration::from_secs(5) }
    }
}

/// How often the reports of what was sent are looked for. The client's own flush would look after 100 ms.
const FLUSH_PAUSE: Duration = Duration::from_micros(500);
/// Pause before a failed attempt is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// A commit that an owner asks for.
pub(super) struct PendingCommit {
    pub(super) writes: Vec<StateWrite>,
    pub(super) reply: oneshot::Sender<CommitOutcome>,
}

pub(super) struct Owner {
    producer: TransactionalProducer,
    topic: String,
    limits: CommitLimits,
    transaction: Transaction,
}

/// Where the last attempt was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transaction {
    /// None is open.
    None,
    /// It is not known whether its commit arrived; asking again resolves it.
    Committing,
    /// It must be aborted.
    Broken,
    /// The producer is finished: another owner is there, or Kafka refused it for good.
    Over,
}

/// An attempt failed in a way that ends or repeats it.
enum Failure {
    Over,
    Abort(KafkaError),
    Again(KafkaError),
}

impl Owner {
    /// Takes a producer that has fenced all former ones.
    pub(super) fn new(producer: TransactionalProducer, topic: String, limits: CommitLimits) -> Self {
        Self { producer, topic, limits, transaction: Transaction::None }
    }

    /// Serves commits until the writer is dropped.
    pub(super) fn run(mut self, mut commits: mpsc::Receiver<PendingCommit>) {
        while let Some(PendingCommit { writes, reply }) = commits.blocking_recv() {
            let outcome = self.commit(&writes);
            // An owner that stopped waiting counts it as unknown.
            let _ = reply.send(outcome);
        }
    }

    fn commit(&mut self, writes: &[StateWrite]) -> CommitOutcome {
        let deadline = Instant::now() + self.limits.commit;
        loop {
            match self.resolve().and_then(|()| self.attempt(writes, deadline)) {
                Ok(()) => return CommitOutcome::Committed,
                Err(Failure::Over) => {
                    self.transaction = Transaction::Over;
                    return CommitOutcome::Fenced;
                }
                Err(Failure::Abort(error)) => {
                    tracing::warn!(%error, topic = self.topic, "transaction aborted");
                    self.transaction = Transaction::Broken;
                }
                Err(Failure::Again(error)) => {
                    tracing::debug!(%error, topic = self.topic, "transaction repeated");
                }
            }
            if Instant::now() > deadline {
                return CommitOutcome::Unknown;
            }
            std::thread::sleep(RETRY_PAUSE);
        }
    }

    /// Ends what the last attempt has left open.
    fn resolve(&mut self) -> Result<(), Failure> {
        match self.transaction {
            Transaction::None => return Ok(()),
            Transaction::Over => return Err(Failure::Over),
            Transaction::Committing => self.judge(self.producer.commit_transaction(self.limits.step))?,
            Transaction::Broken => self.judge(self.abort())?,
        }
        self.transaction = Transaction::None;
        Ok(())
    }

    /// Aborts the open transaction. The client waits for reports of what was sent, so they are taken meanwhile.
    fn abort(&self) -> Result<(), KafkaError> {
        std::thread::scope(|scope| {
            let aborting = scope.spawn(|| self.producer.abort_transaction(self.limits.step));
            while !aborting.is_finished() {
                self.producer.poll(Duration::ZERO);
                std::thread::sleep(FLUSH_PAUSE);
            }
            aborting.join().unwrap_or(Err(KafkaError::Canceled))
        })
    }

    fn attempt(&mut self, writes: &[StateWrite], deadline: Instant) -> Result<(), Failure> {
        if writes.is_empty() {
            return Ok(());
        }
        self.judge(self.producer.begin_transaction())?;
        self.transaction = Transaction::Broken;
        for write in writes {
            self.send(write, deadline)?;
        }
        self.flush(deadline)?;
        self.transaction = Transaction::Committing;
        self.resolve()
    }

    fn send(&self, write: &StateWrite, deadline: Instant) -> Result<(), Failure> {
        loop {
            let record = BaseRecord::<[u8], [u8], ()>::to(&self.topic).partition(write.partition.0.into());
            let record = record.key(&write.key[..]);
            let record = match &write.value {
                Some(value) => record.payload(&value[..]),
                None => record,
            };
            let Err((error, _)) = self.producer.send(record) else { return Ok(()) };
            if error.rdkafka_error_code() != Some(RDKafkaErrorCode::QueueFull) || Instant::now() > deadline {
                return self.judge(Err(error)).map_err(abort);
            }
            self.producer.poll(Duration::from_millis(1));
        }
    }

    /// Waits until everything sent is reported.
    fn flush(&self, deadline: Instant) -> Result<(), Failure> {
        loop {
            self.producer.poll(Duration::ZERO);
            if self.producer.in_flight_count() == 0 {
                return Ok(());
            }
            if let Some((code, _)) = self.producer.client().fatal_error() {
                return self.judge(Err(KafkaError::Global(code)));
            }
            if Instant::now() > deadline {
                return Err(Failure::Abort(KafkaError::Flush(RDKafkaErrorCode::OperationTimedOut)));
            }
            std::thread::sleep(FLUSH_PAUSE);
        }
    }

    /// Sorts what Kafka answers by what follows from it.
    fn judge(&self, result: Result<(), KafkaError>) -> Result<(), Failure> {
        let Err(error) = result else { return Ok(()) };
        let transaction = if let KafkaError::Transaction(error) = &error { Some(error) } else { None };
        let fatal = transaction.is_some_and(RDKafkaError::is_fatal);
        let must_abort = transaction.is_some_and(RDKafkaError::txn_requires_abort);
        if fatal || is_fenced(&error) || self.producer.client().fatal_error().is_some() {
            if !is_fenced(&error) {
                tracing::error!(%error, topic = self.topic, "state cannot be written any more");
            }
            Err(Failure::Over)
        } else if must_abort {
            Err(Failure::Abort(error))
        } else {
            Err(Failure::Again(error))
        }
    }
}

/// Whatever went wrong with a record of a transaction, the transaction cannot be committed.
fn abort(failure: Failure) -> Failure {
    match failure {
        Failure::Over => Failure::Over,
        Failure::Abort(error) | Failure::Again(error) => Failure::Abort(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::kafka::KafkaSettings;
    use crate::log::kafka::clients::state_producer;
    use bytes::Bytes;
    use rdkafka::mocking::MockCluster;
    use rdkafka::producer::DefaultProducerContext;
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
    use tidemill_contract::names::Topics;
    use tidemill_core::partition::{Partition, PartitionGroup, Partitioning};

    struct Scene {
        cluster: MockCluster<'static, DefaultProducerContext>,
        owner: Owner,
    }

    impl Scene {
        fn new(commit: Duration) -> Self {
            let cluster = MockCluster::new(1).unwrap();
            cluster.create_topic("t.state", 2, 1).unwrap();
            let settings = KafkaSettings {
                bootstrap_servers: cluster.bootstrap_servers(),
                topics: Topics::new("t"),
                partitioning: Partitioning::new(2, 1).unwrap(),
                replication_factor: 1,
                min_in_sync_replicas: 1,
                maximum_packet_bytes: 1 << 20,
            };
            let producer = state_producer(&settings, PartitionGroup(0)).unwrap();
            producer.init_transactions(Duration::from_secs(30)).unwrap();
            let limits = CommitLimits { commit, step: Duration::from_millis(200) };
            Self { owner: Owner::new(producer, "t.state".to_owned(), limits), cluster }
        }

        fn commit(&mut self) -> CommitOutcome {
            let write = |partition| StateWrite {
                partition: Partition(partition),
                key: Bytes::from_static(b"k"),
                value: (partition == 0).then(|| Bytes::from_static(b"v")),
            };
            self.owner.commit(&[write(0), write(1)])
        }
    }

    #[test]
    fn a_commit_that_kafka_does_not_answer_is_unknown_and_known_when_it_is_repeated() {
        let mut scene = Scene::new(Duration::from_millis(500));
        assert_eq!(scene.commit(), CommitOutcome::Committed);
        scene.cluster.broker_down(1).unwrap();

        assert_eq!(scene.commit(), CommitOutcome::Unknown);
        scene.cluster.broker_up(1).unwrap();
        // Each repeat is bounded; the client connects again within a few of them.
        let outcome = (0..100).map(|_| scene.commit()).find(|outcome| *outcome != CommitOutcome::Unknown);

        assert_eq!(outcome, Some(CommitOutcome::Committed));
    }

    #[test]
    fn a_transaction_that_must_be_aborted_is_repeated_in_the_same_commit() {
        let mut scene = Scene::new(Duration::from_secs(30));
        let refused = RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_RECORD;
        scene.cluster.request_errors(RDKafkaApiKey::Produce, &[refused]);

        assert_eq!(scene.commit(), CommitOutcome::Committed);
    }

    #[test]
    fn a_fenced_owner_is_fenced_for_good() {
        let mut scene = Scene::new(Duration::from_secs(30));
        let fenced = RDKafkaRespErr::RD_KAFKA_RESP_ERR_PRODUCER_FENCED;
        scene.cluster.request_errors(RDKafkaApiKey::EndTxn, &[fenced]);

        assert_eq!(scene.commit(), CommitOutcome::Fenced);
        assert_eq!(scene.commit(), CommitOutcome::Fenced);
    }
}

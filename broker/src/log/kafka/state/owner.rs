//! The thread of one owner: one transaction per commit, one at a time.

use super::is_fenced;
use crate::log::kafka::clients::TransactionalProducer;
use crate::log::state::{CommitOutcome, StateWrite};
use rdkafka::error::{KafkaError, RDKafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseRecord, Producer as _};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// Bound of one commit, with everything that is tried for it.
const COMMIT_MAX: Duration = Duration::from_secs(15);
/// Bound of one request to the transaction coordinator.
const STEP_MAX: Duration = Duration::from_secs(5);
/// How often the reports of what was sent are looked for. The client's own flush would look after 100 ms.
const FLUSH_PAUSE: Duration = Duration::from_micros(500);
/// Pause before a failed attempt is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// A commit that an owner asks for.
pub(super) struct Commit {
    pub(super) writes: Vec<StateWrite>,
    pub(super) reply: oneshot::Sender<CommitOutcome>,
}

pub(super) struct Owner {
    producer: TransactionalProducer,
    topic: String,
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
    pub(super) fn new(producer: TransactionalProducer, topic: String) -> Self {
        Self { producer, topic, transaction: Transaction::None }
    }

    /// Serves commits until the writer is dropped.
    pub(super) fn run(mut self, mut commits: mpsc::Receiver<Commit>) {
        while let Some(Commit { writes, reply }) = commits.blocking_recv() {
            let outcome = self.commit(&writes);
            // An owner that stopped waiting counts it as unknown.
            let _ = reply.send(outcome);
        }
    }

    fn commit(&mut self, writes: &[StateWrite]) -> CommitOutcome {
        let deadline = Instant::now() + COMMIT_MAX;
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
            Transaction::Committing => self.judge(self.producer.commit_transaction(STEP_MAX))?,
            Transaction::Broken => self.judge(self.producer.abort_transaction(STEP_MAX))?,
        }
        self.transaction = Transaction::None;
        Ok(())
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

//! What queues gave up goes to the dead-letter topic, and their cursors over it once it is durable there.

use super::job::Job;
use super::{Group, Queues};
use crate::owner::DeadLetterError;
use std::sync::Arc;
use std::time::Duration;
use tidemill_core::attach::QueueId;
use tidemill_core::partition::{Offset, Partition};
use tidemill_core::queue::dead_letter;
use tokio::time::sleep;
use tracing::warn;

/// Pause before a dead letter that was not published is read and published again.
const RETRY: Duration = Duration::from_secs(1);

/// What became of a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Burial {
    /// It is durable, or can never be.
    Done,
    /// It is to be published again.
    Failed,
}

impl Group {
    /// Messages that came too often are not delivered again: their exchanges are over.
    pub(super) fn end_given_up(&mut self) {
        let Queues::Loaded(partitions) = &mut self.queues else { return };
        let mut given_up = Vec::new();
        for (partition, run) in partitions {
            let taken = run.queues.take_given_up();
            given_up.extend(taken.into_iter().map(|(slot, offset)| ((*partition, slot), offset)));
        }
        for (queue, offset) in given_up {
            self.end_exchanges(queue, &[offset], (&[], &[]));
        }
    }

    /// Publishes what queues gave up.
    pub(super) fn publish_dead_letters(&mut self) {
        let now_ms = self.parts.surroundings.now_ms();
        let Queues::Loaded(partitions) = &mut self.queues else { return };
        for (partition, run) in partitions {
            while let Some(letter) = run.queues.poll_dead_letter() {
                let Some(queue) = run.queues.id(letter.slot).cloned() else { continue };
                let template = (&*self.parts.queues.dead_letter_topic, &queue);
                let message = dead_letter::build(template, &letter.record.message, letter.reason, now_ms);
                let published = message.map(|message| self.parts.dead_letters.publish(Arc::new(message)));
                let (partition, offset) = (*partition, letter.offset);
                let count = self.parts.metrics.dead_letters.clone();
                self.jobs.push(async move {
                    let outcome = match published {
                        Some(published) => match published.await {
                            Ok(()) => {
                                count.inc();
                                Burial::Done
                            }
                            Err(error @ DeadLetterError::Refused { .. }) => {
                                warn!(client_id = %queue.name, %error, "message is dropped");
                                Burial::Done
                            }
                            Err(DeadLetterError::Unavailable) => {
                                sleep(RETRY).await;
                                Burial::Failed
                            }
                        },
                        None => {
                            warn!(client_id = %queue.name, "no topic for dead letters: message is dropped");
                            Burial::Done
                        }
                    };
                    Job::Buried { partition, queue, offset, outcome }
                });
            }
        }
    }

    /// A dead letter is durable, or was not published.
    pub(super) fn handle_buried(
        &mut self,
        partition: Partition,
        queue: &QueueId,
        offset: Offset,
        outcome: Burial,
    ) {
        let Some(run) = self.served(partition) else { return };
        let Some(slot) = run.queues.slot(queue) else { return };
        match outcome {
            Burial::Done => run.queues.handle_buried(slot, offset),
            Burial::Failed => run.queues.handle_not_buried(slot, offset),
        }
    }
}

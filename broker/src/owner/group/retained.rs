//! Subscriptions at QoS 1 that have not got all retained messages. That is stored, so that they get them although broker
//! and connection are gone: from the start then, while a connection that has only ended goes on where it was.
//!
//! At QoS 2 it is not: nobody would know which of them the client has, and it gets none twice.

use super::Group;
use super::partition_run::PartitionRun;
use std::collections::{BTreeSet, HashMap};
use tidemill_core::attach::QueueId;
use tidemill_core::packet::{QoS, SubscriptionOptions};
use tidemill_core::partition::Partition;
use tidemill_core::queue::partition::QueueSlot;
use tidemill_core::session::in_flight::{InFlight, RetainedDue, RetainedFrom};
use tidemill_core::state::key::StateKey;
use tidemill_core::state::value::mark;
use tidemill_core::topic::TopicFilter;

/// Of one partition, by queue.
#[derive(Default)]
pub(super) struct RetainedDues(HashMap<QueueSlot, BTreeSet<TopicFilter>>);

impl RetainedDues {
    /// What is stored of a queue.
    pub(super) fn restore(&mut self, slot: QueueSlot, filters: Vec<TopicFilter>) {
        if !filters.is_empty() {
            self.0.entry(slot).or_default().extend(filters);
        }
    }

    /// True if it was not due before.
    fn insert(&mut self, slot: QueueSlot, filter: TopicFilter) -> bool {
        self.0.entry(slot).or_default().insert(filter)
    }

    /// False if it was not due.
    fn remove(&mut self, slot: QueueSlot, filter: &TopicFilter) -> bool {
        let Some(filters) = self.0.get_mut(&slot) else { return false };
        let was_due = filters.remove(filter);
        if filters.is_empty() {
            self.0.remove(&slot);
        }
        was_due
    }

    pub(super) fn contains(&self, slot: QueueSlot, filter: &TopicFilter) -> bool {
        self.0.get(&slot).is_some_and(|filters| filters.contains(filter))
    }

    /// All of a queue, which is gone.
    pub(super) fn remove_all(&mut self, slot: QueueSlot) -> BTreeSet<TopicFilter> {
        self.0.remove(&slot).unwrap_or_default()
    }

    /// Adds what no host has told how far it is.
    pub(super) fn complete(&self, slot: QueueSlot, in_flight: &mut Option<Box<InFlight>>) {
        let Some(dues) = self.0.get(&slot) else { return };
        let told = &mut in_flight.get_or_insert_default().retained;
        let known: BTreeSet<TopicFilter> = told.iter().map(|due| due.filter.clone()).collect();
        let untold = dues.difference(&known).cloned();
        told.extend(untold.map(|filter| RetainedDue { filter, from: RetainedFrom::Start }));
    }
}

impl Group {
    /// A subscription was made, or took the place of one with the options `before`. Call it when its route is announced:
    /// what is published from then on is in the log.
    pub(super) fn note_retained_due(
        &mut self,
        (partition, queue): (Partition, &QueueId),
        filter: &TopicFilter,
        (options, before): (SubscriptionOptions, Option<SubscriptionOptions>),
    ) {
        if options.qos != QoS::AtLeastOnce {
            // What is left of a former one has its host, for as long as it lives.
            return self.forget_retained_due((partition, queue), std::slice::from_ref(filter));
        }
        // Of a former one at another QoS something may be left, which goes on at this one.
        let goes_on = before.is_some_and(|before| before.qos != QoS::AtLeastOnce);
        let is_due = goes_on || options.retain_handling.is_due(before.is_none());
        if is_due && self.parts.surroundings.may_get_retained(filter) {
            self.set_retained_due((partition, queue), filter);
        }
    }

    /// It has not got all retained messages.
    pub(super) fn set_retained_due(
        &mut self,
        (partition, queue): (Partition, &QueueId),
        filter: &TopicFilter,
    ) {
        let Some((run, slot)) = self.run_of(partition, queue) else { return };
        if run.retained_dues.insert(slot, filter.clone()) {
            let key = StateKey::RetainedDue { session: queue.clone(), filter: filter.clone() };
            self.ledger.write(partition, &key, Some(mark()));
        }
    }

    /// These have got all retained messages, or are to get none any more.
    pub(super) fn forget_retained_due(
        &mut self,
        (partition, queue): (Partition, &QueueId),
        filters: &[TopicFilter],
    ) {
        for filter in filters {
            let Some((run, slot)) = self.run_of(partition, queue) else { return };
            if run.retained_dues.remove(slot, filter) {
                let key = StateKey::RetainedDue { session: queue.clone(), filter: filter.clone() };
                self.ledger.write(partition, &key, None);
            }
        }
    }

    fn run_of(&mut self, partition: Partition, queue: &QueueId) -> Option<(&mut PartitionRun, QueueSlot)> {
        let run = self.served(partition)?;
        let slot = run.queues.slot(queue)?;
        Some((run, slot))
    }
}

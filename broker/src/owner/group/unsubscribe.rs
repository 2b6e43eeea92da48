//! Unsubscribing: what was read before is still delivered, nothing after; the route goes when it is stored.

use super::Group;
use super::commit::CommitWaiter;
use super::inbox::Answer;
use super::operation::Change;
use tidemill_core::attach::{SubscriptionReasons, UnsubscribeRequest};
use tidemill_core::packet::ReasonCode;
use tidemill_core::queue::progress::Mode;
use tidemill_core::queue::subscription::Subscription;
use tidemill_core::state::key::StateKey;
use tidemill_core::topic::{SharedFilter, SubscriptionTarget, TopicFilter};

impl Group {
    /// A host asks to end subscriptions.
    pub(super) fn handle_unsubscribe(
        &mut self,
        request: UnsubscribeRequest,
        answer: Answer<SubscriptionReasons>,
    ) {
        self.handle_change(Change::Unsubscribe(request), answer);
    }

    /// Ends the subscriptions at the head; answered when that is stored.
    pub(super) fn apply_unsubscribe(&mut self, number: u64) {
        let Some(operation) = self.operations.get(number) else { return };
        let Change::Unsubscribe(request) = &operation.change else { return };
        for target in request.targets.clone() {
            let reason = match target {
                SubscriptionTarget::Filter(filter) => self.end_subscription(number, filter),
                SubscriptionTarget::Shared(shared) => self.end_shared_subscription(number, shared),
            };
            if let Some(operation) = self.operations.get(number) {
                operation.reasons.push(reason);
            }
        }
        if let Some(operation) = self.operations.get(number) {
            operation.is_passed = Some(true);
        }
        self.ledger.wait(CommitWaiter::Operation(number));
    }

    fn end_subscription(&mut self, number: u64, filter: TopicFilter) -> ReasonCode {
        let Some(operation) = self.operations.get(number) else { return ReasonCode::UNSPECIFIED_ERROR };
        let (queue, partition) = (operation.queue.clone(), operation.partition);
        let Some(run) = self.served(partition) else { return ReasonCode::UNSPECIFIED_ERROR };
        let Some(slot) = run.queues.slot(&queue) else { return ReasonCode::UNSPECIFIED_ERROR };
        let found = run.queues.subscriptions(slot).and_then(|all| all.get(&filter)).copied();
        let Some(before) = found.filter(|found| found.in_force().is_some()) else {
            return ReasonCode::NO_SUBSCRIPTION_EXISTED;
        };
        let had_route = run.queues.has_route(&filter);
        let is_behind = run.queues.progress(slot).is_some_and(|progress| progress.mode() == Mode::Behind);
        let end = before.end.unwrap_or(run.queues.head());
        let ended = (is_behind && before.is_durable()).then_some(Subscription {
            end: Some(end),
            successor: None,
            ..before
        });
        match ended {
            Some(ended) => drop(run.queues.subscribe(slot, filter.clone(), ended)),
            None => drop(run.queues.unsubscribe(slot, &filter)),
        }
        let is_orphan = had_route && !run.queues.has_route(&filter);
        self.forget_retained_due((partition, &queue), std::slice::from_ref(&filter));
        let key = StateKey::Subscription { queue, target: SubscriptionTarget::Filter(filter.clone()) };
        self.ledger.write(partition, &key, ended.map(|ended| ended.encode()));
        if is_orphan {
            self.withdraw_routes(partition, vec![filter]);
        }
        ReasonCode::SUCCESS
    }

    fn end_shared_subscription(&mut self, number: u64, shared: SharedFilter) -> ReasonCode {
        let Some(operation) = self.operations.get(number) else { return ReasonCode::UNSPECIFIED_ERROR };
        let (queue, partition) = (operation.queue.clone(), operation.partition);
        let Some(run) = self.served(partition) else { return ReasonCode::UNSPECIFIED_ERROR };
        let Some(slot) = run.queues.slot(&queue) else { return ReasonCode::UNSPECIFIED_ERROR };
        if run.queues.unsubscribe_shared(slot, &shared).is_none() {
            return ReasonCode::NO_SUBSCRIPTION_EXISTED;
        }
        let key = StateKey::Subscription { queue, target: SubscriptionTarget::Shared(shared) };
        self.ledger.write(partition, &key, None);
        ReasonCode::SUCCESS
    }
}

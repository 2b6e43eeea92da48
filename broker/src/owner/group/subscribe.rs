//! Subscribing: the start is the log's end, asked after the request came; then routes and state, in parallel; the answer
//! when every member has the routes and the state is stored.

use super::Group;
use super::commit::CommitWaiter;
use super::inbox::Answer;
use super::job::Job;
use super::operation::{Applied, Change, Failed};
use crate::cluster::{Route, RouteChange};
use crate::log::state::KEY_BYTES_MAX;
use std::time::Duration;
use tidemill_core::attach::{OwnerError, StoredSubscription, SubscribeRequest, SubscriptionReasons};
use tidemill_core::packet::{QoS, ReasonCode, SubscriptionOptions};
use tidemill_core::partition::{Offset, Partition};
use tidemill_core::queue::subscription::{Subscription, Successor};
use tidemill_core::state::key::StateKey;
use tidemill_core::topic::{SubscriptionTarget, TopicFilter};
use tokio::time::timeout;
use tracing::warn;

/// Bound on asking the log for its end.
const BOUNDS_WAIT: Duration = Duration::from_secs(5);

impl Group {
    /// A host asks for subscriptions.
    pub(super) fn handle_subscribe(
        &mut self,
        request: SubscribeRequest,
        answer: Answer<SubscriptionReasons>,
    ) {
        self.handle_change(Change::Subscribe(request), answer);
    }

    /// Asks where the log ends now.
    pub(super) fn ask_start(&mut self, operation: u64, partition: Partition) {
        let bounds = self.parts.log.bounds(partition);
        self.jobs.push(async move {
            let end = match timeout(BOUNDS_WAIT, bounds).await {
                Ok(Ok(bounds)) => Some(bounds.end),
                Ok(Err(error)) => {
                    warn!(partition = partition.0, %error, "end of the log cannot be asked");
                    None
                }
                Err(_) => None,
            };
            Job::Bounds { operation, end }
        });
    }

    /// The start is known: the subscriptions hold from here on; their routes and state go out.
    pub(super) fn handle_subscription_start(&mut self, number: u64, end: Option<Offset>) {
        let Some(end) = end else {
            return self.end_operation(number, Some(OwnerError::Unavailable));
        };
        let Some(operation) = self.operations.get(number) else { return };
        let Change::Subscribe(request) = &operation.change else { return };
        let (entries, partition) = (request.subscriptions.clone(), operation.partition);
        let mut routes = Vec::new();
        for (index, entry) in entries.into_iter().enumerate() {
            routes.extend(self.apply_subscription(number, index, entry, end));
        }
        self.ledger.wait(CommitWaiter::Operation(number));
        let passed = (!routes.is_empty()).then(|| self.parts.route_exchange.announce_durable(routes));
        self.note_applied_retained(number);
        let Some(passed) = passed else {
            return self.handle_gate(number, true);
        };
        self.jobs.push(async move {
            // The exchange bounds it.
            let passed = passed.await;
            if let Err(closed) = &passed {
                warn!(partition = partition.0, %closed, "durable route was not confirmed");
            }
            let is_passed = passed.is_ok();
            Job::Gate { operation: number, is_passed }
        });
    }

    fn note_applied_retained(&mut self, number: u64) {
        let Some(operation) = self.operations.get(number) else { return };
        let Change::Subscribe(request) = &operation.change else { return };
        let (queue, partition) = (operation.queue.clone(), operation.partition);
        let noted = operation.applied.iter().filter_map(|applied| {
            let SubscriptionTarget::Filter(filter) = &applied.target else { return None };
            let before = applied.before.and_then(|before| before.in_force()).map(|(options, _)| options);
            Some((filter.clone(), request.subscriptions.get(applied.entry)?.options, before))
        });
        for (filter, options, before) in noted.collect::<Vec<_>>() {
            self.note_retained_due((partition, &queue), &filter, (options, before));
        }
    }

    /// Adds or replaces one subscription; returns the route to announce for it.
    fn apply_subscription(
        &mut self,
        number: u64,
        index: usize,
        entry: StoredSubscription,
        end: Offset,
    ) -> Option<RouteChange> {
        let subscriptions_max = self.parts.subscriptions_max;
        let operation = self.operations.get(number)?;
        let (queue, partition) = (operation.queue.clone(), operation.partition);
        let StoredSubscription { target, options, identifier } = entry;
        let Some(run) = self.served(partition) else {
            return self.reason(number, ReasonCode::UNSPECIFIED_ERROR);
        };
        let Some(slot) = run.queues.slot(&queue) else {
            return self.reason(number, ReasonCode::UNSPECIFIED_ERROR);
        };
        let all = run.queues.subscriptions(slot);
        if all.is_some_and(|all| !all.contains(&target) && all.count() >= subscriptions_max) {
            return self.reason(number, ReasonCode::QUOTA_EXCEEDED);
        }
        let key = StateKey::Subscription { queue, target: target.clone() };
        if key.encode().len() > KEY_BYTES_MAX {
            return self.reason(number, ReasonCode::QUOTA_EXCEEDED);
        }
        let mut was_retained_due = false;
        let (subscription, before, route) = match &target {
            SubscriptionTarget::Filter(filter) => {
                let before = all.and_then(|all| all.get(filter)).copied();
                let next = following(before, (options, identifier), end.max(run.queues.head()));
                run.queues.subscribe(slot, filter.clone(), next);
                let route = (options.qos > QoS::AtMostOnce).then_some(filter.clone());
                was_retained_due = run.retained_dues.contains(slot, filter);
                (next, before, route)
            }
            SubscriptionTarget::Shared(shared) => {
                // Its messages take the live path: no start in the log, no route.
                let next = Subscription { options, identifier, start: 0, end: None, successor: None };
                (next, run.queues.subscribe_shared(slot, shared.clone(), next), None)
            }
        };
        self.ledger.write(partition, &key, Some(subscription.encode()));
        self.reason(number, granted(options.qos));
        let is_gated = route.is_some();
        let applied = Applied { entry: index, target, before, was_retained_due, is_gated };
        self.operations.get(number)?.applied.push(applied);
        route.map(|filter| RouteChange::Add(Route::Durable { partition, filter }))
    }

    fn reason(&mut self, number: u64, reason: ReasonCode) -> Option<RouteChange> {
        self.operations.get(number)?.reasons.push(reason);
        None
    }

    /// Every member has the routes, or some have not confirmed in time.
    pub(super) fn handle_gate(&mut self, number: u64, is_passed: bool) {
        let Some(operation) = self.operations.get(number) else { return };
        operation.is_passed = Some(is_passed);
        self.end_if_done(number);
    }

    /// Entries fail, and things are as before.
    pub(super) fn take_back(&mut self, number: u64, which: Failed) {
        let Some(operation) = self.operations.get(number) else { return };
        let failed = operation.fail(which);
        let (queue, partition) = (operation.queue.clone(), operation.partition);
        let mut orphans: Vec<TopicFilter> = Vec::new();
        // Of two entries with one filter the first has replaced what was there before.
        for Applied { target, before, was_retained_due, .. } in failed.into_iter().rev() {
            let Some(run) = self.served(partition) else { return };
            let Some(slot) = run.queues.slot(&queue) else { return };
            if let SubscriptionTarget::Filter(filter) = &target
                && before.is_some_and(is_lasting)
                && !run
                    .queues
                    .subscriptions(slot)
                    .and_then(|all| all.get(filter))
                    .copied()
                    .is_some_and(is_lasting)
            {
                // A durable subscription has ended. What came since was not kept for it, so it cannot be as before.
                continue;
            }
            match (&target, before) {
                (SubscriptionTarget::Filter(filter), Some(before)) => {
                    run.queues.subscribe(slot, filter.clone(), before)
                }
                (SubscriptionTarget::Filter(filter), None) => run.queues.unsubscribe(slot, filter),
                (SubscriptionTarget::Shared(shared), Some(before)) => {
                    run.queues.subscribe_shared(slot, shared.clone(), before)
                }
                (SubscriptionTarget::Shared(shared), None) => run.queues.unsubscribe_shared(slot, shared),
            };
            if let SubscriptionTarget::Filter(filter) = &target
                && !run.queues.has_route(filter)
            {
                orphans.push(filter.clone());
            }
            if let SubscriptionTarget::Filter(filter) = &target {
                if was_retained_due {
                    self.set_retained_due((partition, &queue), filter);
                } else {
                    self.forget_retained_due((partition, &queue), std::slice::from_ref(filter));
                }
            }
            let key = StateKey::Subscription { queue: queue.clone(), target };
            self.ledger.write(partition, &key, before.map(|before| before.encode()));
        }
        self.withdraw_routes(partition, orphans);
    }
}

/// Whether messages are kept for it from now on.
fn is_lasting(subscription: Subscription) -> bool {
    subscription.is_durable() && subscription.end.is_none()
}

/// The subscription that takes the place of `before`. What waits for a durable one is still due: another durable one keeps
/// its start, and one of QoS 0 follows it once everything below `end` was handed out.
fn following(
    before: Option<Subscription>,
    (options, identifier): (SubscriptionOptions, Option<u32>),
    end: Offset,
) -> Subscription {
    let new = Subscription { options, identifier, start: end, end: None, successor: None };
    let Some(before) = before.filter(Subscription::has_route) else { return new };
    if new.is_durable() {
        return Subscription { start: before.start, ..new };
    }
    let successor = Some(Successor { options, identifier });
    Subscription { end: before.end.or(Some(end)), successor, ..before }
}

fn granted(qos: QoS) -> ReasonCode {
    match qos {
        QoS::AtMostOnce => ReasonCode::SUCCESS,
        QoS::AtLeastOnce => ReasonCode::GRANTED_QOS_1,
        QoS::ExactlyOnce => ReasonCode::GRANTED_QOS_2,
    }
}

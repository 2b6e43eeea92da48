//! What the client is still to get of the retained messages, after its SUBACK. They are put into the mailbox as it has
//! room, so that a million of them need no more memory than one.
//!
//! A persistent session goes on with what has not been sent when its connection ends. Of a subscription at QoS 1 the owner
//! hears when its client has acknowledged all: until then that outlives the broker.

use super::Connection;
use crate::mailbox::Turn;
use crate::router::{LiveSubscription, RetainedProgress, RetainedRequest};
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Context;
use tidemill_core::packet::{QoS, SubscriptionOptions};
use tidemill_core::session::in_flight::{RetainedDue, RetainedFrom};
use tidemill_core::topic::TopicFilter;

/// Subscriptions that are looked at in one poll of the task; then other connections have their turn.
const REQUESTS_PER_POLL: usize = 32;

/// At most one entry for each subscription of the session. A pointer when there is none.
#[derive(Default)]
pub(super) struct RetainedFeed(Option<Box<Requests>>);

#[derive(Default)]
struct Requests {
    /// In the order of their subscriptions.
    queue: VecDeque<RetainedRequest>,
    /// Subscriptions at QoS 1 of a persistent session that were sent everything, which is not acknowledged yet.
    sent: Vec<TopicFilter>,
}

impl Requests {
    fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.sent.is_empty()
    }
}

impl RetainedFeed {
    /// Begins with a subscription. If it was subscribed before and has not got everything, it begins anew.
    pub(super) fn begin(&mut self, request: RetainedRequest) {
        self.forget(&request.filter);
        self.0.get_or_insert_default().queue.push_back(request);
    }

    /// The subscription to `filter` has ended.
    pub(super) fn forget(&mut self, filter: &TopicFilter) {
        if let Some(requests) = &mut self.0 {
            requests.queue.retain(|request| request.filter != *filter);
            requests.sent.retain(|sent| sent != filter);
            if requests.is_empty() {
                self.0 = None;
            }
        }
    }

    /// The connection has ended: what the session goes on with.
    pub(super) fn take_due(&mut self) -> Vec<RetainedDue> {
        let Some(Requests { queue, sent }) = self.0.take().map(|requests| *requests) else {
            return Vec::new();
        };
        let sent = sent.into_iter().map(|filter| RetainedDue { filter, from: RetainedFrom::Sent });
        let from = |request: RetainedRequest| RetainedDue {
            filter: request.filter,
            from: request.from.map_or(RetainedFrom::Start, RetainedFrom::Position),
        };
        sent.chain(queue.into_iter().map(from)).collect()
    }

    /// A subscription was replaced without sending the retained messages again: what has not come yet comes as the new
    /// one says.
    fn replace(&mut self, replacement: RetainedRequest) {
        let requests = self.0.get_or_insert_default();
        let under_way = requests.queue.iter_mut().find(|request| request.filter == replacement.filter);
        if let Some(request) = under_way {
            let from = request.from.take();
            *request = RetainedRequest { from, ..replacement };
        } else if replacement.qos == QoS::AtLeastOnce && !requests.sent.contains(&replacement.filter) {
            // The owner takes it for due if it was not at QoS 1 before.
            requests.sent.push(replacement.filter);
        }
    }
}

impl Connection {
    /// What a subscription gets of the retained messages once its SUBACK has left: everything, if it is new or asks for
    /// it with every SUBSCRIBE (MQTT-3.3.1-9 to -11).
    pub(super) fn plan_retained(&mut self, subscription: &LiveSubscription) -> Option<RetainedRequest> {
        if !self.services.features.retained {
            return None;
        }
        let options = subscription.options;
        let request = self.retained_request(&subscription.filter, (options, subscription.identifier));
        if !options.retain_handling.is_due(subscription.replaces.is_none()) {
            self.retained.replace(request);
            return None;
        }
        Some(request)
    }

    fn retained_request(
        &self,
        filter: &TopicFilter,
        (options, identifier): (SubscriptionOptions, Option<u32>),
    ) -> RetainedRequest {
        RetainedRequest {
            filter: filter.clone(),
            qos: options.qos,
            identifiers: identifier.map(|identifier| Arc::from([identifier])),
            no_local: options.no_local.then(|| self.registered.request.client_id.clone()),
            from: None,
        }
    }

    /// Goes on with what the former connections of the session were sending.
    pub(super) fn restore_retained(&mut self, due: Vec<RetainedDue>) {
        for RetainedDue { filter, from } in due {
            let Some(subscription) = self.subscriptions.get(&filter) else { continue };
            let request = self.retained_request(&filter, (subscription.options, subscription.identifier));
            let requests = self.retained.0.get_or_insert_default();
            match from {
                RetainedFrom::Sent => requests.sent.push(filter),
                RetainedFrom::Start => requests.queue.push_back(request),
                RetainedFrom::Position(position) => {
                    requests.queue.push_back(RetainedRequest { from: Some(position), ..request });
                }
            }
        }
    }

    /// Sends retained messages as far as there is room. The task is called again when there is more room.
    pub(super) fn poll_retained(&mut self, context: &mut Context<'_>) {
        if self.retained.0.is_none() {
            return;
        }
        let mut turn = Turn::begin(&self.services.metrics);
        if self.send_retained(&mut turn) == RetainedProgress::More {
            context.waker().wake_by_ref();
        }
        turn.finish();
        self.report_retained();
    }

    fn send_retained(&mut self, turn: &mut Turn) -> RetainedProgress {
        let Some(requests) = &mut self.retained.0 else { return RetainedProgress::Done };
        for _ in 0..REQUESTS_PER_POLL {
            let Some(request) = requests.queue.front_mut() else { return RetainedProgress::Done };
            match self.services.router.deliver_retained(request, &self.mailbox, turn) {
                RetainedProgress::Done => {
                    let sent = requests.queue.pop_front().filter(|request| request.qos == QoS::AtLeastOnce);
                    requests.sent.extend(sent.map(|request| request.filter));
                }
                progress @ (RetainedProgress::More | RetainedProgress::NoRoom) => return progress,
            }
        }
        RetainedProgress::More
    }

    /// Tells the owner which subscriptions have got everything: nothing of it is in flight any more.
    fn report_retained(&mut self) {
        let Some(requests) = &mut self.retained.0 else { return };
        // A SUBSCRIBE under way may make them due anew.
        let is_over = || !self.work.is_under_way() && !self.mailbox.has_live_in_flight();
        if !self.registered.is_persistent() {
            requests.sent.clear();
        } else if !requests.sent.is_empty() && is_over() {
            self.done.retained.append(&mut requests.sent);
        }
        if requests.is_empty() {
            self.retained.0 = None;
        }
        self.report_acked();
    }
}

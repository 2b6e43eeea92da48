//! What the client is still to get of the retained messages, after its SUBACK. They are put into the mailbox as it has
//! room, so that a million of them need no more memory than one.
//!
//! What has not been sent when the connection ends is forgotten, also for a persistent session: the client gets it when
//! it subscribes again.

use super::Connection;
use crate::mailbox::Turn;
use crate::router::{LiveSubscription, RetainedProgress, RetainedRequest};
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Context;
use tidemill_core::packet::RetainHandling;
use tidemill_core::topic::TopicFilter;

/// Subscriptions that are looked at in one poll of the task; then other connections have their turn.
const REQUESTS_PER_POLL: usize = 32;

/// Requests in the order of their subscriptions; at most one for each subscription of the session. A pointer when there
/// is none.
#[derive(Default)]
pub(super) struct RetainedFeed(Option<Box<Requests>>);

#[derive(Default)]
struct Requests {
    queue: VecDeque<RetainedRequest>,
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
            if requests.queue.is_empty() {
                self.0 = None;
            }
        }
    }

    /// A subscription was replaced without sending the retained messages again: what has not come yet comes as the new
    /// one says.
    fn replace(&mut self, replacement: RetainedRequest) {
        let requests = self.0.iter_mut().flat_map(|requests| requests.queue.iter_mut());
        for request in requests.filter(|request| request.filter == replacement.filter) {
            let from = request.from.take();
            *request = RetainedRequest { from, ..replacement.clone() };
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
        let client_id = &self.registered.request.client_id;
        let request = RetainedRequest {
            filter: subscription.filter.clone(),
            qos: options.qos,
            identifiers: subscription.identifier.map(|identifier| Arc::from([identifier])),
            no_local: options.no_local.then(|| client_id.clone()),
            from: None,
        };
        let is_wanted = match options.retain_handling {
            RetainHandling::Send => true,
            RetainHandling::SendIfNew => subscription.replaces.is_none(),
            RetainHandling::DoNotSend => false,
        };
        if !is_wanted {
            self.retained.replace(request);
            return None;
        }
        Some(request)
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
    }

    fn send_retained(&mut self, turn: &mut Turn) -> RetainedProgress {
        let Some(requests) = &mut self.retained.0 else { return RetainedProgress::Done };
        for _ in 0..REQUESTS_PER_POLL {
            let Some(request) = requests.queue.front_mut() else {
                self.retained.0 = None;
                return RetainedProgress::Done;
            };
            match self.services.router.deliver_retained(request, &self.mailbox, turn) {
                RetainedProgress::Done => drop(requests.queue.pop_front()),
                progress @ (RetainedProgress::More | RetainedProgress::NoRoom) => return progress,
            }
        }
        RetainedProgress::More
    }
}

//! Subscribes and unsubscribes under way: one at a time for each client id, in the order they came.

use super::Group;
use super::inbox::Answer;
use bytestring::ByteString;
use std::collections::{BTreeMap, HashMap, VecDeque};
use tidemill_core::attach::{
    ConnectionEpoch, OwnerError, QueueId, SubscribeRequest, SubscriptionReasons, UnsubscribeRequest,
};
use tidemill_core::packet::ReasonCode;
use tidemill_core::partition::Partition;
use tidemill_core::queue::subscription::Subscription;
use tidemill_core::topic::SubscriptionTarget;

/// Operations of one client id that wait for each other.
const WAITING_MAX: usize = 64;

/// What a host asked.
pub(super) enum Change {
    /// Subscribe.
    Subscribe(SubscribeRequest),
    /// Unsubscribe.
    Unsubscribe(UnsubscribeRequest),
}

impl Change {
    pub(super) fn client_id(&self) -> &ByteString {
        match self {
            Self::Subscribe(request) => &request.client_id,
            Self::Unsubscribe(request) => &request.client_id,
        }
    }

    fn connection(&self) -> ConnectionEpoch {
        match self {
            Self::Subscribe(request) => request.connection,
            Self::Unsubscribe(request) => request.connection,
        }
    }
}

/// One operation under way.
pub(super) struct Operation {
    pub(super) change: Change,
    pub(super) answer: Answer<SubscriptionReasons>,
    /// The session's queue, and where it lives.
    pub(super) queue: QueueId,
    pub(super) partition: Partition,
    /// One for each entry of the request.
    pub(super) reasons: SubscriptionReasons,
    /// Subscriptions that it made: taken back when it fails.
    pub(super) applied: Vec<Applied>,
    /// Whether the state is stored.
    pub(super) is_committed: bool,
    /// Whether the gate was passed; `None` while it is open.
    pub(super) is_passed: Option<bool>,
}

/// One subscription that an operation has made.
pub(super) struct Applied {
    /// Index of its entry in the request.
    pub(super) entry: usize,
    pub(super) target: SubscriptionTarget,
    /// What it has replaced.
    pub(super) before: Option<Subscription>,
    /// Whether retained messages were due to that.
    pub(super) was_retained_due: bool,
    /// Whether its route must be known to every member.
    pub(super) is_gated: bool,
}

/// What fails of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failed {
    /// Some member has not confirmed the routes.
    Gated,
    /// Whoever asked has given up, and has answered or will answer that it failed.
    All,
}

impl Operation {
    /// A failure for every entry that `which` names.
    pub(super) fn fail(&mut self, which: Failed) -> Vec<Applied> {
        let is_failed = |applied: &mut Applied| which == Failed::All || applied.is_gated;
        let failed: Vec<_> = self.applied.extract_if(.., is_failed).collect();
        for applied in &failed {
            if let Some(reason) = self.reasons.get_mut(applied.entry) {
                *reason = ReasonCode::UNSPECIFIED_ERROR;
            }
        }
        failed
    }
}

/// All operations of the group.
#[derive(Default)]
pub(super) struct Operations {
    under_way: BTreeMap<u64, Operation>,
    waiting: HashMap<ByteString, VecDeque<(Change, Answer<SubscriptionReasons>)>>,
}

impl Operations {
    pub(super) fn get(&mut self, operation: u64) -> Option<&mut Operation> {
        self.under_way.get_mut(&operation)
    }

    /// Everybody who waits learns that the group is gone.
    pub(super) fn clear(&mut self) {
        self.under_way.clear();
        self.waiting.clear();
    }
}

impl Group {
    /// Begins an operation, or lets it wait for the one before it of the same client.
    pub(super) fn handle_change(&mut self, change: Change, answer: Answer<SubscriptionReasons>) {
        let client_id = change.client_id().clone();
        if let Some(waiting) = self.operations.waiting.get_mut(&client_id) {
            if waiting.len() >= WAITING_MAX {
                return refuse(answer, OwnerError::QuotaExceeded);
            }
            return waiting.push_back((change, answer));
        }
        self.operations.waiting.insert(client_id, VecDeque::new());
        self.begin(change, answer);
    }

    fn begin(&mut self, change: Change, answer: Answer<SubscriptionReasons>) {
        let client_id = change.client_id().clone();
        let partition = self.partition_of(&client_id);
        let attached = self.registry.attached(&client_id).filter(|one| one.is(change.connection()));
        let session = attached.map(|attached| attached.session);
        let is_away = self.served(partition).is_none();
        let queue = self
            .served(partition)
            .and_then(|run| run.sessions.get(&client_id))
            .filter(|found| Some(found.id.number) == session)
            .map(|found| found.id.clone());
        let Some(queue) = queue else {
            let error = if is_away { OwnerError::Unavailable } else { OwnerError::TakenOver };
            refuse(answer, error);
            return self.begin_next(&client_id);
        };
        let number = self.jobs.next_ticket();
        let operation = Operation {
            change,
            answer,
            queue,
            partition,
            reasons: Vec::new(),
            applied: Vec::new(),
            is_committed: false,
            is_passed: None,
        };
        let is_subscribe = matches!(operation.change, Change::Subscribe(_));
        self.operations.under_way.insert(number, operation);
        if is_subscribe {
            self.ask_start(number, partition);
        } else {
            self.apply_unsubscribe(number);
        }
    }

    fn begin_next(&mut self, client_id: &ByteString) {
        let next = self.operations.waiting.get_mut(client_id).and_then(VecDeque::pop_front);
        match next {
            Some((change, answer)) => self.begin(change, answer),
            None => drop(self.operations.waiting.remove(client_id)),
        }
    }

    /// The state of an operation is stored.
    pub(super) fn handle_operation_committed(&mut self, number: u64) {
        let Some(operation) = self.operations.get(number) else { return };
        operation.is_committed = true;
        self.end_if_done(number);
    }

    /// Answers when state and routes are there; takes back what was not routed.
    pub(super) fn end_if_done(&mut self, number: u64) {
        let Some(operation) = self.operations.get(number) else { return };
        let Some(is_passed) = operation.is_passed.filter(|_| operation.is_committed) else { return };
        if !is_passed {
            self.parts.metrics.gates_closed.inc();
            self.take_back(number, Failed::Gated);
        }
        // The client was told that it failed, or is gone: it must not get what it does not know of.
        if self.operations.get(number).is_some_and(|operation| operation.answer.is_closed()) {
            self.take_back(number, Failed::All);
        }
        self.end_operation(number, None);
    }

    /// Answers an operation and begins the client's next one.
    pub(super) fn end_operation(&mut self, number: u64, error: Option<OwnerError>) {
        let Some(operation) = self.operations.under_way.remove(&number) else { return };
        let is_there =
            self.served(operation.partition).is_some_and(|run| run.queues.slot(&operation.queue).is_some());
        let answer = match error {
            Some(error) => Err(error),
            None if !is_there => Err(OwnerError::TakenOver),
            None => Ok(operation.reasons),
        };
        // Whoever asked may have given up.
        drop(operation.answer.send(answer));
        self.begin_next(operation.change.client_id());
    }
}

fn refuse(answer: Answer<SubscriptionReasons>, error: OwnerError) {
    // Whoever asked may have given up.
    drop(answer.send(Err(error)));
}

//! SUBSCRIBE and UNSUBSCRIBE: one after the other, in the background of the connection, so that nothing else of the
//! client waits for a gate.

use super::Connection;
use crate::cluster::LiveClass;
use crate::mailbox::{CloseReason, Turn};
use crate::router::{LiveSubscription, RetainedRequest};
use futures::FutureExt;
use futures::future::BoxFuture;
use std::collections::{BTreeSet, VecDeque};
use std::task::{Context, Poll};
use tidemill_core::attach::{
    OwnerError, StoredSubscription, SubscribeRequest, SubscriptionReasons, UnsubscribeRequest,
};
use tidemill_core::packet::{
    Packet, PacketId, QoS, ReasonCode, SubAck, Subscribe, SubscriptionOptions, UnsubAck, Unsubscribe,
};
use tidemill_core::session::state::Subscribed;
use tidemill_core::topic::{SubscriptionTarget, TopicFilter};

/// SUBSCRIBE and UNSUBSCRIBE packets that wait for their predecessor; at the bound the socket is not read.
const WAITING_MAX: usize = 16;

/// What is under way, and what waits for it.
#[derive(Default)]
pub(super) struct SubscriptionWork(Option<Box<Work>>);

struct Work {
    stage: Stage,
    waiting: VecDeque<Packet>,
}

enum Stage {
    /// The owner of a persistent session stores subscriptions.
    Subscribing(BoxFuture<'static, Result<SubscriptionReasons, OwnerError>>, Planned<StoredSubscription>),
    /// The owner of a persistent session ends subscriptions.
    Unsubscribing(BoxFuture<'static, Result<SubscriptionReasons, OwnerError>>, Planned<TopicFilter>),
    /// Peers hear of live routes; then the answer leaves, and retained messages follow it.
    Gate(BoxFuture<'static, ()>, Packet, Vec<RetainedRequest>),
}

/// The entries of one packet: those that are refused already, and those that go on.
struct Planned<T> {
    packet_id: PacketId,
    entries: Vec<Result<T, ReasonCode>>,
}

impl<T> Planned<T> {
    /// The reasons in order: the refusals, and one of `answers` for each entry that went on.
    fn reasons(&self, answers: impl IntoIterator<Item = ReasonCode>) -> Vec<ReasonCode> {
        let mut answers = answers.into_iter();
        let mut next = || answers.next().unwrap_or(ReasonCode::UNSPECIFIED_ERROR);
        self.entries.iter().map(|entry| entry.as_ref().map_or_else(|reason| *reason, |_| next())).collect()
    }
}

impl SubscriptionWork {
    pub(super) fn is_full(&self) -> bool {
        self.0.as_ref().is_some_and(|work| work.waiting.len() >= WAITING_MAX)
    }
}

impl Connection {
    /// The subscriptions of a resumed session: what it gets at QoS 0 is served from memory again.
    pub(super) fn restore(&mut self, stored: Vec<StoredSubscription>) {
        let live =
            stored.into_iter().filter_map(|subscription| self.take_subscription(subscription)).collect();
        drop(self.services.router.subscribe_live(&self.mailbox, live));
    }

    pub(super) fn begin_work(&mut self, packet: Packet, turn: &mut Turn) {
        if let Some(work) = &mut self.work.0 {
            work.waiting.push_back(packet);
            return;
        }
        if let Some(stage) = self.stage_of(packet, turn) {
            self.work.0 = Some(Box::new(Work { stage, waiting: VecDeque::new() }));
        }
    }

    /// Goes on with what is under way, as far as it goes now.
    pub(super) fn poll_work(&mut self, context: &mut Context<'_>) {
        if self.work.0.is_none() {
            return;
        }
        let mut turn = Turn::begin(&self.services.metrics);
        // Ends: each round takes a packet away or waits.
        while let Some(mut work) = self.work.0.take() {
            let next = match &mut work.stage {
                Stage::Subscribing(owner, planned) => match owner.as_mut().poll(context) {
                    Poll::Ready(answer) => Self::subscribed(self, answer, planned),
                    Poll::Pending => {
                        self.work.0 = Some(work);
                        break;
                    }
                },
                Stage::Unsubscribing(owner, planned) => match owner.as_mut().poll(context) {
                    Poll::Ready(answer) => Self::unsubscribed(self, answer, planned),
                    Poll::Pending => {
                        self.work.0 = Some(work);
                        break;
                    }
                },
                Stage::Gate(gate, answer, retained) => match gate.as_mut().poll(context) {
                    Poll::Ready(()) => {
                        self.mailbox.send(answer, &mut turn);
                        retained.drain(..).for_each(|request| self.retained.begin(request));
                        None
                    }
                    Poll::Pending => {
                        self.work.0 = Some(work);
                        break;
                    }
                },
            };
            self.advance(work, next, &mut turn);
        }
        turn.finish();
    }

    /// The next stage of the packet under way, or else the first stage of the next packet that has one.
    fn advance(&mut self, mut work: Box<Work>, next: Option<Stage>, turn: &mut Turn) {
        let mut next = next;
        while next.is_none() {
            let Some(packet) = work.waiting.pop_front() else { return };
            next = self.stage_of(packet, turn);
        }
        if let Some(stage) = next {
            work.stage = stage;
            self.work.0 = Some(work);
        }
    }

    fn stage_of(&mut self, packet: Packet, turn: &mut Turn) -> Option<Stage> {
        match packet {
            Packet::Subscribe(subscribe) => self.begin_subscribe(&subscribe, turn),
            Packet::Unsubscribe(unsubscribe) => self.begin_unsubscribe(&unsubscribe, turn),
            Packet::Connect(_)
            | Packet::ConnAck(_)
            | Packet::Publish(_)
            | Packet::Ack(_)
            | Packet::SubAck(_)
            | Packet::UnsubAck(_)
            | Packet::PingReq
            | Packet::PingResp
            | Packet::Disconnect(_)
            | Packet::Auth(_) => None,
        }
    }

    fn begin_subscribe(&mut self, subscribe: &Subscribe, turn: &mut Turn) -> Option<Stage> {
        let planned = self.plan(subscribe);
        let accepted: Vec<_> =
            planned.entries.iter().filter_map(|entry| entry.as_ref().ok().cloned()).collect();
        if accepted.is_empty() {
            let reasons = planned.reasons([]);
            self.mailbox.send(&Packet::SubAck(SubAck { packet_id: planned.packet_id, reasons }), turn);
            return None;
        }
        if self.registered.is_persistent() {
            let request = SubscribeRequest {
                client_id: self.registered.request.client_id.clone(),
                connection: *self.registered.connection.lock(),
                subscriptions: accepted,
            };
            return Some(Stage::Subscribing(self.services.owner.subscribe(request), planned));
        }
        let reasons = planned.reasons(accepted.iter().map(|accepted| granted(accepted.options.qos)));
        Some(self.serve_live(accepted, SubAck { packet_id: planned.packet_id, reasons }))
    }

    /// Adds live receivers; the SUBACK leaves when peers have heard of them, at once if there are none.
    fn serve_live(&mut self, accepted: Vec<StoredSubscription>, answer: SubAck) -> Stage {
        let live: Vec<_> = accepted.into_iter().filter_map(|entry| self.take_subscription(entry)).collect();
        let retained = live.iter().filter_map(|subscription| self.plan_retained(subscription)).collect();
        let gate = self.services.router.subscribe_live(&self.mailbox, live);
        Stage::Gate(gate, Packet::SubAck(answer), retained)
    }

    fn subscribed(
        &mut self,
        answer: Result<SubscriptionReasons, OwnerError>,
        planned: &Planned<StoredSubscription>,
    ) -> Option<Stage> {
        let answers = self.answers(answer, planned.entries.len());
        let reasons = planned.reasons(answers);
        let accepted = planned.entries.iter().zip(&reasons);
        let accepted = accepted.filter(|(_, reason)| !reason.is_failure());
        let accepted = accepted.filter_map(|(entry, _)| entry.as_ref().ok().cloned()).collect();
        Some(self.serve_live(accepted, SubAck { packet_id: planned.packet_id, reasons }))
    }

    fn begin_unsubscribe(&mut self, unsubscribe: &Unsubscribe, turn: &mut Turn) -> Option<Stage> {
        let plan = |text| match SubscriptionTarget::parse(text) {
            Ok(SubscriptionTarget::Filter(filter)) => Ok(filter),
            Ok(SubscriptionTarget::Shared { .. }) => Err(ReasonCode::NO_SUBSCRIPTION_EXISTED),
            Err(_) => Err(ReasonCode::TOPIC_FILTER_INVALID),
        };
        let entries: Vec<_> = unsubscribe.filters.iter().map(plan).collect();
        let planned = Planned { packet_id: unsubscribe.packet_id, entries };
        let filters: Vec<_> =
            planned.entries.iter().filter_map(|entry| entry.as_ref().ok().cloned()).collect();
        if self.registered.is_persistent() && !filters.is_empty() {
            let request = UnsubscribeRequest {
                client_id: self.registered.request.client_id.clone(),
                connection: *self.registered.connection.lock(),
                filters,
            };
            return Some(Stage::Unsubscribing(self.services.owner.unsubscribe(request), planned));
        }
        let reasons = filters.iter().map(|filter| self.drop_subscription(filter)).collect::<Vec<_>>();
        let reasons = planned.reasons(reasons);
        self.mailbox.send(&Packet::UnsubAck(UnsubAck { packet_id: planned.packet_id, reasons }), turn);
        None
    }

    fn unsubscribed(
        &mut self,
        answer: Result<SubscriptionReasons, OwnerError>,
        planned: &Planned<TopicFilter>,
    ) -> Option<Stage> {
        let reasons = planned.reasons(self.answers(answer, planned.entries.len()));
        for (entry, reason) in planned.entries.iter().zip(&reasons) {
            if let (Ok(filter), false) = (entry, reason.is_failure()) {
                self.drop_subscription(filter);
            }
        }
        let answer = Packet::UnsubAck(UnsubAck { packet_id: planned.packet_id, reasons });
        Some(Stage::Gate(futures::future::ready(()).boxed(), answer, Vec::new()))
    }

    fn answers(&self, answer: Result<SubscriptionReasons, OwnerError>, count: usize) -> SubscriptionReasons {
        let failed = |reason| vec![reason; count];
        match answer {
            Ok(reasons) => reasons,
            Err(OwnerError::Unavailable) => failed(ReasonCode::UNSPECIFIED_ERROR),
            Err(OwnerError::NotAuthorized) => failed(ReasonCode::NOT_AUTHORIZED),
            Err(OwnerError::QuotaExceeded) => failed(ReasonCode::QUOTA_EXCEEDED),
            Err(OwnerError::TakenOver) => {
                self.mailbox.close(CloseReason::Broker(ReasonCode::SESSION_TAKEN_OVER));
                failed(ReasonCode::UNSPECIFIED_ERROR)
            }
        }
    }

    /// Refuses what is not served and what is too much; lowers the rest to the QoS that is served.
    fn plan(&self, subscribe: &Subscribe) -> Planned<StoredSubscription> {
        let mut new = BTreeSet::new();
        let highest = if self.services.features.exactly_once { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
        let plan = |entry: &tidemill_core::packet::SubscribeEntry| {
            let filter = match SubscriptionTarget::parse(&entry.filter) {
                Ok(SubscriptionTarget::Filter(filter)) => filter,
                Ok(SubscriptionTarget::Shared { .. }) => {
                    return Err(ReasonCode::SHARED_SUBSCRIPTIONS_NOT_SUPPORTED);
                }
                Err(_) => return Err(ReasonCode::TOPIC_FILTER_INVALID),
            };
            if !new.contains(&filter) && !self.subscriptions.has_room_for(&filter, new.len()) {
                return Err(ReasonCode::QUOTA_EXCEEDED);
            }
            if !self.subscriptions.contains(&filter) {
                new.insert(filter.clone());
            }
            let qos = entry.options.qos.min(highest);
            let options = SubscriptionOptions { qos, ..entry.options };
            Ok(StoredSubscription { filter, options, identifier: subscribe.identifier })
        };
        Planned { packet_id: subscribe.packet_id, entries: subscribe.entries.iter().map(plan).collect() }
    }

    /// Takes a subscription into the session; what the router must know of it.
    fn take_subscription(&mut self, subscription: StoredSubscription) -> Option<LiveSubscription> {
        let StoredSubscription { filter, options, identifier } = subscription.clone();
        let replaces = match self.subscriptions.insert(subscription) {
            Subscribed::New => None,
            Subscribed::Replaced(former) => Some(self.class_of(former)),
            Subscribed::QuotaExceeded => return None,
        };
        Some(LiveSubscription { filter, options, identifier, class: self.class_of(options), replaces })
    }

    fn drop_subscription(&mut self, filter: &TopicFilter) -> ReasonCode {
        let Some(options) = self.subscriptions.remove(filter) else {
            return ReasonCode::NO_SUBSCRIPTION_EXISTED;
        };
        self.retained.forget(filter);
        let gone = (filter.clone(), options, self.class_of(options));
        self.services.router.unsubscribe_live(&self.mailbox, &[gone]);
        ReasonCode::SUCCESS
    }

    /// Ends everything at the end of the connection.
    pub(super) fn forget_subscriptions(&mut self) {
        let all: Vec<_> = self.subscriptions.iter().collect();
        let all: Vec<_> = all
            .into_iter()
            .map(|(filter, options)| (filter.clone(), options, self.class_of(options)))
            .collect();
        self.services.router.unsubscribe_live(&self.mailbox, &all);
    }

    /// What comes from memory: everything for a clean session, QoS 0 for one that has a queue.
    fn class_of(&self, options: SubscriptionOptions) -> LiveClass {
        if self.registered.is_persistent() && options.qos != QoS::AtMostOnce {
            LiveClass::QosZeroOnly
        } else {
            LiveClass::AnyQos
        }
    }
}

fn granted(qos: QoS) -> ReasonCode {
    match qos {
        QoS::AtMostOnce => ReasonCode::SUCCESS,
        QoS::AtLeastOnce => ReasonCode::GRANTED_QOS_1,
        QoS::ExactlyOnce => ReasonCode::GRANTED_QOS_2,
    }
}

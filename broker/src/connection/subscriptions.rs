//! SUBSCRIBE and UNSUBSCRIBE: one after the other, in the background of the connection, so that nothing else of the
//! client waits for a gate.

mod planned;

use super::Connection;
use crate::cluster::LiveClass;
use crate::mailbox::{CloseReason, Turn};
use crate::router::{LiveSubscription, RetainedRequest};
use futures::FutureExt;
use futures::future::BoxFuture;
use planned::Planned;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::task::{Context, Poll};
use tidemill_core::attach::{
    OwnerError, StoredSubscription, SubscribeRequest, SubscriptionReasons, UnsubscribeRequest,
};
use tidemill_core::packet::{
    Packet, QoS, ReasonCode, SubAck, Subscribe, SubscriptionOptions, UnsubAck, Unsubscribe,
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
    Subscribing(
        BoxFuture<'static, Result<SubscriptionReasons, OwnerError>>,
        Planned<StoredSubscription>,
        Lowered,
    ),
    /// The owner of a persistent session ends subscriptions.
    Unsubscribing(BoxFuture<'static, Result<SubscriptionReasons, OwnerError>>, Planned<SubscriptionTarget>),
    /// Peers hear of live routes; then the answer leaves, and retained messages follow it.
    Gate(BoxFuture<'static, ()>, Packet, Vec<RetainedRequest>),
}

/// Subscriptions that a SUBSCRIBE lowers to QoS 0, as they were before: they are served from memory before the owner ends
/// the durable ones, so that no message falls in between (MQTT-3.8.4-4).
struct Lowered(Vec<StoredSubscription>);

impl SubscriptionWork {
    pub(super) fn is_under_way(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn is_full(&self) -> bool {
        self.0.as_ref().is_some_and(|work| work.waiting.len() >= WAITING_MAX)
    }
}

impl Connection {
    /// The subscriptions of a resumed session: what it gets at QoS 0 is served from memory again.
    pub(super) fn restore(&mut self, stored: Vec<StoredSubscription>) {
        let live = self.take_subscriptions(stored);
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
                Stage::Subscribing(owner, planned, lowered) => match owner.as_mut().poll(context) {
                    Poll::Ready(answer) => Self::subscribed(self, answer, planned, lowered),
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
                        // What waited for a member follows SUBACK.
                        self.drain_shared(&mut turn);
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
        let accepted = planned.newest();
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
            let (gate, lowered) = self.lower(&request.subscriptions);
            let owner = self.services.owner.clone();
            let asked = async move {
                gate.await;
                owner.subscribe(request).await
            };
            return Some(Stage::Subscribing(asked.boxed(), planned, lowered));
        }
        let reasons = planned.granted_reasons(|_| None);
        Some(self.serve_live(accepted, SubAck { packet_id: planned.packet_id, reasons }))
    }

    /// Adds live receivers; the SUBACK leaves when peers have heard of them, at once if there are none.
    fn serve_live(&mut self, accepted: Vec<StoredSubscription>, answer: SubAck) -> Stage {
        let live = self.take_subscriptions(accepted);
        let retained = live.iter().filter_map(|subscription| self.plan_retained(subscription)).collect();
        let gate = self.services.router.subscribe_live(&self.mailbox, live);
        Stage::Gate(gate, Packet::SubAck(answer), retained)
    }

    /// Serves what is lowered to QoS 0 from memory; completes when peers have heard of it.
    fn lower(&mut self, accepted: &[StoredSubscription]) -> (BoxFuture<'static, ()>, Lowered) {
        let mut lowered = Vec::new();
        let mut live = Vec::new();
        for entry in accepted.iter().filter(|entry| entry.options.qos == QoS::AtMostOnce) {
            let SubscriptionTarget::Filter(filter) = &entry.target else { continue };
            let former = self.subscriptions.get(filter);
            if let Some(former) = former.filter(|former| former.options.qos > QoS::AtMostOnce) {
                lowered.push(former);
                live.extend(self.take_subscriptions(vec![entry.clone()]));
            }
        }
        if live.is_empty() {
            return (futures::future::ready(()).boxed(), Lowered(lowered));
        }
        (self.services.router.subscribe_live(&self.mailbox, live), Lowered(lowered))
    }

    /// The owner did not lower these: their queue goes on.
    fn raise_again(&mut self, Lowered(former): &Lowered, accepted: &[StoredSubscription]) {
        let is_kept = |former: &&StoredSubscription| accepted.iter().all(|new| new.target != former.target);
        let kept: Vec<_> = former.iter().filter(is_kept).cloned().collect();
        if !kept.is_empty() {
            self.restore(kept);
        }
    }

    fn subscribed(
        &mut self,
        answer: Result<SubscriptionReasons, OwnerError>,
        planned: &Planned<StoredSubscription>,
        lowered: &Lowered,
    ) -> Option<Stage> {
        let asked = planned.newest();
        let mut answers = self.answers(answer, asked.len()).into_iter();
        let failures: BTreeMap<SubscriptionTarget, Option<ReasonCode>> = asked
            .iter()
            .map(|entry| {
                let reason = answers.next().unwrap_or(ReasonCode::UNSPECIFIED_ERROR);
                (entry.target.clone(), reason.is_failure().then_some(reason))
            })
            .collect();
        let failure = |target: &SubscriptionTarget| failures.get(target).copied().flatten();
        let reasons = planned.granted_reasons(failure);
        let accepted: Vec<_> = asked.into_iter().filter(|entry| failure(&entry.target).is_none()).collect();
        self.raise_again(lowered, &accepted);
        Some(self.serve_live(accepted, SubAck { packet_id: planned.packet_id, reasons }))
    }

    fn begin_unsubscribe(&mut self, unsubscribe: &Unsubscribe, turn: &mut Turn) -> Option<Stage> {
        let plan = |text| match SubscriptionTarget::parse(text) {
            Ok(SubscriptionTarget::Shared(_)) if !self.services.features.shared => {
                Err(ReasonCode::NO_SUBSCRIPTION_EXISTED)
            }
            Ok(target) => Ok(target),
            Err(_) => Err(ReasonCode::TOPIC_FILTER_INVALID),
        };
        let entries: Vec<_> = unsubscribe.filters.iter().map(plan).collect();
        let planned = Planned { packet_id: unsubscribe.packet_id, entries };
        let targets: Vec<_> =
            planned.entries.iter().filter_map(|entry| entry.as_ref().ok().cloned()).collect();
        if self.registered.is_persistent() && !targets.is_empty() {
            let request = UnsubscribeRequest {
                client_id: self.registered.request.client_id.clone(),
                connection: *self.registered.connection.lock(),
                targets,
            };
            return Some(Stage::Unsubscribing(self.services.owner.unsubscribe(request), planned));
        }
        let reasons = targets.iter().map(|target| self.drop_subscription(target)).collect::<Vec<_>>();
        let reasons = planned.reasons(reasons);
        self.mailbox.send(&Packet::UnsubAck(UnsubAck { packet_id: planned.packet_id, reasons }), turn);
        None
    }

    fn unsubscribed(
        &mut self,
        answer: Result<SubscriptionReasons, OwnerError>,
        planned: &Planned<SubscriptionTarget>,
    ) -> Option<Stage> {
        let reasons = planned.reasons(self.answers(answer, planned.entries.len()));
        for (entry, reason) in planned.entries.iter().zip(&reasons) {
            if let (Ok(target), false) = (entry, reason.is_failure()) {
                self.drop_subscription(target);
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
        let (mut new, mut new_bytes) = (BTreeSet::new(), 0);
        let highest = if self.services.features.exactly_once { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
        let plan = |entry: &tidemill_core::packet::SubscribeEntry| {
            let target = match SubscriptionTarget::parse(&entry.filter) {
                Ok(SubscriptionTarget::Shared(_)) if !self.services.features.shared => {
                    return Err(ReasonCode::SHARED_SUBSCRIPTIONS_NOT_SUPPORTED);
                }
                Ok(target) => target,
                Err(_) => return Err(ReasonCode::TOPIC_FILTER_INVALID),
            };
            if !new.contains(&target) && !self.subscriptions.has_room_for(&target, new.len(), new_bytes) {
                return Err(ReasonCode::QUOTA_EXCEEDED);
            }
            if !self.subscriptions.contains(&target) && new.insert(target.clone()) {
                new_bytes += target.filter().as_str().len();
            }
            let qos = entry.options.qos.min(highest);
            let options = SubscriptionOptions { qos, ..entry.options };
            Ok(StoredSubscription { target, options, identifier: subscribe.identifier })
        };
        Planned { packet_id: subscribe.packet_id, entries: subscribe.entries.iter().map(plan).collect() }
    }

    /// Takes subscriptions into the session; what the router must still know of them.
    fn take_subscriptions(&mut self, subscriptions: Vec<StoredSubscription>) -> Vec<LiveSubscription> {
        let mut live = Vec::with_capacity(subscriptions.len());
        for StoredSubscription { target, options, identifier } in subscriptions {
            match target {
                SubscriptionTarget::Filter(filter) => {
                    live.extend(self.take_subscription(filter, options, identifier));
                }
                SubscriptionTarget::Shared(target) => self.join_shared(target, options, identifier),
            }
        }
        live
    }

    fn take_subscription(
        &mut self,
        filter: TopicFilter,
        options: SubscriptionOptions,
        identifier: Option<u32>,
    ) -> Option<LiveSubscription> {
        let replaces = match self.subscriptions.insert(filter.clone(), options, identifier) {
            Subscribed::New => None,
            Subscribed::Replaced(former) => Some(self.class_of(former)),
            Subscribed::QuotaExceeded => return None,
        };
        Some(LiveSubscription { filter, options, identifier, class: self.class_of(options), replaces })
    }

    fn drop_subscription(&mut self, target: &SubscriptionTarget) -> ReasonCode {
        let filter = match target {
            SubscriptionTarget::Filter(filter) => filter,
            SubscriptionTarget::Shared(shared) => return self.drop_shared(shared),
        };
        let Some(options) = self.subscriptions.remove(filter) else {
            return ReasonCode::NO_SUBSCRIPTION_EXISTED;
        };
        self.retained.forget(filter);
        let gone = (filter.clone(), options, self.class_of(options));
        self.services.router.unsubscribe_live(&self.mailbox, &[gone]);
        ReasonCode::SUCCESS
    }

    /// Ends the plain ones at the end of the connection.
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

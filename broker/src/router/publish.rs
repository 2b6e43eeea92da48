//! The way of one message: match once, deliver to local mailboxes and to one member of each group, forward once per
//! peer, append once per partition, and report when all of it is done.

use super::countdown::{Countdown, PublishDone};
use super::matches::{Matches, RouteCache};
use super::retained::{Change, Retained};
use super::unsettled::Joined;
use super::{Router, partitions_of};
use crate::cluster::LiveClass;
use crate::log::{AppendDone, Sequence};
use crate::mailbox::{LiveDelivery, Mailbox, Turn, monotonic_us};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidemill_core::message::Message;
use tidemill_core::packet::{QoS, ReasonCode};
use tidemill_core::record::{Origin, Record, RecordBody};
use tidemill_core::session::ack_window::Ticket;
use tidemill_core::session::in_flight::Intent;
use tidemill_core::topic::TopicName;

/// A message and, at QoS 2, the id that is the same in all its records.
type Publish<'a> = (&'a Arc<Message>, Option<u128>);

/// Who waits, once it is known whether a message is retained.
enum Waiting<'a> {
    Done(PublishDone<'a>),
    /// For the store already.
    Counted(Arc<Countdown>),
}

impl Router {
    /// Publishes a message, and retains it if it asks for it. Never waits. `cache` is the publisher's own; appends and
    /// forwards of one publisher keep the order of its calls. What `done` names hears of the end when every append is
    /// committed, every peer has the message and the store has it if it is retained, at once if there is none of these; of
    /// a retained message for which there is no room, with 0x97 if it can be told, and then nobody gets it.
    pub fn publish(
        &self,
        message: &Arc<Message>,
        cache: &mut RouteCache,
        done: PublishDone<'_>,
        turn: &mut Turn,
    ) {
        match self.retained.get().filter(|_| message.retain) {
            Some(retained) => self.publish_retained(retained, (message, cache), done, turn),
            None => self.route((message, cache), done.stored(), Waiting::Done(done), turn),
        }
    }

    fn publish_retained(
        &self,
        retained: &Retained,
        (message, cache): (&Arc<Message>, &mut RouteCache),
        done: PublishDone<'_>,
        turn: &mut Turn,
    ) {
        let order = retained.lock_topic(&message.topic);
        let told = done.ticket().filter(|(mailbox, _)| mailbox.version().is_v5());
        let countdown = if retained.is_durable() { Countdown::begin(done, &self.unsettled) } else { None };
        let stored = countdown.as_ref().map(Countdown::store_done);
        let change = Change { message, can_be_told: told.is_some(), done: stored };
        let is_retained = self.retain(retained, change, turn.now_ms());
        match (is_retained, countdown, told) {
            (true, Some(countdown), _) => {
                self.route((message, cache), done.stored(), Waiting::Counted(countdown), turn);
            }
            (true, None, _) => self.route((message, cache), done.stored(), Waiting::Done(done), turn),
            (false, countdown, told) => {
                countdown.inspect(|countdown| countdown.call_off());
                if let Some((mailbox, ticket)) = told {
                    mailbox.complete(ticket, ReasonCode::QUOTA_EXCEEDED, turn);
                }
            }
        }
        drop(order);
    }

    /// Whether a publish above QoS 0 to `topic` goes through the log.
    pub fn needs_log(&self, topic: &TopicName, cache: &mut RouteCache) -> bool {
        let unknown = self.unknown_partitions.load(Ordering::Acquire);
        (cache.look_up(&self.tables, topic).durable | unknown) != 0
    }

    fn route(
        &self,
        (message, cache): (&Arc<Message>, &mut RouteCache),
        stored: Option<Intent>,
        waiting: Waiting<'_>,
        turn: &mut Turn,
    ) {
        // Before the match: a partition becomes known after its routes are in the tables, so that it counts here or there.
        let unknown = self.unknown_partitions.load(Ordering::Acquire);
        let matches = cache.look_up(&self.tables, &message.topic);
        self.deliver_local(message, &matches, turn);
        for group in &matches.groups {
            group.deliver(message, turn);
        }

        let durable = match message.qos {
            QoS::AtMostOnce => 0,
            // What has it from before a crash does not get it again.
            QoS::AtLeastOnce | QoS::ExactlyOnce => {
                (matches.durable | unknown) & !stored.map_or(0, |intent| intent.found)
            }
        };
        let peers = matches.peers_of(message.qos).count();
        let appends = usize::try_from(durable.count_ones()).unwrap_or(0);
        let (countdown, ticket) = match waiting {
            Waiting::Done(done) if peers + appends > 0 || done.is_told() => {
                (Countdown::begin(done, &self.unsettled), None)
            }
            Waiting::Done(done) => (None, done.ticket()),
            Waiting::Counted(countdown) => (Some(countdown), None),
        };
        if let Some(countdown) = &countdown {
            countdown.add(peers + appends);
        }
        let is_identified = message.qos == QoS::ExactlyOnce && peers + appends > 0;
        let unique_id =
            is_identified.then(|| stored.map_or_else(|| self.unique_id(), |intent| intent.unique_id));
        if peers > 0 {
            self.forward((message, unique_id), &matches, countdown.as_ref());
        }
        for partition in partitions_of(durable) {
            self.append(partition, (message, unique_id), countdown.as_ref());
        }

        let reason = if peers + appends == 0 && matches.targets.is_empty() && matches.groups.is_empty() {
            ReasonCode::NO_MATCHING_SUBSCRIBERS
        } else {
            ReasonCode::SUCCESS
        };
        if let Some(countdown) = countdown {
            countdown.end_here(reason, turn);
        } else if let Some((mailbox, ticket)) = ticket {
            mailbox.complete(ticket, reason, turn);
        }
    }

    /// A QoS 2 publish whose unique id is stored comes again on a new connection: who hears of its outcome.
    pub fn join(&self, unique_id: u128, mailbox: &Arc<Mailbox>, ticket: Ticket) -> Joined {
        self.unsettled.join(unique_id, mailbox, ticket)
    }

    /// Delivers what a peer forwarded to local receivers only, and retains it if it asks for it: a forwarded message is
    /// never forwarded again. `cache` belongs to the link. The peer may be told that it was taken when this returns.
    pub fn deliver_forwarded(&self, record: &Record, cache: &mut RouteCache, turn: &mut Turn) {
        self.metrics.count_forwarded_in();
        let retained = self.retained.get().filter(|_| record.message.retain);
        let order = retained.map(|retained| retained.lock_topic(&record.message.topic));
        if let Some(retained) = retained {
            let change = Change { message: &record.message, can_be_told: false, done: None };
            self.retain(retained, change, turn.now_ms());
        }
        let matches = cache.look_up(&self.tables, &record.message.topic);
        if !matches.targets.is_empty() {
            self.deliver_local(&Arc::new(record.message.clone()), &matches, turn);
        }
        drop(order);
    }

    pub(super) fn deliver_local(&self, message: &Arc<Message>, matches: &Matches, turn: &mut Turn) {
        for target in &matches.targets {
            // A queue brings it to a persistent session with a subscription above QoS 0, and only the queue.
            if message.qos != QoS::AtMostOnce && target.class == LiveClass::QosZeroOnly {
                continue;
            }
            let delivery = LiveDelivery {
                message,
                qos: message.qos.min(target.qos),
                retain: message.retain && target.retain_as_published,
                identifiers: target.identifiers.as_ref(),
            };
            target.mailbox.deliver(delivery, turn);
        }
    }

    fn forward(&self, publish: Publish<'_>, matches: &Matches, countdown: Option<&Arc<Countdown>>) {
        // The links number their frames themselves; a forward has no place in the sequence of a partition.
        let record = Arc::new(self.record(publish, Sequence { producer: 0, sequence: 0 }));
        let encoded = record.encode();
        for peer in matches.peers_of(publish.0.qos) {
            self.metrics.count_forward();
            // Whether or not somebody waits for it, a forward above QoS 0 has its place in the sequence of the link.
            let done = (publish.0.qos > QoS::AtMostOnce).then(|| {
                let countdown = countdown.cloned();
                Box::new(move || {
                    if let Some(countdown) = countdown {
                        countdown.release_elsewhere();
                    }
                }) as crate::cluster::ForwardDone
            });
            match self.links.get() {
                Some(links) => links.forwarder.forward(&peer.member, &record, &encoded, done),
                None => done.into_iter().for_each(|done| done()),
            }
        }
    }

    fn append(
        &self,
        partition: tidemill_core::partition::Partition,
        publish: Publish<'_>,
        countdown: Option<&Arc<Countdown>>,
    ) {
        let metrics = self.metrics.clone();
        let countdown = countdown.cloned();
        let began_us = monotonic_us();
        let done: AppendDone = Box::new(move |outcome| {
            metrics.observe_append(outcome.is_ok(), monotonic_us().saturating_sub(began_us));
            match (countdown, outcome) {
                (Some(countdown), Ok(_)) => countdown.release_elsewhere(),
                (Some(countdown), Err(error)) => countdown.fail(&error),
                (None, Ok(_)) => {}
                (None, Err(error)) => tracing::warn!(%error, "append of a will failed"),
            }
        });
        self.metrics.count_append();
        let is_shared = self.log.is_shared();
        let build = &mut |sequence| {
            let record = self.record(publish, sequence);
            if is_shared { record.encode() } else { record.encode_compact() }
        };
        self.log.append(partition, build, done);
    }

    /// Unique among the QoS 2 publishes of all brokers: incarnations are.
    pub fn unique_id(&self) -> u128 {
        let number = self.exactly_once.fetch_add(1, Ordering::Relaxed);
        u128::from(self.own.incarnation.0) << 64 | u128::from(number)
    }

    fn record(&self, (message, unique_id): Publish<'_>, place: Sequence) -> Record {
        Record {
            body: RecordBody::Inline,
            retry: false,
            origin: Origin { member: self.own.clone(), producer: place.producer, sequence: place.sequence },
            unique_id,
            message: Message::clone(message),
        }
    }
}

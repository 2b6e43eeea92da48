//! Reading at the head of each partition, handing messages to hosts, and what comes back.

use super::commit::CommitWaiter;
use super::exactly_once::HeldDeliveries;
use super::partition_run::PartitionRun;
use super::registry::Registry;
use super::{Group, Queues};
use crate::log::{LogReader, ReadError, ReadEvent, StoredRecord};
use crate::owner::HostSide;
use crate::owner::metrics::OwnerMetrics;
use bytestring::ByteString;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tidemill_core::attach::{Acked, Deliver, DeliveriesDone, Delivery, SessionNumber};
use tidemill_core::packet::{PacketId, QoS};
use tidemill_core::partition::{Offset, Partition};
use tidemill_core::queue::partition::receiver::Receiver as QueueReceiver;
use tidemill_core::queue::partition::{HandOut, QueueSlot};
use tidemill_core::record::Record;
use tracing::{info, warn};

/// Pause before a read that failed is repeated.
const READ_RETRY: Duration = Duration::from_millis(200);

/// Messages in one frame to a host.
const FRAME_DELIVERIES_MAX: usize = 256;
/// Bytes of the messages in one frame; a larger message has a frame of its own, so that no frame is larger than one
/// message needs.
const FRAME_BYTES: usize = 32 * 1024;
/// What a message costs in a frame beyond its record and its identifiers, about.
const DELIVERY_BYTES: usize = 128;

/// Subscriptions that the records of one partition may match in one turn, about.
const TURN_MATCHES_MAX: usize = 16_384;

/// What was read at the head of a partition and not offered yet.
pub(super) struct AtHead {
    reader: Box<dyn LogReader>,
    records: VecDeque<StoredRecord>,
}

/// Window of a receiver, what it is done with, what it has.
pub(super) type Receiver<'a> = (u16, &'a [Offset], &'a [Offset]);

impl Group {
    /// The armed read at the head of a partition ended: what it brings is the truth, each record once and in order.
    pub(super) fn handle_read(
        &mut self,
        partition: Partition,
        reader: Box<dyn LogReader>,
        event: Result<ReadEvent, ReadError>,
    ) {
        let Queues::Loaded(partitions) = &mut self.queues else { return };
        let Some(run) = partitions.get_mut(&partition).filter(|run| !run.is_refused()) else { return };
        let mut pause = Duration::ZERO;
        match event {
            Ok(ReadEvent::Records(records)) => {
                run.at_head = Some(AtHead { reader, records: records.into() });
                return;
            }
            Ok(ReadEvent::End(end)) => run.queues.handle_end(end),
            Err(error @ (ReadError::OutOfRange { .. } | ReadError::Damaged { .. })) => {
                return run.refuse(&error.to_string(), &self.parts);
            }
            Err(error @ ReadError::Unavailable { .. }) => {
                warn!(partition = partition.0, %error, "log cannot be read; deliveries wait");
                pause = READ_RETRY;
            }
            Err(ReadError::Closed) => {
                info!(partition = partition.0, "log is closed; nothing more is delivered");
                return;
            }
        }
        self.jobs.read(partition, reader, pause);
    }

    /// Offers what was read at the heads, within the bounds of one turn: of a record that very many queues want, others
    /// of the group are not to wait for the next thousand.
    pub(super) fn process_heads(&mut self) {
        let now_ms = self.parts.surroundings.now_ms();
        let Queues::Loaded(partitions) = &mut self.queues else { return };
        for (partition, run) in partitions.iter_mut().filter(|(_, run)| !run.is_refused()) {
            let Some(AtHead { reader, mut records }) = run.at_head.take() else { continue };
            let mut left = TURN_MATCHES_MAX;
            while let Some(stored) = (left > 0).then(|| records.pop_front()).flatten() {
                match process(run, stored, now_ms, &self.parts.metrics) {
                    Ok(matches) => left = left.saturating_sub(matches),
                    Err(reason) => {
                        run.refuse(&reason, &self.parts);
                        break;
                    }
                }
            }
            if run.is_refused() {
                continue;
            }
            if records.is_empty() {
                self.jobs.read(*partition, reader, Duration::ZERO);
            } else {
                run.at_head = Some(AtHead { reader, records });
                self.has_more = true;
            }
        }
    }

    /// Hands messages to the hosts, in frames that every link takes; those of QoS 2 when their packet ids are stored, which
    /// those of QoS 1 may overtake. Each queue has at most
    /// [`tidemill_core::queue::IN_FLIGHT_BYTES`] and one message at its host.
    pub(super) fn hand_over(&mut self) {
        let Queues::Loaded(partitions) = &mut self.queues else { return };
        for (partition, run) in partitions.iter_mut() {
            let mut ready: BTreeMap<QueueSlot, Vec<Delivery>> = BTreeMap::new();
            // Until their packet ids are stored.
            let mut held: BTreeMap<QueueSlot, Vec<Delivery>> = BTreeMap::new();
            while let Some(hand_out) = run.queues.poll_hand_out() {
                self.parts.metrics.deliveries.inc();
                self.parts.metrics.redeliveries.inc_by(u64::from(hand_out.redelivery));
                let slot = hand_out.slot;
                if hand_out.interest.qos < QoS::ExactlyOnce {
                    ready.entry(slot).or_default().push(delivery(hand_out, None));
                    continue;
                }
                let Some((given, unstored)) = run.give_id(slot, hand_out.offset) else { continue };
                let delivery = delivery(hand_out, Some(given.packet_id));
                match unstored {
                    None => ready.entry(slot).or_default().push(delivery),
                    Some((key, value)) => {
                        self.ledger.write(*partition, &key, Some(value.encode()));
                        held.entry(slot).or_default().push(delivery);
                    }
                }
            }
            for (slot, deliveries) in ready {
                send_frames(&self.registry, self.parts.hosts.as_ref(), run, (slot, deliveries));
            }
            for (slot, deliveries) in held {
                let Some(queue) = run.queues.id(slot).cloned() else { continue };
                // Without a receiver they stay open and are handed out to the next one.
                let Some(attached) = self.registry.attached(&queue.name) else { continue };
                let (partition, connection) = (*partition, attached.connection);
                let held = HeldDeliveries { partition, slot, queue, connection, deliveries };
                self.ledger.wait(CommitWaiter::HandOver(Box::new(held)));
            }
        }
    }

    /// Hands over deliveries of one queue.
    pub(super) fn send_frames(&mut self, partition: Partition, slot: QueueSlot, deliveries: Vec<Delivery>) {
        let Queues::Loaded(partitions) = &self.queues else { return };
        if let Some(run) = partitions.get(&partition) {
            send_frames(&self.registry, self.parts.hosts.as_ref(), run, (slot, deliveries));
        }
    }

    /// A client is done with messages. What a former connection was done with counts as long as the newest one was not
    /// given it.
    pub(super) fn handle_acked(&mut self, acked: &Acked) {
        let now_ms = self.parts.surroundings.now_ms();
        let attached = self.registry.attached(&acked.queue.name);
        let is_current = attached.is_some_and(|attached| attached.is(acked.connection));
        if let Some(run) = self.served(acked.partition)
            && let Some(slot) = run.queues.slot(&acked.queue)
        {
            run.queues.handle_acked(slot, &acked.done.finished, is_current, now_ms);
            run.queues.handle_acked(slot, &acked.done.received, is_current, now_ms);
            let DeliveriesDone { finished, received, completed, retained } = &acked.done;
            self.end_exchanges((acked.partition, slot), finished, (received, completed));
            if is_current {
                self.forget_retained_due((acked.partition, &acked.queue), retained);
            }
        }
    }

    /// The session has a receiver.
    pub(super) fn start_delivery(
        &mut self,
        partition: Partition,
        client_id: &ByteString,
        session: SessionNumber,
        (window, done, in_flight): Receiver<'_>,
    ) {
        let now_ms = self.parts.surroundings.now_ms();
        let Some(run) = self.served(partition) else { return };
        let Some(slot) =
            run.sessions.get(client_id).filter(|found| found.id.number == session).map(|s| s.slot)
        else {
            return;
        };
        run.catch_ups.forget_queue(slot);
        run.queues.attach(slot, QueueReceiver { window, done, in_flight }, now_ms);
    }

    /// The session has no receiver any more.
    pub(super) fn stop_delivery(&mut self, partition: Partition, client_id: &ByteString) {
        let Some(run) = self.served(partition) else { return };
        let Some(slot) = run.sessions.get(client_id).map(|session| session.slot) else { return };
        run.catch_ups.forget_queue(slot);
        run.queues.detach(slot);
    }
}

/// In frames that every link takes.
fn send_frames(
    registry: &Registry,
    hosts: &dyn HostSide,
    run: &PartitionRun,
    (slot, deliveries): (QueueSlot, Vec<Delivery>),
) {
    let (mut bytes, mut frame) = (0, Vec::new());
    for delivery in deliveries {
        let more = frame_bytes(&delivery);
        if bytes + more > FRAME_BYTES || frame.len() >= FRAME_DELIVERIES_MAX {
            bytes = 0;
            send(registry, hosts, run, (slot, std::mem::take(&mut frame)));
        }
        bytes += more;
        frame.push(delivery);
    }
    send(registry, hosts, run, (slot, frame));
}

fn send(
    registry: &Registry,
    hosts: &dyn HostSide,
    run: &PartitionRun,
    (slot, deliveries): (QueueSlot, Vec<Delivery>),
) {
    let Some(queue) = run.queues.id(slot).filter(|_| !deliveries.is_empty()) else { return };
    let attached = registry.attached(&queue.name);
    let Some(attached) = attached.filter(|attached| attached.session == queue.number) else { return };
    let (queue, partition) = (queue.clone(), run.partition);
    let deliver = Deliver { queue, partition, connection: attached.connection, deliveries };
    hosts.deliver(&attached.host, deliver);
}

fn process(
    run: &mut PartitionRun,
    stored: StoredRecord,
    now_ms: u64,
    metrics: &OwnerMetrics,
) -> Result<usize, String> {
    let offset = stored.offset;
    if offset < run.queues.head() {
        return Err(format!("offset {offset} came after {}: the log is not in order", run.queues.head()));
    }
    let record = Record::decode(stored.bytes)
        .map_err(|error| format!("the record at offset {offset} is damaged: {error}"))?;
    run.check_origin(offset, &record.origin, metrics);
    let record = Arc::new(record);
    let matches = run.queues.handle_record(offset, &record, now_ms);
    run.recent.push(offset, record);
    metrics.records_read.inc();
    Ok(matches)
}

/// What a message adds to a frame, about.
fn frame_bytes(delivery: &Delivery) -> usize {
    delivery.record.held_bytes() + size_of::<u32>() * delivery.identifiers.len() + DELIVERY_BYTES
}

fn delivery(hand_out: HandOut, packet_id: Option<PacketId>) -> Delivery {
    let HandOut { offset, interest, redelivery, record, slot: _ } = hand_out;
    Delivery {
        offset,
        qos: interest.qos,
        retain: interest.retain,
        redelivery,
        identifiers: interest.identifiers,
        packet_id,
        record,
    }
}

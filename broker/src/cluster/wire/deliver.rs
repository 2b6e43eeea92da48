//! Messages on the wire: deliveries of queues, forwards to live receivers, and their acknowledgements. A record travels
//! in the format of the log.

use super::attach::Connection;
use super::in_flight::{packet_id, retained_filter};
use super::will::qos;
use super::{WireError, narrow, required};
use bytes::Bytes;
use std::sync::Arc;
use tidemill_core::attach as core;
use tidemill_core::attach::{QueueId, SessionNumber};
use tidemill_core::partition::{Partition, QueueKind};
use tidemill_core::record::Record;

/// Names a queue.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Queue {
    /// 1 session, 2 shared group, 3 stream consumer.
    #[prost(uint32, tag = "1")]
    pub kind: u32,
    /// Client id or group name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Session number.
    #[prost(fixed64, tag = "3")]
    pub number: u64,
}

/// One message of a queue.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Delivery {
    /// Offset.
    #[prost(uint64, tag = "1")]
    pub offset: u64,
    /// QoS of the delivery.
    #[prost(uint32, tag = "2")]
    pub qos: u32,
    /// Retain flag.
    #[prost(bool, tag = "3")]
    pub retain: bool,
    /// The client may have seen it.
    #[prost(bool, tag = "4")]
    pub redelivery: bool,
    /// Subscription identifiers.
    #[prost(uint32, repeated, tag = "5")]
    pub identifiers: Vec<u32>,
    /// The record.
    #[prost(bytes = "bytes", tag = "6")]
    pub record: Bytes,
    /// Packet id, at QoS 2.
    #[prost(uint32, optional, tag = "7")]
    pub packet_id: Option<u32>,
}

/// Owner to host: messages of one queue.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Deliver {
    /// The queue.
    #[prost(message, optional, tag = "1")]
    pub queue: Option<Queue>,
    /// Its partition.
    #[prost(uint32, tag = "2")]
    pub partition: u32,
    /// For which connection.
    #[prost(message, optional, tag = "3")]
    pub connection: Option<Connection>,
    /// In offset order.
    #[prost(message, repeated, tag = "4")]
    pub deliveries: Vec<Delivery>,
}

/// Host to owner: what a client is done with.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Acked {
    /// The queue.
    #[prost(message, optional, tag = "1")]
    pub queue: Option<Queue>,
    /// Its partition.
    #[prost(uint32, tag = "2")]
    pub partition: u32,
    /// Which connection.
    #[prost(message, optional, tag = "3")]
    pub connection: Option<Connection>,
    /// Offsets without an exchange.
    #[prost(uint64, repeated, tag = "4")]
    pub finished: Vec<u64>,
    /// Offsets whose PUBREC came.
    #[prost(uint64, repeated, tag = "5")]
    pub received: Vec<u64>,
    /// Packet ids whose PUBCOMP came.
    #[prost(uint32, repeated, tag = "6")]
    pub completed: Vec<u32>,
    /// Topic filters whose subscriptions have got all retained messages.
    #[prost(string, repeated, tag = "7")]
    pub retained: Vec<String>,
}

/// A message for the peer's live receivers; it is never forwarded again.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Forward {
    /// Counts the forwards at QoS > 0 from this incarnation to that one, from 1; 0 for QoS 0, which nobody misses.
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    /// The record.
    #[prost(bytes = "bytes", tag = "2")]
    pub record: Bytes,
}

/// All numbered forwards up to this one are in the mailboxes.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct ForwardAck {
    /// Up to which.
    #[prost(uint64, tag = "1")]
    pub up_to: u64,
}

/// A hint to the owner that a record was committed.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Appended {
    /// Partition.
    #[prost(uint32, tag = "1")]
    pub partition: u32,
    /// Offset.
    #[prost(uint64, tag = "2")]
    pub offset: u64,
    /// The record.
    #[prost(bytes = "bytes", tag = "3")]
    pub record: Bytes,
}

/// Where the numbering of forwards stands as a link starts: a receiver that has fewer has missed some.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Resume {
    /// Sequence of the last numbered forward sent, or given up, before this link.
    #[prost(uint64, tag = "1")]
    pub last_forward_sent: u64,
}

impl From<&QueueId> for Queue {
    fn from(queue: &QueueId) -> Self {
        Self { kind: u32::from(queue.kind as u8), name: queue.name.to_string(), number: queue.number.0 }
    }
}

impl TryFrom<Queue> for QueueId {
    type Error = WireError;

    fn try_from(queue: Queue) -> Result<Self, WireError> {
        let kind = QueueKind::from_number(narrow::<u8>(queue.kind, "queue kind")?)
            .ok_or(WireError::Value { field: "queue kind", value: queue.kind.into() })?;
        Ok(Self { kind, name: queue.name.into(), number: SessionNumber(queue.number) })
    }
}

impl From<&core::Deliver> for Deliver {
    fn from(deliver: &core::Deliver) -> Self {
        Self {
            queue: Some((&deliver.queue).into()),
            partition: deliver.partition.0.into(),
            connection: Some(deliver.connection.into()),
            deliveries: deliver
                .deliveries
                .iter()
                .map(|delivery| Delivery {
                    offset: delivery.offset,
                    qos: u32::from(delivery.qos as u8),
                    retain: delivery.retain,
                    redelivery: delivery.redelivery,
                    identifiers: delivery.identifiers.clone(),
                    record: delivery.record.encode(),
                    packet_id: delivery.packet_id.map(|id| id.get().into()),
                })
                .collect(),
        }
    }
}

impl TryFrom<Deliver> for core::Deliver {
    type Error = WireError;

    fn try_from(deliver: Deliver) -> Result<Self, WireError> {
        let deliveries = deliver.deliveries.into_iter().map(|delivery| {
            Ok(core::Delivery {
                offset: delivery.offset,
                qos: qos(delivery.qos)?,
                retain: delivery.retain,
                redelivery: delivery.redelivery,
                identifiers: delivery.identifiers,
                packet_id: delivery.packet_id.map(packet_id).transpose()?,
                record: Arc::new(Record::decode(delivery.record)?),
            })
        });
        Ok(Self {
            queue: required(deliver.queue, "queue")?.try_into()?,
            partition: Partition(narrow(deliver.partition, "partition")?),
            connection: required(deliver.connection, "connection")?.into(),
            deliveries: deliveries.collect::<Result<_, WireError>>()?,
        })
    }
}

impl From<&core::Acked> for Acked {
    fn from(acked: &core::Acked) -> Self {
        Self {
            queue: Some((&acked.queue).into()),
            partition: acked.partition.0.into(),
            connection: Some(acked.connection.into()),
            finished: acked.done.finished.clone(),
            received: acked.done.received.clone(),
            completed: acked.done.completed.iter().map(|id| id.get().into()).collect(),
            retained: acked.done.retained.iter().map(|filter| filter.as_str().to_owned()).collect(),
        }
    }
}

impl TryFrom<Acked> for core::Acked {
    type Error = WireError;

    fn try_from(acked: Acked) -> Result<Self, WireError> {
        Ok(Self {
            queue: required(acked.queue, "queue")?.try_into()?,
            partition: Partition(narrow(acked.partition, "partition")?),
            connection: required(acked.connection, "connection")?.into(),
            done: core::DeliveriesDone {
                finished: acked.finished,
                received: acked.received,
                completed: acked.completed.into_iter().map(packet_id).collect::<Result<_, _>>()?,
                retained: acked.retained.into_iter().map(retained_filter).collect::<Result<_, _>>()?,
            },
        })
    }
}

//! What a session has in flight, on the wire: with the end of its connection to the owner, and back with the next grant.

use super::exactly_once::Intent;
use super::will::{Properties, qos};
use super::{WireError, narrow, required};
use bytes::Bytes;
use bytestring::ByteString;
use std::sync::Arc;
use tidemill_core::message;
use tidemill_core::packet::PacketId;
use tidemill_core::retained::Position;
use tidemill_core::session::delivery::{OutgoingDelivery, Source};
use tidemill_core::session::in_flight as core;
use tidemill_core::topic::{TopicFilter, TopicName};

/// Bytes of it in one frame, about: they share the headroom of a frame with subscriptions. Of what is beyond, packet ids
/// of queued messages are forgotten, so that those go out anew, and how far subscriptions are with retained messages.
const BYTES_MAX: usize = 32 * 1024;

/// A packet id in a list takes at most this.
const ID_BYTES: usize = 3;

/// Everything that is under way.
#[derive(Clone, PartialEq, prost::Message)]
pub struct InFlight {
    /// Packet ids received at QoS 2 and not released.
    #[prost(uint32, repeated, tag = "1")]
    pub received: Vec<u32>,
    /// Packet id to go on with.
    #[prost(uint32, tag = "2")]
    pub next_id: u32,
    /// Packet ids that wait for PUBCOMP, in order.
    #[prost(uint32, repeated, tag = "3")]
    pub released: Vec<u32>,
    /// Sent from the queue, in offset order.
    #[prost(message, repeated, tag = "4")]
    pub queue: Vec<SentFromQueue>,
    /// What did not come from the queue, in order.
    #[prost(message, repeated, tag = "5")]
    pub live: Vec<LiveDelivery>,
    /// What the owner has stored of QoS 2 publishes.
    #[prost(message, repeated, tag = "6")]
    pub intents: Vec<Intent>,
    /// Subscriptions that have not got all retained messages, in order.
    #[prost(message, repeated, tag = "7")]
    pub retained: Vec<RetainedDue>,
}

/// A subscription that has not got all retained messages.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RetainedDue {
    /// Topic filter.
    #[prost(string, tag = "1")]
    pub filter: String,
    /// Where to go on; absent at the start.
    #[prost(string, optional, tag = "2")]
    pub position: Option<String>,
    /// All were sent, and are not acknowledged.
    #[prost(bool, tag = "3")]
    pub sent: bool,
}

/// A PUBLISH of a message of the queue.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct SentFromQueue {
    /// Offset.
    #[prost(uint64, tag = "1")]
    pub offset: u64,
    /// Packet id.
    #[prost(uint32, tag = "2")]
    pub packet_id: u32,
    /// QoS of the delivery.
    #[prost(uint32, tag = "3")]
    pub qos: u32,
}

/// A delivery with its message.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LiveDelivery {
    /// Packet id; absent if it was not sent.
    #[prost(uint32, optional, tag = "1")]
    pub packet_id: Option<u32>,
    /// QoS of the delivery.
    #[prost(uint32, tag = "2")]
    pub qos: u32,
    /// Retain flag.
    #[prost(bool, tag = "3")]
    pub retain: bool,
    /// Subscription identifiers.
    #[prost(uint32, repeated, tag = "4")]
    pub identifiers: Vec<u32>,
    /// What was published.
    #[prost(message, optional, tag = "5")]
    pub message: Option<Message>,
}

/// A message.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Message {
    /// Topic name.
    #[prost(string, tag = "1")]
    pub topic: String,
    /// Body.
    #[prost(bytes = "bytes", tag = "2")]
    pub payload: Bytes,
    /// QoS of the PUBLISH.
    #[prost(uint32, tag = "3")]
    pub qos: u32,
    /// Retain flag of the PUBLISH.
    #[prost(bool, tag = "4")]
    pub retain: bool,
    /// Properties of the message, if it has any.
    #[prost(message, optional, tag = "5")]
    pub properties: Option<Properties>,
    /// Client id of the publisher.
    #[prost(string, tag = "6")]
    pub publisher: String,
    /// Milliseconds since the Unix epoch.
    #[prost(uint64, tag = "7")]
    pub publish_time_ms: u64,
}

impl From<&core::InFlight> for InFlight {
    fn from(in_flight: &core::InFlight) -> Self {
        let mut left = BYTES_MAX;
        let mut fits = |bytes: usize| {
            let is_room = bytes <= left;
            left = left.saturating_sub(bytes);
            is_room
        };
        let outgoing = &in_flight.outgoing;
        let ids = |ids: &[PacketId], fits: &mut dyn FnMut(usize) -> bool| -> Vec<u32> {
            ids.iter().take_while(|_| fits(ID_BYTES)).map(|id| id.get().into()).collect()
        };
        let live = outgoing.live.iter().map(LiveDelivery::from);
        let live = live.take_while(|delivery| fits(encoded_bytes(delivery))).collect();
        let received = ids(&in_flight.received, &mut fits);
        let released = ids(&outgoing.released, &mut fits);
        let intents = in_flight.intents.iter().map(Intent::from);
        let intents = intents.take_while(|intent| fits(encoded_bytes(intent))).collect();
        let queue = outgoing.queue.iter().map(SentFromQueue::from);
        let queue = queue.take_while(|sent| fits(encoded_bytes(sent))).collect();
        let retained = in_flight.retained.iter().map(RetainedDue::from);
        let retained = retained.take_while(|due| fits(encoded_bytes(due))).collect();
        Self { received, next_id: outgoing.next_id.get().into(), released, queue, live, intents, retained }
    }
}

fn encoded_bytes(message: &impl prost::Message) -> usize {
    // With its key and length.
    message.encoded_len() + 1 + ID_BYTES
}

impl TryFrom<InFlight> for core::InFlight {
    type Error = WireError;

    fn try_from(in_flight: InFlight) -> Result<Self, WireError> {
        let ids = |ids: Vec<u32>| ids.into_iter().map(packet_id).collect::<Result<Vec<_>, _>>();
        Ok(Self {
            received: ids(in_flight.received)?,
            intents: in_flight.intents.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?,
            outgoing: core::OutgoingInFlight {
                next_id: packet_id(in_flight.next_id)?,
                queue: in_flight.queue.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?,
                live: in_flight.live.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?,
                released: ids(in_flight.released)?,
            },
            retained: in_flight.retained.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?,
        })
    }
}

impl From<&core::RetainedDue> for RetainedDue {
    fn from(due: &core::RetainedDue) -> Self {
        let (position, sent) = match &due.from {
            core::RetainedFrom::Start => (None, false),
            core::RetainedFrom::Position(position) => (Some(position.as_str().to_owned()), false),
            core::RetainedFrom::Sent => (None, true),
        };
        Self { filter: due.filter.as_str().to_owned(), position, sent }
    }
}

impl TryFrom<RetainedDue> for core::RetainedDue {
    type Error = WireError;

    fn try_from(due: RetainedDue) -> Result<Self, WireError> {
        let filter = retained_filter(due.filter)?;
        let from = match due.position {
            _ if due.sent => core::RetainedFrom::Sent,
            Some(text) => core::RetainedFrom::Position(Position::from_text(&text)),
            None => core::RetainedFrom::Start,
        };
        Ok(Self { filter, from })
    }
}

impl From<&core::SentFromQueue> for SentFromQueue {
    fn from(sent: &core::SentFromQueue) -> Self {
        Self { offset: sent.offset, packet_id: sent.packet_id.get().into(), qos: u32::from(sent.qos as u8) }
    }
}

impl TryFrom<SentFromQueue> for core::SentFromQueue {
    type Error = WireError;

    fn try_from(sent: SentFromQueue) -> Result<Self, WireError> {
        Ok(Self { offset: sent.offset, packet_id: packet_id(sent.packet_id)?, qos: qos(sent.qos)? })
    }
}

impl From<&OutgoingDelivery> for LiveDelivery {
    fn from(delivery: &OutgoingDelivery) -> Self {
        Self {
            packet_id: delivery.sent_as.map(|id| id.get().into()),
            qos: u32::from(delivery.qos as u8),
            retain: delivery.retain,
            identifiers: delivery.identifiers.as_deref().unwrap_or(&[]).to_vec(),
            message: Some((&*delivery.message).into()),
        }
    }
}

impl TryFrom<LiveDelivery> for OutgoingDelivery {
    type Error = WireError;

    fn try_from(delivery: LiveDelivery) -> Result<Self, WireError> {
        let identifiers = delivery.identifiers;
        Ok(Self {
            message: Arc::new(required(delivery.message, "message")?.try_into()?),
            qos: qos(delivery.qos)?,
            retain: delivery.retain,
            identifiers: (!identifiers.is_empty()).then(|| identifiers.into()),
            source: Source::Live,
            sent_as: delivery.packet_id.map(packet_id).transpose()?,
            is_repeated: delivery.packet_id.is_some(),
        })
    }
}

impl From<&message::Message> for Message {
    fn from(message: &message::Message) -> Self {
        Self {
            topic: message.topic.as_str().to_owned(),
            payload: message.payload.clone(),
            qos: u32::from(message.qos as u8),
            retain: message.retain,
            properties: message.properties.as_deref().map(Properties::from),
            publisher: message.publisher.to_string(),
            publish_time_ms: message.publish_time_ms,
        }
    }
}

impl TryFrom<Message> for message::Message {
    type Error = WireError;

    fn try_from(message: Message) -> Result<Self, WireError> {
        Ok(Self {
            topic: TopicName::parse(ByteString::from(message.topic))
                .map_err(|error| WireError::Topic { field: "topic", error })?,
            payload: message.payload,
            qos: qos(message.qos)?,
            retain: message.retain,
            properties: message.properties.map(|properties| Box::new(properties.into())),
            publisher: message.publisher.into(),
            publish_time_ms: message.publish_time_ms,
        })
    }
}

pub(super) fn retained_filter(text: String) -> Result<TopicFilter, WireError> {
    TopicFilter::parse(text).map_err(|error| WireError::Topic { field: "retained", error })
}

pub(super) fn packet_id(number: u32) -> Result<PacketId, WireError> {
    let unknown = WireError::Value { field: "packet_id", value: number.into() };
    PacketId::new(narrow(number, "packet_id")?).ok_or(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;
    use tidemill_core::packet::QoS;

    #[test]
    fn however_much_is_in_flight_it_fits_a_frame() {
        let id = |number| PacketId::new(number).unwrap();
        let all: Vec<_> = (1..=u16::MAX).map(id).collect();
        let sent =
            |id: &PacketId| core::SentFromQueue { offset: u64::MAX, packet_id: *id, qos: QoS::ExactlyOnce };
        for (received, released) in [(Vec::new(), Vec::new()), (all.clone(), all.clone())] {
            let queue = all.iter().map(sent).collect();
            let outgoing = core::OutgoingInFlight { next_id: id(9), queue, live: Vec::new(), released };
            let in_flight = core::InFlight { received, outgoing, ..core::InFlight::default() };

            let wire = InFlight::from(&in_flight);

            assert!(wire.encoded_len() <= BYTES_MAX + 64, "{}", wire.encoded_len());
            let read = core::InFlight::try_from(wire).unwrap();
            let length = read.outgoing.queue.len();
            assert_eq!(read.outgoing.queue, in_flight.outgoing.queue[..length], "the oldest ones");
            assert!(length > 1_000 || read.received.len() > 10_000);
        }
    }
}

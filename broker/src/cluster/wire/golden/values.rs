//! The values that the frames carry.

use super::super::routes::{LiveKey, PartitionChange, PartitionChangeKind};
use crate::cluster::LiveClass;
use bytes::Bytes;
use std::sync::Arc;
use tidemill_core::attach as core;
use tidemill_core::attach::{ConnectionEpoch, QueueId, SessionLifetime, SessionNumber, StoredSubscription};
use tidemill_core::member::{Incarnation, Member, MemberId, OwnerEpoch};
use tidemill_core::message::Message;
use tidemill_core::packet::{
    PacketId, PublishProperties, QoS, RetainHandling, SubscriptionOptions, Version, Will,
};
use tidemill_core::partition::{Partition, QueueKind};
use tidemill_core::record::{Origin, Record, RecordBody};
use tidemill_core::retained::Position;
use tidemill_core::session::delivery::{OutgoingDelivery, Source};
use tidemill_core::session::in_flight::{
    InFlight, Intent, OutgoingInFlight, RetainedDue, RetainedFrom, SentFromQueue,
};
use tidemill_core::topic::{SubscriptionTarget, TopicFilter, TopicName};

pub(super) fn member() -> Member {
    Member { id: MemberId::new("b-0"), incarnation: Incarnation(0x0102_0304_0506_0708) }
}

pub(super) fn filter(text: &str) -> TopicFilter {
    TopicFilter::parse(text).unwrap()
}

pub(super) const CONNECTION: ConnectionEpoch = ConnectionEpoch { owner: OwnerEpoch(3), counter: 9 };

pub(super) fn properties() -> PublishProperties {
    PublishProperties {
        payload_is_utf8: Some(true),
        message_expiry_secs: Some(60),
        content_type: Some("t".into()),
        response_topic: Some("r".into()),
        correlation_data: Some(Bytes::from_static(&[1])),
        subscription_identifiers: vec![],
        user_properties: vec![("k".into(), "v".into())],
    }
}

pub(super) fn attach_request() -> core::AttachRequest {
    core::AttachRequest {
        client_id: "c".into(),
        host: member(),
        version: Version::V5,
        clean_start: true,
        lifetime: SessionLifetime::Persistent { expiry_secs: 300 },
        window: 10,
        user: Some("u".into()),
        will: Some(Box::new(Will {
            topic: TopicName::parse("w").unwrap(),
            payload: Bytes::from_static(b"p"),
            qos: QoS::AtLeastOnce,
            retain: true,
            delay_secs: 5,
            properties: Some(Box::new(properties())),
        })),
    }
}

pub(super) fn attachment() -> core::Attachment {
    core::Attachment {
        request: core::AttachRequest { clean_start: false, will: None, ..attach_request() },
        session: SessionNumber::new(OwnerEpoch(2), 1),
        connection: CONNECTION,
        done: vec![4, 300],
        in_flight: vec![5],
    }
}

pub(super) fn subscription() -> StoredSubscription {
    StoredSubscription {
        target: SubscriptionTarget::Filter(filter("a/+")),
        options: SubscriptionOptions {
            qos: QoS::AtLeastOnce,
            no_local: true,
            retain_as_published: true,
            retain_handling: RetainHandling::DoNotSend,
        },
        identifier: Some(7),
    }
}

pub(super) fn grant() -> core::AttachGrant {
    core::AttachGrant {
        session: SessionNumber::new(OwnerEpoch(2), 1),
        connection: CONNECTION,
        session_present: true,
        subscriptions: vec![subscription()],
        in_flight: None,
    }
}

pub(super) fn in_flight() -> Option<Box<InFlight>> {
    let id = |number| PacketId::new(number).unwrap();
    let message = Message { properties: Some(Box::new(properties())), ..record().message };
    let live = |sent_as| OutgoingDelivery {
        message: Arc::new(message.clone()),
        qos: QoS::AtLeastOnce,
        retain: true,
        identifiers: Some([7].into()),
        source: Source::Live,
        sent_as,
        is_repeated: sent_as.is_some(),
    };
    let outgoing = OutgoingInFlight {
        next_id: id(301),
        queue: vec![SentFromQueue { offset: 500, packet_id: id(300), qos: QoS::ExactlyOnce }],
        live: vec![live(PacketId::new(2)), live(None)],
        released: vec![id(4), id(3)],
    };
    Some(Box::new(InFlight { received: vec![id(1), id(300)], outgoing, ..InFlight::default() }))
}

pub(super) fn intent() -> Intent {
    Intent { packet_id: PacketId::new(300).unwrap(), unique_id: 0x0102 << 64 | 7, found: 0 }
}

pub(super) fn store_exactly_once() -> core::ExactlyOnceRequest {
    core::ExactlyOnceRequest {
        client_id: "c".into(),
        connection: CONNECTION,
        intents: vec![intent()],
        releases: vec![PacketId::MIN],
    }
}

pub(super) fn release() -> core::Release {
    let packet_ids = vec![PacketId::new(0x8001).unwrap(), PacketId::new(0x8000).unwrap()];
    core::Release { queue: queue(), connection: CONNECTION, packet_ids }
}

pub(super) fn queue() -> QueueId {
    QueueId { kind: QueueKind::Session, name: "c".into(), number: SessionNumber::new(OwnerEpoch(2), 1) }
}

pub(super) fn record() -> Record {
    Record {
        body: RecordBody::Inline,
        retry: false,
        origin: Origin { member: member(), producer: 1, sequence: 2 },
        unique_id: None,
        message: Message {
            topic: TopicName::parse("a/b").unwrap(),
            payload: Bytes::from_static(b"x"),
            qos: QoS::AtLeastOnce,
            retain: false,
            properties: None,
            publisher: "p".into(),
            publish_time_ms: 1,
        },
    }
}

pub(super) fn deliver() -> core::Deliver {
    core::Deliver {
        queue: queue(),
        partition: Partition(6),
        connection: CONNECTION,
        deliveries: vec![core::Delivery {
            offset: 500,
            qos: QoS::AtLeastOnce,
            retain: true,
            redelivery: true,
            identifiers: vec![7],
            packet_id: None,
            record: Arc::new(record()),
        }],
    }
}

pub(super) fn deliver_exactly_once() -> core::Deliver {
    let mut deliver = deliver();
    for delivery in &mut deliver.deliveries {
        (delivery.qos, delivery.packet_id) = (QoS::ExactlyOnce, PacketId::new(0x8001));
    }
    deliver
}

pub(super) fn acked() -> core::Acked {
    let done = core::DeliveriesDone { finished: vec![500, 501], ..core::DeliveriesDone::default() };
    core::Acked { queue: queue(), partition: Partition(6), connection: CONNECTION, done }
}

pub(super) fn acked_exactly_once() -> core::Acked {
    let completed = vec![PacketId::new(0x8000).unwrap()];
    let retained = Vec::new();
    let done = core::DeliveriesDone { finished: vec![500], received: vec![501], completed, retained };
    core::Acked { done, ..acked() }
}

pub(super) fn acked_retained() -> core::Acked {
    let retained = vec![TopicFilter::parse("r/#").unwrap()];
    core::Acked { done: core::DeliveriesDone { retained, ..core::DeliveriesDone::default() }, ..acked() }
}

/// Subscriptions that are still to get retained messages.
pub(super) fn retained_due() -> Option<Box<InFlight>> {
    let due = |filter, from| RetainedDue { filter: TopicFilter::parse(filter).unwrap(), from };
    let retained = vec![
        due("a", RetainedFrom::Sent),
        due("b/+", RetainedFrom::Position(Position::from_text("b/1"))),
        due("#", RetainedFrom::Start),
    ];
    Some(Box::new(InFlight { retained, ..InFlight::default() }))
}

pub(super) fn partition_change(kind: PartitionChangeKind) -> PartitionChange {
    PartitionChange {
        partition: Partition(6),
        epoch: OwnerEpoch(3),
        added: vec![filter("a/#")],
        removed: vec![filter("b")],
        kind,
    }
}

pub(super) fn live() -> LiveKey {
    LiveKey { filter: filter("l/+"), class: LiveClass::QosZeroOnly }
}

pub(super) fn will_over() -> core::WillOver {
    core::WillOver {
        client_id: "c".into(),
        session: SessionNumber::new(OwnerEpoch(2), 1),
        connection: CONNECTION,
    }
}

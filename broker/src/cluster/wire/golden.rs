//! The bytes of every frame of version 1. They never change: brokers of two releases read each other.

mod frames;

use super::attach::{Attach, AttachReply, Detach, Reattach, ReattachReply, Refusal, TakeOver, TakenOver};
use super::deliver::{Acked, Appended, Deliver, Forward, ForwardAck, Resume};
use super::link::{Break, Consent, Credit, Hello, Ping, Pong};
use super::routes::{LiveKey, PartitionChange, PartitionChangeKind, RouteAck, RouteDelta, RouteSnapshot};
use super::subscribe::{ReasonsReply, Subscribe, Unsubscribe};
use super::{Body, Frame, take_frame};
use crate::cluster::LiveClass;
use bytes::{Bytes, BytesMut};
use frames::*;
use std::sync::Arc;
use tidemill_core::attach as core;
use tidemill_core::attach::{
    ConnectionEpoch, OwnerError, QueueId, SessionLifetime, SessionNumber, StoredSubscription,
};
use tidemill_core::member::{Incarnation, Member, MemberId, OwnerEpoch};
use tidemill_core::message::Message;
use tidemill_core::packet::{
    PacketId, PublishProperties, QoS, ReasonCode, RetainHandling, SubscriptionOptions, Version, Will,
};
use tidemill_core::partition::{Partition, QueueKind};
use tidemill_core::record::{Origin, Record, RecordBody};
use tidemill_core::session::delivery::{OutgoingDelivery, Source};
use tidemill_core::session::in_flight::{InFlight, OutgoingInFlight, SentFromQueue};
use tidemill_core::topic::{SubscriptionTarget, TopicFilter, TopicName};

fn member() -> Member {
    Member { id: MemberId::new("b-0"), incarnation: Incarnation(0x0102_0304_0506_0708) }
}

fn filter(text: &str) -> TopicFilter {
    TopicFilter::parse(text).unwrap()
}

const CONNECTION: ConnectionEpoch = ConnectionEpoch { owner: OwnerEpoch(3), counter: 9 };

fn properties() -> PublishProperties {
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

fn attach_request() -> core::AttachRequest {
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

fn attachment() -> core::Attachment {
    core::Attachment {
        request: core::AttachRequest { clean_start: false, will: None, ..attach_request() },
        session: SessionNumber::new(OwnerEpoch(2), 1),
        connection: CONNECTION,
        done: vec![4, 300],
        in_flight: vec![5],
    }
}

fn subscription() -> StoredSubscription {
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

fn grant() -> core::AttachGrant {
    core::AttachGrant {
        session: SessionNumber::new(OwnerEpoch(2), 1),
        connection: CONNECTION,
        session_present: true,
        subscriptions: vec![subscription()],
        in_flight: None,
    }
}

fn in_flight() -> Option<Box<InFlight>> {
    let id = |number| PacketId::new(number).unwrap();
    let message = Message { properties: Some(Box::new(properties())), ..record().message };
    let live = |sent_as| OutgoingDelivery {
        message: Arc::new(message.clone()),
        qos: QoS::AtLeastOnce,
        retain: true,
        identifiers: Some([7].into()),
        source: Source::Live,
        sent_as,
    };
    let outgoing = OutgoingInFlight {
        next_id: id(301),
        queue: vec![SentFromQueue { offset: 500, packet_id: id(300), qos: QoS::ExactlyOnce }],
        live: vec![live(PacketId::new(2)), live(None)],
        released: vec![id(4), id(3)],
    };
    Some(Box::new(InFlight { received: vec![id(1), id(300)], outgoing }))
}

fn queue() -> QueueId {
    QueueId { kind: QueueKind::Session, name: "c".into(), number: SessionNumber::new(OwnerEpoch(2), 1) }
}

fn record() -> Record {
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

fn deliver() -> core::Deliver {
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
            record: Arc::new(record()),
        }],
    }
}

fn acked() -> core::Acked {
    core::Acked { queue: queue(), partition: Partition(6), connection: CONNECTION, offsets: vec![500, 501] }
}

fn partition_change(kind: PartitionChangeKind) -> PartitionChange {
    PartitionChange {
        partition: Partition(6),
        epoch: OwnerEpoch(3),
        added: vec![filter("a/#")],
        removed: vec![filter("b")],
        kind,
    }
}

fn live() -> LiveKey {
    LiveKey { filter: filter("l/+"), class: LiveClass::QosZeroOnly }
}

fn link_frames() -> Vec<(Body, &'static str)> {
    let hello = Hello {
        cluster: "t".into(),
        member: Some((&member()).into()),
        member_epoch: 4,
        protocol_min: 1,
        protocol_max: 1,
        partitions: 32,
        groups: 16,
        link: 5,
        lane: 2,
        frame_bytes_max: 1_114_112,
        peer: Some((&member()).into()),
    };
    let victim = Some((&member()).into());
    vec![
        (Body::Hello(hello), HELLO),
        (Body::Ping(Ping { sent_at_nanos: 1, grant_asked_at_nanos: Some(2) }), PING),
        (Body::Pong(Pong { sent_at_nanos: 1, granted_asked_at_nanos: Some(2) }), PONG),
        (Body::Credit(Credit { lane: 2, processed_bytes: 300 }), CREDIT),
        (Body::Break(Break { reason: "r".into(), gives_up_forwards: true }), BREAK),
        (Body::Consent(Consent { victim, resource_version: 9, duration_ms: Some(9_000) }), CONSENT),
    ]
}

fn route_frames() -> Vec<(Body, &'static str)> {
    let digest = Some(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10_u128.into());
    let snapshot = RouteSnapshot {
        sequence: 3,
        live: vec![(&live()).into()],
        partitions: vec![(&partition_change(PartitionChangeKind::Replaces)).into()],
        digest,
        last: true,
        data_sequence: 2,
    };
    let delta = RouteDelta {
        sequence: 4,
        live_added: vec![(&live()).into()],
        live_removed: vec![(&live()).into()],
        partitions: vec![
            (&partition_change(PartitionChangeKind::Amends)).into(),
            (&partition_change(PartitionChangeKind::Releases)).into(),
        ],
        digest,
        last: true,
        data_sequence: 2,
    };
    vec![
        (Body::RouteSnapshot(snapshot), SNAPSHOT),
        (Body::RouteDelta(delta), DELTA),
        (Body::RouteAck(RouteAck { sequence: 4, data_sequence: 2, wants_snapshot: true }), ROUTE_ACK),
    ]
}

fn client_frames() -> Vec<(Body, &'static str)> {
    let connection = Some(CONNECTION.into());
    let outcomes = Ok(vec![Ok(CONNECTION), Err(OwnerError::TakenOver)]);
    let reasons = Ok(vec![ReasonCode(1), ReasonCode(0x80)]);
    let refused = Err(Refusal::NotOwner);
    let subscriptions = vec![(&subscription()).into()];
    let (request, owner_epoch, client_id) = (1, 3, String::from("c"));
    let detach = core::Detach {
        client_id: "c".into(),
        connection: CONNECTION,
        session_expiry_secs: Some(0),
        in_flight: None,
    };
    let detach_in_flight = core::Detach { in_flight: in_flight(), ..detach.clone() };
    let grant_in_flight = core::AttachGrant { in_flight: in_flight(), ..grant() };
    let attach = Attach { request, owner_epoch, client: Some((&attach_request()).into()) };
    let attachments = vec![(&attachment()).into()];
    let reattach =
        Reattach { request, owner_epoch, group: 6, attachments, last: true, ..Reattach::default() };
    vec![
        (Body::Attach(Box::new(attach)), ATTACH),
        (Body::AttachReply(AttachReply::new(1, &Ok(grant()))), ATTACH_REPLY),
        (Body::AttachReply(AttachReply::new(1, &Ok(grant_in_flight))), ATTACH_REPLY_IN_FLIGHT),
        (Body::Detach((&detach).into()), DETACH),
        (Body::Detach((&detach_in_flight).into()), DETACH_IN_FLIGHT),
        (Body::Reattach(reattach.clone()), REATTACH),
        (
            Body::Reattach(Reattach { attaching: vec!["d".into()], granted: connection, ..reattach }),
            REATTACH_WITH_GRANTED,
        ),
        (Body::ReattachReply(ReattachReply::new(1, &outcomes)), REATTACH_REPLY),
        (
            Body::Subscribe(Subscribe {
                request,
                owner_epoch,
                client_id: client_id.clone(),
                connection,
                subscriptions,
                more: false,
            }),
            SUBSCRIBE,
        ),
        (Body::SubscribeReply(ReasonsReply::new(1, &reasons)), SUBSCRIBE_REPLY),
        (
            Body::Unsubscribe(Unsubscribe {
                request,
                owner_epoch,
                client_id: client_id.clone(),
                connection,
                filters: vec!["a".into()],
            }),
            UNSUBSCRIBE,
        ),
        (Body::UnsubscribeReply(ReasonsReply::new(1, &refused)), UNSUBSCRIBE_REPLY),
        (Body::TakeOver(TakeOver { request, client_id, connection }), TAKE_OVER),
        (Body::TakenOver(TakenOver { request }), TAKEN_OVER),
    ]
}

fn parts_of_frames() -> Vec<(Body, &'static str)> {
    let (request, more) = (1, true);
    vec![
        (Body::AttachReply(AttachReply { request, more, ..AttachReply::default() }), ATTACH_REPLY_PART),
        (
            Body::ReattachReply(ReattachReply { request, more, ..ReattachReply::default() }),
            REATTACH_REPLY_PART,
        ),
        (Body::Subscribe(Subscribe { request, more, ..Subscribe::default() }), SUBSCRIBE_PART),
    ]
}

fn message_frames() -> Vec<(Body, &'static str)> {
    let record = record().encode();
    vec![
        (Body::Deliver((&deliver()).into()), DELIVER),
        (Body::Acked((&acked()).into()), ACKED),
        (Body::Forward(Forward { sequence: 1, record: record.clone() }), FORWARD),
        (Body::ForwardAck(ForwardAck { up_to: 1 }), FORWARD_ACK),
        (Body::Appended(Appended { partition: 6, offset: 500, record }), APPENDED),
        (Body::Resume(Resume { last_forward_sent: 8 }), RESUME),
    ]
}

#[test]
fn the_bytes_of_every_frame_of_version_1_stay_as_they_are() {
    let frames =
        [link_frames(), route_frames(), client_frames(), parts_of_frames(), message_frames()].concat();
    let mut differing = String::new();
    for (body, golden) in frames {
        let frame = Frame { sender_epoch: 4, data_sequence: 0, body: Some(body) };
        let hex: String = frame.to_wire().iter().map(|byte| format!("{byte:02x}")).collect();
        let read = take_frame(&mut BytesMut::from(&frame.to_wire()[..]), 10_000).unwrap();
        assert_eq!(read.map(|(read, _)| read).as_ref(), Some(&frame));
        if hex != golden {
            differing.push_str(&format!("{hex}\n"));
        }
    }

    assert_eq!(differing, "");
}

fn bytes_of(hex: &str) -> BytesMut {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn frames_with_numbers_that_are_used_up_are_still_read() {
    let read = |hex| take_frame(&mut bytes_of(hex), 10_000).unwrap().unwrap().0;

    assert_eq!(read(HELLO_WITH_LAST_FORWARD), read(HELLO));
}

#[test]
fn core_values_come_back_from_the_wire_as_they_were() {
    assert_eq!(
        core::AttachRequest::try_from(super::attach::Client::from(&attach_request())),
        Ok(attach_request())
    );
    assert_eq!(core::Attachment::try_from(super::attach::Attachment::from(&attachment())), Ok(attachment()));
    assert_eq!(AttachReply::new(1, &Ok(grant())).answer(), Ok(Ok(grant())));
    let outcomes = Ok(vec![Ok(CONNECTION), Err(OwnerError::TakenOver)]);
    assert_eq!(ReattachReply::new(1, &outcomes).answer(), Ok(outcomes));
    assert_eq!(core::Deliver::try_from(Deliver::from(&deliver())), Ok(deliver()));
    assert_eq!(core::Acked::try_from(Acked::from(&acked())), Ok(acked()));
    for kind in [PartitionChangeKind::Amends, PartitionChangeKind::Replaces, PartitionChangeKind::Releases] {
        let change = partition_change(kind);
        assert_eq!(PartitionChange::try_from(super::routes::PartitionRoutes::from(&change)), Ok(change));
    }
    assert_eq!(LiveKey::try_from(super::routes::LiveRoute::from(&live())), Ok(live()));
    for in_flight in [None, in_flight()] {
        let (client_id, session_expiry_secs) = ("c".into(), None);
        let detach = core::Detach { client_id, connection: CONNECTION, session_expiry_secs, in_flight };
        assert_eq!(core::Detach::try_from(Detach::from(&detach)), Ok(detach));
    }
    let grant = core::AttachGrant { in_flight: in_flight(), ..grant() };
    assert_eq!(AttachReply::new(1, &Ok(grant.clone())).answer(), Ok(Ok(grant)));
}

//! The bytes of every frame of version 1. They never change: brokers of two releases read each other.

mod frames;
mod values;

use super::attach::{Attach, AttachReply, Detach, Reattach, ReattachReply, Refusal, TakeOver, TakenOver};
use super::deliver::{Acked, Appended, Deliver, Forward, ForwardAck, Resume};
use super::exactly_once::{StoreExactlyOnce, StoreExactlyOnceReply};
use super::link::{Break, Consent, Credit, Hello, Ping, Pong};
use super::routes::{LiveKey, PartitionChange, PartitionChangeKind, RouteAck, RouteDelta, RouteSnapshot};
use super::subscribe::{ReasonsReply, Subscribe, Unsubscribe};
use super::{Body, Frame, take_frame};
use bytes::BytesMut;
use frames::*;
use tidemill_core::attach as core;
use tidemill_core::attach::OwnerError;
use tidemill_core::packet::ReasonCode;
use tidemill_core::session::in_flight::InFlight;
use values::*;

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
        will: core::WillOutcome::Over,
    };
    let detach_will_due =
        core::Detach { will: core::WillOutcome::Due { in_ms: 300, is_brokers_own: true }, ..detach.clone() };
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
        (Body::Detach((&core::Detach { in_flight: retained_due(), ..detach }).into()), DETACH_RETAINED),
        (Body::Detach((&detach_will_due).into()), DETACH_WILL_DUE),
        (Body::WillOver((&will_over()).into()), WILL_OVER),
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
        (
            Body::StoreExactlyOnce(StoreExactlyOnce::new(1, owner_epoch, &store_exactly_once())),
            STORE_EXACTLY_ONCE,
        ),
        (
            Body::StoreExactlyOnceReply(StoreExactlyOnceReply::new(1, &Err(Refusal::NotOwner))),
            STORE_EXACTLY_ONCE_REPLY,
        ),
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
        (Body::Deliver((&deliver_exactly_once()).into()), DELIVER_EXACTLY_ONCE),
        (Body::Acked((&acked_exactly_once()).into()), ACKED_EXACTLY_ONCE),
        (Body::Acked((&acked_retained()).into()), ACKED_RETAINED),
        (Body::Release((&release()).into()), RELEASE),
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
    assert_eq!(core::WillOver::try_from(super::attach::WillOver::from(&will_over())), Ok(will_over()));
    let deliver = deliver_exactly_once();
    assert_eq!(core::Deliver::try_from(Deliver::from(&deliver)), Ok(deliver));
    for acked in [acked_exactly_once(), acked_retained()] {
        assert_eq!(core::Acked::try_from(Acked::from(&acked)), Ok(acked));
    }
    let stored = StoreExactlyOnce::new(1, 3, &store_exactly_once());
    assert_eq!(core::ExactlyOnceRequest::try_from(stored), Ok(store_exactly_once()));
    assert_eq!(core::Release::try_from(super::exactly_once::Release::from(&release())), Ok(release()));
    for answer in [Ok(()), Err(Refusal::NotOwner)] {
        assert_eq!(StoreExactlyOnceReply::new(1, &answer).answer(), Ok(answer));
    }
    for kind in [PartitionChangeKind::Amends, PartitionChangeKind::Replaces, PartitionChangeKind::Releases] {
        let change = partition_change(kind);
        assert_eq!(PartitionChange::try_from(super::routes::PartitionRoutes::from(&change)), Ok(change));
    }
    assert_eq!(LiveKey::try_from(super::routes::LiveRoute::from(&live())), Ok(live()));
    let with_intents = in_flight().map(|one| Box::new(InFlight { intents: vec![intent()], ..*one }));
    for in_flight in [None, in_flight(), with_intents, retained_due()] {
        let (client_id, session_expiry_secs) = ("c".into(), None);
        let (connection, will) = (CONNECTION, core::WillOutcome::Due { in_ms: 300, is_brokers_own: true });
        let detach = core::Detach { client_id, connection, session_expiry_secs, in_flight, will };
        assert_eq!(core::Detach::try_from(Detach::from(&detach)), Ok(detach));
    }
    let grant = core::AttachGrant { in_flight: in_flight(), ..grant() };
    assert_eq!(AttachReply::new(1, &Ok(grant.clone())).answer(), Ok(Ok(grant)));
}

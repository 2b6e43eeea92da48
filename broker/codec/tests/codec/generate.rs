//! Packets by chance: whatever a client of one version may send.

use bytes::Bytes;
use bytestring::ByteString;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use std::num::{NonZeroU16, NonZeroU32};
use tidemill_core::packet::{
    Ack, AckKind, Connect, Disconnect, Packet, PacketId, PublishPacket, PublishProperties, QoS, ReasonCode,
    RetainHandling, Subscribe, SubscribeEntry, SubscriptionOptions, Unsubscribe, UserProperties, Version,
    Will,
};
use tidemill_core::topic::TopicName;

pub(crate) fn version() -> impl Strategy<Value = Version> {
    prop_oneof![Just(Version::V3_1), Just(Version::V3_1_1), Just(Version::V5)]
}

pub(crate) fn text() -> impl Strategy<Value = ByteString> {
    "[^\0]{0,20}".prop_map(ByteString::from)
}

fn long_text() -> impl Strategy<Value = ByteString> {
    prop_oneof![8 => text(), 1 => "[a-z]{120,140}".prop_map(ByteString::from)]
}

fn topic() -> impl Strategy<Value = ByteString> {
    "[^\0+#]{1,30}".prop_map(ByteString::from)
}

fn filter() -> impl Strategy<Value = ByteString> {
    let level = prop_oneof![3 => "[a-zä]{0,3}", 1 => Just("+".to_owned())];
    let plain = (vec(level, 1..5), any::<bool>())
        .prop_map(|(levels, is_tree)| levels.join("/") + if is_tree { "/#" } else { "" })
        .prop_filter("a filter has a character", |filter| !filter.is_empty());
    plain.prop_map(ByteString::from)
}

pub(crate) fn qos() -> impl Strategy<Value = QoS> {
    prop_oneof![Just(QoS::AtMostOnce), Just(QoS::AtLeastOnce), Just(QoS::ExactlyOnce)]
}

pub(crate) fn packet_id() -> impl Strategy<Value = PacketId> {
    (1..=u16::MAX).prop_map(|number| PacketId::new(number).unwrap())
}

fn binary() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..40).prop_map(Bytes::from)
}

fn payload() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        8 => binary(),
        1 => vec(any::<u8>(), 110..140).prop_map(Bytes::from),
        1 => (16_380_usize..16_400).prop_map(|len| Bytes::from(vec![7; len])),
    ]
}

pub(crate) fn user_properties() -> impl Strategy<Value = UserProperties> {
    vec((text(), long_text()), 0..4)
}

fn none_if_empty(properties: PublishProperties) -> Option<Box<PublishProperties>> {
    (properties != PublishProperties::default()).then(|| Box::new(properties))
}

fn message_properties() -> impl Strategy<Value = PublishProperties> {
    (
        option::of(any::<bool>()),
        option::of(prop_oneof![Just(0), any::<u32>()]),
        option::of(text()),
        option::of(topic()),
        option::of(binary()),
        user_properties(),
    )
        .prop_map(|(payload_is_utf8, message_expiry_secs, content_type, response_topic, data, user)| {
            PublishProperties {
                payload_is_utf8,
                message_expiry_secs,
                content_type,
                response_topic,
                correlation_data: data,
                subscription_identifiers: Vec::new(),
                user_properties: user,
            }
        })
}

pub(crate) fn publish(version: Version) -> impl Strategy<Value = PublishPacket> {
    (
        (any::<bool>(), any::<bool>(), qos(), packet_id()),
        (topic(), option::of(1..=u16::MAX), any::<bool>()),
        payload(),
        message_properties(),
    )
        .prop_map(
            move |((dup, retain, qos, packet_id), (topic, alias, is_bare), payload, properties)| {
                let topic_alias = alias.filter(|_| version.is_v5()).and_then(NonZeroU16::new);
                let is_bare = is_bare && topic_alias.is_some();
                PublishPacket {
                    dup: dup && qos != QoS::AtMostOnce,
                    retain,
                    qos,
                    packet_id: (qos != QoS::AtMostOnce).then_some(packet_id),
                    topic: if is_bare { ByteString::new() } else { topic },
                    topic_alias,
                    payload,
                    properties: none_if_empty(properties).filter(|_| version.is_v5()),
                }
            },
        )
}

fn will(version: Version) -> impl Strategy<Value = Will> {
    (topic(), binary(), qos(), any::<bool>(), any::<u32>(), message_properties()).prop_filter_map(
        "a will topic has a bound on its levels",
        move |(topic, payload, qos, retain, delay_secs, properties)| {
            Some(Will {
                topic: TopicName::parse(topic).ok()?,
                payload,
                qos,
                retain,
                delay_secs: if version.is_v5() { delay_secs } else { 0 },
                properties: none_if_empty(properties).filter(|_| version.is_v5()),
            })
        },
    )
}

pub(crate) fn connect() -> impl Strategy<Value = Connect> {
    version().prop_flat_map(|version| {
        let fields = (text(), any::<bool>(), any::<u16>(), option::of(text()), option::of(binary()));
        let numbers = (option::of(1..=u32::MAX), any::<u16>(), any::<u32>(), any::<u16>());
        let flags = (any::<bool>(), any::<bool>());
        let more = (option::of((text(), option::of(binary()))), user_properties());
        (fields, option::of(will(version)), numbers, flags, more)
            .prop_map(move |parts| connect_of(version, parts))
    })
}

type ConnectParts = (
    (ByteString, bool, u16, Option<ByteString>, Option<Bytes>),
    Option<Will>,
    (Option<u32>, u16, u32, u16),
    (bool, bool),
    (Option<(ByteString, Option<Bytes>)>, UserProperties),
);

fn connect_of(version: Version, (fields, will, numbers, flags, more): ConnectParts) -> Connect {
    let (client_id, clean_start, keep_alive_secs, user_name, password) = fields;
    let (session_expiry_secs, receive_maximum, maximum_packet, alias_maximum) = numbers;
    let (authentication, user_properties) = more;
    let v5 = version.is_v5();
    let client_id = if client_id.is_empty() && !v5 { ByteString::from_static("c") } else { client_id };
    Connect {
        version,
        client_id,
        clean_start,
        keep_alive_secs,
        password: password.filter(|_| v5 || user_name.is_some()),
        user_name,
        will: will.map(Box::new),
        session_expiry_secs: session_expiry_secs.filter(|_| v5),
        receive_maximum: NonZeroU16::new(receive_maximum).filter(|_| v5),
        maximum_packet_bytes: NonZeroU32::new(maximum_packet).filter(|_| v5),
        topic_alias_maximum: if v5 { alias_maximum } else { 0 },
        request_response_information: flags.0 && v5,
        request_problem_information: flags.1 || !v5,
        authentication_method: authentication.clone().filter(|_| v5).map(|(method, _)| method),
        authentication_data: authentication.filter(|_| v5).and_then(|(_, data)| data),
        user_properties: if v5 { user_properties } else { Vec::new() },
    }
}

fn subscribe(version: Version) -> impl Strategy<Value = Subscribe> {
    let retain = prop_oneof![
        Just(RetainHandling::Send),
        Just(RetainHandling::SendIfNew),
        Just(RetainHandling::DoNotSend)
    ];
    let entry = (filter(), qos(), any::<bool>(), any::<bool>(), retain, any::<bool>());
    let entry = entry.prop_map(move |(filter, qos, no_local, as_published, retain_handling, is_shared)| {
        let is_v5 = version.is_v5();
        let filter = if is_shared { ByteString::from(format!("$share/g/{filter}")) } else { filter };
        SubscribeEntry {
            filter,
            options: SubscriptionOptions {
                qos,
                no_local: no_local && is_v5 && !is_shared,
                retain_as_published: as_published && is_v5,
                retain_handling: if is_v5 { retain_handling } else { RetainHandling::Send },
            },
        }
    });
    (packet_id(), option::of(1..=268_435_455_u32), vec(entry, 1..5), user_properties()).prop_map(
        move |(packet_id, identifier, entries, user_properties)| Subscribe {
            packet_id,
            identifier: identifier.filter(|_| version.is_v5()),
            entries,
            user_properties: if version.is_v5() { user_properties } else { Vec::new() },
        },
    )
}

fn unsubscribe(version: Version) -> impl Strategy<Value = Unsubscribe> {
    (packet_id(), vec(filter(), 1..5), user_properties()).prop_map(move |(packet_id, filters, properties)| {
        let user_properties = if version.is_v5() { properties } else { Vec::new() };
        Unsubscribe { packet_id, filters, user_properties }
    })
}

pub(crate) fn ack(version: Version) -> impl Strategy<Value = Ack> {
    let kind = prop_oneof![
        Just(AckKind::PubAck),
        Just(AckKind::PubRec),
        Just(AckKind::PubRel),
        Just(AckKind::PubComp)
    ];
    (kind, packet_id(), any::<bool>(), option::of(long_text())).prop_map(
        move |(kind, packet_id, failed, text)| {
            let failure = match kind {
                AckKind::PubAck | AckKind::PubRec => ReasonCode::QUOTA_EXCEEDED,
                AckKind::PubRel | AckKind::PubComp => ReasonCode::PACKET_IDENTIFIER_NOT_FOUND,
            };
            let reason = if failed && version.is_v5() { failure } else { ReasonCode::SUCCESS };
            Ack { kind, packet_id, reason, reason_string: text.filter(|_| version.is_v5()) }
        },
    )
}

fn disconnect(version: Version) -> impl Strategy<Value = Disconnect> {
    (any::<bool>(), option::of(any::<u32>()), option::of(text()), user_properties()).prop_map(
        move |(with_will, session_expiry_secs, reason_string, user_properties)| {
            if !version.is_v5() {
                return Disconnect::new(ReasonCode::SUCCESS);
            }
            let reason = if with_will { ReasonCode::DISCONNECT_WITH_WILL } else { ReasonCode::SUCCESS };
            Disconnect { session_expiry_secs, reason_string, user_properties, ..Disconnect::new(reason) }
        },
    )
}

/// Any packet that a client may send after CONNECT.
pub(crate) fn client_packet(version: Version) -> BoxedStrategy<Packet> {
    let common = prop_oneof![
        4 => publish(version).prop_map(Packet::Publish),
        2 => ack(version).prop_map(Packet::Ack),
        2 => subscribe(version).prop_map(Packet::Subscribe),
        1 => unsubscribe(version).prop_map(Packet::Unsubscribe),
        1 => disconnect(version).prop_map(Packet::Disconnect),
        1 => Just(Packet::PingReq),
    ];
    if version.is_v5() {
        prop_oneof![12 => common, 1 => Just(Packet::Auth(ReasonCode::REAUTHENTICATE))].boxed()
    } else {
        common.boxed()
    }
}

//! 5.0 packets through `rmqtt-codec`.

use super::Encoder;
use super::v3::quality;
use crate::{EncodeError, will_expiry};
use bytes::BytesMut;
use bytestring::ByteString;
use rmqtt_codec::error::DecodeError as UnknownCode;
use rmqtt_codec::v5;
use std::num::{NonZeroU16, NonZeroU32};
use tidemill_core::packet::{
    Answer, ConnAck, Connect, Disconnect, Packet, QoS, ReasonCode, RetainHandling, Subscribe, SubscribeEntry,
    Will, reason_string,
};
use tokio_util::codec::Encoder as _;

pub(super) fn encode(encoder: Encoder, packet: &Packet, out: &mut BytesMut) -> Result<(), EncodeError> {
    let start = out.len();
    let translated = translate(encoder, packet)?;
    let mut codec = v5::Codec::default();
    codec.encode(translated.clone(), out).map_err(|_refused| EncodeError::Unrepresentable("5.0 packet"))?;
    if let Packet::Connect(connect) = packet
        && expires_at_once(connect)
    {
        will_expiry::restore(out.get_mut(start..).unwrap_or_default());
    }
    let too_large = match encoder.check_len(out.len() - start) {
        Ok(()) => return Ok(()),
        Err(too_large) => too_large,
    };
    out.truncate(start);
    if let v5::Packet::SubscribeAck(mut ack) = translated {
        ack.reason_string = None;
        codec.encode(v5::Packet::SubscribeAck(ack), out).map_err(|_refused| too_large)?;
        return encoder.check_len(out.len() - start);
    }
    let (Packet::ConnAck(_) | Packet::Disconnect(_)) = packet else { return Err(too_large) };
    // Once more with a limit, which makes `rmqtt-codec` leave out reason string and user properties.
    codec.set_max_outbound_size(u32::try_from(encoder.bytes_max()).unwrap_or(u32::MAX));
    codec.encode(translated, out).map_err(|_refused| too_large)
}

fn translate(encoder: Encoder, packet: &Packet) -> Result<v5::Packet, EncodeError> {
    Ok(match packet {
        Packet::Connect(connect) => v5::Packet::Connect(Box::new(translate_connect(connect))),
        Packet::ConnAck(ack) => v5::Packet::ConnectAck(Box::new(translate_connack(ack))),
        Packet::Subscribe(subscribe) => v5::Packet::Subscribe(translate_subscribe(subscribe)?),
        Packet::SubAck(ack) => v5::Packet::SubscribeAck(v5::SubscribeAck {
            packet_id: ack.packet_id.0,
            properties: Vec::new(),
            reason_string: first_words(encoder, &ack.reasons),
            status: codes(&ack.reasons, v5::SubscribeAckReason::UnspecifiedError),
        }),
        Packet::Unsubscribe(unsubscribe) => v5::Packet::Unsubscribe(v5::Unsubscribe {
            packet_id: unsubscribe.packet_id.0,
            user_properties: unsubscribe.user_properties.clone(),
            topic_filters: unsubscribe.filters.clone(),
        }),
        Packet::UnsubAck(ack) => v5::Packet::UnsubscribeAck(v5::UnsubscribeAck {
            packet_id: ack.packet_id.0,
            properties: Vec::new(),
            reason_string: None,
            status: codes(&ack.reasons, v5::UnsubscribeAckReason::UnspecifiedError),
        }),
        Packet::PingReq => v5::Packet::PingRequest,
        Packet::PingResp => v5::Packet::PingResponse,
        Packet::Disconnect(disconnect) => v5::Packet::Disconnect(translate_disconnect(disconnect)),
        Packet::Auth(reason) => v5::Packet::Auth(v5::Auth {
            reason_code: v5::AuthReasonCode::try_from(reason.0)
                .map_err(|_unknown| EncodeError::Unrepresentable("reason code of AUTH"))?,
            ..v5::Auth::default()
        }),
        Packet::Publish(_) | Packet::Ack(_) => {
            return Err(EncodeError::Unrepresentable(
                "PUBLISH and its acknowledgements have encoders of their own",
            ));
        }
    })
}

/// Why the first entry that failed did, if the client wants to know.
fn first_words(encoder: Encoder, reasons: &[ReasonCode]) -> Option<ByteString> {
    let failed = reasons.iter().find(|reason| reason.is_failure()).filter(|_| encoder.explains)?;
    reason_string(Answer::SubAck, *failed)
}

/// `reason` as a code of one kind of packet; `unspecified` where 5.0 does not list it for that kind.
fn code<C: TryFrom<u8, Error = UnknownCode>>(reason: ReasonCode, unspecified: C) -> C {
    C::try_from(reason.0).unwrap_or(unspecified)
}

fn codes<C: TryFrom<u8, Error = UnknownCode> + Copy>(reasons: &[ReasonCode], unspecified: C) -> Vec<C> {
    reasons.iter().map(|reason| code(*reason, unspecified)).collect()
}

fn translate_connect(connect: &Connect) -> v5::Connect {
    v5::Connect {
        clean_start: connect.clean_start,
        keep_alive: connect.keep_alive_secs,
        session_expiry_interval_secs: connect.session_expiry_secs.unwrap_or(0),
        auth_method: connect.authentication_method.clone(),
        auth_data: connect.authentication_data.clone(),
        request_problem_info: connect.request_problem_information,
        request_response_info: connect.request_response_information,
        receive_max: connect.receive_maximum,
        topic_alias_max: connect.topic_alias_maximum,
        user_properties: connect.user_properties.clone(),
        max_packet_size: connect.maximum_packet_bytes,
        last_will: connect.will.as_deref().map(translate_will),
        client_id: connect.client_id.clone(),
        username: connect.user_name.clone(),
        password: connect.password.clone(),
        cert: None,
    }
}

fn expires_at_once(connect: &Connect) -> bool {
    let properties = connect.will.as_ref().and_then(|will| will.properties.as_ref());
    properties.is_some_and(|properties| properties.message_expiry_secs == Some(0))
}

fn translate_will(will: &Will) -> v5::LastWill {
    let properties = will.properties.as_deref().cloned().unwrap_or_default();
    v5::LastWill {
        qos: quality(will.qos),
        retain: will.retain,
        topic: will.topic.text().clone(),
        message: will.payload.clone(),
        will_delay_interval_sec: (will.delay_secs > 0).then_some(will.delay_secs),
        correlation_data: properties.correlation_data,
        message_expiry_interval: properties
            .message_expiry_secs
            .map(|secs| NonZeroU32::new(secs).unwrap_or(NonZeroU32::MIN)),
        content_type: properties.content_type,
        user_properties: properties.user_properties,
        is_utf8_payload: properties.payload_is_utf8,
        response_topic: properties.response_topic,
    }
}

fn translate_connack(ack: &ConnAck) -> v5::ConnectAck {
    let properties = &ack.properties;
    v5::ConnectAck {
        session_present: ack.session_present,
        reason_code: code(ack.reason, v5::ConnectAckReason::UnspecifiedError),
        session_expiry_interval_secs: properties.session_expiry_secs,
        receive_max: properties.receive_maximum.unwrap_or(NonZeroU16::MAX),
        max_qos: quality(properties.maximum_qos.unwrap_or(QoS::ExactlyOnce)),
        max_packet_size: properties.maximum_packet_bytes,
        assigned_client_id: properties.assigned_client_id.clone(),
        topic_alias_max: properties.topic_alias_maximum,
        retain_available: properties.retain_available.unwrap_or(true),
        wildcard_subscription_available: properties.wildcard_subscription_available.unwrap_or(true),
        subscription_identifiers_available: properties.subscription_identifiers_available.unwrap_or(true),
        shared_subscription_available: properties.shared_subscription_available.unwrap_or(true),
        server_keepalive_sec: properties.server_keep_alive_secs,
        response_info: properties.response_information.clone(),
        reason_string: properties.reason_string.clone(),
        ..v5::ConnectAck::default()
    }
}

fn translate_subscribe(subscribe: &Subscribe) -> Result<v5::Subscribe, EncodeError> {
    let id = match subscribe.identifier {
        Some(number) => Some(
            NonZeroU32::new(number)
                .filter(|number| number.get() <= 268_435_455)
                .ok_or(EncodeError::Unrepresentable("subscription identifier out of range"))?,
        ),
        None => None,
    };
    Ok(v5::Subscribe {
        packet_id: subscribe.packet_id.0,
        id,
        user_properties: subscribe.user_properties.clone(),
        topic_filters: subscribe.entries.iter().map(translate_entry).collect(),
    })
}

fn translate_entry(entry: &SubscribeEntry) -> (ByteString, v5::SubscriptionOptions) {
    let options = v5::SubscriptionOptions {
        qos: quality(entry.options.qos),
        no_local: entry.options.no_local,
        retain_as_published: entry.options.retain_as_published,
        retain_handling: match entry.options.retain_handling {
            RetainHandling::Send => v5::RetainHandling::AtSubscribe,
            RetainHandling::SendIfNew => v5::RetainHandling::AtSubscribeNew,
            RetainHandling::DoNotSend => v5::RetainHandling::NoAtSubscribe,
        },
    };
    (entry.filter.clone(), options)
}

fn translate_disconnect(disconnect: &Disconnect) -> v5::Disconnect {
    v5::Disconnect {
        reason_code: code(disconnect.reason, v5::DisconnectReasonCode::UnspecifiedError),
        session_expiry_interval_secs: disconnect.session_expiry_secs,
        server_reference: disconnect.server_reference.clone(),
        reason_string: disconnect.reason_string.clone(),
        user_properties: disconnect.user_properties.clone(),
    }
}

//! 3.1 and 3.1.1 packets through `rmqtt-codec`.

use super::Encoder;
use crate::EncodeError;
use bytes::BytesMut;
use rmqtt_codec::types::Protocol;
use rmqtt_codec::v3;
use tidemill_core::packet::{Connect, Packet, QoS, ReasonCode, Version};
use tokio_util::codec::Encoder as _;

pub(super) fn encode(encoder: Encoder, packet: &Packet, out: &mut BytesMut) -> Result<(), EncodeError> {
    let start = out.len();
    let translated = translate(encoder.version(), packet)?;
    v3::Codec::default()
        .encode(translated, out)
        .map_err(|_refused| EncodeError::Unrepresentable("3.x packet"))?;
    if let (Packet::Connect(_), Version::V3_1) = (packet, encoder.version()) {
        set_level_of_3_1(out, start)?;
    }
    Ok(())
}

fn translate(version: Version, packet: &Packet) -> Result<v3::Packet, EncodeError> {
    Ok(match packet {
        Packet::Connect(connect) => v3::Packet::Connect(Box::new(translate_connect(version, connect))),
        Packet::ConnAck(ack) => v3::Packet::ConnectAck(v3::ConnectAck {
            return_code: return_code(ack.reason),
            session_present: ack.session_present && version == Version::V3_1_1,
        }),
        Packet::Subscribe(subscribe) => v3::Packet::Subscribe {
            packet_id: subscribe.packet_id.0,
            topic_filters: subscribe
                .entries
                .iter()
                .map(|entry| (entry.filter.clone(), quality(entry.options.qos)))
                .collect(),
        },
        Packet::SubAck(ack) => v3::Packet::SubscribeAck {
            packet_id: ack.packet_id.0,
            status: ack.reasons.iter().map(|reason| granted(*reason)).collect(),
        },
        Packet::Unsubscribe(unsubscribe) => v3::Packet::Unsubscribe {
            packet_id: unsubscribe.packet_id.0,
            topic_filters: unsubscribe.filters.clone(),
        },
        Packet::UnsubAck(ack) => v3::Packet::UnsubscribeAck { packet_id: ack.packet_id.0 },
        Packet::PingReq => v3::Packet::PingRequest,
        Packet::PingResp => v3::Packet::PingResponse,
        Packet::Disconnect(_) => v3::Packet::Disconnect,
        Packet::Auth(_) => return Err(EncodeError::Unrepresentable("AUTH exists in 5.0 only")),
        Packet::Publish(_) | Packet::Ack(_) => {
            return Err(EncodeError::Unrepresentable(
                "PUBLISH and its acknowledgements have encoders of their own",
            ));
        }
    })
}

fn translate_connect(version: Version, connect: &Connect) -> v3::Connect {
    v3::Connect {
        protocol: Protocol(if version == Version::V3_1 { 3 } else { 4 }),
        clean_session: connect.clean_start,
        keep_alive: connect.keep_alive_secs,
        last_will: connect.will.as_ref().map(|will| v3::LastWill {
            qos: quality(will.qos),
            retain: will.retain,
            topic: will.topic.text().clone(),
            message: will.payload.clone(),
        }),
        client_id: connect.client_id.clone(),
        username: connect.user_name.clone(),
        password: connect.password.clone(),
        cert: None,
    }
}

/// `rmqtt-codec` writes level 4 behind `MQIsdp`.
fn set_level_of_3_1(out: &mut BytesMut, start: usize) -> Result<(), EncodeError> {
    let packet = out.get_mut(start..).unwrap_or_default();
    let header = crate::wire::FixedHeader::read(packet).ok().flatten();
    let level = header.and_then(|header| packet.get_mut(header.header_len + 8));
    *level.ok_or(EncodeError::Unrepresentable("3.1 CONNECT"))? = 3;
    Ok(())
}

/// The return code of section 3.2.2.3 that says most of `reason`.
fn return_code(reason: ReasonCode) -> v3::ConnectAckReason {
    match reason {
        ReasonCode::SUCCESS => v3::ConnectAckReason::ConnectionAccepted,
        ReasonCode::UNSUPPORTED_PROTOCOL_VERSION => v3::ConnectAckReason::UnacceptableProtocolVersion,
        ReasonCode::CLIENT_IDENTIFIER_NOT_VALID => v3::ConnectAckReason::IdentifierRejected,
        ReasonCode::BAD_USER_NAME_OR_PASSWORD | ReasonCode::BAD_AUTHENTICATION_METHOD => {
            v3::ConnectAckReason::BadUserNameOrPassword
        }
        ReasonCode::NOT_AUTHORIZED | ReasonCode::BANNED => v3::ConnectAckReason::NotAuthorized,
        _ => v3::ConnectAckReason::ServiceUnavailable,
    }
}

fn granted(reason: ReasonCode) -> v3::SubscribeReturnCode {
    match QoS::from_number(reason.0) {
        Some(qos) => v3::SubscribeReturnCode::Success(quality(qos)),
        None => v3::SubscribeReturnCode::Failure,
    }
}

pub(super) fn quality(qos: QoS) -> v3::QoS {
    match qos {
        QoS::AtMostOnce => v3::QoS::AtMostOnce,
        QoS::AtLeastOnce => v3::QoS::AtLeastOnce,
        QoS::ExactlyOnce => v3::QoS::ExactlyOnce,
    }
}

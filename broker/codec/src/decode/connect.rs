//! CONNECT from bytes: version first, then `rmqtt-codec`, then what it leaves out.

use super::publish::check_response_topic;
use super::{check_texts, own, own_bytes, pairs, refuse, skip_properties};
use crate::DecodeError;
use crate::will_expiry;
use crate::wire::{FixedHeader, Reader};
use bytes::BytesMut;
use rmqtt_codec::{v3, v5};
use tidemill_core::packet::{Connect, PublishProperties, QoS, Version, Will};
use tidemill_core::topic::TopicName;
use tokio_util::codec::Decoder as _;

const CLEAN_START: u8 = 0b0000_0010;
const WILL: u8 = 0b0000_0100;
const WILL_QOS_AND_RETAIN: u8 = 0b0011_1000;
const PASSWORD: u8 = 0b0100_0000;
const USER_NAME: u8 = 0b1000_0000;

/// Reads protocol name and level at the start of a CONNECT's body.
pub(crate) fn read_version(body: &[u8]) -> Result<Version, DecodeError> {
    let mut reader = Reader::new(body);
    let name = reader.field()?;
    let level = reader.u8()?;
    match (name, level) {
        (b"MQIsdp", 3) => Ok(Version::V3_1),
        (b"MQTT", 4) => Ok(Version::V3_1_1),
        (b"MQTT", 5) => Ok(Version::V5),
        (b"MQIsdp" | b"MQTT", _) => Err(DecodeError::UnsupportedVersion),
        _ => Err(DecodeError::Malformed("protocol name")),
    }
}

/// Decodes one complete CONNECT of `version`. Session expiry 0 and an absent one are both `None`.
pub(crate) fn decode(version: Version, header: FixedHeader, packet: &[u8]) -> Result<Connect, DecodeError> {
    if version.is_v5() && !header.is_minimal() {
        return Err(DecodeError::Malformed("length is not in its shortest form"));
    }
    let body = packet.get(header.header_len..).unwrap_or_default();
    let flags = check_shape(version, body)?;
    let mut frame = super::frame(packet);
    let connect =
        if version.is_v5() { decode_v5(&mut frame, header, flags)? } else { decode_v3(version, &mut frame)? };
    check_fields(&connect)?;
    Ok(connect)
}

/// Walks through the whole body: every field is there and nothing stands behind the last one. Gives back the flags.
fn check_shape(version: Version, body: &[u8]) -> Result<u8, DecodeError> {
    let mut reader = Reader::new(body);
    reader.field()?;
    reader.u8()?;
    let flags = reader.u8()?;
    reader.u16()?;
    if version.is_v5() {
        skip_properties(&mut reader)?;
    }
    reader.field()?;
    if flags & WILL == 0 {
        if flags & WILL_QOS_AND_RETAIN != 0 {
            return Err(DecodeError::Malformed("will QoS or will retain without a will"));
        }
    } else {
        if version.is_v5() {
            skip_properties(&mut reader)?;
        }
        reader.field()?;
        reader.field()?;
    }
    if !version.is_v5() && flags & PASSWORD != 0 && flags & USER_NAME == 0 {
        return Err(DecodeError::Malformed("password without user name"));
    }
    for flag in [USER_NAME, PASSWORD] {
        if flags & flag != 0 {
            reader.field()?;
        }
    }
    if reader.is_empty() { Ok(flags) } else { Err(DecodeError::Malformed("bytes behind the last field")) }
}

fn check_fields(connect: &Connect) -> Result<(), DecodeError> {
    check_texts([&connect.client_id])?;
    check_texts(&connect.user_name)?;
    check_texts(&connect.authentication_method)?;
    check_texts(pairs(&connect.user_properties))?;
    if connect.authentication_data.is_some() && connect.authentication_method.is_none() {
        return Err(DecodeError::Protocol("authentication data without a method"));
    }
    let Some(properties) = connect.will.as_ref().and_then(|will| will.properties.as_deref()) else {
        return Ok(());
    };
    check_texts(&properties.content_type)?;
    check_texts(pairs(&properties.user_properties))?;
    properties.response_topic.as_ref().map_or(Ok(()), check_response_topic)
}

fn decode_v3(version: Version, frame: &mut BytesMut) -> Result<Connect, DecodeError> {
    let Some((v3::Packet::Connect(inner), _)) = v3::Codec::default().decode(frame).map_err(refuse)? else {
        return Err(DecodeError::Malformed("CONNECT is cut off"));
    };
    // 3.1 has no empty client id; 3.1.1 has one with a clean session only, which `rmqtt-codec` checks.
    if version == Version::V3_1 && inner.client_id.is_empty() {
        return Err(DecodeError::ClientIdNotValid);
    }
    let will = match inner.last_will {
        None => None,
        Some(will) => Some(Box::new(Will {
            topic: will_topic(&will.topic)?,
            payload: own_bytes(&will.message),
            qos: quality(will.qos),
            retain: will.retain,
            delay_secs: 0,
            properties: None,
        })),
    };
    Ok(Connect {
        version,
        client_id: own(&inner.client_id),
        clean_start: inner.clean_session,
        keep_alive_secs: inner.keep_alive,
        user_name: inner.username.as_deref().map(own),
        password: inner.password,
        will,
        session_expiry_secs: None,
        receive_maximum: None,
        maximum_packet_bytes: None,
        topic_alias_maximum: 0,
        request_response_information: false,
        request_problem_information: true,
        authentication_method: None,
        authentication_data: None,
        user_properties: Vec::new(),
    })
}

fn decode_v5(frame: &mut BytesMut, header: FixedHeader, flags: u8) -> Result<Connect, DecodeError> {
    // `rmqtt-codec` refuses an empty client id without clean start, which 5.0 allows (section 3.1.3.1). Name and level
    // have 7 bytes, then come the flags.
    if let Some(flags) = frame.get_mut(header.header_len + 7) {
        *flags |= CLEAN_START;
    }
    let will_expires_at_once = will_expiry::hide(frame);
    let Some((v5::Packet::Connect(inner), _)) = v5::Codec::default().decode(frame).map_err(refuse)? else {
        return Err(DecodeError::Malformed("CONNECT is cut off"));
    };
    let inner = *inner;
    let mut will = inner.last_will.map(translate_will).transpose()?;
    if will_expires_at_once && let Some(properties) = will.as_mut().and_then(|will| will.properties.as_mut())
    {
        properties.message_expiry_secs = Some(0);
    }
    Ok(Connect {
        version: Version::V5,
        client_id: own(&inner.client_id),
        clean_start: flags & CLEAN_START != 0,
        keep_alive_secs: inner.keep_alive,
        user_name: inner.username.as_deref().map(own),
        password: inner.password,
        will,
        session_expiry_secs: Some(inner.session_expiry_interval_secs).filter(|secs| *secs > 0),
        receive_maximum: inner.receive_max,
        maximum_packet_bytes: inner.max_packet_size,
        topic_alias_maximum: inner.topic_alias_max,
        request_response_information: inner.request_response_info,
        request_problem_information: inner.request_problem_info,
        authentication_method: inner.auth_method,
        authentication_data: inner.auth_data,
        user_properties: inner.user_properties,
    })
}

fn translate_will(will: v5::LastWill) -> Result<Box<Will>, DecodeError> {
    let properties = PublishProperties {
        payload_is_utf8: will.is_utf8_payload,
        message_expiry_secs: will.message_expiry_interval.map(std::num::NonZeroU32::get),
        content_type: will.content_type,
        response_topic: will.response_topic,
        correlation_data: will.correlation_data,
        subscription_identifiers: Vec::new(),
        user_properties: will.user_properties,
    };
    let is_plain = properties == PublishProperties::default();
    Ok(Box::new(Will {
        topic: will_topic(&will.topic)?,
        payload: own_bytes(&will.message),
        qos: quality(will.qos),
        retain: will.retain,
        delay_secs: will.will_delay_interval_sec.unwrap_or(0),
        properties: (!is_plain).then(|| Box::new(properties)),
    }))
}

fn will_topic(text: &str) -> Result<TopicName, DecodeError> {
    TopicName::parse(own(text)).map_err(|_invalid| DecodeError::TopicNameInvalid)
}

pub(super) fn quality(qos: v3::QoS) -> QoS {
    match qos {
        v3::QoS::AtMostOnce => QoS::AtMostOnce,
        v3::QoS::AtLeastOnce => QoS::AtLeastOnce,
        v3::QoS::ExactlyOnce => QoS::ExactlyOnce,
    }
}

//! From the first byte to CONNACK: what a client asks for, what it gets, and the word of its owner.

use super::input::Input;
use super::{Services, will};
use crate::mailbox::{CloseReason, Kept, Mailbox, OpenedClient, Turn};
use crate::registry::{Registered, TakenOver};
use bytes::BytesMut;
use bytestring::ByteString;
use std::io;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;
use tidemill_codec::{Codec, DecodeError, DecodeLimits};
use tidemill_core::attach::{AttachGrant, AttachRequest, Detach, OwnerError, SessionLifetime, WillOutcome};
use tidemill_core::packet::{
    Answer, ConnAck, ConnAckProperties, Connect, Packet, QoS, ReasonCode, Version, reason_string,
};
use tidemill_core::session::in_flight::{Intent, RetainedDue};
use tidemill_core::session::timers::KeepAlive;

/// A client has this long to send its CONNECT.
const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// Largest CONNECT: a will and a user property of full size fit.
pub(super) const CONNECT_BYTES_MAX: u32 = 256 * 1024;
/// Topic aliases that a 5.0 client may use.
pub(super) const TOPIC_ALIAS_MAXIMUM: u16 = 32;

/// A client that was let in.
pub(super) struct Connected {
    pub(super) codec: Codec,
    pub(super) connect: Box<Connect>,
    pub(super) registered: Arc<Registered>,
    pub(super) grant: AttachGrant,
    pub(super) resumed: Resumed,
}

/// What the connection itself goes on with, of what a resumed session has in flight.
#[derive(Default)]
pub(super) struct Resumed {
    /// QoS 2 publishes of former connections that the owner has stored.
    pub(super) intents: Vec<Intent>,
    /// Subscriptions that have not got all retained messages.
    pub(super) retained: Vec<RetainedDue>,
}

impl Resumed {
    fn of(grant: &mut AttachGrant) -> Self {
        let Some(in_flight) = &mut grant.in_flight else { return Self::default() };
        Self { intents: in_flight.intents.clone(), retained: std::mem::take(&mut in_flight.retained) }
    }
}

/// Why a connection ended before it was let in.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    /// The socket failed or was closed.
    #[error("socket closed before CONNECT")]
    Socket(#[from] io::Error),
    /// The first packet is not a CONNECT that can be served.
    #[error("bad CONNECT: {0}")]
    Decode(DecodeError),
    /// The CONNECT was refused.
    #[error("CONNECT refused with {0}")]
    Refused(ReasonCode),
    /// The client accepts no packet as large as its CONNACK: there is nothing to say to it.
    #[error("CONNACK is larger than the client accepts")]
    ConnAckTooLarge,
    /// It was accepted, but a newer connection came first; the client is told with 0x8E.
    #[error("taken over while attaching")]
    TakenOver,
}

impl HandshakeError {
    /// Whether the client has got a CONNACK that says success.
    pub(super) fn is_after_connack(&self) -> bool {
        match self {
            Self::Socket(_) | Self::Decode(_) | Self::Refused(_) | Self::ConnAckTooLarge => false,
            Self::TakenOver => true,
        }
    }
}

/// Reads CONNECT, attaches at the owner and queues CONNACK. What the client must hear of a refusal is queued, too.
/// Not cancel-safe, but nothing outlives it when it is dropped.
pub(super) async fn connect(
    services: &Services,
    mailbox: &Arc<Mailbox>,
    input: &mut Input,
) -> Result<Connected, HandshakeError> {
    let limits = DecodeLimits {
        connect_bytes_max: CONNECT_BYTES_MAX.min(services.limits.maximum_packet_bytes),
        packet_bytes_max: services.limits.maximum_packet_bytes,
    };
    let mut codec = Codec::new(limits);
    let read = tokio::time::timeout(CONNECT_WAIT, read_connect(services, &mut codec, input)).await;
    let connect = match read.map_err(io::Error::from)?? {
        Ok(connect) => connect,
        Err(error) => {
            if let Some(farewell) = codec.farewell(&error) {
                refuse_with(services, mailbox, &codec, &farewell);
            }
            return Err(HandshakeError::Decode(error));
        }
    };
    match admit(services, mailbox, &codec, &connect).await {
        Ok((registered, grant, resumed)) => Ok(Connected { codec, connect, registered, grant, resumed }),
        Err(HandshakeError::Refused(reason)) => {
            let reason_string = reason_string(Answer::ConnAck, reason);
            let properties = ConnAckProperties { reason_string, ..ConnAckProperties::default() };
            let refusal = ConnAck { session_present: false, reason, properties };
            refuse_with(services, mailbox, &codec, &Packet::ConnAck(Box::new(refusal)));
            Err(HandshakeError::Refused(reason))
        }
        Err(error) => Err(error),
    }
}

async fn read_connect(
    services: &Services,
    codec: &mut Codec,
    input: &mut Input,
) -> Result<Result<Box<Connect>, DecodeError>, io::Error> {
    loop {
        let (mut bytes, count) = input.read().await?;
        let decoded = codec.decode(&mut bytes);
        services.metrics.add_read(u64::from(matches!(decoded, Ok(Some(_)))), count);
        input.put_back(bytes);
        match decoded {
            Ok(Some(Packet::Connect(connect))) => return Ok(Ok(connect)),
            Ok(Some(_)) => return Ok(Err(DecodeError::Protocol("the first packet is not CONNECT"))),
            Ok(None) => {}
            Err(error) => return Ok(Err(error)),
        }
    }
}

fn refuse_with(services: &Services, mailbox: &Arc<Mailbox>, codec: &Codec, packet: &Packet) {
    let mut turn = Turn::begin(&services.metrics);
    mailbox.set_encoder(codec.encoder());
    mailbox.send(packet, &mut turn);
    turn.finish();
}

async fn admit(
    services: &Services,
    mailbox: &Arc<Mailbox>,
    codec: &Codec,
    connect: &Connect,
) -> Result<(Arc<Registered>, AttachGrant, Resumed), HandshakeError> {
    check(services, connect).map_err(HandshakeError::Refused)?;
    let (client_id, is_assigned) = client_id(connect).map_err(HandshakeError::Refused)?;
    let request = AttachRequest {
        client_id: client_id.clone(),
        host: services.own.clone(),
        version: connect.version,
        clean_start: connect.clean_start,
        lifetime: lifetime(services, connect),
        window: window(services, connect).get(),
        user: None,
        will: connect.will.clone(),
    };

    let assigned = (is_assigned && connect.version.is_v5()).then(|| client_id.clone());
    let mut answer = acceptance(services, connect, &client_id);
    answer.properties.assigned_client_id = assigned;
    check_room_for(&answer, codec, connect)?;
    let attaching = services.registry.begin(&client_id);
    let grant = services.owner.attach(request.clone()).await;
    let mut grant = grant.map_err(|error| HandshakeError::Refused(refusal_of(error)))?;
    let request = AttachRequest { lifetime: granted_lifetime(&grant, request.lifetime), ..request };

    let resumed = Resumed::of(&mut grant);
    services.wills.handle_connect(&client_id, connect.clean_start);
    let mut turn = Turn::begin(&services.metrics);
    let keep_alive_secs = answer.properties.server_keep_alive_secs.unwrap_or(connect.keep_alive_secs);
    mailbox.open(OpenedClient {
        client_id: client_id.clone(),
        encoder: codec.encoder(),
        window: window(services, connect),
        receive_maximum: services.limits.receive_maximum,
        keep_alive: KeepAlive::of_connect(keep_alive_secs, turn.now_us() / 1_000),
        kept: match (grant.in_flight.take(), request.lifetime) {
            (None, SessionLifetime::Clean) => Kept::Nothing,
            (in_flight, _) => Kept::Session(in_flight.map(|kept| *kept).unwrap_or_default()),
        },
        topic_alias_maximum: connect.topic_alias_maximum,
    });
    answer.session_present = grant.session_present;
    mailbox.send(&Packet::ConnAck(answer), &mut turn);
    mailbox.resume(&mut turn);
    // Only now may messages be delivered: they follow CONNACK.
    let registered = attaching.complete(Arc::clone(mailbox), request, &grant);
    turn.finish();
    match registered {
        Ok(registered) => {
            // The broker may have told all clients to go while this one was being attached.
            if services.is_stopping() {
                mailbox.close(CloseReason::Broker(ReasonCode::SERVER_SHUTTING_DOWN));
            }
            Ok((registered, grant, resumed))
        }
        Err(TakenOver) => {
            let connection = grant.connection;
            services.owner.detach(Detach {
                client_id,
                connection,
                session_expiry_secs: None,
                in_flight: None,
                will: WillOutcome::Over,
            });
            mailbox.close(CloseReason::Broker(ReasonCode::SESSION_TAKEN_OVER));
            Err(HandshakeError::TakenOver)
        }
    }
}

fn check(services: &Services, connect: &Connect) -> Result<(), ReasonCode> {
    if connect.authentication_method.is_some() {
        return Err(ReasonCode::BAD_AUTHENTICATION_METHOD);
    }
    if let Some(will) = &connect.will {
        // 3.x has no code for it; "not authorized" at least is final.
        let refusal = |reason| if connect.version.is_v5() { reason } else { ReasonCode::NOT_AUTHORIZED };
        will::check(will, services.features, services.payload_format).map_err(refusal)?;
    }
    if !services.validity.is_valid() || services.is_stopping() {
        return Err(ReasonCode::SERVER_UNAVAILABLE);
    }
    Ok(())
}

/// The client id, and whether the broker gave it.
fn client_id(connect: &Connect) -> Result<(ByteString, bool), ReasonCode> {
    if !connect.client_id.is_empty() {
        return Ok((connect.client_id.clone(), false));
    }
    if !connect.version.is_v5() && !connect.clean_start {
        return Err(ReasonCode::CLIENT_IDENTIFIER_NOT_VALID);
    }
    let mut random = [0_u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|_| ReasonCode::SERVER_UNAVAILABLE)?;
    Ok((format!("auto-{:032x}", u128::from_le_bytes(random)).into(), true))
}

/// A session that was resumed has its queue to the end, also when the client wants it to end with this connection.
fn granted_lifetime(grant: &AttachGrant, asked: SessionLifetime) -> SessionLifetime {
    match asked {
        SessionLifetime::Clean if grant.session_present => SessionLifetime::Persistent { expiry_secs: 0 },
        SessionLifetime::Clean | SessionLifetime::Persistent { .. } => asked,
    }
}

fn lifetime(services: &Services, connect: &Connect) -> SessionLifetime {
    let maximum = services.max_expiry_secs;
    let expiry_secs = match connect.version {
        Version::V5 => connect.session_expiry_secs.unwrap_or(0).min(maximum),
        Version::V3_1 | Version::V3_1_1 if connect.clean_start => 0,
        Version::V3_1 | Version::V3_1_1 => maximum,
    };
    if expiry_secs == 0 { SessionLifetime::Clean } else { SessionLifetime::Persistent { expiry_secs } }
}

/// Unacknowledged deliveries: what the client accepts, but not more than a mailbox may hold.
fn window(services: &Services, connect: &Connect) -> NonZeroU16 {
    let accepted = match connect.version {
        Version::V5 => connect.receive_maximum.unwrap_or(NonZeroU16::MAX),
        Version::V3_1 | Version::V3_1_1 => {
            NonZeroU16::new(services.limits.in_flight).unwrap_or(NonZeroU16::MIN)
        }
    };
    let most = u16::try_from(services.limits.mailbox_messages).unwrap_or(u16::MAX);
    NonZeroU16::new(accepted.get().min(most)).unwrap_or(NonZeroU16::MIN)
}

/// CONNACK of a client that is let in; whether its session is present comes later.
fn acceptance(services: &Services, connect: &Connect, client_id: &ByteString) -> Box<ConnAck> {
    let asked_secs = connect.session_expiry_secs.unwrap_or(0);
    let properties = ConnAckProperties {
        session_expiry_secs: (asked_secs > services.max_expiry_secs).then_some(services.max_expiry_secs),
        receive_maximum: NonZeroU16::new(services.limits.receive_maximum),
        maximum_qos: (!services.features.exactly_once).then_some(QoS::AtLeastOnce),
        retain_available: (!services.features.retained).then_some(false),
        maximum_packet_bytes: Some(services.limits.maximum_packet_bytes),
        topic_alias_maximum: TOPIC_ALIAS_MAXIMUM,
        shared_subscription_available: (!services.features.shared).then_some(false),
        server_keep_alive_secs: server_keep_alive(services.mqtt.maximum_keep_alive_secs, connect),
        response_information: response_information(services, connect, client_id),
        ..ConnAckProperties::default()
    };
    Box::new(ConnAck { session_present: false, reason: ReasonCode::SUCCESS, properties })
}

/// The keep alive that a 5.0 client must use instead of its own. A 3.x client cannot be told, so it keeps its own.
fn server_keep_alive(maximum_secs: Option<u16>, connect: &Connect) -> Option<u16> {
    let is_allowed = |maximum_secs: &u16| (1..=*maximum_secs).contains(&connect.keep_alive_secs);
    maximum_secs.filter(|maximum_secs| connect.version.is_v5() && !is_allowed(maximum_secs))
}

/// Where the client may expect answers, if it asks and there is such a place. One that no string of MQTT can hold is
/// left out.
fn response_information(
    services: &Services,
    connect: &Connect,
    client_id: &ByteString,
) -> Option<ByteString> {
    let template = services.mqtt.response_information.as_ref();
    let template = template.filter(|_| connect.request_response_information)?;
    let text = template.replace("{clientId}", client_id);
    (text.len() <= usize::from(u16::MAX)).then(|| text.into())
}

/// A client that cannot take its CONNACK must not get as far as a session.
fn check_room_for(answer: &ConnAck, codec: &Codec, connect: &Connect) -> Result<(), HandshakeError> {
    if connect.maximum_packet_bytes.is_none() {
        return Ok(());
    }
    let packet = Packet::ConnAck(Box::new(answer.clone()));
    let written = codec.encode(&packet, &mut BytesMut::new());
    written.map_err(|_too_large| HandshakeError::ConnAckTooLarge)
}

fn refusal_of(error: OwnerError) -> ReasonCode {
    match error {
        OwnerError::Unavailable => ReasonCode::SERVER_UNAVAILABLE,
        OwnerError::NotAuthorized => ReasonCode::NOT_AUTHORIZED,
        OwnerError::TakenOver => ReasonCode::SERVER_BUSY,
        OwnerError::QuotaExceeded => ReasonCode::QUOTA_EXCEEDED,
    }
}

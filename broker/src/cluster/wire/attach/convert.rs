//! Attach frames from and to core types.

use super::{AttachReply, Attachment, Client, Detach, ReattachReply, Reattached, Refusal, WillOver};
use crate::cluster::wire::in_flight::InFlight;
use crate::cluster::wire::subscribe::Subscription;
use crate::cluster::wire::will::Will;
use crate::cluster::wire::{WireError, narrow, required};
use bytestring::ByteString;
use tidemill_core::attach as core;
use tidemill_core::attach::{ConnectionEpoch, OwnerError, SessionLifetime, SessionNumber, WillOutcome};
use tidemill_core::member::Member;
use tidemill_core::packet::{self, Version};
use tidemill_core::session::in_flight as session;

impl From<&core::AttachRequest> for Client {
    fn from(request: &core::AttachRequest) -> Self {
        Self {
            client_id: request.client_id.to_string(),
            host: Some((&request.host).into()),
            version: match request.version {
                Version::V3_1 => 3,
                Version::V3_1_1 => 4,
                Version::V5 => 5,
            },
            clean_start: request.clean_start,
            expiry_secs: match request.lifetime {
                SessionLifetime::Clean => None,
                SessionLifetime::Persistent { expiry_secs } => Some(expiry_secs),
            },
            window: request.window.into(),
            user: request.user.as_ref().map(ToString::to_string),
            will: request.will.as_deref().map(Will::from),
        }
    }
}

impl TryFrom<Client> for core::AttachRequest {
    type Error = WireError;

    fn try_from(client: Client) -> Result<Self, WireError> {
        if client.client_id.is_empty() {
            return Err(WireError::Missing { field: "client_id" });
        }
        Ok(Self {
            client_id: client.client_id.into(),
            host: Member::from(required(client.host.as_ref(), "host")?),
            version: match client.version {
                3 => Version::V3_1,
                4 => Version::V3_1_1,
                5 => Version::V5,
                value => return Err(WireError::Value { field: "version", value: value.into() }),
            },
            clean_start: client.clean_start,
            lifetime: client
                .expiry_secs
                .map_or(SessionLifetime::Clean, |expiry_secs| SessionLifetime::Persistent { expiry_secs }),
            window: narrow(client.window, "window")?,
            user: client.user.map(ByteString::from),
            will: client.will.map(|will| packet::Will::try_from(will).map(Box::new)).transpose()?,
        })
    }
}

impl From<&core::Detach> for Detach {
    fn from(detach: &core::Detach) -> Self {
        Self {
            client_id: detach.client_id.to_string(),
            connection: Some(detach.connection.into()),
            session_expiry_secs: detach.session_expiry_secs,
            in_flight: detach.in_flight.as_deref().map(InFlight::from),
            will_due_in_ms: match detach.will {
                WillOutcome::Over => None,
                WillOutcome::Due { in_ms, .. } => Some(in_ms),
            },
            will_is_brokers_own: matches!(detach.will, WillOutcome::Due { is_brokers_own: true, .. }),
        }
    }
}

impl TryFrom<Detach> for core::Detach {
    type Error = WireError;

    fn try_from(detach: Detach) -> Result<Self, WireError> {
        Ok(Self {
            client_id: detach.client_id.into(),
            connection: required(detach.connection, "connection")?.into(),
            session_expiry_secs: detach.session_expiry_secs,
            in_flight: in_flight(detach.in_flight)?,
            will: detach.will_due_in_ms.map_or(WillOutcome::Over, |in_ms| WillOutcome::Due {
                in_ms,
                is_brokers_own: detach.will_is_brokers_own,
            }),
        })
    }
}

impl From<&core::WillOver> for WillOver {
    fn from(over: &core::WillOver) -> Self {
        Self {
            client_id: over.client_id.to_string(),
            session: over.session.0,
            connection: Some(over.connection.into()),
        }
    }
}

impl TryFrom<WillOver> for core::WillOver {
    type Error = WireError;

    fn try_from(over: WillOver) -> Result<Self, WireError> {
        Ok(Self {
            client_id: over.client_id.into(),
            session: SessionNumber(over.session),
            connection: required(over.connection, "connection")?.into(),
        })
    }
}

fn in_flight(in_flight: Option<InFlight>) -> Result<Option<Box<session::InFlight>>, WireError> {
    in_flight.map(|in_flight| session::InFlight::try_from(in_flight).map(Box::new)).transpose()
}

impl From<&core::Attachment> for Attachment {
    fn from(attachment: &core::Attachment) -> Self {
        Self {
            client: Some((&attachment.request).into()),
            session: attachment.session.0,
            connection: Some(attachment.connection.into()),
            done: attachment.done.clone(),
            in_flight: attachment.in_flight.clone(),
        }
    }
}

impl TryFrom<Attachment> for core::Attachment {
    type Error = WireError;

    fn try_from(attachment: Attachment) -> Result<Self, WireError> {
        Ok(Self {
            request: required(attachment.client, "client")?.try_into()?,
            session: SessionNumber(attachment.session),
            connection: required(attachment.connection, "connection")?.into(),
            done: attachment.done,
            in_flight: attachment.in_flight,
        })
    }
}

impl AttachReply {
    /// The reply to request `request`.
    #[must_use]
    pub fn new(request: u64, answer: &Result<core::AttachGrant, Refusal>) -> Self {
        match answer {
            Ok(grant) => Self {
                request,
                error: 0,
                session: grant.session.0,
                connection: Some(grant.connection.into()),
                session_present: grant.session_present,
                subscriptions: grant.subscriptions.iter().map(Subscription::from).collect(),
                more: false,
                in_flight: grant.in_flight.as_deref().map(InFlight::from),
            },
            Err(refusal) => Self { request, error: refusal.number(), ..Self::default() },
        }
    }

    /// What the owner answered.
    ///
    /// # Errors
    ///
    /// [`WireError`] when the reply is malformed.
    pub fn answer(self) -> Result<Result<core::AttachGrant, Refusal>, WireError> {
        if let Some(refusal) = Refusal::from_number(self.error)? {
            return Ok(Err(refusal));
        }
        let subscriptions = self.subscriptions.into_iter().map(TryInto::try_into);
        Ok(Ok(core::AttachGrant {
            session: SessionNumber(self.session),
            connection: required(self.connection, "connection")?.into(),
            session_present: self.session_present,
            subscriptions: subscriptions.collect::<Result<_, WireError>>()?,
            in_flight: in_flight(self.in_flight)?,
        }))
    }
}

/// What a new owner answers: its refusal, or for each attachment the connection's new name.
pub type ReattachAnswer = Result<Vec<Result<ConnectionEpoch, OwnerError>>, Refusal>;

impl ReattachReply {
    /// The reply to request `request`.
    #[must_use]
    pub fn new(request: u64, answer: &ReattachAnswer) -> Self {
        match answer {
            Ok(outcomes) => Self {
                request,
                error: 0,
                attachments: outcomes
                    .iter()
                    .map(|outcome| match outcome {
                        Ok(epoch) => Reattached { error: 0, connection: Some((*epoch).into()) },
                        Err(error) => Reattached { error: Refusal::Owner(*error).number(), connection: None },
                    })
                    .collect(),
                more: false,
            },
            Err(refusal) => Self { request, error: refusal.number(), ..Self::default() },
        }
    }

    /// What the owner answered.
    ///
    /// # Errors
    ///
    /// [`WireError`] when the reply is malformed.
    pub fn answer(self) -> Result<ReattachAnswer, WireError> {
        if let Some(refusal) = Refusal::from_number(self.error)? {
            return Ok(Err(refusal));
        }
        let outcomes = self.attachments.into_iter().map(|reattached| {
            Ok(match Refusal::from_number(reattached.error)? {
                None => Ok(required(reattached.connection, "connection")?.into()),
                Some(Refusal::Owner(error)) => Err(error),
                Some(Refusal::NotOwner) => Err(OwnerError::Unavailable),
            })
        });
        Ok(Ok(outcomes.collect::<Result<_, WireError>>()?))
    }
}

//! Attach, detach, re-attach and takeover on the wire. Requests carry a number that their answer repeats.

pub mod convert;

use super::WireError;
use super::in_flight::InFlight;
use super::link::MemberName;
use super::subscribe::Subscription;
use super::will::Will;
use tidemill_core::attach::{ConnectionEpoch, OwnerError};
use tidemill_core::member::OwnerEpoch;

/// Names one connection of a client id.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Connection {
    /// Epoch of the owner that granted it.
    #[prost(uint32, tag = "1")]
    pub owner_epoch: u32,
    /// Counts its grants.
    #[prost(uint32, tag = "2")]
    pub counter: u32,
}

impl From<ConnectionEpoch> for Connection {
    fn from(epoch: ConnectionEpoch) -> Self {
        Self { owner_epoch: epoch.owner.0, counter: epoch.counter }
    }
}

impl From<Connection> for ConnectionEpoch {
    fn from(connection: Connection) -> Self {
        Self { owner: OwnerEpoch(connection.owner_epoch), counter: connection.counter }
    }
}

/// What a client wants of its session, and where it is.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Client {
    /// Client id.
    #[prost(string, tag = "1")]
    pub client_id: String,
    /// The broker it is connected to.
    #[prost(message, optional, tag = "2")]
    pub host: Option<MemberName>,
    /// MQTT protocol level: 3, 4 or 5.
    #[prost(uint32, tag = "3")]
    pub version: u32,
    /// Discard the former session.
    #[prost(bool, tag = "4")]
    pub clean_start: bool,
    /// Absent: the session ends with the connection; else seconds it outlives it.
    #[prost(uint32, optional, tag = "5")]
    pub expiry_secs: Option<u32>,
    /// Deliveries that may be outstanding at the host.
    #[prost(uint32, tag = "6")]
    pub window: u32,
    /// User name that was proved.
    #[prost(string, optional, tag = "7")]
    pub user: Option<String>,
    /// The will.
    #[prost(message, optional, tag = "8")]
    pub will: Option<Will>,
}

/// Host to owner: let a connection in.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Attach {
    /// Repeated in the reply.
    #[prost(uint64, tag = "1")]
    pub request: u64,
    /// Epoch of the owner that is asked; another owner answers that it is not.
    #[prost(uint32, tag = "2")]
    pub owner_epoch: u32,
    /// The client.
    #[prost(message, optional, tag = "3")]
    pub client: Option<Client>,
}

/// Owner to host.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AttachReply {
    /// Of the request.
    #[prost(uint64, tag = "1")]
    pub request: u64,
    /// 0, or why not; see [`Refusal`].
    #[prost(uint32, tag = "2")]
    pub error: u32,
    /// Session number.
    #[prost(fixed64, tag = "3")]
    pub session: u64,
    /// The connection's name.
    #[prost(message, optional, tag = "4")]
    pub connection: Option<Connection>,
    /// Whether the owner had the session.
    #[prost(bool, tag = "5")]
    pub session_present: bool,
    /// Subscriptions of a resumed session.
    #[prost(message, repeated, tag = "6")]
    pub subscriptions: Vec<Subscription>,
    /// Another part with further subscriptions follows.
    #[prost(bool, tag = "15")]
    pub more: bool,
    /// What a resumed session has in flight.
    #[prost(message, optional, tag = "7")]
    pub in_flight: Option<InFlight>,
}

/// Host to owner: a connection ended.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Detach {
    /// Client id.
    #[prost(string, tag = "1")]
    pub client_id: String,
    /// Which connection.
    #[prost(message, optional, tag = "2")]
    pub connection: Option<Connection>,
    /// Session expiry changed by DISCONNECT.
    #[prost(uint32, optional, tag = "3")]
    pub session_expiry_secs: Option<u32>,
    /// What its session has in flight.
    #[prost(message, optional, tag = "4")]
    pub in_flight: Option<InFlight>,
    /// Milliseconds until the host publishes its will; absent when that is over.
    #[prost(uint64, optional, tag = "5")]
    pub will_due_in_ms: Option<u64>,
    /// Any CONNECT of the client calls that will off.
    #[prost(bool, tag = "6")]
    pub will_is_brokers_own: bool,
}

/// Host to owner: a will that was due later is over.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WillOver {
    /// Client id.
    #[prost(string, tag = "1")]
    pub client_id: String,
    /// Session number.
    #[prost(fixed64, tag = "2")]
    pub session: u64,
    /// Which connection.
    #[prost(message, optional, tag = "3")]
    pub connection: Option<Connection>,
}

/// One attachment.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Attachment {
    /// As at attach.
    #[prost(message, optional, tag = "1")]
    pub client: Option<Client>,
    /// Session number.
    #[prost(fixed64, tag = "2")]
    pub session: u64,
    /// The connection as the former owner named it.
    #[prost(message, optional, tag = "3")]
    pub connection: Option<Connection>,
    /// Done, but not known to be durably so.
    #[prost(uint64, repeated, tag = "4")]
    pub done: Vec<u64>,
    /// In flight at the client.
    #[prost(uint64, repeated, tag = "5")]
    pub in_flight: Vec<u64>,
}

/// Host to a new owner: all attachments of a group.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Reattach {
    /// Repeated in the reply; the same in all parts.
    #[prost(uint64, tag = "1")]
    pub request: u64,
    /// Epoch of the owner that is told.
    #[prost(uint32, tag = "2")]
    pub owner_epoch: u32,
    /// The group.
    #[prost(uint32, tag = "3")]
    pub group: u32,
    /// The attachments.
    #[prost(message, repeated, tag = "4")]
    pub attachments: Vec<Attachment>,
    /// Whether it is the last part.
    #[prost(bool, tag = "5")]
    pub last: bool,
    /// Client ids that are attaching.
    #[prost(string, repeated, tag = "14")]
    pub attaching: Vec<String>,
    /// In the last part: the highest connection that the host had been granted before it made its list. Absent:
    /// connections that are not named go on.
    #[prost(message, optional, tag = "15")]
    pub granted: Option<Connection>,
}

/// What became of one attachment.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Reattached {
    /// 0, or why not; see [`Refusal`].
    #[prost(uint32, tag = "1")]
    pub error: u32,
    /// The connection's new name.
    #[prost(message, optional, tag = "2")]
    pub connection: Option<Connection>,
}

/// Owner to host.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReattachReply {
    /// Of the request.
    #[prost(uint64, tag = "1")]
    pub request: u64,
    /// 0, or why not; see [`Refusal`].
    #[prost(uint32, tag = "2")]
    pub error: u32,
    /// One for each attachment, in order.
    #[prost(message, repeated, tag = "3")]
    pub attachments: Vec<Reattached>,
    /// Another part with further attachments follows.
    #[prost(bool, tag = "15")]
    pub more: bool,
}

/// Owner to host: close a connection that a newer one replaced.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TakeOver {
    /// Repeated in the reply.
    #[prost(uint64, tag = "1")]
    pub request: u64,
    /// Client id.
    #[prost(string, tag = "2")]
    pub client_id: String,
    /// Which connection.
    #[prost(message, optional, tag = "3")]
    pub connection: Option<Connection>,
}

/// Host to owner: it is closed.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct TakenOver {
    /// Of the request.
    #[prost(uint64, tag = "1")]
    pub request: u64,
}

/// Why an owner, or a broker taken for one, did not do what it was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The owner's own answer.
    Owner(OwnerError),
    /// The broker asked does not own the group with the epoch named; ask again when the view has changed.
    NotOwner,
}

impl Refusal {
    /// The number on the wire, never 0.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::Owner(OwnerError::Unavailable) => 1,
            Self::Owner(OwnerError::NotAuthorized) => 2,
            Self::Owner(OwnerError::TakenOver) => 3,
            Self::Owner(OwnerError::QuotaExceeded) => 4,
            Self::NotOwner => 5,
        }
    }

    /// Reads the number on the wire; `Ok(None)` for 0.
    ///
    /// # Errors
    ///
    /// [`WireError::Value`] for an unknown number.
    pub fn from_number(number: u32) -> Result<Option<Self>, WireError> {
        Ok(Some(match number {
            0 => return Ok(None),
            1 => Self::Owner(OwnerError::Unavailable),
            2 => Self::Owner(OwnerError::NotAuthorized),
            3 => Self::Owner(OwnerError::TakenOver),
            4 => Self::Owner(OwnerError::QuotaExceeded),
            5 => Self::NotOwner,
            value => return Err(WireError::Value { field: "error", value: value.into() }),
        }))
    }
}

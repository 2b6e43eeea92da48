//! Subscriptions of persistent sessions on the wire.

use super::attach::{Connection, Refusal};
use super::will::qos;
use super::{WireError, required};
use tidemill_core::attach as core;
use tidemill_core::attach::{StoredSubscription, SubscriptionReasons};
use tidemill_core::packet::{ReasonCode, RetainHandling, SubscriptionOptions};
use tidemill_core::topic::SubscriptionTarget;

/// One subscription.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Subscription {
    /// What a client writes: a topic filter, or `$share/name/filter`.
    #[prost(string, tag = "1")]
    pub filter: String,
    /// Highest QoS.
    #[prost(uint32, tag = "2")]
    pub qos: u32,
    /// Not to its publisher.
    #[prost(bool, tag = "3")]
    pub no_local: bool,
    /// Keep the retain flag.
    #[prost(bool, tag = "4")]
    pub retain_as_published: bool,
    /// 0 send, 1 if new, 2 never.
    #[prost(uint32, tag = "5")]
    pub retain_handling: u32,
    /// Subscription identifier.
    #[prost(uint32, optional, tag = "6")]
    pub identifier: Option<u32>,
}

/// Host to owner.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Subscribe {
    /// Repeated in the reply.
    #[prost(uint64, tag = "1")]
    pub request: u64,
    /// Epoch of the owner that is asked.
    #[prost(uint32, tag = "2")]
    pub owner_epoch: u32,
    /// Client id.
    #[prost(string, tag = "3")]
    pub client_id: String,
    /// Which connection.
    #[prost(message, optional, tag = "4")]
    pub connection: Option<Connection>,
    /// What it subscribes to, in order.
    #[prost(message, repeated, tag = "5")]
    pub subscriptions: Vec<Subscription>,
    /// Another part with further subscriptions follows.
    #[prost(bool, tag = "15")]
    pub more: bool,
}

/// Host to owner.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Unsubscribe {
    /// Repeated in the reply.
    #[prost(uint64, tag = "1")]
    pub request: u64,
    /// Epoch of the owner that is asked.
    #[prost(uint32, tag = "2")]
    pub owner_epoch: u32,
    /// Client id.
    #[prost(string, tag = "3")]
    pub client_id: String,
    /// Which connection.
    #[prost(message, optional, tag = "4")]
    pub connection: Option<Connection>,
    /// What to end, as a client writes it, in order.
    #[prost(string, repeated, tag = "5")]
    pub filters: Vec<String>,
}

/// Owner to host: reason codes in the order of the request.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReasonsReply {
    /// Of the request.
    #[prost(uint64, tag = "1")]
    pub request: u64,
    /// 0, or why not; see [`Refusal`].
    #[prost(uint32, tag = "2")]
    pub error: u32,
    /// One byte for each entry.
    #[prost(bytes = "vec", tag = "3")]
    pub reasons: Vec<u8>,
}

impl ReasonsReply {
    /// The reply to request `request`.
    #[must_use]
    pub fn new(request: u64, answer: &Result<SubscriptionReasons, Refusal>) -> Self {
        match answer {
            Ok(reasons) => {
                Self { request, error: 0, reasons: reasons.iter().map(|reason| reason.0).collect() }
            }
            Err(refusal) => Self { request, error: refusal.number(), reasons: Vec::new() },
        }
    }

    /// What the owner answered.
    ///
    /// # Errors
    ///
    /// [`WireError`] when the reply is malformed.
    pub fn answer(self) -> Result<Result<SubscriptionReasons, Refusal>, WireError> {
        Ok(match Refusal::from_number(self.error)? {
            Some(refusal) => Err(refusal),
            None => Ok(self.reasons.into_iter().map(ReasonCode).collect()),
        })
    }
}

impl From<&StoredSubscription> for Subscription {
    fn from(subscription: &StoredSubscription) -> Self {
        let options = subscription.options;
        Self {
            filter: subscription.target.to_string(),
            qos: u32::from(options.qos as u8),
            no_local: options.no_local,
            retain_as_published: options.retain_as_published,
            retain_handling: u32::from(options.retain_handling as u8),
            identifier: subscription.identifier,
        }
    }
}

impl TryFrom<Subscription> for StoredSubscription {
    type Error = WireError;

    fn try_from(subscription: Subscription) -> Result<Self, WireError> {
        let retain_handling = match subscription.retain_handling {
            0 => RetainHandling::Send,
            1 => RetainHandling::SendIfNew,
            2 => RetainHandling::DoNotSend,
            value => return Err(WireError::Value { field: "retain_handling", value: value.into() }),
        };
        Ok(Self {
            target: target(subscription.filter, "filter")?,
            options: SubscriptionOptions {
                qos: qos(subscription.qos)?,
                no_local: subscription.no_local,
                retain_as_published: subscription.retain_as_published,
                retain_handling,
            },
            identifier: subscription.identifier,
        })
    }
}

impl TryFrom<Subscribe> for core::SubscribeRequest {
    type Error = WireError;

    fn try_from(subscribe: Subscribe) -> Result<Self, WireError> {
        let subscriptions = subscribe.subscriptions.into_iter().map(TryInto::try_into);
        Ok(Self {
            client_id: subscribe.client_id.into(),
            connection: required(subscribe.connection, "connection")?.into(),
            subscriptions: subscriptions.collect::<Result<_, WireError>>()?,
        })
    }
}

impl TryFrom<Unsubscribe> for core::UnsubscribeRequest {
    type Error = WireError;

    fn try_from(unsubscribe: Unsubscribe) -> Result<Self, WireError> {
        let targets = unsubscribe.filters.into_iter().map(|text| target(text, "filters"));
        Ok(Self {
            client_id: unsubscribe.client_id.into(),
            connection: required(unsubscribe.connection, "connection")?.into(),
            targets: targets.collect::<Result<_, WireError>>()?,
        })
    }
}

fn target(text: String, field: &'static str) -> Result<SubscriptionTarget, WireError> {
    SubscriptionTarget::parse(&text.into()).map_err(|error| WireError::Topic { field, error })
}

//! Steps of QoS 2 exchanges of persistent sessions on the wire. A request is bounded by the receive maximum of its
//! client, a release by the window.

use super::attach::{Connection, Refusal};
use super::deliver::Queue;
use super::in_flight::packet_id;
use super::routes::{Digest, digest_of};
use super::{WireError, required};
use tidemill_core::attach as core;
use tidemill_core::packet::PacketId;
use tidemill_core::session::in_flight;

/// A publish that is stored before it is appended.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Intent {
    /// Packet id.
    #[prost(uint32, tag = "1")]
    pub packet_id: u32,
    /// Unique id of the publish, 128 bits.
    #[prost(message, optional, tag = "2")]
    pub unique_id: Option<Digest>,
    /// Partitions whose log has its record from before a crash, as bits.
    #[prost(fixed64, tag = "3")]
    pub found: u64,
}

/// Host to owner: store how far publishes are.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StoreExactlyOnce {
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
    /// Publishes that go to the log then.
    #[prost(message, repeated, tag = "5")]
    pub intents: Vec<Intent>,
    /// Packet ids whose PUBREL came.
    #[prost(uint32, repeated, tag = "6")]
    pub releases: Vec<u32>,
}

/// Owner to host: it is stored, or not.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct StoreExactlyOnceReply {
    /// Of the request.
    #[prost(uint64, tag = "1")]
    pub request: u64,
    /// 0, or why not; see [`Refusal`].
    #[prost(uint32, tag = "2")]
    pub error: u32,
}

/// Owner to host: PUBRECs are stored.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Release {
    /// The queue.
    #[prost(message, optional, tag = "1")]
    pub queue: Option<Queue>,
    /// For which connection.
    #[prost(message, optional, tag = "2")]
    pub connection: Option<Connection>,
    /// In the order of the PUBRECs.
    #[prost(uint32, repeated, tag = "3")]
    pub packet_ids: Vec<u32>,
}

impl StoreExactlyOnce {
    /// Asks the owner of `owner_epoch` as request `number`.
    #[must_use]
    pub fn new(number: u64, owner_epoch: u32, request: &core::ExactlyOnceRequest) -> Self {
        Self {
            request: number,
            owner_epoch,
            client_id: request.client_id.to_string(),
            connection: Some(request.connection.into()),
            intents: request.intents.iter().map(Into::into).collect(),
            releases: numbers(&request.releases),
        }
    }
}

impl StoreExactlyOnceReply {
    /// The reply to request `request`.
    #[must_use]
    pub fn new(request: u64, answer: &Result<(), Refusal>) -> Self {
        Self { request, error: answer.as_ref().err().map_or(0, |refusal| refusal.number()) }
    }

    /// What the owner answered.
    ///
    /// # Errors
    ///
    /// [`WireError`] when the reply is malformed.
    pub fn answer(self) -> Result<Result<(), Refusal>, WireError> {
        Ok(Refusal::from_number(self.error)?.map_or(Ok(()), Err))
    }
}

fn numbers(packet_ids: &[PacketId]) -> Vec<u32> {
    packet_ids.iter().map(|id| id.get().into()).collect()
}

impl From<&in_flight::Intent> for Intent {
    fn from(intent: &in_flight::Intent) -> Self {
        Self {
            packet_id: intent.packet_id.get().into(),
            unique_id: Some(intent.unique_id.into()),
            found: intent.found,
        }
    }
}

impl TryFrom<Intent> for in_flight::Intent {
    type Error = WireError;

    fn try_from(intent: Intent) -> Result<Self, WireError> {
        let (packet_id, unique_id) = (packet_id(intent.packet_id)?, digest_of(intent.unique_id)?);
        Ok(Self { packet_id, unique_id, found: intent.found })
    }
}

impl TryFrom<StoreExactlyOnce> for core::ExactlyOnceRequest {
    type Error = WireError;

    fn try_from(request: StoreExactlyOnce) -> Result<Self, WireError> {
        Ok(Self {
            client_id: request.client_id.into(),
            connection: required(request.connection, "connection")?.into(),
            intents: request.intents.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?,
            releases: request.releases.into_iter().map(packet_id).collect::<Result<_, _>>()?,
        })
    }
}

impl From<&core::Release> for Release {
    fn from(release: &core::Release) -> Self {
        Self {
            queue: Some((&release.queue).into()),
            connection: Some(release.connection.into()),
            packet_ids: numbers(&release.packet_ids),
        }
    }
}

impl TryFrom<Release> for core::Release {
    type Error = WireError;

    fn try_from(release: Release) -> Result<Self, WireError> {
        Ok(Self {
            queue: required(release.queue, "queue")?.try_into()?,
            connection: required(release.connection, "connection")?.into(),
            packet_ids: release.packet_ids.into_iter().map(packet_id).collect::<Result<_, _>>()?,
        })
    }
}

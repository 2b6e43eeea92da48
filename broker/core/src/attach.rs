//! What hosts and owners say to each other about clients: attach, detach, subscribe, deliver, acknowledge. The same
//! values are passed in memory when host and owner are one broker and travel as peer frames when they are not.

use crate::member::{Member, OwnerEpoch};
use crate::packet::{PacketId, QoS, ReasonCode, SubscriptionOptions, Version, Will};
use crate::partition::{Offset, Partition, QueueKind};
use crate::record::Record;
use crate::session::in_flight::{InFlight, Intent};
use crate::topic::{SubscriptionTarget, TopicFilter};
use bytestring::ByteString;
use std::sync::Arc;

/// Grows with every new session of one client id: owner epoch << 32 | counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionNumber(pub u64);

impl SessionNumber {
    /// The `counter`-th session number that the owner of `epoch` gives.
    #[must_use]
    pub fn new(epoch: OwnerEpoch, counter: u32) -> Self {
        Self(u64::from(epoch.0) << 32 | u64::from(counter))
    }
}

/// Names one connection of one client id among all it ever had; the highest wins. Given by the owner at attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionEpoch {
    /// Epoch of the owner that granted it.
    pub owner: OwnerEpoch,
    /// Counts its grants.
    pub counter: u32,
}

/// A durable receiver: one per persistent session, durable shared group or stream consumer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId {
    /// What kind of receiver.
    pub kind: QueueKind,
    /// Client id or group name.
    pub name: ByteString,
    /// Tells this session from earlier ones of the same name.
    pub number: SessionNumber,
}

/// Whether a session outlives its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionLifetime {
    /// Ends with the connection; has no queue.
    Clean,
    /// Outlives it by this many seconds (`u32::MAX`: for good); has a queue.
    Persistent {
        /// Seconds after the end of the connection.
        expiry_secs: u32,
    },
}

impl SessionLifetime {
    /// Seconds that the session outlives its connection.
    #[must_use]
    pub fn expiry_secs(self) -> u32 {
        match self {
            Self::Clean => 0,
            Self::Persistent { expiry_secs } => expiry_secs,
        }
    }
}

/// A host asks the owner of the client id's partition to let a connection in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachRequest {
    /// Client id, never empty.
    pub client_id: ByteString,
    /// The broker the client is connected to.
    pub host: Member,
    /// Protocol version of the connection.
    pub version: Version,
    /// Discard the former session.
    pub clean_start: bool,
    /// What the client wants of the new or resumed session.
    pub lifetime: SessionLifetime,
    /// QoS > 0 deliveries the owner may have outstanding at this host: the client's receive maximum.
    pub window: u16,
    /// User name the client proved; a session belongs to its user.
    pub user: Option<ByteString>,
    /// The will, so that the owner can publish it when the host dies.
    pub will: Option<Box<Will>>,
}

/// The owner let the connection in; every older connection of the client id is closed or its host is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachGrant {
    /// Number of the session, new or resumed.
    pub session: SessionNumber,
    /// Names this connection from now on.
    pub connection: ConnectionEpoch,
    /// Whether the owner had the session. Its routes are live.
    pub session_present: bool,
    /// The subscriptions of a resumed session: the plain ones in filter order, then the shared ones.
    pub subscriptions: Vec<StoredSubscription>,
    /// What a resumed session has in flight, if the owner knows; what it does not know of goes out anew, under packet ids
    /// from 1.
    pub in_flight: Option<Box<InFlight>>,
}

/// One subscription as the owner keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSubscription {
    /// What is subscribed to. A shared one is stored with the session, but its messages do not take its queue.
    pub target: SubscriptionTarget,
    /// How to deliver.
    pub options: SubscriptionOptions,
    /// 5.0 subscription identifier.
    pub identifier: Option<u32>,
}

/// Why the owner did not do what it was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OwnerError {
    /// Nobody owns the group now, the owner cannot be reached, or its log or state is away. Answer 0x88 (3.x: 3).
    #[error("no owner serves this client id now")]
    Unavailable,
    /// The session belongs to another user. Answer 0x87 (3.x: 5).
    #[error("the session belongs to another user")]
    NotAuthorized,
    /// This connection was replaced by a newer one. It closes with 0x8E.
    #[error("the connection was taken over")]
    TakenOver,
    /// A bound was reached. Answer 0x97.
    #[error("quota exceeded")]
    QuotaExceeded,
}

/// One attachment as its host knows it, told to a new owner of the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// As at attach; `clean_start` is false.
    pub request: AttachRequest,
    /// Number of the session.
    pub session: SessionNumber,
    /// The connection as the former owner named it.
    pub connection: ConnectionEpoch,
    /// Offsets the client is done with whose report to the former owner is not known to be durable.
    pub done: Vec<Offset>,
    /// Offsets that are in flight at the client: not to be delivered again.
    pub in_flight: Vec<Offset>,
}

/// The connections of a host in one group, told to its owner. What is not in it and was granted up to `granted` has
/// ended, even if its [`Detach`] was lost.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostAttachments {
    /// Its connections.
    pub attached: Vec<Attachment>,
    /// Client ids that were attaching before `attached` was listed.
    pub attaching: Vec<ByteString>,
    /// The highest connection of the group that the host had been granted before it listed `attaching`; `None` when it
    /// knows of none.
    pub granted: Option<ConnectionEpoch>,
}

/// A connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detach {
    /// Client id.
    pub client_id: ByteString,
    /// Which connection; an owner that knows a newer one ignores this.
    pub connection: ConnectionEpoch,
    /// Session expiry changed by a 5.0 DISCONNECT.
    pub session_expiry_secs: Option<u32>,
    /// What a persistent session has in flight. `None` when the connection had not begun: what was granted to it holds.
    pub in_flight: Option<Box<InFlight>>,
    /// What became of its will.
    pub will: WillOutcome,
}

/// What becomes of the will of a connection that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WillOutcome {
    /// There is none any more: it was published, or is not to be.
    #[default]
    Over,
    /// The host publishes it later, and tells with [`WillOver`].
    Due {
        /// Milliseconds from now on.
        in_ms: u64,
        /// The broker closed the connection for a reason of its own: any CONNECT of the client calls it off.
        is_brokers_own: bool,
    },
}

/// A will that was due later is published, or is not to be published any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WillOver {
    /// Client id.
    pub client_id: ByteString,
    /// Number of its session.
    pub session: SessionNumber,
    /// Whose will it was.
    pub connection: ConnectionEpoch,
}

/// A host asks for subscriptions of a persistent session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscribeRequest {
    /// Client id.
    pub client_id: ByteString,
    /// Which connection asks.
    pub connection: ConnectionEpoch,
    /// What it subscribes to, in order.
    pub subscriptions: Vec<StoredSubscription>,
}

/// A host asks to end subscriptions of a persistent session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsubscribeRequest {
    /// Client id.
    pub client_id: ByteString,
    /// Which connection asks.
    pub connection: ConnectionEpoch,
    /// What to end, in order.
    pub targets: Vec<SubscriptionTarget>,
}

/// One reason code for each entry of the request, in order. SUBACK and UNSUBACK may leave when it arrives: what they
/// depend on is committed and routed.
pub type SubscriptionReasons = Vec<ReasonCode>;

/// One message of a queue on its way to the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// Where the record is; what the host acknowledges.
    pub offset: Offset,
    /// min(publish QoS, highest QoS of the subscriptions that match); always above 0.
    pub qos: QoS,
    /// The retain flag of the PUBLISH.
    pub retain: bool,
    /// The client may have seen it before. Whether it goes out with DUP depends on whether its packet id is known.
    pub redelivery: bool,
    /// Identifiers of all subscriptions that match.
    pub identifiers: Vec<u32>,
    /// The packet id under which the owner has stored it: at QoS 2, and only then.
    pub packet_id: Option<PacketId>,
    /// What was published.
    pub record: Arc<Record>,
}

/// Messages of one queue for the host of its session, in offset order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deliver {
    /// The queue.
    pub queue: QueueId,
    /// Its partition.
    pub partition: Partition,
    /// The connection they are for; a host drops what is for another one.
    pub connection: ConnectionEpoch,
    /// At least one, in order.
    pub deliveries: Vec<Delivery>,
}

/// A host reports what a client is done with. Batched; sent in the order of the acknowledgements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acked {
    /// The queue.
    pub queue: QueueId,
    /// Its partition.
    pub partition: Partition,
    /// The connection that acknowledged.
    pub connection: ConnectionEpoch,
    /// What it is done with.
    pub done: DeliveriesDone,
}

/// How far a client is with what it was sent from its queue.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeliveriesDone {
    /// Offsets that it needs no more and that have no exchange any more.
    pub finished: Vec<Offset>,
    /// Offsets whose PUBREC came. PUBREL leaves when the owner has stored it: see [`Release`].
    pub received: Vec<Offset>,
    /// Packet ids whose PUBCOMP came.
    pub completed: Vec<PacketId>,
    /// Subscriptions at QoS 1 that have got all retained messages that they asked for.
    pub retained: Vec<TopicFilter>,
}

impl DeliveriesDone {
    /// Whether there is nothing to tell.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { finished, received, completed, retained } = self;
        finished.is_empty() && received.is_empty() && completed.is_empty() && retained.is_empty()
    }
}

/// An owner tells the host that PUBRECs are stored: their PUBRELs may leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// The queue.
    pub queue: QueueId,
    /// The connection that it is for; a host drops what is for another one.
    pub connection: ConnectionEpoch,
    /// In the order of their PUBRECs.
    pub packet_ids: Vec<PacketId>,
}

/// A host asks to store how far the QoS 2 publishes of a persistent session are. The answer is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExactlyOnceRequest {
    /// Client id of the publisher.
    pub client_id: ByteString,
    /// Which connection asks.
    pub connection: ConnectionEpoch,
    /// Publishes that go to the log when they are stored; those with something in `found` are there, all of each.
    pub intents: Vec<Intent>,
    /// Packet ids whose PUBREL came: PUBCOMP follows the answer.
    pub releases: Vec<PacketId>,
}

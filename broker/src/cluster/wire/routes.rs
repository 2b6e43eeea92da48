//! Routes on the wire, and their digest.
//!
//! A member's routes are its live routes and the durable routes of the partitions it speaks for. Every change of them
//! has the next sequence; a snapshot has the sequence of the last change in it. Parts of one snapshot or delta follow
//! each other and take effect together, at the last one.

use super::{WireError, narrow, required};
use crate::cluster::LiveClass;
use bytestring::ByteString;
use tidemill_core::member::OwnerEpoch;
use tidemill_core::partition::Partition;
use tidemill_core::topic::TopicFilter;
use xxhash_rust::xxh3::xxh3_128;

/// A live route.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LiveRoute {
    /// Topic filter.
    #[prost(string, tag = "1")]
    pub filter: String,
    /// 1 any QoS, 2 only publishes at QoS 0.
    #[prost(uint32, tag = "2")]
    pub class: u32,
    /// `ShareName` of a live shared group; empty for a plain route.
    #[prost(string, tag = "3")]
    pub share: String,
    /// Members of the shared group at this broker; 0 for a plain route.
    #[prost(uint32, tag = "4")]
    pub members: u32,
}

/// A live route as the router takes it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LiveKey {
    /// Topic filter.
    pub filter: TopicFilter,
    /// What is sent for it.
    pub class: LiveClass,
}

impl From<&LiveKey> for LiveRoute {
    fn from(key: &LiveKey) -> Self {
        Self {
            filter: key.filter.as_str().to_owned(),
            class: key.class as u32,
            share: String::new(),
            members: 0,
        }
    }
}

impl TryFrom<LiveRoute> for LiveKey {
    type Error = WireError;

    fn try_from(route: LiveRoute) -> Result<Self, WireError> {
        let class = match route.class {
            1 => LiveClass::AnyQos,
            2 => LiveClass::QosZeroOnly,
            value => return Err(WireError::Value { field: "class", value: value.into() }),
        };
        if !route.share.is_empty() {
            // Version 1 knows the field, but no member that speaks only version 1 announces a shared group.
            return Err(WireError::Value { field: "share", value: route.share.len() as u64 });
        }
        Ok(Self { filter: filter(route.filter, "filter")?, class })
    }
}

/// The durable routes of one partition.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PartitionRoutes {
    /// The partition.
    #[prost(uint32, tag = "1")]
    pub partition: u32,
    /// Epoch of the owner that speaks.
    #[prost(uint32, tag = "2")]
    pub owner_epoch: u32,
    /// Filters added; all of them when `replaces`.
    #[prost(string, repeated, tag = "3")]
    pub added: Vec<String>,
    /// Filters removed.
    #[prost(string, repeated, tag = "4")]
    pub removed: Vec<String>,
    /// Forget what was there before.
    #[prost(bool, tag = "5")]
    pub replaces: bool,
    /// The sender no longer speaks for the partition; its routes stay valid.
    #[prost(bool, tag = "6")]
    pub released: bool,
}

/// Change of the durable routes of one partition, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionChange {
    /// The partition.
    pub partition: Partition,
    /// Epoch of the owner that speaks.
    pub epoch: OwnerEpoch,
    /// Filters added.
    pub added: Vec<TopicFilter>,
    /// Filters removed.
    pub removed: Vec<TopicFilter>,
    /// How the change relates to what was there.
    pub kind: PartitionChangeKind,
}

/// How a change relates to the routes before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionChangeKind {
    /// It adds and removes.
    Amends,
    /// `added` is everything.
    Replaces,
    /// The sender speaks no longer.
    Releases,
}

impl From<&PartitionChange> for PartitionRoutes {
    fn from(change: &PartitionChange) -> Self {
        let texts =
            |filters: &[TopicFilter]| filters.iter().map(|filter| filter.as_str().to_owned()).collect();
        Self {
            partition: change.partition.0.into(),
            owner_epoch: change.epoch.0,
            added: texts(&change.added),
            removed: texts(&change.removed),
            replaces: change.kind == PartitionChangeKind::Replaces,
            released: change.kind == PartitionChangeKind::Releases,
        }
    }
}

impl TryFrom<PartitionRoutes> for PartitionChange {
    type Error = WireError;

    fn try_from(routes: PartitionRoutes) -> Result<Self, WireError> {
        let filters = |texts: Vec<String>, field| {
            texts.into_iter().map(|text| filter(text, field)).collect::<Result<Vec<_>, _>>()
        };
        let kind = match (routes.replaces, routes.released) {
            (false, false) => PartitionChangeKind::Amends,
            (true, false) => PartitionChangeKind::Replaces,
            (false, true) => PartitionChangeKind::Releases,
            (true, true) => return Err(WireError::Value { field: "released", value: 1 }),
        };
        Ok(Self {
            partition: Partition(narrow(routes.partition, "partition")?),
            epoch: OwnerEpoch(routes.owner_epoch),
            added: filters(routes.added, "added")?,
            removed: filters(routes.removed, "removed")?,
            kind,
        })
    }
}

/// 128 bits; protobuf has no such number.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Digest {
    /// High half.
    #[prost(fixed64, tag = "1")]
    pub high: u64,
    /// Low half.
    #[prost(fixed64, tag = "2")]
    pub low: u64,
}

impl From<u128> for Digest {
    fn from(value: u128) -> Self {
        let bytes = value.to_be_bytes();
        let half = |range: std::ops::Range<usize>| {
            bytes[range].iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
        };
        Self { high: half(0..8), low: half(8..16) }
    }
}

impl From<Digest> for u128 {
    fn from(digest: Digest) -> Self {
        Self::from(digest.high) << 64 | Self::from(digest.low)
    }
}

/// All routes of the sender.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RouteSnapshot {
    /// Sequence of the last change in it.
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    /// Live routes.
    #[prost(message, repeated, tag = "2")]
    pub live: Vec<LiveRoute>,
    /// Partitions the sender speaks for; one may stand in several parts.
    #[prost(message, repeated, tag = "3")]
    pub partitions: Vec<PartitionRoutes>,
    /// Of all routes, in the last part.
    #[prost(message, optional, tag = "4")]
    pub digest: Option<Digest>,
    /// Whether it is the last part.
    #[prost(bool, tag = "5")]
    pub last: bool,
    /// Number of the last data frame sent before it.
    #[prost(uint64, tag = "6")]
    pub data_sequence: u64,
}

/// Changes of the sender's routes.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RouteDelta {
    /// One more than the last change before.
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    /// Live routes that are new.
    #[prost(message, repeated, tag = "2")]
    pub live_added: Vec<LiveRoute>,
    /// Live routes that are gone.
    #[prost(message, repeated, tag = "3")]
    pub live_removed: Vec<LiveRoute>,
    /// Changes of partitions.
    #[prost(message, repeated, tag = "4")]
    pub partitions: Vec<PartitionRoutes>,
    /// Of all routes after it, in the last part.
    #[prost(message, optional, tag = "5")]
    pub digest: Option<Digest>,
    /// Whether it is the last part.
    #[prost(bool, tag = "6")]
    pub last: bool,
    /// Number of the last data frame sent before it.
    #[prost(uint64, tag = "7")]
    pub data_sequence: u64,
}

/// The sender has the routes up to `sequence`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct RouteAck {
    /// Up to which change.
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    /// Number of the last data frame sent before it: a gate counts the acknowledgement when that frame was processed.
    #[prost(uint64, tag = "2")]
    pub data_sequence: u64,
    /// The routes do not fit their digest or sequence: nothing is acknowledged, send all of them again.
    #[prost(bool, tag = "3")]
    pub wants_snapshot: bool,
}

/// What a live route adds to the digest.
#[must_use]
pub fn live_digest(key: &LiveKey) -> u128 {
    let mut bytes = vec![1, key.class as u8];
    bytes.extend_from_slice(key.filter.as_str().as_bytes());
    xxh3_128(&bytes)
}

/// What a durable route adds to the digest.
#[must_use]
pub fn durable_digest(partition: Partition, epoch: OwnerEpoch, filter: &TopicFilter) -> u128 {
    let mut bytes = vec![2];
    bytes.extend_from_slice(&partition.0.to_le_bytes());
    bytes.extend_from_slice(&epoch.0.to_le_bytes());
    bytes.extend_from_slice(filter.as_str().as_bytes());
    xxh3_128(&bytes)
}

/// What speaking for a partition adds to the digest, also when it has no routes.
#[must_use]
pub fn speaker_digest(partition: Partition, epoch: OwnerEpoch) -> u128 {
    let mut bytes = vec![3];
    bytes.extend_from_slice(&partition.0.to_le_bytes());
    bytes.extend_from_slice(&epoch.0.to_le_bytes());
    xxh3_128(&bytes)
}

pub(super) fn filter(text: String, field: &'static str) -> Result<TopicFilter, WireError> {
    TopicFilter::parse(ByteString::from(text)).map_err(|error| WireError::Topic { field, error })
}

/// The digest that a last part must carry.
///
/// # Errors
///
/// [`WireError::Missing`].
pub fn digest_of(digest: Option<Digest>) -> Result<u128, WireError> {
    required(digest, "digest").map(u128::from)
}

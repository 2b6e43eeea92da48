//! The greeting on a new connection: who is there, and whether it may be a link.

use crate::cluster::wire::link::Hello;
use crate::cluster::wire::{
    Body, FRAME_HEADROOM_BYTES, Frame, Lane, PROTOCOL_MAX, PROTOCOL_MIN, WireError, take_frame,
};
use crate::cluster::{ClusterView, MemberInfo};
use bytes::BytesMut;
use tidemill_core::member::{Member, MemberEpoch, MemberId};
use tidemill_core::partition::Partitioning;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Largest greeting; it comes before the peer is known.
const HELLO_BYTES_MAX: usize = 64 * 1024;

/// What every broker of a cluster must have alike.
#[derive(Debug, Clone)]
pub struct LinkTerms {
    /// Name of the cluster.
    pub cluster: String,
    /// Partitions and groups.
    pub partitioning: Partitioning,
    /// Largest MQTT packet; a frame may have [`FRAME_HEADROOM_BYTES`] more.
    pub packet_bytes_max: usize,
}

impl LinkTerms {
    /// Largest frame, without its length.
    #[must_use]
    pub fn frame_bytes_max(&self) -> usize {
        self.packet_bytes_max + FRAME_HEADROOM_BYTES
    }
}

/// A connection does not become a link.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The connection failed.
    #[error("connection failed: {0}")]
    Io(#[from] std::io::Error),
    /// The greeting is malformed.
    #[error("greeting is malformed: {0}")]
    Wire(#[from] WireError),
    /// The peer belongs to another cluster.
    #[error("peer belongs to cluster {0:?}")]
    Cluster(String),
    /// The log of the peer has other partitions or groups.
    #[error("peer has {partitions} partitions in {groups} groups")]
    Partitioning {
        /// Its partitions.
        partitions: u32,
        /// Its groups.
        groups: u32,
    },
    /// The certificate does not name the member that the greeting names.
    #[error("certificate does not name member {0}")]
    Certificate(MemberId),
    /// The membership as this broker sees it has no such member, another start of it, or another epoch. A view that
    /// lags heals it.
    #[error("{member:?} with epoch {epoch:?} is not the member of that name")]
    NotMember {
        /// Who it says it is.
        member: Member,
        /// The epoch it names.
        epoch: MemberEpoch,
    },
    /// The peer means another start of this broker.
    #[error("peer looks for another start of this broker")]
    WrongPeer,
    /// This broker has not joined yet.
    #[error("this broker has not joined yet")]
    NotJoined,
    /// No greeting in time.
    #[error("no greeting in time")]
    Timeout,
}

/// One connection of one link.
#[derive(Debug, Clone, Copy)]
pub struct Which {
    /// Pairs the connections.
    pub link: u64,
    /// Which of the two.
    pub lane: Lane,
}

/// The greeting of this broker to `peer`.
#[must_use]
pub fn greeting(terms: &LinkTerms, view: &ClusterView, peer: &Member, which: Which) -> Hello {
    Hello {
        cluster: terms.cluster.clone(),
        member: Some((&view.own).into()),
        member_epoch: view.own_epoch.0,
        protocol_min: PROTOCOL_MIN.into(),
        protocol_max: PROTOCOL_MAX.into(),
        partitions: terms.partitioning.partition_count().into(),
        groups: terms.partitioning.group_count().into(),
        link: which.link,
        lane: which.lane as u32,
        frame_bytes_max: terms.frame_bytes_max() as u64,
        peer: Some(peer.into()),
    }
}

/// Checks a greeting against the terms and the membership; answers who it is.
///
/// # Errors
///
/// [`HandshakeError`]; close the connection.
pub fn check<'a>(
    hello: &Hello,
    terms: &LinkTerms,
    view: &'a ClusterView,
) -> Result<&'a MemberInfo, HandshakeError> {
    if hello.cluster != terms.cluster {
        return Err(HandshakeError::Cluster(hello.cluster.clone()));
    }
    let (partitions, groups) = (hello.partitions, hello.groups);
    if partitions != u32::from(terms.partitioning.partition_count())
        || groups != u32::from(terms.partitioning.group_count())
    {
        return Err(HandshakeError::Partitioning { partitions, groups });
    }
    hello.common_protocol(PROTOCOL_MIN, PROTOCOL_MAX)?;
    if view.own_epoch == MemberEpoch(0) {
        return Err(HandshakeError::NotJoined);
    }
    if hello.peer.as_ref().map(Member::from).as_ref() != Some(&view.own) {
        return Err(HandshakeError::WrongPeer);
    }
    let member = hello.speaker()?;
    let epoch = MemberEpoch(hello.member_epoch);
    match view.members.get(&member.id) {
        Some(info) if info.member == member && info.epoch == epoch && member.id != view.own.id => Ok(info),
        _ => Err(HandshakeError::NotMember { member, epoch }),
    }
}

/// Writes a greeting.
///
/// # Errors
///
/// [`HandshakeError::Io`].
pub async fn write_hello<S: AsyncWrite + Unpin>(stream: &mut S, hello: Hello) -> Result<(), HandshakeError> {
    let frame = Frame { sender_epoch: hello.member_epoch, data_sequence: 0, body: Some(Body::Hello(hello)) };
    stream.write_all(&frame.to_wire()).await?;
    stream.flush().await?;
    Ok(())
}

/// Reads a greeting. Nothing follows it before it was answered, so no byte beyond it is read.
///
/// # Errors
///
/// [`HandshakeError::Io`], [`HandshakeError::Wire`].
pub async fn read_hello<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Hello, HandshakeError> {
    let mut input = BytesMut::new();
    loop {
        if let Some((frame, _)) = take_frame(&mut input, HELLO_BYTES_MAX)? {
            let Some(Body::Hello(hello)) = frame.body else {
                return Err(WireError::Missing { field: "hello" }.into());
            };
            return Ok(hello);
        }
        // Byte by byte: what follows belongs to the link, which starts with a buffer of its own.
        let byte = stream.read_u8().await?;
        input.extend_from_slice(&[byte]);
    }
}

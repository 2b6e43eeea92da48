//! Frames of the link itself: greeting, heartbeat, credit, and what members say about each other's leases.

use super::{Lane, WireError, narrow, required};
use std::time::Duration;
use tidemill_core::member::{Incarnation, Member, MemberId};
use tidemill_core::membership::lease::ResourceVersion;
use tidemill_core::membership::message::PeerMessage;
use tidemill_core::time::BootTime;

/// One start of one member.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MemberName {
    /// Member id.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Incarnation.
    #[prost(fixed64, tag = "2")]
    pub incarnation: u64,
}

impl From<&Member> for MemberName {
    fn from(member: &Member) -> Self {
        Self { id: member.id.as_str().to_owned(), incarnation: member.incarnation.0 }
    }
}

impl From<&MemberName> for Member {
    fn from(name: &MemberName) -> Self {
        Self { id: MemberId::new(&name.id), incarnation: Incarnation(name.incarnation) }
    }
}

/// First frame of each connection, from both ends. Number 8 is used up: it was the last forward received, which
/// `Resume` tells better.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Hello {
    /// Name of the cluster.
    #[prost(string, tag = "1")]
    pub cluster: String,
    /// Who speaks; the certificate names the same.
    #[prost(message, optional, tag = "2")]
    pub member: Option<MemberName>,
    /// Its member epoch.
    #[prost(uint64, tag = "3")]
    pub member_epoch: u64,
    /// Lowest protocol version it speaks.
    #[prost(uint32, tag = "4")]
    pub protocol_min: u32,
    /// Highest protocol version it speaks.
    #[prost(uint32, tag = "5")]
    pub protocol_max: u32,
    /// Partitions of its log.
    #[prost(uint32, tag = "6")]
    pub partitions: u32,
    /// Its partition groups.
    #[prost(uint32, tag = "7")]
    pub groups: u32,
    /// Pairs the two connections of one link; chosen by who dials, repeated by who accepts.
    #[prost(fixed64, tag = "9")]
    pub link: u64,
    /// Which lane this connection is: 1 control, 2 data.
    #[prost(uint32, tag = "10")]
    pub lane: u32,
    /// Largest frame it takes, in bytes.
    #[prost(uint64, tag = "11")]
    pub frame_bytes_max: u64,
    /// Whom the speaker means to talk to.
    #[prost(message, optional, tag = "12")]
    pub peer: Option<MemberName>,
}

impl Hello {
    /// The lane of the connection.
    ///
    /// # Errors
    ///
    /// [`WireError::Value`] for an unknown lane.
    pub fn lane(&self) -> Result<Lane, WireError> {
        Lane::from_number(self.lane).ok_or(WireError::Value { field: "lane", value: self.lane.into() })
    }

    /// Who speaks.
    ///
    /// # Errors
    ///
    /// [`WireError::Missing`].
    pub fn speaker(&self) -> Result<Member, WireError> {
        self.member.as_ref().map(Member::from).ok_or(WireError::Missing { field: "member" })
    }

    /// The highest protocol version that both ends speak.
    ///
    /// # Errors
    ///
    /// [`WireError::Value`] when there is none.
    pub fn common_protocol(&self, min: u16, max: u16) -> Result<u16, WireError> {
        let theirs_min: u16 = narrow(self.protocol_min, "protocol_min")?;
        let theirs_max: u16 = narrow(self.protocol_max, "protocol_max")?;
        let common = max.min(theirs_max);
        if common >= min && common >= theirs_min {
            Ok(common)
        } else {
            Err(WireError::Value { field: "protocol_max", value: theirs_max.into() })
        }
    }
}

/// Heartbeat, every 500 ms on the control lane.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Ping {
    /// Sender's clock; comes back untouched.
    #[prost(uint64, tag = "1")]
    pub sent_at_nanos: u64,
    /// "Grant me that I stay valid", asked at this moment of the sender's clock.
    #[prost(uint64, optional, tag = "2")]
    pub grant_asked_at_nanos: Option<u64>,
}

/// Answer to [`Ping`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Pong {
    /// As in the ping.
    #[prost(uint64, tag = "1")]
    pub sent_at_nanos: u64,
    /// "I am valid and grant it": as in the ping.
    #[prost(uint64, optional, tag = "2")]
    pub granted_asked_at_nanos: Option<u64>,
}

/// The receiver has processed this much of a lane.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Credit {
    /// 1 control, 2 data.
    #[prost(uint32, tag = "1")]
    pub lane: u32,
    /// Bytes processed on this lane of this link since its start, lengths included.
    #[prost(uint64, tag = "2")]
    pub processed_bytes: u64,
}

/// The sender gives the link up while the peer may still be well.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Break {
    /// Why, for people.
    #[prost(string, tag = "1")]
    pub reason: String,
    /// Whether forwards that the peer did not take count as delivered now.
    #[prost(bool, tag = "2")]
    pub gives_up_forwards: bool,
}

/// "May I expire this incarnation?" and "you may".
#[derive(Clone, PartialEq, prost::Message)]
pub struct Consent {
    /// Who shall be expired.
    #[prost(message, optional, tag = "1")]
    pub victim: Option<MemberName>,
    /// Version of its lease.
    #[prost(uint64, tag = "2")]
    pub resource_version: u64,
    /// Question: the duration its lease names, in milliseconds. Absent in the answer.
    #[prost(uint64, optional, tag = "3")]
    pub duration_ms: Option<u64>,
}

impl Consent {
    /// The question or the answer.
    ///
    /// # Errors
    ///
    /// [`WireError::Missing`] without a victim.
    pub fn message(&self) -> Result<PeerMessage, WireError> {
        let victim = Member::from(required(self.victim.as_ref(), "victim")?);
        let version = ResourceVersion(self.resource_version);
        Ok(match self.duration_ms {
            Some(millis) => {
                PeerMessage::ConsentAsk { victim, version, duration: Duration::from_millis(millis) }
            }
            None => PeerMessage::Consent { victim, version },
        })
    }
}

/// The frame body that carries `message`; `now` stamps a ping.
#[must_use]
pub fn membership_body(message: &PeerMessage, now: BootTime) -> super::Body {
    use super::Body;
    match message {
        PeerMessage::GrantAsk { asked_at } => {
            Body::Ping(Ping { sent_at_nanos: now.0, grant_asked_at_nanos: Some(asked_at.0) })
        }
        PeerMessage::Grant { asked_at } => {
            Body::Pong(Pong { sent_at_nanos: 0, granted_asked_at_nanos: Some(asked_at.0) })
        }
        PeerMessage::ConsentAsk { victim, version, duration } => Body::Consent(Consent {
            victim: Some(victim.into()),
            resource_version: version.0,
            duration_ms: Some(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)),
        }),
        PeerMessage::Consent { victim, version } => Body::Consent(Consent {
            victim: Some(victim.into()),
            resource_version: version.0,
            duration_ms: None,
        }),
    }
}

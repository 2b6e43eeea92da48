//! The frames that brokers exchange: length-delimited protobuf, one `Frame` each, on two lanes per peer.
//!
//! Version 1. Field numbers are never used again for something else; a frame whose body is unknown is refused, because
//! a peer sends only what the negotiated version knows. Every conversion into core types checks and never panics.

pub mod attach;
pub mod deliver;
pub mod exactly_once;
pub mod in_flight;
pub mod link;
pub mod parts;
pub mod routes;
pub mod subscribe;
pub mod will;

#[cfg(test)]
mod golden;

use bytes::{Buf, Bytes, BytesMut};
use prost::Message;
use tidemill_core::binary::FormatError;
use tidemill_core::topic::TopicError;

/// Lowest protocol version this release speaks.
pub const PROTOCOL_MIN: u16 = 1;
/// Highest protocol version this release speaks.
pub const PROTOCOL_MAX: u16 = 1;

/// A frame is at most the largest packet plus this. What a frame holds beyond a packet is at most: a topic that the
/// packet named by its alias, two names of clients, the identifiers of a session's subscriptions, or the offsets of a
/// full window, twice.
pub const FRAME_HEADROOM_BYTES: usize = 1 << 20;

/// A varint length never has more bytes than this.
const LENGTH_BYTES_MAX: usize = 10;

/// The two lanes of a link, each with its own credit. Control never waits behind data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Lane {
    /// Routes, attach, acknowledgements, heartbeats.
    Control = 1,
    /// Messages.
    Data = 2,
}

impl Lane {
    /// Reads the number on the wire.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Control),
            2 => Some(Self::Data),
            _ => None,
        }
    }
}

/// A peer sent what the protocol does not allow. Its link is broken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Not protobuf.
    #[error("frame is not protobuf: {0}")]
    Protobuf(#[from] prost::DecodeError),
    /// Larger than a frame may be.
    #[error("frame of {bytes} bytes, at most {bytes_max} are allowed")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The bound.
        bytes_max: usize,
    },
    /// A field that must be there is not.
    #[error("field {field} is missing")]
    Missing {
        /// Which.
        field: &'static str,
    },
    /// A field has a value without meaning.
    #[error("field {field} has the unknown value {value}")]
    Value {
        /// Which.
        field: &'static str,
        /// What it held.
        value: u64,
    },
    /// A topic or filter is malformed.
    #[error("field {field} is no topic: {error}")]
    Topic {
        /// Which.
        field: &'static str,
        /// Why.
        error: TopicError,
    },
    /// A record is malformed.
    #[error("record is malformed: {0}")]
    Record(#[from] FormatError),
}

/// What travels: one body, the sender's epoch, and the place on the data lane.
#[derive(Clone, PartialEq, Message)]
pub struct Frame {
    /// Member epoch of the sender. Frames of an older epoch than the link's are dropped.
    #[prost(uint64, tag = "1")]
    pub sender_epoch: u64,
    /// Number of this frame on the data lane of this link, from 1; 0 on the control lane.
    #[prost(uint64, tag = "2")]
    pub data_sequence: u64,
    /// The content.
    #[prost(
        oneof = "Body",
        tags = "8, 9, 10, 11, 12, 16, 17, 18, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 40, 41, 42, 43, 44, 45, 48, 49"
    )]
    pub body: Option<Body>,
}

/// All bodies. The numbers are the protocol.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Body {
    /// First frame of each connection, both ways.
    #[prost(message, tag = "8")]
    Hello(link::Hello),
    /// Heartbeat.
    #[prost(message, tag = "9")]
    Ping(link::Ping),
    /// Its answer.
    #[prost(message, tag = "10")]
    Pong(link::Pong),
    /// Allows the peer to send more.
    #[prost(message, tag = "11")]
    Credit(link::Credit),
    /// The sender gives this link up.
    #[prost(message, tag = "12")]
    Break(link::Break),
    /// All routes of the sender.
    #[prost(message, tag = "16")]
    RouteSnapshot(routes::RouteSnapshot),
    /// Changes of the sender's routes.
    #[prost(message, tag = "17")]
    RouteDelta(routes::RouteDelta),
    /// The sender has the routes up to a sequence.
    #[prost(message, tag = "18")]
    RouteAck(routes::RouteAck),
    /// Host to owner: let a connection in.
    #[prost(message, boxed, tag = "24")]
    Attach(Box<attach::Attach>),
    /// Owner to host.
    #[prost(message, tag = "25")]
    AttachReply(attach::AttachReply),
    /// Host to owner: a connection ended.
    #[prost(message, tag = "26")]
    Detach(attach::Detach),
    /// Host to a new owner: all attachments of a group.
    #[prost(message, tag = "27")]
    Reattach(attach::Reattach),
    /// Owner to host.
    #[prost(message, tag = "28")]
    ReattachReply(attach::ReattachReply),
    /// Host to owner.
    #[prost(message, tag = "29")]
    Subscribe(subscribe::Subscribe),
    /// Owner to host.
    #[prost(message, tag = "30")]
    SubscribeReply(subscribe::ReasonsReply),
    /// Host to owner.
    #[prost(message, tag = "31")]
    Unsubscribe(subscribe::Unsubscribe),
    /// Owner to host.
    #[prost(message, tag = "32")]
    UnsubscribeReply(subscribe::ReasonsReply),
    /// Owner to host: close a connection that a newer one replaced.
    #[prost(message, tag = "33")]
    TakeOver(attach::TakeOver),
    /// Host to owner: it is closed.
    #[prost(message, tag = "34")]
    TakenOver(attach::TakenOver),
    /// Host to owner.
    #[prost(message, tag = "35")]
    StoreExactlyOnce(exactly_once::StoreExactlyOnce),
    /// Owner to host.
    #[prost(message, tag = "36")]
    StoreExactlyOnceReply(exactly_once::StoreExactlyOnceReply),
    /// Host to owner.
    #[prost(message, tag = "37")]
    WillOver(attach::WillOver),
    /// Owner to host, data lane: messages of a queue.
    #[prost(message, tag = "40")]
    Deliver(deliver::Deliver),
    /// Host to owner, control lane: what a client is done with.
    #[prost(message, tag = "41")]
    Acked(deliver::Acked),
    /// Data lane: a message for the peer's live receivers.
    #[prost(message, tag = "42")]
    Forward(deliver::Forward),
    /// Control lane: forwards that were taken.
    #[prost(message, tag = "43")]
    ForwardAck(deliver::ForwardAck),
    /// Data lane: a hint that a record was committed. Format only; nobody sends it yet.
    #[prost(message, tag = "44")]
    Appended(deliver::Appended),
    /// Owner to host, data lane, so that it follows its deliveries: PUBRECs are stored.
    #[prost(message, tag = "45")]
    Release(exactly_once::Release),
    /// First frame on the data lane after `Hello`: where the numbering of forwards stands.
    #[prost(message, tag = "48")]
    Resume(deliver::Resume),
    /// Control lane: a question or answer about expiring a member.
    #[prost(message, tag = "49")]
    Consent(link::Consent),
}

impl Body {
    /// The lane that this body travels on; `Hello` opens both.
    #[must_use]
    pub fn lane(&self) -> Lane {
        match self {
            Self::Deliver(_) | Self::Forward(_) | Self::Appended(_) | Self::Release(_) | Self::Resume(_) => {
                Lane::Data
            }
            Self::Hello(_)
            | Self::Ping(_)
            | Self::Pong(_)
            | Self::Credit(_)
            | Self::Break(_)
            | Self::RouteSnapshot(_)
            | Self::RouteDelta(_)
            | Self::RouteAck(_)
            | Self::Attach(_)
            | Self::AttachReply(_)
            | Self::Detach(_)
            | Self::Reattach(_)
            | Self::ReattachReply(_)
            | Self::Subscribe(_)
            | Self::SubscribeReply(_)
            | Self::Unsubscribe(_)
            | Self::UnsubscribeReply(_)
            | Self::TakeOver(_)
            | Self::TakenOver(_)
            | Self::StoreExactlyOnce(_)
            | Self::StoreExactlyOnceReply(_)
            | Self::WillOver(_)
            | Self::Acked(_)
            | Self::ForwardAck(_)
            | Self::Consent(_) => Lane::Control,
        }
    }
}

impl Frame {
    /// The frame as it travels, length first.
    #[must_use]
    pub fn to_wire(&self) -> Bytes {
        let mut output = BytesMut::with_capacity(self.encoded_len() + LENGTH_BYTES_MAX);
        self.encode_length_delimited(&mut output).expect("a BytesMut grows as needed");
        output.freeze()
    }
}

/// Takes the next frame out of `input` and tells its size; `None` while it is incomplete.
///
/// # Errors
///
/// [`WireError::TooLarge`] before the frame has arrived, [`WireError::Protobuf`]; the link must be closed.
pub fn take_frame(input: &mut BytesMut, bytes_max: usize) -> Result<Option<(Frame, usize)>, WireError> {
    let mut ahead = &input[..input.len().min(LENGTH_BYTES_MAX)];
    let length = match prost::encoding::decode_varint(&mut ahead) {
        Ok(length) => usize::try_from(length).unwrap_or(usize::MAX),
        Err(_) if input.len() < LENGTH_BYTES_MAX && input.iter().all(|byte| byte & 0x80 != 0) => {
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    if length > bytes_max {
        return Err(WireError::TooLarge { bytes: length, bytes_max });
    }
    let head = input.len().min(LENGTH_BYTES_MAX) - ahead.len();
    if input.len() < head + length {
        input.reserve(head + length - input.len());
        return Ok(None);
    }
    input.advance(head);
    let frame = Frame::decode(input.split_to(length).freeze())?;
    Ok(Some((frame, head + length)))
}

/// A value that must be there.
pub(crate) fn required<T>(value: Option<T>, field: &'static str) -> Result<T, WireError> {
    value.ok_or(WireError::Missing { field })
}

/// A number that must fit a narrower type.
pub(crate) fn narrow<T: TryFrom<u32>>(value: u32, field: &'static str) -> Result<T, WireError> {
    T::try_from(value).map_err(|_| WireError::Value { field, value: value.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic_and_never_pass_the_bound(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut input = BytesMut::from(&bytes[..]);
            while let Ok(Some((frame, size))) = take_frame(&mut input, 100) {
                prop_assert!(size <= 100 + LENGTH_BYTES_MAX);
                if let Some(body) = frame.body {
                    let _ = body.lane();
                }
            }
        }

        #[test]
        fn a_frame_is_taken_whole_wherever_the_stream_is_cut(cut in 0_usize..40) {
            let frame = Frame {
                sender_epoch: 7,
                data_sequence: 0,
                body: Some(Body::RouteAck(routes::RouteAck { sequence: 300, data_sequence: 5, wants_snapshot: false })),
            };
            let wire = frame.to_wire();
            let cut = cut.min(wire.len() - 1);
            let mut input = BytesMut::from(&wire[..cut]);

            prop_assert_eq!(take_frame(&mut input, 1_000).unwrap(), None);
            input.extend_from_slice(&wire[cut..]);
            prop_assert_eq!(take_frame(&mut input, 1_000).unwrap(), Some((frame, wire.len())));
            prop_assert!(input.is_empty());
        }
    }

    #[test]
    fn a_frame_over_the_bound_is_refused_by_its_length_alone() {
        let mut input = BytesMut::from(&[0xff, 0xff, 0x7f][..]);

        assert_eq!(
            take_frame(&mut input, 1_000),
            Err(WireError::TooLarge { bytes: 2_097_151, bytes_max: 1_000 })
        );
    }
}

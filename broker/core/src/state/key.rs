//! Keys of the state.

use super::{STATE_VERSION, read_version_1};
use crate::attach::{ConnectionEpoch, QueueId, SessionNumber};
use crate::binary::{FormatError, Reader, Writer};
use crate::member::OwnerEpoch;
use crate::packet::PacketId;
use crate::partition::{Offset, Partition, QueueKind};
use crate::topic::{SubscriptionTarget, TopicFilter};
use bytes::Bytes;

/// One key of the state of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateKey {
    /// A subscription of a queue.
    Subscription {
        /// The queue.
        queue: QueueId,
        /// What it subscribed to; stored as its text, so that a plain filter is stored as itself.
        target: SubscriptionTarget,
    },
    /// The progress of a queue.
    Cursor {
        /// The queue.
        queue: QueueId,
    },
    /// What is known of a session beside its queue.
    Meta {
        /// The queue.
        queue: QueueId,
    },
    /// A message that waits outside the cursor, with its body.
    Parked {
        /// The queue.
        queue: QueueId,
        /// Where the message was.
        offset: Offset,
    },
    /// A QoS 2 delivery that is not complete.
    SessionOut {
        /// The session, as its queue.
        session: QueueId,
        /// Packet id of the delivery.
        packet_id: PacketId,
    },
    /// A QoS 2 publish that is not complete.
    PublisherIn {
        /// The publisher's session, as its queue.
        session: QueueId,
        /// Packet id of the publish.
        packet_id: PacketId,
    },
    /// What the owner keeps of a partition.
    Owner {
        /// The partition.
        partition: Partition,
    },
    /// The will of a connection.
    Will {
        /// The session, as its queue would be named; a clean one has none.
        session: QueueId,
        /// The connection.
        connection: ConnectionEpoch,
    },
    /// When that will is due.
    WillDue {
        /// The session.
        session: QueueId,
        /// The connection.
        connection: ConnectionEpoch,
    },
    /// A subscription at QoS 1 that has not got all retained messages. Its value is a version and nothing else.
    RetainedDue {
        /// The session, as its queue.
        session: QueueId,
        /// What was subscribed to.
        filter: TopicFilter,
    },
}

const SUBSCRIPTION: u8 = 1;
const CURSOR: u8 = 2;
const META: u8 = 3;
const PARKED: u8 = 4;
const SESSION_OUT: u8 = 5;
const PUBLISHER_IN: u8 = 6;
const OWNER: u8 = 7;
const WILL: u8 = 8;
const WILL_DUE: u8 = 9;
const RETAINED_DUE: u8 = 10;

impl StateKey {
    /// Writes the key in the newest format. Equal keys have equal bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::versioned(STATE_VERSION, 64);
        match self {
            Self::Subscription { queue, target } => {
                writer.u8(SUBSCRIPTION);
                write_queue(&mut writer, queue);
                match target {
                    SubscriptionTarget::Filter(filter) => writer.text(filter.as_str()),
                    SubscriptionTarget::Shared(shared) => writer.text(&shared.to_string()),
                }
            }
            Self::Cursor { queue } => {
                writer.u8(CURSOR);
                write_queue(&mut writer, queue);
            }
            Self::Meta { queue } => {
                writer.u8(META);
                write_queue(&mut writer, queue);
            }
            Self::Parked { queue, offset } => {
                writer.u8(PARKED);
                write_queue(&mut writer, queue);
                writer.u64(*offset);
            }
            Self::SessionOut { session, packet_id } => {
                writer.u8(SESSION_OUT);
                write_queue(&mut writer, session);
                writer.number(packet_id.get().into());
            }
            Self::PublisherIn { session, packet_id } => {
                writer.u8(PUBLISHER_IN);
                write_queue(&mut writer, session);
                writer.number(packet_id.get().into());
            }
            Self::Owner { partition } => {
                writer.u8(OWNER);
                writer.number(partition.0.into());
            }
            Self::Will { session, connection } => {
                writer.u8(WILL);
                write_queue(&mut writer, session);
                write_connection(&mut writer, *connection);
            }
            Self::WillDue { session, connection } => {
                writer.u8(WILL_DUE);
                write_queue(&mut writer, session);
                write_connection(&mut writer, *connection);
            }
            Self::RetainedDue { session, filter } => {
                writer.u8(RETAINED_DUE);
                write_queue(&mut writer, session);
                writer.text(filter.as_str());
            }
        }
        writer.finish()
    }

    /// Reads a key of any format ever released.
    ///
    /// # Errors
    ///
    /// [`FormatError`]: the state is damaged or from a newer version; its partition must not be served.
    pub fn decode(bytes: Bytes) -> Result<Self, FormatError> {
        let mut reader = read_version_1(bytes, "state key version")?;
        let kind = reader.u8("state key kind")?;
        let key = match kind {
            SUBSCRIPTION => {
                let queue = read_queue(&mut reader)?;
                let text = reader.text("filter")?;
                let target =
                    SubscriptionTarget::parse(&text).map_err(|_| FormatError::Text { field: "filter" })?;
                Self::Subscription { queue, target }
            }
            CURSOR => Self::Cursor { queue: read_queue(&mut reader)? },
            META => Self::Meta { queue: read_queue(&mut reader)? },
            PARKED => {
                let queue = read_queue(&mut reader)?;
                Self::Parked { queue, offset: reader.u64("parked offset")? }
            }
            SESSION_OUT => {
                let session = read_queue(&mut reader)?;
                Self::SessionOut { session, packet_id: read_packet_id(&mut reader)? }
            }
            PUBLISHER_IN => {
                let session = read_queue(&mut reader)?;
                Self::PublisherIn { session, packet_id: read_packet_id(&mut reader)? }
            }
            OWNER => Self::Owner { partition: Partition(reader.number_u16("partition")?) },
            WILL => {
                let session = read_queue(&mut reader)?;
                Self::Will { session, connection: read_connection(&mut reader)? }
            }
            WILL_DUE => {
                let session = read_queue(&mut reader)?;
                Self::WillDue { session, connection: read_connection(&mut reader)? }
            }
            RETAINED_DUE => {
                let session = read_queue(&mut reader)?;
                let filter = TopicFilter::parse(reader.text("filter")?)
                    .map_err(|_| FormatError::Text { field: "filter" })?;
                Self::RetainedDue { session, filter }
            }
            _ => return Err(FormatError::Unknown { field: "state key kind", value: kind.into() }),
        };
        reader.finish()?;
        Ok(key)
    }
}

pub(super) fn write_queue(writer: &mut Writer, queue: &QueueId) {
    writer.u8(queue.kind as u8);
    writer.text(&queue.name);
    writer.u64(queue.number.0);
}

pub(super) fn read_queue(reader: &mut Reader) -> Result<QueueId, FormatError> {
    let kind = reader.u8("queue kind")?;
    let kind = QueueKind::from_number(kind)
        .ok_or(FormatError::Unknown { field: "queue kind", value: kind.into() })?;
    let name = reader.text("queue name")?;
    Ok(QueueId { kind, name, number: SessionNumber(reader.u64("session number")?) })
}

fn write_connection(writer: &mut Writer, connection: ConnectionEpoch) {
    writer.number(connection.owner.0.into());
    writer.number(connection.counter.into());
}

fn read_connection(reader: &mut Reader) -> Result<ConnectionEpoch, FormatError> {
    let owner = OwnerEpoch(reader.number_u32("connection owner")?);
    Ok(ConnectionEpoch { owner, counter: reader.number_u32("connection counter")? })
}

fn read_packet_id(reader: &mut Reader) -> Result<PacketId, FormatError> {
    let number = reader.number_u16("packet id")?;
    PacketId::new(number).ok_or(FormatError::Unknown { field: "packet id", value: 0 })
}

#[cfg(test)]
mod tests {
    use super::super::hex;
    use super::*;
    use proptest::prelude::*;

    fn queue() -> QueueId {
        QueueId { kind: QueueKind::Session, name: "c1".into(), number: SessionNumber(0x0000_0002_0000_0007) }
    }

    #[test]
    fn version_1_keeps_the_bytes_of_every_key() {
        let id = PacketId::new(300).unwrap();
        let connection = ConnectionEpoch { owner: OwnerEpoch(2), counter: 300 };
        let subscription = |text: &str| StateKey::Subscription {
            queue: queue(),
            target: SubscriptionTarget::parse(&text.into()).unwrap(),
        };
        let stored = [
            (subscription("a/#"), "0101 01026331 0700000002000000 03612f23"),
            (subscription("$share/g/a/#"), "0101 01026331 0700000002000000 0c 2473686172652f 67 2f 612f23"),
            (StateKey::Cursor { queue: queue() }, "0102 01026331 0700000002000000"),
            (StateKey::Meta { queue: queue() }, "0103 01026331 0700000002000000"),
            (
                StateKey::Parked { queue: queue(), offset: 9 },
                "0104 01026331 0700000002000000 0900000000000000",
            ),
            (StateKey::SessionOut { session: queue(), packet_id: id }, "0105 01026331 0700000002000000 ac02"),
            (
                StateKey::PublisherIn { session: queue(), packet_id: id },
                "0106 01026331 0700000002000000 ac02",
            ),
            (StateKey::Owner { partition: Partition(31) }, "0107 1f"),
            (StateKey::Will { session: queue(), connection }, "0108 01026331 0700000002000000 02 ac02"),
            (StateKey::WillDue { session: queue(), connection }, "0109 01026331 0700000002000000 02 ac02"),
            (
                StateKey::RetainedDue { session: queue(), filter: TopicFilter::parse("a/#").unwrap() },
                "010a 01026331 0700000002000000 03612f23",
            ),
        ];

        for (key, bytes) in stored {
            assert_eq!(hex(&key.encode()), bytes.replace(' ', ""));
            assert_eq!(StateKey::decode(key.encode()), Ok(key));
        }
    }

    #[test]
    fn an_unknown_version_or_kind_is_refused() {
        let unknown = |field, value| Err(FormatError::Unknown { field, value });

        assert_eq!(StateKey::decode(Bytes::from_static(&[2, 7, 1])), unknown("state key version", 2));
        assert_eq!(StateKey::decode(Bytes::from_static(&[1, 11, 1])), unknown("state key kind", 11));
        assert_eq!(
            StateKey::decode(Bytes::from_static(&[1, 7, 1, 0])),
            Err(FormatError::Trailing { bytes: 1 })
        );
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(kind in 0_u8..12, bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut versioned = vec![STATE_VERSION, kind];
            versioned.extend(&bytes);
            if let Ok(key) = StateKey::decode(versioned.into()) {
                prop_assert_eq!(StateKey::decode(key.encode()), Ok(key));
            }
            let _ = StateKey::decode(bytes.into());
        }
    }
}

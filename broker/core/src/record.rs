//! One record of the log. What every implementation of the log stores as opaque bytes, and what peers forward. Version 1
//! is what all brokers of a cluster read; version 2 is shorter, for a log that one broker alone reads and writes.
//!
//! | field | bytes |
//! |---|---|
//! | version | 1, value 1 or 2 |
//! | kind | 1: 1 inline, 2 ref |
//! | flags | 1: bits 0-1 QoS, 2 retain, 3 retry, 4 unique id follows, 5 properties follow, 6 (version 2 only) the unique id begins with the incarnation |
//! | origin: member (version 1 only; else it is empty) | length, text |
//! | origin: incarnation | 8 |
//! | origin: producer, sequence | numbers |
//! | publish time | number, milliseconds since the Unix epoch |
//! | unique id | 16, if its flag is set; with bit 6 its lower half, a number |
//! | publisher | length, text |
//! | topic | length, text |
//! | properties | length, tagged fields, if its flag is set |
//! | inline: payload | length, bytes |
//! | ref: partition, offset | numbers |
//!
//! Numbers and lengths are unsigned LEB128, fixed-size integers little endian.

use crate::binary::{FormatError, Reader, Writer};
use crate::member::{Incarnation, Member, MemberId};
use crate::message::{Message, read_properties, write_properties};
use crate::packet::QoS;
use crate::partition::{Offset, Partition};
use crate::topic::TopicName;
use bytes::Bytes;
use bytestring::ByteString;

/// The newest format of a record that other brokers read.
pub const RECORD_VERSION: u8 = 1;
/// The newest format of a record that only the broker reads that wrote it, and its later starts.
pub const COMPACT_VERSION: u8 = 2;

/// Who appended a record, and as which of its appends to this partition. Readers count gaps in `sequence`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The broker that appended it.
    pub member: Member,
    /// Which of its producers: a new number follows a fatal producer error.
    pub producer: u32,
    /// Counts the appends of this producer to this partition, from 0, without gaps.
    pub sequence: u64,
}

/// What a record carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordBody {
    /// The payload is in the record.
    Inline,
    /// The payload is another record (reserved for wide fan-out); the message's payload is empty.
    Ref {
        /// Partition of the body.
        partition: Partition,
        /// Offset of the body.
        offset: Offset,
    },
}

/// One record of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Where the payload is.
    pub body: RecordBody,
    /// The publisher repeated a QoS 2 PUBLISH; readers look for the first one.
    pub retry: bool,
    /// Who appended it.
    pub origin: Origin,
    /// Id of a QoS 2 publish, the same in every repeat.
    pub unique_id: Option<u128>,
    /// What was published.
    pub message: Message,
}

const FLAG_RETAIN: u8 = 1 << 2;
const FLAG_RETRY: u8 = 1 << 3;
const FLAG_UNIQUE_ID: u8 = 1 << 4;
const FLAG_PROPERTIES: u8 = 1 << 5;
const FLAG_OWN_UNIQUE_ID: u8 = 1 << 6;
const FLAGS_KNOWN: u8 = 0b11 | FLAG_RETAIN | FLAG_RETRY | FLAG_UNIQUE_ID | FLAG_PROPERTIES;
const KIND_INLINE: u8 = 1;
const KIND_REF: u8 = 2;

impl Record {
    /// Writes the record in the newest format that other brokers read.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        self.encode_as(RECORD_VERSION)
    }

    /// Writes the record for a log that this broker alone reads: without the name of the member, which is always its
    /// own, and with a short unique id.
    #[must_use]
    pub fn encode_compact(&self) -> Bytes {
        self.encode_as(COMPACT_VERSION)
    }

    fn encode_as(&self, version: u8) -> Bytes {
        let message = &self.message;
        let is_compact = version == COMPACT_VERSION;
        let incarnation = self.origin.member.incarnation.0;
        let is_own_id = is_compact && self.unique_id.is_some_and(|id| halves(id).0 == incarnation);
        let mut writer = Writer::versioned(version, 96 + message.bytes() + message.publisher.len());
        writer.u8(match self.body {
            RecordBody::Inline => KIND_INLINE,
            RecordBody::Ref { .. } => KIND_REF,
        });
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        writer.u8(message.qos as u8
            | flag(message.retain, FLAG_RETAIN)
            | flag(self.retry, FLAG_RETRY)
            | flag(self.unique_id.is_some(), FLAG_UNIQUE_ID)
            | flag(message.properties.is_some(), FLAG_PROPERTIES)
            | flag(is_own_id, FLAG_OWN_UNIQUE_ID));
        if !is_compact {
            writer.text(self.origin.member.id.as_str());
        }
        writer.u64(incarnation);
        writer.number(self.origin.producer.into());
        writer.number(self.origin.sequence);
        writer.number(message.publish_time_ms);
        match self.unique_id {
            Some(unique_id) if is_own_id => writer.number(halves(unique_id).1),
            Some(unique_id) => writer.u128(unique_id),
            None => {}
        }
        writer.text(&message.publisher);
        writer.text(message.topic.as_str());
        if let Some(properties) = &message.properties {
            let mut fields = Writer::default();
            write_properties(&mut fields, properties);
            writer.bytes(&fields.finish());
        }
        match self.body {
            RecordBody::Inline => writer.bytes(&message.payload),
            RecordBody::Ref { partition, offset } => {
                writer.number(partition.0.into());
                writer.number(offset);
            }
        }
        writer.finish()
    }

    /// Bytes it holds in a queue: its message and who published it.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.message.held_bytes() + self.message.publisher.len()
    }

    /// Reads a record of any format ever released. Payload and texts share the memory of `bytes`.
    ///
    /// # Errors
    ///
    /// [`FormatError`]: the record is damaged or from a newer version; the reader counts it and stops serving the
    /// partition rather than skip it.
    pub fn decode(bytes: Bytes) -> Result<Self, FormatError> {
        let mut reader = Reader::new(bytes);
        let Head { kind, flags, qos, origin, publish_time_ms, unique_id } = Head::read(&mut reader)?;
        let publisher = reader.text("publisher")?;
        let topic =
            TopicName::parse(reader.text("topic")?).map_err(|_| FormatError::Text { field: "topic" })?;
        let properties = if flags & FLAG_PROPERTIES != 0 {
            Some(Box::new(read_properties(reader.bytes("properties")?)?))
        } else {
            None
        };
        let (body, payload) = match kind {
            KIND_INLINE => (RecordBody::Inline, reader.bytes("payload")?),
            KIND_REF => {
                let partition = Partition(reader.number_u16("body partition")?);
                (RecordBody::Ref { partition, offset: reader.number("body offset")? }, Bytes::new())
            }
            _ => return Err(FormatError::Unknown { field: "record kind", value: kind.into() }),
        };
        reader.finish()?;
        let retain = flags & FLAG_RETAIN != 0;
        let message = Message { topic, payload, qos, retain, properties, publisher, publish_time_ms };
        Ok(Self { body, retry: flags & FLAG_RETRY != 0, origin, unique_id, message })
    }

    /// The unique id of the record that `bytes` are, if it has one; what follows it is not looked at.
    ///
    /// # Errors
    ///
    /// [`FormatError`] as of [`Record::decode`].
    pub fn unique_id_of(bytes: Bytes) -> Result<Option<u128>, FormatError> {
        Ok(Head::read(&mut Reader::new(bytes))?.unique_id)
    }
}

/// The fields up to the unique id.
struct Head {
    kind: u8,
    flags: u8,
    qos: QoS,
    origin: Origin,
    publish_time_ms: u64,
    unique_id: Option<u128>,
}

impl Head {
    fn read(reader: &mut Reader) -> Result<Self, FormatError> {
        let version = reader.u8("record version")?;
        let is_compact = version == COMPACT_VERSION;
        if !is_compact && version != RECORD_VERSION {
            return Err(FormatError::Unknown { field: "record version", value: version.into() });
        }
        let kind = reader.u8("record kind")?;
        let flags = reader.u8("record flags")?;
        let unknown = || FormatError::Unknown { field: "record flags", value: flags.into() };
        let known = if is_compact { FLAGS_KNOWN | FLAG_OWN_UNIQUE_ID } else { FLAGS_KNOWN };
        if flags & !known != 0 {
            return Err(unknown());
        }
        let qos = QoS::from_number(flags & 0b11).ok_or_else(unknown)?;
        let member =
            MemberId::new(&if is_compact { ByteString::new() } else { reader.text("origin member")? });
        let incarnation = Incarnation(reader.u64("origin incarnation")?);
        let producer = reader.number_u32("origin producer")?;
        let sequence = reader.number("origin sequence")?;
        let publish_time_ms = reader.number("publish time")?;
        let unique_id = match (flags & FLAG_UNIQUE_ID != 0, flags & FLAG_OWN_UNIQUE_ID != 0) {
            (false, _) => None,
            (true, false) => Some(reader.u128("unique id")?),
            (true, true) => Some(u128::from(incarnation.0) << 64 | u128::from(reader.number("unique id")?)),
        };
        let origin = Origin { member: Member { id: member, incarnation }, producer, sequence };
        Ok(Self { kind, flags, qos, origin, publish_time_ms, unique_id })
    }
}

/// Upper and lower half of a unique id.
fn halves(unique_id: u128) -> (u64, u64) {
    let half = |bits: u128| u64::try_from(bits & u128::from(u64::MAX)).expect("the upper half is cut off");
    (half(unique_id >> 64), half(unique_id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::PublishProperties;
    use proptest::prelude::*;

    fn record(properties: Option<Box<PublishProperties>>, unique_id: Option<u128>) -> Record {
        Record {
            body: RecordBody::Inline,
            retry: unique_id.is_some(),
            origin: Origin {
                member: Member {
                    id: MemberId::new("broker-0"),
                    incarnation: Incarnation(0x0102_0304_0506_0708),
                },
                producer: 1,
                sequence: 300,
            },
            unique_id,
            message: Message {
                topic: TopicName::parse("a/b").unwrap(),
                payload: Bytes::from_static(b"hi"),
                qos: QoS::AtLeastOnce,
                retain: false,
                properties,
                publisher: "pub".into(),
                publish_time_ms: 1_700_000_000_000,
            },
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn version_1_keeps_its_bytes() {
        let plain = record(None, None);
        let full = record(
            Some(Box::new(PublishProperties {
                payload_is_utf8: Some(true),
                message_expiry_secs: Some(60),
                content_type: Some("t".into()),
                response_topic: Some("r".into()),
                correlation_data: Some(Bytes::from_static(&[9])),
                subscription_identifiers: Vec::new(),
                user_properties: vec![("k".into(), "v".into())],
            })),
            Some(7),
        );

        let stored = [
            (
                plain,
                "010101086272 6f6b65722d30 0807060504030201 01 ac02 80d095ffbc31 03707562 03612f62 026869",
            ),
            (
                full,
                "010139086272 6f6b65722d30 0807060504030201 01 ac02 80d095ffbc31 07000000000000000000000000000000 \
                 03707562 03612f62 12 0101 023c 030174 040172 050109 06016b0176 026869",
            ),
        ];
        for (record, bytes) in stored {
            assert_eq!(hex(&record.encode()), bytes.replace(' ', ""));
            assert_eq!(Record::unique_id_of(record.encode()), Ok(record.unique_id));
            assert_eq!(Record::decode(record.encode()), Ok(record));
        }
    }

    /// As a broker reads it that wrote it in version 2.
    fn nameless(mut record: Record) -> Record {
        record.origin.member.id = MemberId::new("");
        record
    }

    #[test]
    fn version_2_keeps_its_bytes() {
        let own = 0x0102_0304_0506_0708_u128 << 64 | 300;
        let stored = [
            (record(None, None), "020101 0807060504030201 01 ac02 80d095ffbc31 03707562 03612f62 026869"),
            (
                record(None, Some(own)),
                "020159 0807060504030201 01 ac02 80d095ffbc31 ac02 03707562 03612f62 026869",
            ),
            (
                record(None, Some(7)),
                "020119 0807060504030201 01 ac02 80d095ffbc31 07000000000000000000000000000000 \
                 03707562 03612f62 026869",
            ),
        ];
        for (record, bytes) in stored {
            assert_eq!(hex(&record.encode_compact()), bytes.replace(' ', ""));
            assert_eq!(Record::unique_id_of(record.encode_compact()), Ok(record.unique_id));
            assert_eq!(Record::decode(record.encode_compact()), Ok(nameless(record)));
        }
    }

    #[test]
    fn a_compact_record_costs_at_most_36_bytes_beyond_what_the_client_sent() {
        let own = 0x0102_0304_0506_0708_u128 << 64 | u128::from(u32::MAX);
        for unique_id in [None, Some(own)] {
            let record = record(None, unique_id);
            let sent = record.message.bytes() + record.message.publisher.len();

            let cost = record.encode_compact().len() - sent;
            assert!(cost <= 36, "{cost}");
        }
    }

    #[test]
    fn a_damaged_record_is_refused_at_every_length() {
        for bytes in [record(None, Some(1)).encode(), record(None, Some(1)).encode_compact()] {
            for length in 0..bytes.len() {
                assert!(Record::decode(bytes.slice(..length)).is_err(), "cut to {length} bytes");
            }
        }
    }

    #[test]
    fn a_ref_names_its_body() {
        let mut record = record(None, None);
        record.body = RecordBody::Ref { partition: Partition(3), offset: 4_096 };
        record.message.payload = Bytes::new();

        assert_eq!(Record::decode(record.encode()), Ok(record.clone()));
        assert_eq!(Record::decode(record.encode_compact()), Ok(nameless(record)));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..96)) {
            for version in [RECORD_VERSION, COMPACT_VERSION] {
                let mut versioned = vec![version];
                versioned.extend(&bytes);
                let _ = Record::decode(versioned.into());
            }
            let _ = Record::decode(bytes.into());
        }
    }
}

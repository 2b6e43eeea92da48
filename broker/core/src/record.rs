//! One record of the log, version 1. What every implementation of the log stores as opaque bytes, and what peers forward.
//!
//! | field | bytes |
//! |---|---|
//! | version | 1, value 1 |
//! | kind | 1: 1 inline, 2 ref |
//! | flags | 1: bits 0-1 QoS, 2 retain, 3 retry, 4 unique id follows, 5 properties follow |
//! | origin: member | length, text |
//! | origin: incarnation | 8 |
//! | origin: producer, sequence | numbers |
//! | publish time | number, milliseconds since the Unix epoch |
//! | unique id | 16, if its flag is set |
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

/// The newest format of a record.
pub const RECORD_VERSION: u8 = 1;

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
const FLAGS_KNOWN: u8 = 0b11 | FLAG_RETAIN | FLAG_RETRY | FLAG_UNIQUE_ID | FLAG_PROPERTIES;
const KIND_INLINE: u8 = 1;
const KIND_REF: u8 = 2;

impl Record {
    /// Writes the record in the newest format.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let message = &self.message;
        let mut writer = Writer::versioned(RECORD_VERSION, 96 + message.bytes() + message.publisher.len());
        writer.u8(match self.body {
            RecordBody::Inline => KIND_INLINE,
            RecordBody::Ref { .. } => KIND_REF,
        });
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        writer.u8(message.qos as u8
            | flag(message.retain, FLAG_RETAIN)
            | flag(self.retry, FLAG_RETRY)
            | flag(self.unique_id.is_some(), FLAG_UNIQUE_ID)
            | flag(message.properties.is_some(), FLAG_PROPERTIES));
        writer.text(self.origin.member.id.as_str());
        writer.u64(self.origin.member.incarnation.0);
        writer.number(self.origin.producer.into());
        writer.number(self.origin.sequence);
        writer.number(message.publish_time_ms);
        if let Some(unique_id) = self.unique_id {
            writer.u128(unique_id);
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
        match reader.u8("record version")? {
            RECORD_VERSION => Self::decode_v1(reader),
            version => Err(FormatError::Unknown { field: "record version", value: version.into() }),
        }
    }

    fn decode_v1(mut reader: Reader) -> Result<Self, FormatError> {
        let kind = reader.u8("record kind")?;
        let flags = reader.u8("record flags")?;
        let unknown = || FormatError::Unknown { field: "record flags", value: flags.into() };
        if flags & !FLAGS_KNOWN != 0 {
            return Err(unknown());
        }
        let qos = QoS::from_number(flags & 0b11).ok_or_else(unknown)?;
        let member = MemberId::new(&reader.text("origin member")?);
        let incarnation = Incarnation(reader.u64("origin incarnation")?);
        let producer = reader.number_u32("origin producer")?;
        let sequence = reader.number("origin sequence")?;
        let publish_time_ms = reader.number("publish time")?;
        let unique_id = if flags & FLAG_UNIQUE_ID != 0 { Some(reader.u128("unique id")?) } else { None };
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
        let origin = Origin { member: Member { id: member, incarnation }, producer, sequence };
        Ok(Self { body, retry: flags & FLAG_RETRY != 0, origin, unique_id, message })
    }
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
            assert_eq!(Record::decode(record.encode()), Ok(record));
        }
    }

    #[test]
    fn a_record_costs_at_most_64_bytes_beyond_what_the_client_sent() {
        let record = record(None, Some(u128::MAX));
        let sent = record.message.bytes() + record.message.publisher.len();

        assert!(record.encode().len() - sent <= 64, "{}", record.encode().len() - sent);
    }

    #[test]
    fn a_damaged_record_is_refused_at_every_length() {
        let bytes = record(None, Some(1)).encode();

        for length in 0..bytes.len() {
            assert!(Record::decode(bytes.slice(..length)).is_err(), "cut to {length} bytes");
        }
    }

    #[test]
    fn a_ref_names_its_body() {
        let mut record = record(None, None);
        record.body = RecordBody::Ref { partition: Partition(3), offset: 4_096 };
        record.message.payload = Bytes::new();

        assert_eq!(Record::decode(record.encode()), Ok(record));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..96)) {
            let mut versioned = vec![RECORD_VERSION];
            versioned.extend(&bytes);
            let _ = Record::decode(versioned.into());
            let _ = Record::decode(bytes.into());
        }
    }
}

//! A retained message as it is stored, version 1. Its topic is the key that it is stored under.
//!
//! | field | bytes |
//! |---|---|
//! | version | 1, value 1 |
//! | flags | 1: bits 0-1 QoS, 2 properties follow |
//! | publish time | number, milliseconds since the Unix epoch |
//! | publisher | length, text |
//! | properties | length, tagged fields as in a record, if their flag is set |
//! | payload | length, bytes |
//!
//! Numbers and lengths are unsigned LEB128.

use crate::binary::{FormatError, Reader, Writer};
use crate::message::{Message, read_properties, write_properties};
use crate::packet::QoS;
use crate::topic::TopicName;
use bytes::Bytes;

/// The newest format of a stored retained message.
pub const RETAINED_VERSION: u8 = 1;

const FLAG_PROPERTIES: u8 = 1 << 2;
const FLAGS_KNOWN: u8 = 0b11 | FLAG_PROPERTIES;

/// Writes everything but the topic in the newest format.
#[must_use]
pub fn encode(message: &Message) -> Bytes {
    let capacity = 32 + message.bytes() - message.topic.as_str().len() + message.publisher.len();
    let mut writer = Writer::versioned(RETAINED_VERSION, capacity);
    let properties = if message.properties.is_some() { FLAG_PROPERTIES } else { 0 };
    writer.u8(message.qos as u8 | properties);
    writer.number(message.publish_time_ms);
    writer.text(&message.publisher);
    if let Some(properties) = &message.properties {
        let mut fields = Writer::default();
        write_properties(&mut fields, properties);
        writer.bytes(&fields.finish());
    }
    writer.bytes(&message.payload);
    writer.finish()
}

/// Reads the message of `topic` from any format ever released. Payload and texts share the memory of `bytes`.
///
/// # Errors
///
/// [`FormatError`]: the message is damaged or from a newer version; the reader counts it, names its topic and goes on.
pub fn decode(topic: TopicName, bytes: Bytes) -> Result<Message, FormatError> {
    let mut reader = Reader::new(bytes);
    match reader.u8("retained version")? {
        RETAINED_VERSION => decode_v1(topic, reader),
        version => Err(FormatError::Unknown { field: "retained version", value: version.into() }),
    }
}

fn decode_v1(topic: TopicName, mut reader: Reader) -> Result<Message, FormatError> {
    let flags = reader.u8("retained flags")?;
    let unknown = || FormatError::Unknown { field: "retained flags", value: flags.into() };
    if flags & !FLAGS_KNOWN != 0 {
        return Err(unknown());
    }
    let qos = QoS::from_number(flags & 0b11).ok_or_else(unknown)?;
    let publish_time_ms = reader.number("publish time")?;
    let publisher = reader.text("publisher")?;
    let properties = if flags & FLAG_PROPERTIES != 0 {
        Some(Box::new(read_properties(reader.bytes("properties")?)?))
    } else {
        None
    };
    let payload = reader.bytes("payload")?;
    reader.finish()?;
    Ok(Message { topic, payload, qos, retain: true, properties, publisher, publish_time_ms })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::PublishProperties;
    use proptest::prelude::*;

    fn message(properties: Option<Box<PublishProperties>>) -> Message {
        Message {
            topic: TopicName::parse("a/b").unwrap(),
            payload: Bytes::from_static(b"hi"),
            qos: QoS::ExactlyOnce,
            retain: true,
            properties,
            publisher: "pub".into(),
            publish_time_ms: 1_700_000_000_000,
        }
    }

    fn full() -> Message {
        message(Some(Box::new(PublishProperties {
            payload_is_utf8: Some(true),
            message_expiry_secs: Some(60),
            content_type: Some("t".into()),
            response_topic: Some("r".into()),
            correlation_data: Some(Bytes::from_static(&[9])),
            subscription_identifiers: Vec::new(),
            user_properties: vec![("k".into(), "v".into())],
        })))
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn version_1_keeps_its_bytes() {
        let stored = [
            (message(None), "0102 80d095ffbc31 03707562 026869"),
            (full(), "0106 80d095ffbc31 03707562 12 0101 023c 030174 040172 050109 06016b0176 026869"),
        ];

        for (message, bytes) in stored {
            assert_eq!(hex(&encode(&message)), bytes.replace(' ', ""));
            assert_eq!(decode(message.topic.clone(), encode(&message)), Ok(message));
        }
    }

    #[test]
    fn a_damaged_message_is_refused_at_every_length() {
        let message = full();
        let bytes = encode(&message);

        for length in 0..bytes.len() {
            let cut = decode(message.topic.clone(), bytes.slice(..length));
            assert!(cut.is_err(), "cut to {length} bytes");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..96)) {
            let topic = TopicName::parse("t").unwrap();
            let mut versioned = vec![RETAINED_VERSION];
            versioned.extend(&bytes);
            let _ = decode(topic.clone(), versioned.into());
            let _ = decode(topic, bytes.into());
        }
    }
}

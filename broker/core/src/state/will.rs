//! Wills as they are stored, so that they are published although their broker dies: those of persistent sessions, and of
//! clean ones those that are retained or above QoS 0.
//!
//! Value of a will: version, seconds that the session outlives its connection, the will. A will is its flags (bits 0-1
//! QoS, 2 retain, 3 properties), topic, payload, delay and properties. Value of a deadline: version, flags (bit 0:
//! the broker's own reason), milliseconds since the Unix epoch.

use super::{STATE_VERSION, flag, read_flags, read_version_1};
use crate::attach::SessionLifetime;
use crate::binary::{FormatError, Reader, Writer};
use crate::message::{read_properties, write_properties};
use crate::packet::{QoS, Will};
use crate::topic::TopicName;
use bytes::Bytes;

const WILL_RETAIN: u8 = 1 << 2;
const WILL_PROPERTIES: u8 = 1 << 3;
const DUE_BROKERS_OWN: u8 = 1;

/// The will of one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredWill {
    /// Seconds that the session outlives the connection.
    pub session_expiry_secs: u32,
    /// What to publish.
    pub will: Will,
}

/// When a will is due whose connection has ended. Without it the connection was there when its broker died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WillDue {
    /// Milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The broker closed the connection for a reason of its own: any CONNECT of the client calls it off.
    pub is_brokers_own: bool,
}

/// Whether the will of a session is stored. Host and owner decide alike.
#[must_use]
pub fn is_stored(will: &Will, lifetime: SessionLifetime) -> bool {
    lifetime != SessionLifetime::Clean || will.retain || will.qos > QoS::AtMostOnce
}

impl StoredWill {
    /// Writes the value in the newest format.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let size = 32 + self.will.topic.as_str().len() + self.will.payload.len();
        let mut writer = Writer::versioned(STATE_VERSION, size);
        writer.number(self.session_expiry_secs.into());
        write_will(&mut writer, &self.will);
        writer.finish()
    }

    /// Reads a value of any format ever released.
    ///
    /// # Errors
    ///
    /// [`FormatError`]: the state is damaged or from a newer version; its partition must not be served.
    pub fn decode(bytes: Bytes) -> Result<Self, FormatError> {
        let mut reader = read_version_1(bytes, "will version")?;
        let session_expiry_secs = reader.number_u32("session expiry")?;
        let will = read_will(&mut reader)?;
        reader.finish()?;
        Ok(Self { session_expiry_secs, will })
    }
}

impl WillDue {
    /// Writes the value in the newest format.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::versioned(STATE_VERSION, 9);
        writer.u8(flag(self.is_brokers_own, DUE_BROKERS_OWN));
        writer.number(self.at_ms);
        writer.finish()
    }

    /// Reads a value of any format ever released.
    ///
    /// # Errors
    ///
    /// [`FormatError`]: as [`StoredWill::decode`].
    pub fn decode(bytes: Bytes) -> Result<Self, FormatError> {
        let mut reader = read_version_1(bytes, "deadline version")?;
        let flags = read_flags(&mut reader, "deadline flags", DUE_BROKERS_OWN)?;
        let is_brokers_own = flags & DUE_BROKERS_OWN != 0;
        let due = Self { at_ms: reader.number("will deadline")?, is_brokers_own };
        reader.finish()?;
        Ok(due)
    }
}

pub(super) fn write_will(writer: &mut Writer, will: &Will) {
    writer.u8(will.qos as u8
        | flag(will.retain, WILL_RETAIN)
        | flag(will.properties.is_some(), WILL_PROPERTIES));
    writer.text(will.topic.as_str());
    writer.bytes(&will.payload);
    writer.number(will.delay_secs.into());
    if let Some(properties) = &will.properties {
        let mut fields = Writer::default();
        write_properties(&mut fields, properties);
        writer.bytes(&fields.finish());
    }
}

pub(super) fn read_will(reader: &mut Reader) -> Result<Will, FormatError> {
    let flags = read_flags(reader, "will flags", 0b11 | WILL_RETAIN | WILL_PROPERTIES)?;
    let qos = QoS::from_number(flags & 0b11)
        .ok_or(FormatError::Unknown { field: "will flags", value: flags.into() })?;
    let topic = TopicName::parse(reader.text("will topic")?)
        .map_err(|_| FormatError::Text { field: "will topic" })?;
    let payload = reader.bytes("will payload")?;
    let delay_secs = reader.number_u32("will delay")?;
    let properties = if flags & WILL_PROPERTIES != 0 {
        Some(Box::new(read_properties(reader.bytes("will properties")?)?))
    } else {
        None
    };
    Ok(Will { topic, payload, qos, retain: flags & WILL_RETAIN != 0, delay_secs, properties })
}

#[cfg(test)]
mod tests {
    use super::super::hex;
    use super::*;
    use crate::packet::PublishProperties;
    use proptest::prelude::*;

    fn will() -> Will {
        let properties = PublishProperties { content_type: Some("x".into()), ..PublishProperties::default() };
        Will {
            topic: TopicName::parse("t").unwrap(),
            payload: Bytes::from_static(b"gone"),
            qos: QoS::AtLeastOnce,
            retain: true,
            delay_secs: 3,
            properties: Some(Box::new(properties)),
        }
    }

    #[test]
    fn version_1_keeps_its_bytes() {
        let stored = StoredWill { session_expiry_secs: 300, will: will() };
        let due = WillDue { at_ms: 300, is_brokers_own: true };

        assert_eq!(hex(&stored.encode()), "01ac020d017404676f6e6503030301 78".replace(' ', ""));
        assert_eq!(hex(&due.encode()), "0101ac02");
        assert_eq!(StoredWill::decode(stored.encode()), Ok(stored));
        assert_eq!(WillDue::decode(due.encode()), Ok(due));
    }

    #[test]
    fn only_what_little_is_promised_of_is_not_stored() {
        let plain = Will { qos: QoS::AtMostOnce, retain: false, ..will() };
        assert!(!is_stored(&plain, SessionLifetime::Clean));
        assert!(is_stored(&plain, SessionLifetime::Persistent { expiry_secs: 1 }));
        assert!(is_stored(&Will { retain: true, ..plain.clone() }, SessionLifetime::Clean));
        assert!(is_stored(&Will { qos: QoS::AtLeastOnce, ..plain }, SessionLifetime::Clean));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut versioned = vec![STATE_VERSION];
            versioned.extend(&bytes);
            let _ = (StoredWill::decode(versioned.clone().into()), WillDue::decode(versioned.into()));
            let _ = (StoredWill::decode(bytes.clone().into()), WillDue::decode(bytes.into()));
        }
    }
}

//! What is stored of a session beside its queue.
//!
//! Value: version, flags (bit 0 will, 1 disconnected at, 2 user), protocol level (3, 4 or 5), expiry, created at,
//! connection (owner epoch, counter), then what the flags say: disconnected at, user, will as in
//! [`will`](super::will).

use super::will::{read_will, write_will};
use super::{STATE_VERSION, flag, read_flags, read_version_1};
use crate::attach::ConnectionEpoch;
use crate::binary::{FormatError, Writer};
use crate::member::OwnerEpoch;
use crate::packet::{Version, Will};
use bytes::Bytes;
use bytestring::ByteString;

const FLAG_WILL: u8 = 1;
const FLAG_DISCONNECTED: u8 = 1 << 1;
const FLAG_USER: u8 = 1 << 2;

/// A persistent session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionMeta {
    /// Seconds it outlives its connection; `u32::MAX`: for good.
    pub expiry_secs: u32,
    /// When its connection ended, milliseconds since the Unix epoch; `None` while it is connected, or when its owner
    /// ended before it could know.
    pub disconnected_at_ms: Option<u64>,
    /// Whose it is.
    pub user: Option<ByteString>,
    /// Protocol version of its last connection.
    pub version: Version,
    /// When it began, milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// Its last connection.
    pub connection: ConnectionEpoch,
    /// A will, in formats of before; wills are kept apart: see [`StoredWill`](super::will::StoredWill).
    pub will: Option<Box<Will>>,
}

impl SessionMeta {
    /// When the session ends, milliseconds since the Unix epoch; `None` while it is connected or when it never does.
    #[must_use]
    pub fn expires_at_ms(&self) -> Option<u64> {
        match self.expiry_secs {
            u32::MAX => None,
            secs => self.disconnected_at_ms.map(|at| at.saturating_add(u64::from(secs) * 1_000)),
        }
    }

    /// Whether the session has ended at `now_ms`, swept or not.
    #[must_use]
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_at_ms().is_some_and(|at| at <= now_ms)
    }

    /// Writes the value in the newest format.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::versioned(STATE_VERSION, 64);
        writer.u8(flag(self.will.is_some(), FLAG_WILL)
            | flag(self.disconnected_at_ms.is_some(), FLAG_DISCONNECTED)
            | flag(self.user.is_some(), FLAG_USER));
        writer.u8(match self.version {
            Version::V3_1 => 3,
            Version::V3_1_1 => 4,
            Version::V5 => 5,
        });
        writer.number(self.expiry_secs.into());
        writer.number(self.created_at_ms);
        writer.number(self.connection.owner.0.into());
        writer.number(self.connection.counter.into());
        if let Some(at) = self.disconnected_at_ms {
            writer.number(at);
        }
        if let Some(user) = &self.user {
            writer.text(user);
        }
        if let Some(will) = &self.will {
            write_will(&mut writer, will);
        }
        writer.finish()
    }

    /// Reads a value of any format ever released.
    ///
    /// # Errors
    ///
    /// [`FormatError`]: the state is damaged or from a newer version; its partition must not be served.
    pub fn decode(bytes: Bytes) -> Result<Self, FormatError> {
        let mut reader = read_version_1(bytes, "session version")?;
        let flags = read_flags(&mut reader, "session flags", FLAG_WILL | FLAG_DISCONNECTED | FLAG_USER)?;
        let version = match reader.u8("protocol level")? {
            3 => Version::V3_1,
            4 => Version::V3_1_1,
            5 => Version::V5,
            level => return Err(FormatError::Unknown { field: "protocol level", value: level.into() }),
        };
        let expiry_secs = reader.number_u32("session expiry")?;
        let created_at_ms = reader.number("created at")?;
        let owner = OwnerEpoch(reader.number_u32("connection owner")?);
        let connection = ConnectionEpoch { owner, counter: reader.number_u32("connection counter")? };
        let disconnected_at_ms =
            if flags & FLAG_DISCONNECTED != 0 { Some(reader.number("disconnected at")?) } else { None };
        let user = if flags & FLAG_USER != 0 { Some(reader.text("user")?) } else { None };
        let will = if flags & FLAG_WILL != 0 { Some(Box::new(read_will(&mut reader)?)) } else { None };
        reader.finish()?;
        Ok(Self { expiry_secs, disconnected_at_ms, user, version, created_at_ms, connection, will })
    }
}

#[cfg(test)]
mod tests {
    use super::super::hex;
    use super::*;
    use crate::packet::{PublishProperties, QoS};
    use crate::topic::TopicName;
    use proptest::prelude::*;

    fn plain() -> SessionMeta {
        SessionMeta {
            expiry_secs: 300,
            disconnected_at_ms: None,
            user: None,
            version: Version::V3_1_1,
            created_at_ms: 5,
            connection: ConnectionEpoch { owner: OwnerEpoch(2), counter: 9 },
            will: None,
        }
    }

    #[test]
    fn version_1_keeps_its_bytes() {
        let full = SessionMeta {
            disconnected_at_ms: Some(7),
            user: Some("u".into()),
            version: Version::V5,
            will: Some(Box::new(Will {
                topic: TopicName::parse("t").unwrap(),
                payload: Bytes::from_static(b"gone"),
                qos: QoS::AtLeastOnce,
                retain: true,
                delay_secs: 3,
                properties: Some(Box::new(PublishProperties {
                    content_type: Some("x".into()),
                    ..PublishProperties::default()
                })),
            })),
            ..plain()
        };

        let stored = [
            (plain(), "01 00 04 ac02 05 02 09"),
            (full, "01 07 05 ac02 05 02 09 07 0175 0d 0174 04676f6e65 03 03 030178"),
        ];
        for (meta, bytes) in stored {
            assert_eq!(hex(&meta.encode()), bytes.replace(' ', ""));
            assert_eq!(SessionMeta::decode(meta.encode()), Ok(meta));
        }
    }

    #[test]
    fn a_session_ends_at_its_deadline_and_only_while_disconnected() {
        let mut meta = plain();
        assert!(!meta.is_expired(u64::MAX), "connected");

        meta.disconnected_at_ms = Some(1_000);
        assert!(!meta.is_expired(300_999));
        assert!(meta.is_expired(301_000));

        meta.expiry_secs = u32::MAX;
        assert!(!meta.is_expired(u64::MAX), "for good");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut versioned = vec![STATE_VERSION];
            versioned.extend(&bytes);
            let _ = SessionMeta::decode(versioned.into());
            let _ = SessionMeta::decode(bytes.into());
        }
    }
}

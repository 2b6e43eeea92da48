//! The smaller values of the state: parked messages, QoS 2 in both directions, the partition's owner.

use super::key::{read_queue, write_queue};
use super::{STATE_VERSION, flag, read_flags, read_version_1};
use crate::attach::QueueId;
use crate::binary::{FormatError, Reader, Writer};
use crate::member::OwnerEpoch;
use crate::partition::{Offset, Partition};
use bytes::Bytes;

/// The value of a key that says everything by itself: a version.
#[must_use]
pub fn mark() -> Bytes {
    Writer::versioned(STATE_VERSION, 0).finish()
}

/// Reads what [`mark`] writes, of any format ever released.
///
/// # Errors
///
/// [`FormatError`]: the state is damaged or from a newer version; its partition must not be served.
pub fn read_mark(bytes: Bytes) -> Result<(), FormatError> {
    read_version_1(bytes, "mark version")?.finish()
}

/// A message taken out of the cursor because its receiver is silent for long. Value: version, since, record bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parked {
    /// Since when, milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// The record as in the log.
    pub record: Bytes,
}

/// A QoS 2 delivery that is not complete. Value: version, flags (bit 0: released), queue, partition, offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionOut {
    /// The queue it came from: the session's own or a group's.
    pub queue: QueueId,
    /// Partition of that queue.
    pub partition: Partition,
    /// Where the record is.
    pub offset: Offset,
    /// PUBREC came: PUBREL is due, never PUBLISH again.
    pub released: bool,
}

/// A QoS 2 publish that is not complete. Value: version, flags (bit 0: settled), unique id,
/// since, partitions found. Version 1 has no flags and no partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublisherIn {
    /// Id of the publish, the same in every repeat.
    pub unique_id: u128,
    /// Since when, milliseconds since the Unix epoch: how far back its records are looked for.
    pub since_ms: u64,
    /// All its records are in the log.
    pub is_settled: bool,
    /// Partitions whose log has its record, as bits; only of one that was under way at a crash.
    pub found: u64,
}

/// What the owner keeps of a partition. Value: version, epoch, trim floor, processed, connection counter, session
/// counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PartitionOwner {
    /// The owner's epoch; the next one's is higher.
    pub epoch: OwnerEpoch,
    /// No queue of the partition needs anything below: lower bound of every cursor. Stored before the log is trimmed.
    pub trim_floor: Offset,
    /// Everything below was read and offered to all queues: the highest offset seen, plus one. Owners start to read
    /// here; a log that ends below is another log.
    pub processed: Offset,
    /// High-water mark of connection epoch counters.
    pub connection_counter: u32,
    /// High-water mark of session counters.
    pub session_counter: u32,
}

const FLAG_RELEASED: u8 = 1;
const FLAG_SETTLED: u8 = 1;
/// The newest format of [`PublisherIn`].
const PUBLISHER_IN_VERSION: u8 = 2;

impl Parked {
    /// Writes the value in the newest format.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::versioned(STATE_VERSION, 16 + self.record.len());
        writer.number(self.since_ms);
        writer.bytes(&self.record);
        writer.finish()
    }

    /// Reads a value of any format ever released.
    ///
    /// # Errors
    ///
    /// [`FormatError`]: the state is damaged or from a newer version; its partition must not be served.
    pub fn decode(bytes: Bytes) -> Result<Self, FormatError> {
        let mut reader = read_version_1(bytes, "parked version")?;
        let parked =
            Self { since_ms: reader.number("parked since")?, record: reader.bytes("parked record")? };
        reader.finish()?;
        Ok(parked)
    }
}

impl SessionOut {
    /// Writes the value in the newest format.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::versioned(STATE_VERSION, 32 + self.queue.name.len());
        writer.u8(flag(self.released, FLAG_RELEASED));
        write_queue(&mut writer, &self.queue);
        writer.number(self.partition.0.into());
        writer.number(self.offset);
        writer.finish()
    }

    /// Reads a value of any format ever released.
    ///
    /// # Errors
    ///
    /// [`FormatError`]: the state is damaged or from a newer version; its partition must not be served.
    pub fn decode(bytes: Bytes) -> Result<Self, FormatError> {
        let mut reader = read_version_1(bytes, "outgoing id version")?;
        let flags = read_flags(&mut reader, "outgoing id flags", FLAG_RELEASED)?;
        let queue = read_queue(&mut reader)?;
        let partition = Partition(reader.number_u16("partition")?);
        let offset = reader.number("offset")?;
        reader.finish()?;
        Ok(Self { queue, partition, offset, released: flags & FLAG_RELEASED != 0 })
    }
}

impl PublisherIn {
    /// Writes the value in the newest format.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::versioned(PUBLISHER_IN_VERSION, 25);
        writer.u8(flag(self.is_settled, FLAG_SETTLED));
        writer.u128(self.unique_id);
        writer.number(self.since_ms);
        writer.number(self.found);
        writer.finish()
    }

    /// Reads a value of any format ever released.
    ///
    /// # Errors
    ///
    /// [`FormatError`]: the state is damaged or from a newer version; its partition must not be served.
    pub fn decode(bytes: Bytes) -> Result<Self, FormatError> {
        let mut reader = Reader::new(bytes);
        let version = reader.u8("incoming id version")?;
        let flags = match version {
            STATE_VERSION => 0,
            PUBLISHER_IN_VERSION => read_flags(&mut reader, "incoming id flags", FLAG_SETTLED)?,
            version => {
                return Err(FormatError::Unknown { field: "incoming id version", value: version.into() });
            }
        };
        let value = Self {
            unique_id: reader.u128("unique id")?,
            since_ms: reader.number("intent since")?,
            is_settled: flags & FLAG_SETTLED != 0,
            found: if version == STATE_VERSION { 0 } else { reader.number("partitions found")? },
        };
        reader.finish()?;
        Ok(value)
    }
}

impl PartitionOwner {
    /// Writes the value in the newest format.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::versioned(STATE_VERSION, 32);
        writer.number(self.epoch.0.into());
        writer.number(self.trim_floor);
        writer.number(self.processed);
        writer.number(self.connection_counter.into());
        writer.number(self.session_counter.into());
        writer.finish()
    }

    /// Reads a value of any format ever released.
    ///
    /// # Errors
    ///
    /// [`FormatError`]: the state is damaged or from a newer version; its partition must not be served.
    pub fn decode(bytes: Bytes) -> Result<Self, FormatError> {
        let mut reader = read_version_1(bytes, "owner version")?;
        let owner = Self {
            epoch: OwnerEpoch(reader.number_u32("owner epoch")?),
            trim_floor: reader.number("trim floor")?,
            processed: reader.number("processed offset")?,
            connection_counter: reader.number_u32("connection counter")?,
            session_counter: reader.number_u32("session counter")?,
        };
        reader.finish()?;
        Ok(owner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::hex;
    use super::*;
    use crate::attach::SessionNumber;
    use crate::partition::QueueKind;
    use proptest::prelude::*;

    #[test]
    fn each_version_keeps_the_bytes_of_every_value() {
        let parked = Parked { since_ms: 300, record: Bytes::from_static(b"r") };
        let queue = QueueId { kind: QueueKind::SharedGroup, name: "g".into(), number: SessionNumber(1) };
        let out = SessionOut { queue, partition: Partition(3), offset: 300, released: true };
        let publisher = PublisherIn { unique_id: 7, since_ms: 300, is_settled: true, found: 5 };
        let owner = PartitionOwner {
            epoch: OwnerEpoch(2),
            trim_floor: 300,
            processed: 301,
            connection_counter: 4,
            session_counter: 5,
        };

        assert_eq!(hex(&parked.encode()), "01ac020172");
        assert_eq!(hex(&out.encode()), "010102016701000000000000000 3ac02".replace(' ', ""));
        assert_eq!(hex(&publisher.encode()), "020107000000000000000000000000000000ac0205");
        assert_eq!(hex(&owner.encode()), "0102ac02ad020405");
        assert_eq!(Parked::decode(parked.encode()), Ok(parked));
        assert_eq!(SessionOut::decode(out.encode()), Ok(out));
        assert_eq!(PublisherIn::decode(publisher.encode()), Ok(publisher));
        assert_eq!(PartitionOwner::decode(owner.encode()), Ok(owner));
    }

    #[test]
    fn version_1_of_an_incoming_id_says_nothing_of_its_records() {
        let stored = [&[1, 7][..], &[0; 15], &[0xac, 0x02]].concat();

        let read = PublisherIn::decode(Bytes::from(stored));

        assert_eq!(read, Ok(PublisherIn { unique_id: 7, since_ms: 300, is_settled: false, found: 0 }));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic_and_unknown_versions_are_refused(
            version in 0_u8..4,
            bytes in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let mut versioned = vec![version];
            versioned.extend(&bytes);
            let versioned = Bytes::from(versioned);
            let read = [
                Parked::decode(versioned.clone()).is_ok(),
                SessionOut::decode(versioned.clone()).is_ok(),
                PublisherIn::decode(versioned.clone()).is_ok(),
                PartitionOwner::decode(versioned).is_ok(),
            ];
            let newest = [STATE_VERSION, STATE_VERSION, PUBLISHER_IN_VERSION, STATE_VERSION];
            for (is_read, newest) in read.into_iter().zip(newest) {
                prop_assert!((STATE_VERSION..=newest).contains(&version) || !is_read);
            }
        }
    }
}

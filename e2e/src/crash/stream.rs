//! One ordered sequence of messages.

use anyhow::{Context, Result, ensure};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::fmt;

/// Sequence number and length of the filling.
const HEAD_BYTES: usize = 12;

/// The messages of one publisher on one topic at one QoS: MQTT orders them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream {
    /// Number of the publisher.
    pub publisher: u32,
    /// QoS of its PUBLISH packets.
    pub qos: u8,
    /// Tells streams of one publisher and QoS apart.
    pub topic: u32,
}

/// As the topic name.
impl fmt::Display for Stream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "crash/{}/{}/{}", self.publisher, self.qos, self.topic)
    }
}

impl Stream {
    /// Reads the topic name.
    ///
    /// # Errors
    ///
    /// When it is none of a stream.
    pub fn parse(topic: &str) -> Result<Self> {
        let parts: Vec<_> = topic.split('/').collect();
        let ["crash", publisher, qos, topic] = parts[..] else {
            anyhow::bail!("{topic} is no topic of the harness");
        };
        Ok(Self { publisher: publisher.parse()?, qos: qos.parse()?, topic: topic.parse()? })
    }

    /// The filter that matches all streams of a publisher.
    #[must_use]
    pub fn filter(publisher: u32) -> String {
        format!("crash/{publisher}/#")
    }
}

/// The payload of message `sequence`: every byte follows from it and the length.
#[must_use]
pub(super) fn payload(sequence: u64, filling_bytes: u32) -> Bytes {
    let mut payload = BytesMut::new();
    payload.put_u64(sequence);
    payload.put_u32(filling_bytes);
    payload.extend(filling(sequence, filling_bytes));
    payload.freeze()
}

/// The sequence number in a payload.
///
/// # Errors
///
/// When one byte of it is not as [`payload`] made it.
pub(super) fn sequence(mut payload: &[u8]) -> Result<u64> {
    ensure!(payload.len() >= HEAD_BYTES, "a payload of {} bytes", payload.len());
    let (sequence, filling_bytes) = (payload.get_u64(), payload.get_u32());
    let is_whole = payload.iter().copied().eq(filling(sequence, filling_bytes));
    is_whole.then_some(sequence).with_context(|| format!("the payload of message {sequence} is damaged"))
}

fn filling(sequence: u64, bytes: u32) -> impl Iterator<Item = u8> {
    (0..bytes).map(move |index| u64::from(index).wrapping_add(sequence).to_le_bytes()[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_tells_its_sequence_number_and_whether_a_byte_of_it_is_wrong() {
        let whole = payload(7, 300);
        let mut damaged = whole.to_vec();
        damaged[200] ^= 1;

        assert_eq!(sequence(&whole).unwrap(), 7);
        assert!(sequence(&damaged).is_err());
        assert!(sequence(&whole[..299]).is_err());
    }

    #[test]
    fn a_topic_name_tells_its_stream() {
        let stream = Stream { publisher: 3, qos: 2, topic: 1 };

        assert_eq!(Stream::parse(&stream.to_string()).unwrap(), stream);
        assert!(Stream::parse("crash/3/2").is_err());
    }
}

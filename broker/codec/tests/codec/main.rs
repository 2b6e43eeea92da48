//! What the codec promises, on packets made by hand, by chance and by mutation.

#![allow(clippy::unwrap_used, reason = "a test may fail")]
#![allow(clippy::wildcard_enum_match_arm, reason = "a test looks for one variant")]

mod broker_packets;
mod generate;
mod hostile;
mod limits;
mod oracle;
mod round_trip;
mod rows;
mod spec_packets;

use bytes::BytesMut;
use tidemill_codec::{Codec, DecodeLimits};
use tidemill_core::packet::Version;

const LIMITS: DecodeLimits = DecodeLimits { connect_bytes_max: 65_536, packet_bytes_max: 1 << 20 };

const CONNECT_3_1: &[u8] = b"\x10\x0f\0\x06MQIsdp\x03\x02\0\x3c\0\x01c";
const CONNECT_3_1_1: &[u8] = b"\x10\x0d\0\x04MQTT\x04\x02\0\x3c\0\x01c";
const CONNECT_5: &[u8] = b"\x10\x0e\0\x04MQTT\x05\x02\0\x3c\0\0\x01c";

/// A codec that has seen a plain CONNECT of `version`.
fn connected(version: Version) -> Codec {
    let connect = match version {
        Version::V3_1 => CONNECT_3_1,
        Version::V3_1_1 => CONNECT_3_1_1,
        Version::V5 => CONNECT_5,
    };
    let mut codec = Codec::new(LIMITS);
    let mut input = BytesMut::from(connect);
    codec.decode(&mut input).unwrap().unwrap();
    assert!(input.is_empty());
    codec
}

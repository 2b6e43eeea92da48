//! Bytes that mean harm: whatever comes in, the codec answers and stays upright.

use super::connected;
use super::rows::all;
use super::spec_packets::codec_after;
use bytes::BytesMut;
use proptest::prelude::*;
use tidemill_codec::{Codec, Encoder};
use tidemill_core::packet::{Packet, Version};

/// Numbers from a fixed seed (xorshift64), so that a failure can be repeated.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound).unwrap()).unwrap()
    }

    fn byte(&mut self) -> u8 {
        self.next().to_be_bytes()[3]
    }
}

/// One to four edits; half of the time the length is put right again.
fn mutate(bytes: &[u8], numbers: &mut Numbers) -> Vec<u8> {
    let mut mutated = bytes.to_vec();
    for _ in 0..=numbers.below(4) {
        let place = numbers.below(mutated.len() + 1);
        match numbers.below(3) {
            0 => mutated.insert(place, numbers.byte()),
            1 if place < mutated.len() && mutated.len() > 1 => {
                mutated.remove(place);
            }
            _ if place < mutated.len() => mutated[place] = numbers.byte(),
            _ => {}
        }
    }
    if numbers.below(2) == 0 && (2..130).contains(&mutated.len()) {
        mutated[1] = u8::try_from(mutated.len() - 2).unwrap();
    }
    mutated
}

/// Decodes until nothing comes any more. What was accepted is written and read again: it must be the same.
fn feed(mut codec: Codec, bytes: &[u8]) -> usize {
    let mut input = BytesMut::from(bytes);
    let mut accepted = 0;
    while let Ok(Some(packet)) = codec.decode(&mut input) {
        let version = codec.version().unwrap();
        let mut out = BytesMut::new();
        Encoder::new(version, None).encode(&packet, &mut out).unwrap();
        let is_connect = matches!(packet, Packet::Connect(_));
        let mut again = if is_connect { codec_after(None) } else { connected(version) };
        assert_eq!(again.decode(&mut out), Ok(Some(packet)), "from {bytes:02x?}");
        accepted += 1;
    }
    accepted
}

#[test]
fn mutated_packets_are_refused_or_mean_what_they_say() {
    let rows: Vec<_> = all().collect();
    let mut numbers = Numbers(0x7469_6465_6d69_6c6c);
    let mut accepted = 0;

    for _ in 0..100_000 {
        let (_, after, bytes, _) = rows[numbers.below(rows.len())];
        accepted += feed(codec_after(*after), &mutate(bytes, &mut numbers));
    }

    // Both outcomes were reached many times.
    assert!((2_000..98_000).contains(&accepted), "{accepted} accepted");
}

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200), number in 0..4_u8) {
        let after = match number {
            0 => None,
            1 => Some(Version::V3_1),
            2 => Some(Version::V3_1_1),
            _ => Some(Version::V5),
        };

        feed(codec_after(after), &bytes);
    }

    #[test]
    fn any_body_of_any_packet_is_survived(
        first_byte in any::<u8>(),
        body in prop::collection::vec(prop_oneof![0..8_u8, any::<u8>()], 0..100),
        number in 0..3_u8,
    ) {
        let after = [Version::V3_1, Version::V3_1_1, Version::V5][usize::from(number)];
        let mut bytes = vec![first_byte, u8::try_from(body.len()).unwrap()];
        bytes.extend_from_slice(&body);

        feed(connected(after), &bytes);
    }
}

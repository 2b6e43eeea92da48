//! Bytes that mean harm: whatever comes in, the codec answers and stays upright.
//!
//! `TIDEMILL_FUZZ_CASES` is the number of mutations, `TIDEMILL_FUZZ_SEED` where they begin: `make soak` sets both. What
//! they are made of is kept: the packets of `spec_packets.rs`, and `corpus.txt` with what fuzzing has found.

use super::connected;
use super::rows::all;
use super::spec_packets::codec_after;
use bytes::BytesMut;
use proptest::prelude::*;
use std::str::FromStr;
use tidemill_codec::{Codec, DecodeError, Encoder};
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

/// What came out of some bytes: packets, and the error that ended it.
#[derive(Debug, PartialEq)]
struct Outcome {
    packets: Vec<(Version, Packet)>,
    error: Option<DecodeError>,
    unread: Vec<u8>,
}

/// Decodes what comes in pieces until nothing comes any more or an error ends it.
fn feed_in_pieces<'a>(mut codec: Codec, pieces: impl IntoIterator<Item = &'a [u8]>) -> Outcome {
    let mut input = BytesMut::new();
    let (mut packets, mut error) = (Vec::new(), None);
    for piece in pieces {
        input.extend_from_slice(piece);
        while error.is_none() {
            let room = input.capacity();
            let decoded = codec.decode(&mut input);
            assert!(input.capacity() <= room, "the decoder reserves nothing, whatever a header promises");
            match decoded {
                Ok(Some(packet)) => packets.push((codec.version().unwrap(), packet)),
                Ok(None) => break,
                Err(reason) => error = Some(reason),
            }
        }
    }
    Outcome { packets, error, unread: input.to_vec() }
}

/// Decodes `bytes`. What was accepted is written and read again: it must be the same.
fn feed(codec: Codec, bytes: &[u8]) -> usize {
    let outcome = feed_in_pieces(codec, [bytes]);
    for (version, packet) in &outcome.packets {
        let mut out = BytesMut::new();
        Encoder::new(*version, None).encode(packet, &mut out).unwrap();
        let is_connect = matches!(packet, Packet::Connect(_));
        let mut again = if is_connect { codec_after(None) } else { connected(*version) };
        assert_eq!(again.decode(&mut out).as_ref(), Ok(&Some(packet.clone())), "from {bytes:02x?}");
    }
    outcome.packets.len()
}

/// Wherever the bytes are cut, and when each comes alone, the outcome is that of the whole.
fn feed_cut_everywhere(after: Option<Version>, bytes: &[u8]) {
    let whole = feed_in_pieces(codec_after(after), [bytes]);
    for cut in 1..bytes.len() {
        let (first, second) = bytes.split_at(cut);
        let pieces = feed_in_pieces(codec_after(after), [first, second]);
        assert_same(&pieces, &whole, bytes, cut);
    }
    assert_same(&feed_in_pieces(codec_after(after), bytes.chunks(1)), &whole, bytes, 1);
}

/// What is not read any more after an error depends on what had come, and on nothing else.
fn assert_same(pieces: &Outcome, whole: &Outcome, bytes: &[u8], cut: usize) {
    assert_eq!(pieces.packets, whole.packets, "{bytes:02x?} cut at {cut}");
    assert_eq!(pieces.error, whole.error, "{bytes:02x?} cut at {cut}");
    if whole.error.is_none() {
        assert_eq!(pieces.unread, whole.unread, "{bytes:02x?} cut at {cut}");
    }
}

fn setting<T: FromStr>(name: &str, default: T) -> T {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")),
        Err(_) => default,
    }
}

/// What mutations start from: packets of the specification, and what fuzzing found worth keeping.
fn seeds() -> Vec<(Option<Version>, Vec<u8>)> {
    let kept = include_str!("corpus.txt").lines().filter(|line| !line.starts_with('#')).map(|line| {
        let (version, bytes) = line.split_once(' ').unwrap();
        let after = match version {
            "first" => None,
            "3.1" => Some(Version::V3_1),
            "3.1.1" => Some(Version::V3_1_1),
            "5" => Some(Version::V5),
            other => panic!("corpus.txt: '{other}' is no version"),
        };
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        (after, bytes.as_bytes().chunks(2).map(byte).collect())
    });
    all().map(|(_, after, bytes, _)| (*after, bytes.to_vec())).chain(kept).collect()
}

#[test]
fn what_was_kept_is_decoded_the_same_wherever_it_is_cut() {
    for (after, bytes) in seeds() {
        feed(codec_after(after), &bytes);
        feed_cut_everywhere(after, &bytes);
    }
}

#[test]
fn mutated_packets_are_refused_or_mean_what_they_say() {
    let seeds = seeds();
    let seed = setting("TIDEMILL_FUZZ_SEED", 0x7469_6465_6d69_6c6c_u64).max(1);
    let cases = setting("TIDEMILL_FUZZ_CASES", 100_000_usize);
    let mut numbers = Numbers(seed);
    let mut accepted = 0;

    println!("TIDEMILL_FUZZ_SEED={seed}, {cases} cases");
    for case in 0..cases {
        let (after, bytes) = &seeds[numbers.below(seeds.len())];
        let mut mutated = mutate(bytes, &mut numbers);
        // Behind another packet, as it would come in a stream.
        if numbers.below(8) == 0 {
            let (_, before) = &seeds[numbers.below(seeds.len())];
            mutated = [before.as_slice(), &mutated].concat();
        }
        accepted += feed(codec_after(*after), &mutated);
        if case % 16 == 0 && mutated.len() < 200 {
            feed_cut_everywhere(*after, &mutated);
        }
    }

    // Both outcomes were reached many times.
    assert!((cases / 50..cases - cases / 50).contains(&accepted), "{accepted} of {cases} accepted");
}

/// Five bytes may promise 256 MiB: what is promised is not reserved, and what is too large is refused at its header.
#[test]
fn a_header_reserves_nothing() {
    for after in [None, Some(Version::V3_1), Some(Version::V3_1_1), Some(Version::V5)] {
        for first_byte in 0..=u8::MAX {
            for length in [&[0xFF, 0xFF, 0x03][..], &[0xFF, 0xFF, 0xFF, 0x7F], &[0xFF; 5]] {
                let bytes = [&[first_byte], length].concat();

                let outcome = feed_in_pieces(codec_after(after), [bytes.as_slice()]);

                let is_within = length.len() == 3;
                assert!(outcome.packets.is_empty() && (is_within || outcome.error.is_some()), "{bytes:02x?}");
            }
        }
    }
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

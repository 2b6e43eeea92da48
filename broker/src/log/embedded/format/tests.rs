use super::*;
use bytes::Bytes;
use proptest::prelude::*;
use tidemill_core::partition::Partition;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

const CREATED_MS: u64 = 1_700_000_000_000;

fn header(layout: Layout) -> SegmentHeader {
    let skipped = if layout == Layout::Fixed { 0 } else { 2 };
    let bases = vec![Base { offset: 5, floor: 3, skipped }, Base::default()];
    SegmentHeader { number: 7, salt: 0x0403_0201, layout, bases }
}

fn compact() -> SegmentHeader {
    header(Layout::Compact { created_ms: CREATED_MS })
}

fn frame(partition: u16, offset: u64, body: FrameBody) -> Frame {
    Frame { partition: Partition(partition), offset, batch: 2, body }
}

fn frames() -> Vec<(Frame, Place, Before)> {
    let bytes = Bytes::from_static(b"hi");
    let record = FrameBody::Record { append_time_ms: CREATED_MS + 300, bytes: bytes.clone() };
    let early = FrameBody::Record { append_time_ms: CREATED_MS - 1, bytes: bytes.clone() };
    let copy = FrameBody::Copy { append_time_ms: CREATED_MS - 70_000, bytes };
    vec![
        (frame(1, 300, record), Place::Within, Before::Synced),
        (frame(0, 5, early), Place::Within, Before::Unsynced),
        (frame(0, 4, copy), Place::Within, Before::Synced),
        (frame(0, 4, FrameBody::Floor), Place::LastOfBatch, Before::Synced),
    ]
}

fn encode_frames(header: &SegmentHeader) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (frame, place, before) in frames() {
        encode_frame(&mut bytes, header, &frame, place, before);
    }
    bytes
}

fn decode_frames(mut bytes: &[u8], header: &SegmentHeader) -> Vec<(Frame, Place, Before)> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let placed = decode_frame(bytes, header).unwrap();
        bytes = &bytes[placed.length..];
        frames.push((placed.frame, placed.place, placed.before));
    }
    frames
}

#[test]
fn version_1_of_a_segment_is_still_read() {
    let stored = "544d5347 0100 0200 0700000000000000 01020304 \
        0500000000000000 0300000000000000 0000000000000000 0000000000000000 7768b3b3";
    let header = header(Layout::Fixed);
    assert_eq!(SegmentHeader::decode(&unhex(stored)), Ok(header.clone()));
    assert_eq!(header.length(), unhex(stored).len());
    assert_eq!(hex(&header.encode()), stored.replace(' ', ""));

    let salted = SegmentHeader { salt: 9, ..header };
    let stored = "19000000 02bff0bd 01 0100 02000000 2c01000000000000 0068e5cf8b010000 6869 \
        0f000000 099e88ce 82 0000 02000000 0400000000000000";
    let record = FrameBody::Record { append_time_ms: CREATED_MS, bytes: Bytes::from_static(b"hi") };
    let expected = [
        (frame(1, 300, record), Place::Within, Before::Synced),
        (frame(0, 4, FrameBody::Floor), Place::LastOfBatch, Before::Synced),
    ];
    assert_eq!(decode_frames(&unhex(stored), &salted), expected);
}

#[test]
fn version_2_of_a_segment_keeps_its_bytes() {
    let expected = "544d5347 0200 0200 0700000000000000 01020304 0068e5cf8b010000 \
        0500000000000000 0300000000000000 0200000000000000 \
        0000000000000000 0000000000000000 0000000000000000 a185a739";
    let bytes = compact().encode();
    assert_eq!(hex(&bytes), expected.replace(' ', ""));
    assert_eq!(SegmentHeader::decode(&bytes), Ok(compact()));
    assert_eq!(bytes.len(), compact().length());

    let expected = "09000000 70561d00 01 01 02 ac02 d804 6869 07000000 220f7521 41 00 02 00 01 6869 \
        0c000000 b5f3287f 03 00 02 04 90ad91ffbc31 6869 04000000 110fc29b 82 00 02 04";
    let bytes = encode_frames(&compact());
    assert_eq!(hex(&bytes), expected.replace(' ', ""));
    assert_eq!(decode_frames(&bytes, &compact()), frames());
}

#[test]
fn version_1_of_an_index_is_still_read() {
    let stored = unhex(
        "544d4958 0100 0200 0700000000000000 9001000000000000 \
        03000000 00000000 04000000 176666f1 00000000 04000000 00000000 00000000 51a782e4 0aa20201",
    );

    let length = IndexHeader::length(&stored[..IndexHeader::FRONT]).unwrap();
    let header = IndexHeader::decode(&stored, &header(Layout::Fixed)).unwrap();

    assert_eq!(length, stored.len() as u64 - 4);
    assert_eq!((header.number, header.segment_bytes, header.runs.len()), (7, 400, 1));
    let run = header.runs[0];
    assert_eq!((run.partition, run.kind, run.first, run.count), (Partition(0), RunKind::Own, 5, 3));
    assert_eq!((run.begin, run.length), (length, 4));
    assert_eq!(run.positions(&stored[stored.len() - 4..]), Ok(vec![10, 300, 301]));
}

#[test]
fn version_2_of_an_index_keeps_its_bytes() {
    let run = |kind, first, positions: &[u32]| Run {
        partition: Partition(0),
        kind,
        first,
        bytes: 70,
        positions: positions.to_vec(),
    };
    let runs =
        [run(RunKind::Own, 5, &[10, 300, 301]), run(RunKind::Own, 0, &[]), run(RunKind::Copied, 1, &[400])];
    let bytes = encode_index(7, 500, 2, &runs.each_ref());

    let expected = "544d4958 0200 0200 0700000000000000 f401000000000000 02000000 \
        0000 01 0500000000000000 03000000 4600000000000000 00000000 04000000 176666f1 \
        0000 02 0100000000000000 01000000 4600000000000000 04000000 02000000 5e8f3726 eefff689 \
        0aa20201 9003";
    assert_eq!(hex(&bytes), expected.replace(' ', ""));
    let header = IndexHeader::decode(&bytes, &compact()).unwrap();
    assert_eq!((header.number, header.segment_bytes), (7, 500));
    let read: Vec<_> = header
        .runs
        .iter()
        .map(|found| {
            let begin = usize::try_from(found.begin).unwrap();
            let positions = found.positions(&bytes[begin..begin + found.length as usize]).unwrap();
            Run {
                partition: found.partition,
                kind: found.kind,
                first: found.first,
                bytes: found.bytes,
                positions,
            }
        })
        .collect();
    assert_eq!(read, [runs[0].clone(), runs[2].clone()]);
    let length = IndexHeader::length(&bytes[..IndexHeader::FRONT]).unwrap();
    assert_eq!(length + 6, bytes.len() as u64);
}

#[test]
fn an_index_of_another_segment_is_not_believed() {
    let run = Run { partition: Partition(0), kind: RunKind::Own, first: 5, bytes: 9, positions: vec![9] };
    let other = SegmentHeader { number: 8, ..compact() };
    let moved = SegmentHeader { bases: vec![Base { offset: 6, floor: 0, skipped: 0 }; 2], ..compact() };

    for segment in [&other, &moved] {
        let read = IndexHeader::decode(&encode_index(7, 500, 2, &[&run]), segment);
        assert!(matches!(read, Err(FormatFault::Value { .. })), "{read:?}");
    }
}

#[test]
fn version_1_of_the_partitioning_keeps_its_bytes() {
    let partitioning = Partitioning::new(32, 16).unwrap();
    let bytes = encode_partitioning(partitioning);

    assert_eq!(hex(&bytes), "544d504701002000100065c2becd");
    assert_eq!(decode_partitioning(&bytes), Ok(partitioning));
}

#[test]
fn every_flipped_bit_is_noticed() {
    let header_bytes = compact().encode();
    let frame_bytes = encode_frames(&compact());
    let first = decode_frame(&frame_bytes, &compact()).unwrap().length;
    let run = Run { partition: Partition(0), kind: RunKind::Own, first: 5, bytes: 9, positions: vec![9] };
    let index_bytes = encode_index(7, 500, 2, &[&run]);
    let index_header = index_bytes.len() - 1;

    let flipped = |bytes: &[u8], bit: usize| {
        let mut damaged = bytes.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        damaged
    };
    for bit in 0..header_bytes.len() * 8 {
        assert!(SegmentHeader::decode(&flipped(&header_bytes, bit)).is_err(), "bit {bit} of the header");
    }
    for bit in 0..first * 8 {
        assert!(decode_frame(&flipped(&frame_bytes, bit), &compact()).is_err(), "bit {bit} of the frame");
    }
    for bit in 0..index_header * 8 {
        let damaged = flipped(&index_bytes, bit);
        assert!(IndexHeader::decode(&damaged, &compact()).is_err(), "bit {bit} of the index");
    }
}

#[test]
fn a_frame_of_another_segment_is_not_believed() {
    let other = SegmentHeader { salt: 10, ..compact() };

    let read = decode_frame(&encode_frames(&compact()), &other);

    assert_eq!(read, Err(FormatFault::Checksum));
}

#[test]
fn a_newer_version_is_refused_by_its_number() {
    let mut bytes = compact().encode();
    bytes[4] = 3;

    assert_eq!(SegmentHeader::decode(&bytes), Err(FormatFault::Version { version: 3, newest: 2 }));
}

proptest! {
    #[test]
    fn any_frame_is_read_as_it_was_written(
        offset in any::<u64>(),
        batch in any::<u32>(),
        append_time_ms in any::<u64>(),
        bytes in proptest::collection::vec(any::<u8>(), 0..40),
        kind in 0..3,
    ) {
        let bytes = Bytes::from(bytes);
        let body = match kind {
            0 => FrameBody::Record { append_time_ms, bytes },
            1 => FrameBody::Copy { append_time_ms, bytes },
            _ => FrameBody::Floor,
        };
        let frame = Frame { partition: Partition(1), offset, batch, body };
        let mut encoded = Vec::new();
        encode_frame(&mut encoded, &compact(), &frame, Place::Within, Before::Unsynced);

        let placed = decode_frame(&encoded, &compact()).unwrap();

        prop_assert!(is_plausible(&encoded, &compact(), 0..u32::MAX) || batch == u32::MAX);
        prop_assert_eq!(placed.length, encoded.len());
        prop_assert_eq!(placed.frame, frame);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = SegmentHeader::decode(&bytes);
        let _ = decode_frame(&bytes, &compact());
        let _ = IndexHeader::decode(&bytes, &compact());
        let mut index = unhex("544d4958 0200 0200 0700000000000000");
        index.extend(&bytes);
        let _ = IndexHeader::decode(&index, &compact());
    }
}

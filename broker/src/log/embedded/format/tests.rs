use super::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn header() -> SegmentHeader {
    let bases = vec![Base { offset: 5, floor: 3 }, Base { offset: 0, floor: 0 }];
    SegmentHeader { number: 7, salt: 0x0403_0201, bases }
}

fn frames() -> Vec<(Frame, Place)> {
    let record = FrameBody::Record { append_time_ms: 1_700_000_000_000, bytes: Bytes::from_static(b"hi") };
    vec![
        (Frame { partition: Partition(1), offset: 300, batch: 2, body: record }, Place::Within),
        (Frame { partition: Partition(0), offset: 4, batch: 2, body: FrameBody::Floor }, Place::LastOfBatch),
    ]
}

fn encode_frames() -> Vec<u8> {
    let mut bytes = Vec::new();
    for (frame, place) in frames() {
        encode_frame(&mut bytes, 9, &frame, place);
    }
    bytes
}

#[test]
fn version_1_of_a_segment_keeps_its_bytes() {
    let expected = "544d5347 0100 0200 0700000000000000 01020304 \
        0500000000000000 0300000000000000 0000000000000000 0000000000000000 7768b3b3";
    assert_eq!(hex(&header().encode()), expected.replace(' ', ""));
    assert_eq!(SegmentHeader::decode(&header().encode()), Ok(header()));
    assert_eq!(header().encode().len(), SegmentHeader::length(2));

    let expected = "19000000 02bff0bd 01 0100 02000000 2c01000000000000 0068e5cf8b010000 6869 \
        0f000000 099e88ce 82 0000 02000000 0400000000000000";
    assert_eq!(hex(&encode_frames()), expected.replace(' ', ""));
    let bytes = encode_frames();
    let (first, place, length) = decode_frame(&bytes, 9).unwrap();
    assert_eq!((first, place), frames()[0]);
    let (second, place, _) = decode_frame(&bytes[length..], 9).unwrap();
    assert_eq!((second, place), frames()[1]);
}

#[test]
fn version_1_of_an_index_keeps_its_bytes() {
    let positions = [vec![10, 300, 301], vec![]];
    let bytes = encode_index(7, 400, &positions);

    let expected = "544d4958 0100 0200 0700000000000000 9001000000000000 \
        03000000 00000000 04000000 176666f1 00000000 04000000 00000000 00000000 51a782e4 0aa20201";
    assert_eq!(hex(&bytes), expected.replace(' ', ""));
    let header = IndexHeader::decode(&bytes).unwrap();
    assert_eq!((header.number, header.segment_bytes), (7, 400));
    for (partition, positions) in (0..).zip(&positions) {
        let list = header.list(Partition(partition)).unwrap();
        let begin = IndexHeader::length(2) + list.begin as usize;
        assert_eq!(list.decode(&bytes[begin..begin + list.length as usize]).as_ref(), Ok(positions));
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
    let header_bytes = header().encode();
    let frame_bytes = encode_frames();
    let first = decode_frame(&frame_bytes, 9).unwrap().2;

    for bit in 0..header_bytes.len() * 8 {
        let mut damaged = header_bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(SegmentHeader::decode(&damaged).is_err(), "bit {bit} of the header");
    }
    for bit in 0..first * 8 {
        let mut damaged = frame_bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(decode_frame(&damaged, 9).is_err(), "bit {bit} of the frame");
    }
}

#[test]
fn a_frame_of_another_segment_is_not_believed() {
    assert_eq!(decode_frame(&encode_frames(), 10), Err(FormatFault::Checksum));
}

#[test]
fn a_newer_version_is_refused_by_its_number() {
    let mut bytes = header().encode();
    bytes[4] = 2;

    assert_eq!(SegmentHeader::decode(&bytes), Err(FormatFault::Version { version: 2 }));
}

//! What a check says about everything else when something is damaged or missing.

use super::super::fixture::{PARTITION, Scene, append};
use super::super::*;
use super::tests::{check, closed_log, condition, flip};
use super::*;

/// Where the body of the frame `number` of a segment begins.
fn frame(path: &Path, number: usize) -> u64 {
    let bytes = std::fs::read(path).unwrap();
    let header = SegmentHeader::decode(&bytes).unwrap();
    let mut steps = walk::Walk::new(&bytes, &header);
    match steps.nth(number).unwrap() {
        walk::Step::Frame(range, ..) => range.start + 8,
        walk::Step::Damage(..) => panic!("the segment is whole"),
    }
}

fn damaged(report: &Report) -> Vec<(PathBuf, String)> {
    let damaged = report.files.iter().filter(|file| file.condition == Condition::Damaged);
    damaged.map(|file| (file.path.clone(), file.notes.join("; "))).collect()
}

#[test]
fn one_damaged_frame_is_named_once_and_the_rest_is_counted_compared_and_followed() {
    let scene = closed_log();
    let bytes = std::fs::read(scene.segment(1)).unwrap();
    let in_first = walk::Walk::new(&bytes, &SegmentHeader::decode(&bytes).unwrap()).count();
    assert!(in_first > 4);
    for number in 0..in_first {
        let scene = closed_log();
        let path = scene.segment(1);
        flip(&path, frame(&path, number) + 5);

        let report = check(&scene);

        let damaged = damaged(&report);
        assert_eq!(damaged.len(), 1, "{number}: {damaged:?}");
        assert_eq!(damaged[0].0, path);
        assert_eq!(damaged[0].1.matches("damaged at byte").count(), 1, "{}", damaged[0].1);
        assert!(damaged[0].1.contains(&format!(" {} records", in_first - 1)), "{}", damaged[0].1);
        assert_eq!(report.records, 39);
        let partition = report.partitions[1];
        assert_eq!((partition.floor, partition.end), (0, 40));
    }
}

#[test]
fn damage_behind_damage_is_named_and_so_is_an_index_that_is_wrong_elsewhere() {
    let scene = closed_log();
    let path = scene.segment(1);
    let places = [frame(&path, 1), frame(&path, 3)];
    for place in places {
        flip(&path, place + 5);
    }
    let report = check(&scene);

    let (_, note) = condition(&report, &path);
    for place in places {
        assert!(note.contains(&format!("damaged at byte {}: ", place - 8)), "{note}");
    }
    assert_eq!(report.records, 38);
    assert_eq!(damaged(&report).len(), 1, "{report:?}");

    let bytes = std::fs::read(&path).unwrap();
    let header = SegmentHeader::decode(&bytes).unwrap();
    let whole = closed_log();
    let file = File::open(whole.segment(1)).unwrap();
    let whole = SegmentHeader::decode(&std::fs::read(whole.segment(1)).unwrap()).unwrap();
    let found = recovery::scan(disk(), &file, &whole).unwrap();
    let runs: Vec<_> = found.runs.iter().cloned().collect();
    // Before the third record is the second, which is damaged: there the index may be right.
    for (change, told) in [(1_i64, "the segment has not"), (-1, "leaves out"), (0, "leaves out")] {
        let mut runs = runs.clone();
        let positions = &mut runs[1].positions;
        match change {
            0 => drop(positions.pop()),
            change => positions[2] = u32::try_from(i64::from(positions[2]) + change).unwrap(),
        }
        let index =
            format::encode_index(1, found.bytes, header.bases.len(), &runs.iter().collect::<Vec<_>>());
        std::fs::write(path.with_extension("index"), index).unwrap();

        let report = check(&scene);

        let (found, note) = condition(&report, &path.with_extension("index"));
        assert_eq!(found, Condition::Damaged);
        assert!(note.contains(told), "{note}");
    }
}

#[test]
fn a_break_behind_damage_that_damage_does_not_explain_is_told() {
    let scene = closed_log();
    flip(&scene.segment(1), frame(&scene.segment(1), 1) + 5);
    let offsets_of_2 = check(&scene);
    assert_eq!(damaged(&offsets_of_2).len(), 1);
    for extension in ["segment", "index"] {
        std::fs::remove_file(scene.segment(3).with_extension(extension)).unwrap();
    }

    let report = check(&scene);

    let log = scene.data().join("log");
    assert!(condition(&report, &log).1.contains("segment 3 is missing"), "{report:?}");
    assert!(condition(&report, &scene.segment(4)).1.contains("partition 1 goes on at offset"), "{report:?}");
}

#[test]
fn a_segment_that_is_missing_at_the_beginning_is_told_by_its_offsets() {
    let scene = closed_log();
    let next = {
        let bytes = std::fs::read(scene.segment(2)).unwrap();
        SegmentHeader::decode(&bytes).unwrap().bases[1].offset
    };
    for extension in ["segment", "index"] {
        std::fs::remove_file(scene.segment(1).with_extension(extension)).unwrap();
    }

    let report = check(&scene);

    let log = scene.data().join("log");
    let told = format!("partition 1: offsets 0 to {} are missing", next - 1);
    assert_eq!(damaged(&report), [(log, told)]);
}

#[test]
fn the_last_segment_that_is_missing_is_told_by_the_index_before_it() {
    let scene = closed_log();
    let mut segments = scene.segments();
    std::fs::remove_file(segments.pop().unwrap()).unwrap();
    let sealed = segments.pop().unwrap();
    std::fs::remove_file(&sealed).unwrap();

    let report = check(&scene);

    let index = sealed.with_extension("index");
    assert_eq!(condition(&report, &index).0, Condition::Damaged);
}

#[tokio::test]
async fn a_copy_that_is_missing_is_told_and_one_that_is_damaged_is_not_told_twice() {
    let scene = Scene::with_segments_of(1_000);
    let log = scene.open();
    let slow = Partition(2);
    append(&*log, slow, b"needed for long");
    while log.metrics().copied_bytes.get() == 0 {
        let offset = append(&*log, PARTITION, &[7; 90]);
        log.trim(PARTITION, offset + 1).await.unwrap();
    }
    for _ in 0..20 {
        append(&*log, PARTITION, &[8; 90]);
    }
    drop(log);
    assert!(check(&scene).is_fine(), "{:?}", check(&scene));
    let place_of_copy = |path: &PathBuf| {
        let bytes = std::fs::read(path).unwrap();
        let header = SegmentHeader::decode(&bytes).unwrap();
        let contents = contents::Contents::of(&bytes, &header);
        let copy = contents.entries.iter().find(|entry| entry.kind == format::RunKind::Copied);
        copy.map(|entry| (header.number, entry.position))
    };
    let (number, position) = scene.segments().iter().filter_map(place_of_copy).next_back().unwrap();
    let path = scene.segment(number);
    assert_ne!(scene.segments().last(), Some(&path));

    flip(&path, position + 20);
    let report = check(&scene);
    assert_eq!(damaged(&report).len(), 1, "{report:?}");
    for path in scene.segments() {
        if path <= scene.segment(number) {
            std::fs::remove_file(path).unwrap();
        }
    }
    let report = check(&scene);

    let told: Vec<_> = damaged(&report).into_iter().map(|(_, note)| note).collect();
    assert!(told.contains(&"partition 2: offsets 0 to 0 are missing".to_owned()), "{told:?}");
}

#[tokio::test]
async fn offsets_that_were_given_up_are_not_missing() {
    let mut scene = Scene::with_segments_of(1_000);
    scene.durability = Durability::None;
    let log = scene.open();
    log.give_up(PARTITION, 100).await.unwrap();
    let slow = Partition(2);
    append(&*log, slow, b"needed for long");
    log.give_up(slow, 50).await.unwrap();
    append(&*log, slow, b"needed for long, too");
    while log.metrics().copied_bytes.get() == 0 {
        append(&*log, Partition(0), &[7; 90]);
        log.trim(Partition(0), log.bounds(Partition(0)).await.unwrap().end).await.unwrap();
    }
    log.close().await;
    drop(log);

    let report = check(&scene);

    assert!(report.is_fine(), "{report:?}");
    assert_eq!(report.partitions[1].end, 100);
    let told = condition(&report, &scene.data().join("log")).1;
    assert!(told.starts_with("partition 1: offsets 0 to 99 are not there: given up"), "{told}");
}

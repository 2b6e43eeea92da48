use super::super::fixture::{PARTITION, Scene, append, cases, partitioning, read_all, start};
use super::super::*;
use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::OnceLock;

/// Some segments of a log that is closed.
pub(super) fn closed_log() -> Scene {
    let scene = Scene::with_segments_of(1_000);
    let log = scene.open();
    for number in 0..40_u8 {
        append(&*log, PARTITION, &[number; 90]);
    }
    drop(log);
    assert!(scene.segments().len() > 3);
    scene
}

pub(super) fn check(scene: &Scene) -> Report {
    Inspection::open(&scene.data()).unwrap().check().unwrap()
}

pub(super) fn condition(report: &Report, path: &Path) -> (Condition, String) {
    let file = report.files.iter().find(|file| file.path == path).expect("every file is in the report");
    (file.condition, file.notes.join("; "))
}

fn dump(scene: &Scene, selection: Selection) -> (Vec<DumpedRecord>, Vec<Damage>) {
    let (mut records, mut damages) = (Vec::new(), Vec::new());
    let tell = &mut |dumped| {
        match dumped {
            Dumped::Record(record) => records.push(record),
            Dumped::Damage(damage) => damages.push(damage),
        }
        ControlFlow::Continue(())
    };
    Inspection::open(&scene.data()).unwrap().dump(selection, tell).unwrap();
    (records, damages)
}

fn offsets(records: &[DumpedRecord]) -> Vec<u64> {
    records.iter().map(|record| record.offset).collect()
}

pub(super) fn flip(path: &Path, position: u64) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[usize::try_from(position).unwrap()] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

/// Every file below `directory` with its content.
fn snapshot(directory: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(snapshot(&path));
            files.insert(path, None);
        } else {
            files.insert(path.clone(), Some(std::fs::read(&path).unwrap()));
        }
    }
    files
}

#[test]
fn a_log_that_was_closed_is_fine_and_stays_as_it_is() {
    let scene = closed_log();
    let before = snapshot(&scene.data());

    let report = check(&scene);
    let (records, damages) = dump(&scene, Selection::default());

    assert!(report.is_fine());
    assert!(report.files.iter().all(|file| file.condition == Condition::Whole), "{report:?}");
    assert_eq!((report.records, report.copies), (40, 0));
    let partition = report.partitions[1];
    assert_eq!((partition.floor, partition.end), (0, 40));
    assert_eq!(offsets(&records), (0..40).collect::<Vec<_>>());
    assert!(records.iter().all(|record| record.bytes[0] == u8::try_from(record.offset).unwrap()));
    assert_eq!(damages, []);
    assert!(snapshot(&scene.data()) == before);
}

/// `tests/data/embedded-log-v1` was written by the first version; there is no state beside it.
#[test]
fn a_log_of_the_first_version_is_checked_and_dumped() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/embedded-log-v1");
    let inspection = Inspection::open(&data).unwrap();
    let mut records = Vec::new();
    let tell = &mut |dumped| {
        records.push(dumped);
        ControlFlow::Continue(())
    };

    let report = inspection.check().unwrap();
    inspection.dump(Selection::default(), tell).unwrap();

    let mut damaged = report.files.iter().filter(|file| file.condition == Condition::Damaged);
    assert_eq!(damaged.next().unwrap().path, data.join("state"));
    assert_eq!(damaged.next(), None);
    assert_eq!(report.records, 24);
    assert_eq!(records.len(), 24 - 3, "three were trimmed");
}

#[test]
fn damage_is_named_by_segment_and_byte_and_passed_over() {
    let first = format::SegmentHeader::length_max(3) as u64;
    for number in [1, 2] {
        let scene = closed_log();
        let path = scene.segment(number);
        flip(&path, first + 30);

        let report = check(&scene);
        let (records, damages) = dump(&scene, Selection::default());

        assert!(!report.is_fine());
        let (found, note) = condition(&report, &path);
        assert_eq!(found, Condition::Damaged);
        assert!(note.contains(&format!("damaged at byte {first}: its checksum does not fit")), "{note}");
        assert_eq!(records.len(), 39);
        assert_eq!(damages.len(), 1);
        assert_eq!((&damages[0].path, damages[0].begin), (&path, first));
        assert!(!condition(&report, &scene.segment(3)).1.contains("damaged"), "{report:?}");
    }
}

#[test]
fn damage_in_the_last_segment_is_told_although_the_broker_refuses_it() {
    let scene = closed_log();
    let path = scene.segments().pop().unwrap();
    let log = scene.open();
    for _ in 0..3 {
        append(&*log, PARTITION, &[1; 50]);
    }
    drop(log);
    let first = format::SegmentHeader::length_max(3) as u64;
    flip(&path, first + 12);
    assert!(scene.try_open().is_err());

    let report = check(&scene);

    assert_eq!(condition(&report, &path).0, Condition::Damaged);
    assert!(condition(&report, &path).1.contains(&format!("damaged at byte {first}")));
    assert!(dump(&scene, Selection::default()).0.len() >= 40);
}

#[test]
fn a_torn_tail_is_fine_told_and_not_dumped() {
    let scene = closed_log();
    let path = scene.segments().pop().unwrap();
    let whole = std::fs::metadata(&path).unwrap().len();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.extend_from_slice(&bytes.clone()[bytes.len() - 60..bytes.len() - 3]);
    std::fs::write(&path, bytes).unwrap();

    let report = check(&scene);

    assert!(report.is_fine());
    let (found, note) = condition(&report, &path);
    assert_eq!(found, Condition::Unfinished);
    assert!(note.contains(&format!("torn tail: the batch at byte {whole} is not whole; 57 bytes")), "{note}");
    let (records, damages) = dump(&scene, Selection::default());
    assert_eq!((records.len(), damages.len()), (40, 0));
}

#[test]
fn indexes_segments_and_other_files_that_are_missing_wrong_or_foreign_are_told() {
    let scene = closed_log();
    let index = |number| scene.segment(number).with_extension("index");
    std::fs::remove_file(index(1)).unwrap();
    let lists = std::fs::metadata(index(2)).unwrap().len() - 1;
    flip(&index(2), lists);
    let unfinished = scene.segment(99).with_extension("new");
    std::fs::write(&unfinished, b"").unwrap();

    let report = check(&scene);
    assert_eq!(condition(&report, &index(1)).0, Condition::Unfinished);
    let (found, note) = condition(&report, &index(2));
    assert_eq!(found, Condition::Damaged);
    assert!(note.contains("the run of partition 1 from offset"), "{note}");
    assert_eq!(condition(&report, &unfinished).0, Condition::Unfinished);

    let foreign = scene.data().join("log/notes.txt");
    std::fs::write(&foreign, b"").unwrap();
    std::fs::remove_file(scene.segment(2)).unwrap();
    std::fs::remove_file(scene.data().join("partitioning")).unwrap();
    std::fs::remove_dir_all(scene.data().join("state")).unwrap();
    let report = check(&scene);
    assert_eq!(condition(&report, &foreign).0, Condition::Damaged);
    assert_eq!(condition(&report, &scene.data().join("partitioning")).0, Condition::Damaged);
    assert_eq!(condition(&report, &scene.data().join("state")).0, Condition::Damaged);
    assert!(condition(&report, &scene.data().join("log")).1.contains("segment 2 is missing"));
    assert!(condition(&report, &scene.segment(3)).1.contains("partition 1 goes on at offset"));
    assert_eq!(condition(&report, &index(2)).0, Condition::Unfinished);
    assert!(!dump(&scene, Selection::default()).0.is_empty());
}

#[test]
fn a_log_that_a_broker_uses_is_left_alone_and_a_broker_cannot_start_meanwhile() {
    let scene = closed_log();
    let log = scene.open();

    let refused = Inspection::open(&scene.data()).unwrap_err().to_string();

    assert!(refused.ends_with(&format!("is used by process {}", std::process::id())), "{refused}");
    drop(log);
    let inspection = Inspection::open(&scene.data()).unwrap();
    assert!(DataDirectory::lock(&scene.data()).is_err());
    assert!(Inspection::open(&scene.data()).is_ok(), "two may look");
    drop(inspection);
}

#[test]
fn a_directory_without_a_log_is_refused_and_not_made() {
    let temporary = tempfile::tempdir().unwrap();
    let missing = temporary.path().join("missing");

    assert!(Inspection::open(&missing).unwrap_err().to_string().contains("cannot be read"));
    assert!(!missing.exists());
    let refused = Inspection::open(temporary.path()).unwrap_err().to_string();
    assert!(refused.contains("not the data directory"), "{refused}");
    assert_eq!(snapshot(temporary.path()), BTreeMap::new());
}

#[test]
fn a_partition_that_the_log_does_not_have_is_refused_with_those_that_it_has() {
    let scene = closed_log();
    let ask = |partition| {
        let selection = Selection { partition: Some(Partition(partition)), from: 0 };
        let inspection = Inspection::open(&scene.data()).unwrap();
        inspection.dump(selection, &mut |_| ControlFlow::Continue(())).map_err(|error| error.to_string())
    };
    let refused = Err("there is no partition 3: partitions are 0 to 2".to_owned());

    assert_eq!(ask(2), Ok(()));
    assert_eq!(ask(3), refused);
    std::fs::remove_file(scene.data().join("partitioning")).unwrap();
    assert_eq!(ask(3), refused);
}

#[test]
fn a_broker_that_starts_where_there_was_nothing_to_lock_is_noticed() {
    let scene = closed_log();
    std::fs::remove_file(scene.data().join("lock")).unwrap();
    let inspection = Inspection::open(&scene.data()).unwrap();
    assert!(inspection.check().is_ok());

    let started = scene.open();

    let refused = inspection.check().unwrap_err().to_string();
    assert!(refused.contains("is used by process"), "{refused}");
    drop(started);
}

#[tokio::test]
async fn a_dump_has_each_record_once_also_those_that_were_copied_and_none_that_was_trimmed() {
    let scene = Scene::with_segments_of(1_000);
    let log = scene.open();
    let slow = Partition(2);
    for _ in 0..3 {
        append(&*log, slow, b"needed for long");
    }
    while log.metrics().copied_bytes.get() == 0 {
        let offset = append(&*log, PARTITION, &[7; 90]);
        log.trim(PARTITION, offset + 1).await.unwrap();
    }
    append(&*log, slow, b"the last one");
    log.trim(slow, 1).await.unwrap();
    // Written and never told: the next start keeps it.
    let kept = start(&*log, PARTITION, b"kept").recv().unwrap().unwrap();
    drop(log);

    let report = check(&scene);
    let (records, _) = dump(&scene, Selection::default());

    assert!(report.is_fine(), "{report:?}");
    assert!(report.copies >= 2, "{report:?}");
    let of_slow: Vec<_> = records.iter().filter(|record| record.partition == slow).cloned().collect();
    let mut seen = offsets(&of_slow);
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 3]);
    assert_eq!(records.len(), 4);
    let selection = Selection { partition: Some(PARTITION), from: kept };
    assert_eq!(offsets(&dump(&scene, selection).0), [kept]);
    let selection = Selection { partition: Some(slow), from: 3 };
    assert_eq!(offsets(&dump(&scene, selection).0), [3]);
}

/// The files of a log with several segments and copies, by name, and its newest segment.
fn stored_log() -> &'static (BTreeMap<PathBuf, Vec<u8>>, PathBuf) {
    static STORED: OnceLock<(BTreeMap<PathBuf, Vec<u8>>, PathBuf)> = OnceLock::new();
    STORED.get_or_init(|| {
        let scene = Scene::with_segments_of(700);
        let log = scene.open();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        append(&*log, Partition(2), b"needed for long");
        while log.metrics().copied_bytes.get() == 0 {
            let offset = append(&*log, PARTITION, &[7; 90]);
            runtime.block_on(log.trim(PARTITION, offset + 1)).unwrap();
        }
        for number in 0..20_u8 {
            append(&*log, PARTITION, &[number; 90]);
        }
        drop(log);
        let data = scene.data();
        let relative = |path: &Path| path.strip_prefix(&data).unwrap().to_owned();
        let files = snapshot(&data).into_iter().filter_map(|(path, bytes)| Some((relative(&path), bytes?)));
        let files =
            files.filter(|(path, _)| path.starts_with("log") || path.ends_with("partitioning")).collect();
        (files, relative(scene.segments().last().unwrap()))
    })
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Flip(u8),
    Cut,
    Fill(u8),
}

proptest! {
    #![proptest_config(cases(100, 5_000))]

    /// What is called fine opens and is read to its end, and no fault in a sealed file is called fine.
    #[test]
    fn a_fault_anywhere_is_found_or_does_no_harm(
        file in any::<proptest::sample::Index>(),
        place in any::<proptest::sample::Index>(),
        fault in prop_oneof![
            (0..8_u8).prop_map(|bit| Fault::Flip(1 << bit)),
            Just(Fault::Cut),
            any::<u8>().prop_map(Fault::Fill),
        ],
    ) {
        let (files, newest) = stored_log();
        let scene = Scene::with_segments_of(700);
        std::fs::create_dir_all(scene.data().join("log")).unwrap();
        std::fs::create_dir_all(scene.data().join("state")).unwrap();
        let damaged = files.keys().nth(file.index(files.len())).unwrap();
        let mut is_changed = false;
        for (path, bytes) in files {
            let mut stored = bytes.clone();
            if path == damaged {
                let place = place.index(stored.len());
                match fault {
                    Fault::Flip(bit) => stored[place] ^= bit,
                    Fault::Cut => stored.truncate(place),
                    Fault::Fill(byte) => {
                        let end = stored.len().min(place + 16);
                        stored[place..end].fill(byte);
                    }
                }
                is_changed = stored != *bytes;
            }
            std::fs::write(scene.data().join(path), stored).unwrap();
        }

        let report = check(&scene);
        let (records, damages) = dump(&scene, Selection::default());

        if is_changed && damaged != newest {
            prop_assert!(!report.is_fine(), "{:?}", report);
        }
        if report.is_fine() {
            prop_assert_eq!(damages, []);
            let log = scene.open();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let mut read = 0;
            for partition in partitioning().partitions() {
                let start = runtime.block_on(log.bounds(partition)).unwrap().start;
                read += runtime.block_on(read_all(&*log, partition, start)).len();
            }
            prop_assert_eq!(read, records.len());
        }
    }
}

//! Tests with whole and damaged directories. A directory must have no problem if and only if a
//! start on it succeeds.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use leasehold_leases::Slot;
use leasehold_replica::action::{Record, StateChanges};
use tempfile::TempDir;

use super::super::log_files::name_of;
use super::super::rocks::damage::{self, Files, Specimen, bits, flush, lay_out};
use super::super::rocks::marker;
use super::super::rocks::tests::{
    accepted, checkpoint, configured, older, stamp, stamped_with, stored,
};
use super::*;
use crate::store::{Durability, Storage, StorageError, StorageOptions};

fn verify(path: &Path) -> DirectoryVerdict {
    StoppedDirectory::open(path).unwrap().verify()
}

/// Returns the effects of all problems of a directory.
fn effects(path: &Path) -> Vec<StartEffect> {
    let problems = verify(path).problems.into_iter();
    problems.map(|problem| problem.effect).collect()
}

/// Contents, mode and time of change of everything in a directory, and of the directory itself.
fn listing(path: &Path) -> BTreeMap<String, (Option<Vec<u8>>, u32, SystemTime)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        let mut add = |path: &Path| {
            let data = path.metadata().unwrap();
            let contents = data.is_file().then(|| fs::read(path).unwrap());
            let name = path.to_string_lossy().into_owned();
            found.insert(name, (contents, data.mode(), data.modified().unwrap()));
        };
        add(&folder);
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            add(&path);
            if path.is_dir() {
                folders.push(path);
            }
        }
    }
    found
}

/// Does everything that this module can do.
fn look_everywhere(path: &Path) {
    let Ok(directory) = StoppedDirectory::open(path) else {
        return;
    };
    directory.summary();
    directory.scan(&mut scan::Ignorant);
    directory.verify();
    directory.check_still_stopped().unwrap();
}

#[test]
fn nothing_in_a_directory_is_changed() {
    let specimen = Specimen::new();
    let killed = lay_out(&specimen.files);
    let closed = lay_out(&specimen.files);
    drop(damage::open(closed.path()).unwrap());
    let in_pieces = lay_out(&specimen.files);
    fs::remove_file(in_pieces.path().join("CURRENT")).unwrap();
    let older_format = tempfile::tempdir().unwrap();
    older(older_format.path(), 5);
    let empty = tempfile::tempdir().unwrap();
    for dir in [killed, closed, in_pieces, older_format, empty] {
        let before = listing(dir.path());
        look_everywhere(dir.path());
        assert_eq!(before, listing(dir.path()));
    }
}

#[test]
fn a_summary_has_what_was_written() {
    let specimen = Specimen::new();
    let dir = lay_out(&specimen.files);
    let summary = StoppedDirectory::open(dir.path()).unwrap().summary();
    let (_, recovered) = damage::open(dir.path()).unwrap();
    assert_eq!(summary.problems, []);
    let found = summary.stamp.unwrap();
    assert_eq!((found.format, found.stamp), (READABLE_FORMAT, stamp()));
    assert_eq!(found.life, recovered.life);
    let log = summary.log.unwrap();
    assert_eq!(log.facts.promised, recovered.promised);
    assert_eq!(log.facts.incarnation.0 + 1, recovered.incarnation.0);
    assert_eq!(log.facts.joined, recovered.joined);
    assert_eq!(log.facts.restart_wait, recovered.restart_wait);
    assert_eq!(
        log.facts.lives.into_iter().collect::<Vec<_>>(),
        recovered.lives
    );
    let state = summary.state.unwrap();
    assert_eq!(state.position.executed, recovered.state.executed);
    assert_eq!(state.position.config, recovered.state.config);
    assert_eq!(state.keys, recovered.state.entries.len() as u64);
    assert_eq!(state.sessions, recovered.state.sessions.len() as u64);
    let marker = summary.marker.unwrap();
    assert_eq!((marker.last_group, marker.is_made), (log.last_group, true));
    assert_eq!(marker.state.commands, state.position.executed);
}

#[test]
fn segments_have_their_slots_and_groups() {
    let specimen = Specimen::new();
    let dir = lay_out(&specimen.files);
    let log = StoppedDirectory::open(dir.path()).unwrap().summary().log;
    let segments = log.unwrap().segments;
    let lengths = segments.iter().map(|it| {
        let file = &specimen.files[&name_of(it.segment)];
        assert!(it.used <= it.bytes && file[it.used..].iter().all(|byte| *byte == 0));
        (it.bytes, file.len())
    });
    assert!(lengths.len() >= 3);
    lengths.for_each(|(shown, length)| assert_eq!(shown, length));
    let mut slots = 1;
    let mut group = 1;
    for segment in &segments {
        let (first, last) = segment.groups.unwrap();
        assert_eq!(first, group);
        group = last + 1;
        if let Some((first, last)) = segment.slots.commands {
            assert_eq!(first, Slot(slots));
            slots = last.0 + 1;
        }
    }
    assert_eq!(slots, 43);
    assert_eq!(segments[0].slots.configs, Some((Slot(1), Slot(1))));
}

#[test]
fn a_whole_directory_has_no_problem_and_everything_in_it_is_counted() {
    let specimen = Specimen::new();
    let dir = lay_out(&specimen.files);
    let verdict = verify(dir.path());
    assert_eq!(verdict.problems, []);
    assert_eq!(verdict.torn, []);
    assert_eq!(verdict.checked.entries, 43);
    let tables = specimen.files.keys().filter(|name| name.ends_with(".sst"));
    assert_eq!(verdict.checked.tables, tables.count() as u64);
    assert!(verdict.checked.rows > 15, "{:?}", verdict.checked);
}

/// Asserts that a check of a directory and a start on it agree.
fn assert_agreement(name: &str, files: &Files) {
    let dir = lay_out(files);
    let found = match StoppedDirectory::open(dir.path()) {
        Ok(directory) => directory.verify().problems,
        // Without its marker, a directory is not inspected. A start refuses it as well.
        Err(error) => {
            let started = damage::open(dir.path());
            assert!(started.is_err(), "{name}: {error}");
            return;
        }
    };
    let refuses = found.iter().any(|problem| {
        let effects = [
            StartEffect::Refused,
            StartEffect::Unreadable,
            StartEffect::Unwritable,
        ];
        effects.contains(&problem.effect)
    });
    match damage::open(dir.path()) {
        Ok(_) => assert!(!refuses, "{name}: a start succeeds in spite of {found:#?}"),
        Err(error) => assert!(refuses, "{name}: {error}, but only {found:#?}"),
    }
}

#[test]
fn a_check_and_a_start_agree_about_every_flipped_bit() {
    let specimen = Specimen::new();
    let bits = bits(&specimen.files);
    for (name, bit) in bits.iter().step_by(4) {
        let mut files = specimen.files.clone();
        files.get_mut(*name).unwrap()[bit / 8] ^= 1 << (bit % 8);
        assert_agreement(&format!("{name}, bit {bit}"), &files);
    }
}

#[test]
fn a_check_and_a_start_agree_about_missing_files_and_ends() {
    let specimen = Specimen::new();
    for (name, bytes) in &specimen.files {
        let mut files = specimen.files.clone();
        files.remove(name);
        assert_agreement(&format!("without {name}"), &files);
        for length in [0, bytes.len() / 2, bytes.len() - 1] {
            let mut files = specimen.files.clone();
            files.get_mut(name).unwrap().truncate(length);
            assert_agreement(&format!("{length} bytes of {name}"), &files);
        }
    }
}

/// Flips a bit of a file.
fn flip(dir: &TempDir, name: &str, byte: usize) {
    let path = dir.path().join(name);
    let mut bytes = fs::read(&path).unwrap();
    bytes[byte] ^= 1;
    fs::write(path, bytes).unwrap();
}

/// Puts a directory or a pipe at a path. A pipe has no writer, so a read of it never ends.
fn obstruct(path: &Path, is_pipe: bool) {
    let _ = fs::remove_file(path);
    if is_pipe {
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, path, mode).unwrap();
    } else {
        fs::create_dir(path).unwrap();
    }
}

#[test]
fn whatever_stands_in_the_place_of_a_file_is_named_and_not_opened() {
    let specimen = Specimen::new();
    // A start does not open the files that hold options.
    let named = specimen.files.keys().map(String::as_str);
    let named = named.filter(|name| !name.starts_with("OPTIONS-"));
    let added = ["LOCK", "log/0000000000.seg", "LEASEHOLD"];
    for name in named.chain(added) {
        for (is_pipe, kind) in [(true, "a pipe"), (false, "a directory")] {
            let dir = lay_out(&specimen.files);
            obstruct(&dir.path().join(name), is_pipe);
            let inspected = StoppedDirectory::open(dir.path()).err().unwrap();
            let Err(started) = damage::open(dir.path()) else {
                panic!("{name}: a start succeeds");
            };
            for text in [inspected.to_string(), started.to_string()] {
                assert!(text.contains(name) && text.contains(kind), "{name}: {text}");
            }
        }
    }
}

#[test]
fn a_link_that_leads_back_to_itself_is_named() {
    let specimen = Specimen::new();
    let link = |path: &Path| {
        let _ = fs::remove_file(path);
        std::os::unix::fs::symlink(path, path).unwrap();
    };
    for name in ["LEASEHOLD", "CURRENT", "LOCK", "log/0000000001.seg", "log"] {
        let dir = lay_out(&specimen.files);
        if name == "log" {
            fs::remove_dir_all(dir.path().join(name)).unwrap();
        }
        link(&dir.path().join(name));
        let inspected = StoppedDirectory::open(dir.path()).err().unwrap();
        let started = damage::open(dir.path()).err().unwrap();
        for text in [inspected.to_string(), started.to_string()] {
            let is_named = text.contains(name) && text.contains("a symbolic link that leads back");
            assert!(is_named, "{name}: {text}");
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let looping = dir.path().join("A");
    link(&looping);
    for path in [looping.clone(), looping.join("B")] {
        let inspected = StoppedDirectory::open(&path).err().unwrap();
        let started = damage::open(&path).err().unwrap();
        assert!(
            matches!(inspected, InspectError::Place { .. }),
            "{inspected}"
        );
        assert!(matches!(started, StorageError::Path { .. }), "{started}");
        for text in [inspected.to_string(), started.to_string()] {
            assert!(
                text.contains("a symbolic link that leads back to itself"),
                "{text}"
            );
        }
    }
}

#[test]
fn a_directory_in_the_place_of_the_spare_segment_is_named_if_a_start_cannot_remove_it() {
    let dir = lay_out(&Specimen::new().files);
    let spare = dir.path().join("log/spare");
    fs::create_dir(&spare).unwrap();
    assert_eq!(effects(dir.path()), []);
    fs::write(spare.join("file"), "").unwrap();
    let inspected = StoppedDirectory::open(dir.path())
        .err()
        .unwrap()
        .to_string();
    assert!(
        inspected.contains("log/spare is a directory"),
        "{inspected}"
    );
}

/// The reserve has no contents.
#[test]
fn a_reserve_is_no_problem_whether_it_exists_or_was_given_up() {
    let dir = lay_out(&Specimen::new().files);
    for bytes in [0, 1 << 20] {
        fs::write(dir.path().join("reserve"), vec![0; bytes]).unwrap();
        assert_eq!(effects(dir.path()), []);
    }
}

#[test]
fn a_pipe_that_no_start_opens_is_no_problem() {
    let dir = lay_out(&Specimen::new().files);
    for name in ["door", "log/door", "reserve", "log/spare"] {
        obstruct(&dir.path().join(name), true);
    }
    assert_eq!(effects(dir.path()), []);
    damage::open(dir.path()).unwrap();
}

#[test]
fn every_damaged_segment_is_named_with_the_byte() {
    let specimen = Specimen::new();
    let dir = lay_out(&specimen.files);
    let (first, third) = (name_of(SegmentId(1)), name_of(SegmentId(3)));
    flip(&dir, &first, 1024 + 60);
    flip(&dir, &third, 512 + 60);
    let found = verify(dir.path()).problems;
    for (name, byte) in [(&first, 1024), (&third, 512)] {
        let is_named =
            |it: &DirectoryProblem| it.file == *name && it.byte.is_some_and(|at| at <= byte);
        assert!(found.iter().any(is_named), "{name}: {found:#?}");
    }
    assert!(found.iter().all(|it| it.effect == StartEffect::Refused));
}

#[test]
fn damage_is_shown_beside_what_is_whole() {
    let specimen = Specimen::new();
    let dir = lay_out(&specimen.files);
    flip(&dir, &name_of(SegmentId(2)), 512 + 60);
    let table = specimen.files.keys().find(|name| name.ends_with(".sst"));
    fs::remove_file(dir.path().join(table.unwrap())).unwrap();
    let summary = StoppedDirectory::open(dir.path()).unwrap().summary();
    let named = |name: &str| summary.problems.iter().any(|it| it.file.contains(name));
    assert!(named("log/0000000002.seg"), "{:#?}", summary.problems);
    assert!(named(".sst"), "{:#?}", summary.problems);
    let log = summary.log.unwrap();
    assert_eq!(log.segments[0].slots.configs, Some((Slot(1), Slot(1))));
    assert!(log.facts.joined);
}

#[test]
fn a_torn_write_is_reported_and_is_no_problem() {
    let specimen = Specimen::new();
    let dir = lay_out(&specimen.files);
    let log = StoppedDirectory::open(dir.path()).unwrap().summary().log;
    let last = log.unwrap().segments.pop().unwrap();
    let path = dir.path().join(name_of(last.segment));
    let mut bytes = fs::read(&path).unwrap();
    bytes[last.used..last.used + 700].fill(7);
    fs::write(&path, bytes).unwrap();
    let verdict = verify(dir.path());
    assert_eq!(verdict.problems, []);
    let torn = TornWrite {
        segment: last.segment,
        offset: last.used,
        bytes: 700,
        group: None,
    };
    assert_eq!(verdict.torn, [torn]);
    drop(damage::open(dir.path()).unwrap());
    // It stays where it is, in the segment of an earlier run.
    assert_eq!(verify(dir.path()).torn, [torn]);
    assert_eq!(verify(dir.path()).problems, []);
}

/// The last group was acknowledged, so its damage is no torn write.
#[test]
fn a_damaged_group_at_the_end_is_no_torn_write() {
    let specimen = Specimen::new();
    let dir = lay_out(&specimen.files);
    let log = StoppedDirectory::open(dir.path()).unwrap().summary().log;
    let last = log.unwrap().segments.pop().unwrap();
    flip(&dir, &name_of(last.segment), last.used - 512);
    let verdict = verify(dir.path());
    assert_eq!(verdict.torn, []);
    let [lost] = &verdict.problems[..] else {
        panic!("one problem: {:#?}", verdict.problems);
    };
    assert_eq!(lost.file, name_of(last.segment));
    assert!(
        lost.byte.is_some_and(|byte| byte > 0 && byte < last.used),
        "{lost}"
    );
    assert!(lost.problem.contains("were acknowledged"), "{lost}");
}

/// The groups before the damage are intact, and still count as used.
#[test]
fn a_segment_is_used_up_to_its_damage() {
    let specimen = Specimen::new();
    let dir = lay_out(&specimen.files);
    let read = || StoppedDirectory::open(dir.path()).unwrap().summary();
    let segments = read().log.unwrap().segments;
    let (first, second) = (&segments[0], &segments[1]);
    assert!(first.used > 512 && second.used > 0);
    flip(&dir, &name_of(first.segment), first.used - 512);
    let damaged = &read().log.unwrap().segments[0];
    assert_eq!(damaged.segment, first.segment);
    assert!((1..first.used).contains(&damaged.used), "{damaged:?}");
}

/// Writes records and flushes the state. Returns the directory after its end.
fn written(records: &[Record]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (mut storage, _) = Storage::open(dir.path(), &stamp(), Durability::Sync).unwrap();
    storage.write(records).unwrap();
    flush(&storage);
    dir
}

fn executed(slot: u64) -> Record {
    checkpoint(slot, "k", Some(stored("v", slot)))
}

#[test]
fn a_state_that_fits_the_log_is_no_problem() {
    let dir = written(&[
        configured(1),
        accepted(1, "a"),
        accepted(2, "b"),
        executed(2),
    ]);
    assert_eq!(effects(dir.path()), []);
    // Entries above the executed ones may have holes.
    let dir = written(&[
        configured(1),
        accepted(1, "a"),
        accepted(9, "b"),
        executed(1),
    ]);
    assert_eq!(effects(dir.path()), []);
}

#[test]
fn a_state_newer_than_the_log_is_named() {
    let dir = written(&[configured(1), accepted(1, "a"), executed(3)]);
    let found = verify(dir.path()).problems;
    let [newer] = &found[..] else {
        panic!("one problem: {found:#?}");
    };
    assert_eq!(newer.effect, StartEffect::Unnoticed);
    for part in ["newer", "slot 3", "before slot 2"] {
        assert!(newer.problem.contains(part), "{newer}");
    }
}

#[test]
fn a_hole_among_executed_entries_is_named() {
    let records = [
        configured(1),
        accepted(1, "a"),
        accepted(4, "b"),
        executed(4),
    ];
    let found = verify(written(&records).path()).problems;
    assert_eq!(found.len(), 1, "{found:#?}");
    let problem = &found[0].problem;
    assert!(problem.contains("2 of the executed slots"), "{problem}");
    assert!(problem.contains("the first is 2"), "{problem}");
}

/// A start refuses a state that lacks one of its configurations.
#[test]
fn a_configuration_that_is_missing_is_named() {
    let Record::Changes(changes) = executed(1) else {
        unreachable!("it is a batch of changes");
    };
    let incomplete = Record::from(StateChanges {
        configs: None,
        ..Arc::unwrap_or_clone(changes)
    });
    let dir = written(&[configured(1), accepted(1, "a"), incomplete]);
    assert_eq!(effects(dir.path()), [StartEffect::Refused]);
    let refused = Storage::open(dir.path(), &stamp(), Durability::Sync);
    assert!(matches!(refused.err(), Some(StorageError::Damaged { .. })));
}

/// A start refuses a log that lacks a committed slot which the state does not cover.
#[test]
fn a_committed_slot_that_is_nowhere_is_named() {
    let committed = Record::Committed([Slot(3), Slot(1)].into());
    let dir = written(&[configured(1), accepted(1, "a"), executed(1), committed]);
    let found = verify(dir.path()).problems;
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(found[0].effect, StartEffect::Refused);
    assert!(
        found[0].problem.contains("slot 2 of the commands"),
        "{}",
        found[0]
    );
}

/// Segments that all members have flushed are gone, and those that came back are ignored.
#[test]
fn a_truncated_log_is_no_problem() {
    let dir = tempfile::tempdir().unwrap();
    let options = StorageOptions {
        segment_bytes: Some(4096),
        ..StorageOptions::default()
    };
    let (mut storage, _) = Storage::open_with(dir.path(), &stamp(), options).unwrap();
    storage.write(&[configured(1)]).unwrap();
    for slot in 1..=40 {
        let entry = accepted(slot, &"v".repeat(1000));
        storage.write(&[entry, executed(slot)]).unwrap();
    }
    flush(&storage);
    storage.truncate([Slot(30), Slot(1)].into()).unwrap();
    drop(storage);
    assert_eq!(effects(dir.path()), []);
    fs::write(dir.path().join("log/0000000001.seg"), "remains").unwrap();
    assert_eq!(effects(dir.path()), []);
}

#[test]
fn a_state_older_than_the_marker_is_named() {
    let specimen = Specimen::new();
    let mut files = specimen.files.clone();
    let later = lay_out(&specimen.files);
    let (mut storage, _) = damage::open(later.path()).unwrap();
    storage.write(&[executed(40)]).unwrap();
    flush(&storage);
    drop(storage);
    let marker = damage::files(later.path())[marker::NAME].clone();
    files.insert(marker::NAME.to_owned(), marker);
    let dir = lay_out(&files);
    let found = verify(dir.path()).problems;
    assert!(
        found.iter().any(|it| it.effect == StartEffect::Refused),
        "{found:#?}"
    );
}

#[test]
fn directories_of_other_formats_are_refused_with_both_versions() {
    for (format, advice) in [
        (READABLE_FORMAT + 1, "the program that made"),
        (5, "converts"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        if format == 5 {
            older(dir.path(), 5);
        } else {
            stamped_with(dir.path(), format);
        }
        let refused = StoppedDirectory::open(dir.path())
            .err()
            .unwrap()
            .to_string();
        let versions = [format, READABLE_FORMAT].map(|version| version.to_string());
        for part in [&versions[0], &versions[1], advice] {
            assert!(refused.contains(part), "{part:?} is not in {refused:?}");
        }
    }
}

#[test]
fn a_marker_of_a_newer_program_is_refused_and_a_flipped_bit_is_damage() {
    let specimen = Specimen::new();
    let dir = lay_out(&specimen.files);
    flip(&dir, marker::NAME, 7);
    let found = verify(dir.path()).problems;
    let [damaged] = &found[..] else {
        panic!("one problem: {found:#?}");
    };
    assert_eq!(damaged.file, marker::NAME);
    let path = dir.path().join(marker::NAME);
    let mut bytes = fs::read(&path).unwrap();
    bytes.truncate(76);
    bytes[7] = 9;
    bytes.extend([1; 20]);
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let refused = StoppedDirectory::open(dir.path())
        .err()
        .unwrap()
        .to_string();
    assert!(
        refused.contains("version 9") && refused.contains("up to 2"),
        "{refused}"
    );
}

fn refused(path: &Path) -> String {
    StoppedDirectory::open(path).err().unwrap().to_string()
}

#[test]
fn other_places_are_refused_with_advice() {
    let specimen = Specimen::new();
    let dir = tempfile::tempdir().unwrap();
    let within = |name: &str| dir.path().join(name);
    assert!(refused(&within("none")).contains("no such directory"));
    assert!(refused(dir.path()).contains("is empty"));
    fs::write(within("file"), "").unwrap();
    assert!(refused(&within("file")).contains("not a directory"));
    assert!(refused(dir.path()).contains("no replica has made"));
    let node = lay_out(&specimen.files);
    fs::rename(node.path(), within("A")).unwrap();
    let names = refused(dir.path());
    let directory = within("A").display().to_string();
    assert!(
        names.contains("directories of nodes") && names.contains(&directory),
        "{names}"
    );
    // As `cluster up` lays it out.
    let cluster = tempfile::tempdir().unwrap();
    fs::create_dir(cluster.path().join("data")).unwrap();
    fs::write(cluster.path().join("A.log"), "").unwrap();
    let directory = cluster.path().join("data/A");
    fs::rename(within("A"), &directory).unwrap();
    let names = refused(cluster.path());
    assert!(names.contains(&directory.display().to_string()), "{names}");
    fs::rename(&directory, within("A")).unwrap();
    fs::remove_file(within("A").join(marker::NAME)).unwrap();
    let half = refused(&within("A"));
    assert!(
        half.contains("LEASEHOLD is missing") && half.contains("a copy"),
        "{half}"
    );
}

#[test]
fn a_directory_that_was_made_in_part_is_no_problem() {
    let specimen = Specimen::new();
    let dir = lay_out(&Files::new());
    let made = lay_out(&specimen.files);
    let path = made.path().join(marker::NAME);
    let mut bytes = fs::read(&path).unwrap();
    // Only the life is known yet.
    bytes[8..16].fill(0);
    bytes[24..].fill(0);
    bytes.truncate(76);
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    fs::write(dir.path().join(marker::NAME), bytes).unwrap();
    fs::write(dir.path().join("MANIFEST-000001"), "half").unwrap();
    let directory = StoppedDirectory::open(dir.path()).unwrap();
    assert!(directory.is_unfinished());
    assert_eq!(directory.verify().problems, []);
    drop(damage::open(dir.path()).unwrap());
    assert!(!StoppedDirectory::open(dir.path()).unwrap().is_unfinished());
}

#[test]
fn a_start_in_the_meantime_is_noticed() {
    let specimen = Specimen::new();
    let dir = lay_out(&specimen.files);
    let directory = StoppedDirectory::open(dir.path()).unwrap();
    directory.check_still_stopped().unwrap();
    drop(damage::open(dir.path()).unwrap());
    let error = directory.check_still_stopped().unwrap_err();
    assert!(matches!(error, InspectError::Started { .. }), "{error}");
}

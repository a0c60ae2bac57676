//! Tests that damage to the files of a data directory is detected or has no effect. No start may
//! recover other contents than were written, or fewer.
//!
//! `LEASEHOLD_FLIPS` is the number of bits that are flipped in the larger files, one at a time
//! (default 3,000). In the small files, every bit is flipped.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold_leases::{ConfigChange, ConfigId, ReplicaSet, Slot};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;
use tempfile::TempDir;

use super::marker::{self, Marker, MarkerState};
use super::tests::{accepted, ballot, configured, saved_configs, stamp, stored};
use super::wal::{BLOCK_BYTES, HEADER_BYTES};
use super::*;
use leasehold_leases::ReplicaId;
use leasehold_replica::action::{RecoveredState, SessionImage, StateChanges};
use leasehold_replica::message::LogId;

/// Size limit in bytes. In files up to this size, every bit is flipped.
const SMALL_BYTES: usize = 200;

pub(in crate::store) type Files = BTreeMap<String, Vec<u8>>;

/// Data directory of a replica that was killed. The directory contains tables of several runs, and
/// log entries that are in none of the tables.
pub(in crate::store) struct Specimen {
    pub(in crate::store) files: Files,
    contents: String,
}

fn state(slot: u64) -> Record {
    let entries = (0..20u64).map(|key| {
        let value = "v".repeat(1 + (key * slot % 50) as usize);
        let gone = key % 7 == slot % 7;
        let stored = (!gone).then(|| stored(&value, slot));
        (format!("key{key:02}").into(), stored)
    });
    let session = SessionImage {
        acked_below: slot,
        active_ms: slot * 10,
        results: vec![(slot, leasehold_wire::Outcome::missing())],
    };
    Record::from(StateChanges {
        executed: Slot(slot),
        config: ConfigId(1),
        log_time_ms: slot * 10,
        opens_from_ms: slot * 9,
        entries: entries.collect(),
        sessions: vec![(slot % 3, Some(session))],
        configs: Some(saved_configs(&[ConfigChange::default()]).0),
        listed: (0..20u64)
            .map(|key| {
                let versions = [(ConfigId(1), ReplicaSet(1 + (key * slot) % 7))];
                let gone = key % 7 == slot % 7;
                let row = (!gone).then(|| versions.into_iter().collect());
                (format!("listed{key:02}").into(), row)
            })
            .collect(),
    })
}

fn write_some(storage: &mut Storage, slots: std::ops::RangeInclusive<u64>) {
    for slot in slots {
        let start = Record::LogStart {
            log: LogId::Commands,
            ballot: ballot(slot),
            slot: Slot(slot),
        };
        let forget = Record::ForgetLogStarts {
            log: LogId::Commands,
            below: ballot(slot.saturating_sub(3)),
        };
        let text = "some text, to make it longer ".repeat((slot % 5) as usize);
        let group = [
            Record::Promised(ballot(slot)),
            accepted(slot, &text),
            start,
            forget,
            Record::RestartWait(Duration::from_millis(slot)),
        ];
        storage.write(&group).unwrap();
        if slot % 4 == 0 {
            storage.write(&[state(slot - 2)]).unwrap();
        }
    }
}

/// Flushes the state, as the flusher does.
pub(in crate::store) fn flush(storage: &Storage) {
    let applied = storage.applier.as_ref().unwrap().finish().unwrap();
    storage.engine.flush(applied).unwrap();
}

pub(in crate::store) fn open(path: &Path) -> Result<(Storage, RecoveredState), StorageError> {
    let options = StorageOptions {
        tables: 64,
        segment_bytes: Some(8 << 10),
        ..StorageOptions::default()
    };
    Storage::open_with(path, &stamp(), options)
}

impl Specimen {
    pub(in crate::store) fn new() -> Specimen {
        let dir = tempfile::tempdir().unwrap();
        let (mut storage, _) = open(dir.path()).unwrap();
        let life = |replica, life| Record::Life {
            replica: ReplicaId(replica),
            life,
        };
        let joined = [life(0, 7), life(2, 9), Record::Joined, configured(1)];
        storage.write(&joined).unwrap();
        write_some(&mut storage, 1..=20);
        flush(&storage);
        drop(storage);
        let (mut storage, _) = open(dir.path()).unwrap();
        write_some(&mut storage, 21..=30);
        flush(&storage);
        write_some(&mut storage, 31..=42);
        // RocksDB flushes when it is closed, but not when its process is killed.
        let files = files(dir.path());
        drop(storage);
        let contents = read(&files).unwrap();
        let of = |end: &str| files.keys().filter(|name| name.ends_with(end)).count();
        let are_there = of(".sst") >= 3 && of(".seg") >= 3;
        assert!(are_there, "{:?}", files.keys());
        Specimen { files, contents }
    }

    /// Applies `change` to a copy of the files. Returns the message with which the store refuses
    /// the changed files; `None` if the store still reads the same contents.
    fn with(&self, name: &str, change: impl FnOnce(&mut Files)) -> Option<String> {
        let mut files = self.files.clone();
        change(&mut files);
        match read(&files) {
            Ok(contents) => {
                assert_eq!(contents, self.contents, "{name}: other contents");
                None
            }
            Err(error) => Some(error.to_string()),
        }
    }
}

/// Returns the files of a data directory. The key of each file is its path within the directory.
pub(in crate::store) fn files(path: &Path) -> Files {
    let mut found = Files::new();
    for (folder, prefix) in [(path.to_owned(), ""), (path.join("log"), "log/")] {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let is_needed = name != "LOCK" && !name.starts_with("LOG") && name != "spare";
            if is_needed && entry.file_type().unwrap().is_file() {
                let bytes = fs::read(entry.path()).unwrap();
                // RocksDB makes a write-ahead log, which stays empty.
                if !bytes.is_empty() {
                    found.insert(format!("{prefix}{name}"), bytes);
                }
            }
        }
    }
    found
}

pub(in crate::store) fn lay_out(files: &Files) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("log")).unwrap();
    for (name, bytes) in files {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    dir
}

/// Returns everything that the store reads from these files, as text.
fn read(files: &Files) -> Result<String, StorageError> {
    let dir = lay_out(files);
    let (mut storage, recovered) = open(dir.path())?;
    let mut log = |log| storage.read_log(log, Slot(1), Slot(u64::MAX >> 1), usize::MAX);
    let logs = [log(LogId::Commands)?, log(LogId::Configs)?];
    Ok(format!("{recovered:?} {logs:?}"))
}

/// Asserts that the message of a refusal helps the operator. The message must name the damaged file
/// or its kind, and must mention the need for a recent copy.
fn assert_helpful(name: &str, message: &str) {
    let names = match name {
        _ if message.contains(name) => true,
        _ if name.ends_with(".seg") => message.contains("log/"),
        _ if name.ends_with(".log") => message.contains("the .log files"),
        _ if name.ends_with(".sst") => message.contains("the .sst files"),
        _ => false,
    };
    assert!(names, "{name} is not named: {message}");
    assert!(message.contains("a copy made since"), "{name}: {message}");
}

/// Returns the offsets of the record headers in a log of RocksDB. These headers need tests, because
/// RocksDB uses two parts of a header unchecked. No checksum covers the length, and RocksDB reads
/// the kind before it checks the checksum.
fn headers(log: &[u8]) -> Vec<usize> {
    let (mut headers, mut at) = (Vec::new(), 0);
    while at + HEADER_BYTES < log.len() {
        if BLOCK_BYTES - at % BLOCK_BYTES < HEADER_BYTES {
            at = at.next_multiple_of(BLOCK_BYTES);
            continue;
        }
        headers.push(at);
        let length = u16::from_le_bytes([log[at + 4], log[at + 5]]);
        at += HEADER_BYTES + usize::from(length);
    }
    assert_eq!(at, log.len(), "records fill the log");
    headers
}

/// Returns the bits to flip, each as a file and the position of the bit.
pub(in crate::store) fn bits(files: &Files) -> Vec<(&str, usize)> {
    let flips = std::env::var("LEASEHOLD_FLIPS").ok();
    let flips: usize = flips.map_or(3000, |text| text.parse().unwrap());
    let (small, large): (Vec<_>, Vec<_>) = files
        .iter()
        .partition(|(_, bytes)| bytes.len() <= SMALL_BYTES);
    let mut bits = Vec::new();
    for (name, bytes) in small {
        bits.extend((0..bytes.len() * 8).map(|bit| (name.as_str(), bit)));
    }
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    for (name, bytes) in &large {
        // RocksDB does not read its OPTIONS unless it is configured to.
        let share = if name.starts_with("OPTIONS") {
            20
        } else {
            flips / large.len()
        };
        let all = bytes.len() * 8;
        // Half of the flips are at the end of the file, which holds footers, and records that may
        // look torn.
        let from = |nth: usize| {
            if nth.is_multiple_of(2) {
                0
            } else {
                all - all.min(1600)
            }
        };
        bits.extend((0..share).map(|nth| (name.as_str(), rng.random_range(from(nth)..all))));
        if name.ends_with(".log") || name.starts_with("MANIFEST") {
            let last = headers(bytes).into_iter().rev().take(2);
            let of_header = last.flat_map(|at| at * 8..(at + HEADER_BYTES) * 8);
            bits.extend(of_header.map(|bit| (name.as_str(), bit)));
        }
    }
    bits
}

#[test]
fn no_flipped_bit_goes_unnoticed() {
    let specimen = Specimen::new();
    let bits = bits(&specimen.files);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut tally: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
        while let Some((name, bit)) = bits.get(next.fetch_add(1, Ordering::Relaxed)) {
            let place = format!("{name}, bit {bit}");
            let refused = specimen.with(&place, |files| {
                files.get_mut(*name).unwrap()[bit / 8] ^= 1 << (bit % 8);
            });
            tally.entry(*name).or_default()[usize::from(refused.is_some())] += 1;
            if let Some(message) = refused {
                assert_helpful(name, &message);
            }
        }
        tally
    };
    let tallies = std::thread::scope(|scope| {
        let threads = [scope.spawn(work), scope.spawn(work)];
        threads.map(|thread| thread.join().unwrap())
    });
    let mut sum: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
    for (name, [no_effect, refused]) in tallies.into_iter().flatten() {
        let entry = sum.entry(name).or_default();
        entry[0] += no_effect;
        entry[1] += refused;
    }
    println!(
        "{} bits; by file [without effect, refused]: {sum:?}",
        bits.len()
    );
    for (name, [no_effect, refused]) in sum {
        match name {
            "CURRENT" | marker::NAME => assert_eq!(no_effect, 0, "{name}"),
            _ if name == "IDENTITY" || name.starts_with("OPTIONS") => {}
            _ => assert!(refused > 0, "{name}: no flip was ever noticed"),
        }
    }
}

#[test]
fn no_file_may_be_missing_or_cut_off() {
    let specimen = Specimen::new();
    for (name, bytes) in &specimen.files {
        let length = bytes.len();
        let missing = specimen.with(name, |files| {
            files.remove(name);
        });
        let cuts = [0, length / 2, length - 1].map(|keep| {
            let refused = specimen.with(name, |files| files.get_mut(name).unwrap().truncate(keep));
            // A segment may lose zeros that were never overwritten.
            let has_effect = !name.ends_with(".seg") || bytes[keep..].iter().any(|it| *it != 0);
            (refused, has_effect)
        });
        // RocksDB can start without these files.
        let needless = name == "IDENTITY" || name.starts_with("OPTIONS");
        for (refused, has_effect) in [(missing, true)].into_iter().chain(cuts) {
            let is_missed = needless || !has_effect || refused.is_some();
            assert!(is_missed, "{name} is not missed");
            if let Some(message) = refused {
                assert_helpful(name, &message);
            }
        }
    }
}

#[test]
fn a_directory_that_was_never_ready_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(
        Marker::open(dir.path(), 7).unwrap(),
        MarkerState::Marked(_)
    ));
    // The process is killed here, after RocksDB has created a part of its files.
    fs::write(dir.path().join("MANIFEST-000001"), "half").unwrap();
    let (_, recovered) = open(dir.path()).unwrap();
    assert_eq!((recovered.life, recovered.joined), (7, false));
}

#[test]
fn files_of_two_directories_are_no_directory() {
    let of = || {
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path()).unwrap());
        files(dir.path())
    };
    let (mut one, other) = (of(), of());
    one.insert(marker::NAME.to_owned(), other[marker::NAME].clone());
    let message = read(&one).err().unwrap().to_string();
    assert!(message.contains("is damaged"), "{message}");
}

//! Tests that values that were written before their checkpoint take effect together with the
//! checkpoint, and not earlier.

use std::collections::BTreeMap;
use std::path::Path;

use leasehold_leases::{ConfigId, Slot};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;
use rocksdb::IteratorMode;

use super::*;
use crate::store::records::Column;
use crate::store::rocks::tests::{stamp, stored};
use crate::store::{Durability, Storage, StorageError, StorageOptions};
use leasehold_replica::action::{Checkpoint, Record, RecoveredState, StoredValue};

fn open(path: &Path) -> (Storage, RecoveredState) {
    Storage::open(path, &stamp(), Durability::Sync).unwrap()
}

fn staged(key: &'static str, value: &str, slot: u64) -> Record {
    Record::Staged(vec![(key.into(), stored(value, slot))])
}

fn checkpoint(executed: u64, entries: Vec<(&'static str, Option<StoredValue>)>) -> Record {
    let entries = entries.into_iter();
    Record::Checkpoint(Checkpoint {
        executed: Slot(executed),
        config: ConfigId(1),
        entries: entries.map(|(key, stored)| (key.into(), stored)).collect(),
        ..Checkpoint::default()
    })
}

fn version(slot: u64) -> Version {
    Version { slot, index: 0 }
}

/// Returns the rows of staged values, each as the key and the slot of its version.
fn rows(storage: &Storage) -> Vec<(Key, u64)> {
    let handle = Column::Staged.handle(&storage.db);
    let rows = storage.db.iterator_cf(handle, IteratorMode::Start);
    let parsed = rows.map(|row| parse_row(&row.unwrap().0).unwrap());
    parsed.map(|(key, version)| (key, version.slot)).collect()
}

fn state(recovered: &RecoveredState) -> Vec<(Key, StoredValue)> {
    let entries = recovered.state.entries.iter().cloned();
    entries
        .map(|(key, stored)| (key, stored.unwrap()))
        .collect()
}

#[test]
fn a_value_counts_with_the_checkpoint_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let (mut storage, _) = open(dir.path());
    let before = checkpoint(1, vec![("a", Some(stored("first", 1)))]);
    storage.write(&[before]).unwrap();
    storage.write(&[staged("a", "second", 2)]).unwrap();
    storage.write(&[staged("b", "new", 3)]).unwrap();
    assert_eq!(rows(&storage), [("a".into(), 2), ("b".into(), 3)]);
    drop(storage);

    let (mut storage, recovered) = open(dir.path());
    assert_eq!(state(&recovered), [("a".into(), stored("first", 1))]);
    assert_eq!(rows(&storage), [], "what no checkpoint names is removed");
    let entries = vec![
        ("a", Some(stored("second", 2))),
        ("b", Some(stored("new", 3))),
    ];
    storage.write(&[staged("a", "second", 2)]).unwrap();
    storage
        .write(&[staged("b", "new", 3), checkpoint(3, entries)])
        .unwrap();
    let row = storage.db.get_cf(Column::State.handle(&storage.db), "a");
    let row = row.unwrap().unwrap();
    assert!(
        !row.windows(6).any(|bytes| bytes == b"second"),
        "it is written once"
    );
    drop(storage);

    let (storage, recovered) = open(dir.path());
    let expected = [
        ("a".into(), stored("second", 2)),
        ("b".into(), stored("new", 3)),
    ];
    assert_eq!(state(&recovered), expected);
    assert_eq!(rows(&storage).len(), 2);
}

#[test]
fn a_row_goes_with_the_checkpoint_that_replaces_it() {
    let dir = tempfile::tempdir().unwrap();
    let (mut storage, _) = open(dir.path());
    let mut write = |records: &[Record]| storage.write(records).unwrap();
    write(&[
        staged("a", "1", 1),
        staged("b", "2", 2),
        staged("c", "3", 3),
    ]);
    write(&[checkpoint(
        3,
        vec![
            ("a", Some(stored("1", 1))),
            ("b", Some(stored("2", 2))),
            ("c", Some(stored("3", 3))),
        ],
    )]);
    write(&[staged("a", "4", 4)]);
    write(&[checkpoint(
        6,
        vec![
            ("a", Some(stored("4", 4))),
            ("b", None),
            ("c", Some(stored("short", 6))),
        ],
    )]);
    assert_eq!(rows(&storage), [("a".into(), 4)]);
    drop(storage);
    // A start knows the rows that the next checkpoint replaces.
    let (mut storage, recovered) = open(dir.path());
    let kept = [
        ("a".into(), stored("4", 4)),
        ("c".into(), stored("short", 6)),
    ];
    assert_eq!(state(&recovered), kept);
    storage
        .write(&[checkpoint(7, vec![("a", Some(stored("5", 7)))])])
        .unwrap();
    assert_eq!(rows(&storage), []);
}

#[test]
fn what_a_full_disk_refused_is_not_named() {
    let dir = tempfile::tempdir().unwrap();
    let full = dir.path().join("full");
    let options = StorageOptions {
        durability: Durability::Sync,
        tables: 100,
        full_while: Some(full.clone()),
        ..StorageOptions::default()
    };
    let data = dir.path().join("data");
    let (mut storage, _) = Storage::open_with(&data, &stamp(), options).unwrap();
    std::fs::write(&full, "").unwrap();
    let refused = storage.write(&[staged("a", "value", 1)]);
    assert!(matches!(refused, Err(StorageError::Full { .. })));
    std::fs::remove_file(&full).unwrap();
    storage
        .write(&[checkpoint(1, vec![("a", Some(stored("value", 1)))])])
        .unwrap();
    drop(storage);
    let (_, recovered) = open(&data);
    assert_eq!(state(&recovered), [("a".into(), stored("value", 1))]);
}

#[test]
fn a_missing_row_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let (mut storage, _) = open(dir.path());
    storage
        .write(&[
            staged("a", "value", 1),
            checkpoint(1, vec![("a", Some(stored("value", 1)))]),
        ])
        .unwrap();
    let handle = Column::Staged.handle(&storage.db);
    storage.db.delete_cf(handle, row(b"a", version(1))).unwrap();
    drop(storage);
    let refused = Storage::open(dir.path(), &stamp(), Durability::Sync);
    let message = refused.err().unwrap().to_string();
    let expected = "state/a is damaged (its value is missing)";
    assert!(message.contains(expected), "{message}");
}

/// A start finds the newest checkpoint, and only the rows that this checkpoint names, even if some
/// run has staged other values.
#[test]
fn a_start_finds_the_newest_checkpoint_whatever_was_written_ahead() {
    const KEYS: [&str; 4] = ["a", "b", "c", "d"];
    let durabilities = [Durability::Sync, Durability::Async, Durability::None];
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    for run in 0..12 {
        let dir = tempfile::tempdir().unwrap();
        let durability = durabilities[run % 3];
        let open = || Storage::open(dir.path(), &stamp(), durability).unwrap();
        let (mut storage, _) = open();
        // Executed state, and the state of the newest checkpoint.
        let mut executed: BTreeMap<Key, StoredValue> = BTreeMap::new();
        let mut durable = executed.clone();
        let mut slot = 0;
        for _ in 0..100 {
            slot += 1;
            let key = KEYS[rng.random_range(0..KEYS.len())];
            match rng.random_range(0..10) {
                0..5 => {
                    executed.insert(key.into(), stored(&format!("value {slot}"), slot));
                }
                5 => {
                    executed.remove(key.as_bytes());
                }
                6..8 => {
                    let some = executed.iter().filter(|_| rng.random());
                    let some = some.map(|(key, stored)| (key.clone(), stored.clone()));
                    let ahead = Record::Staged(some.collect());
                    storage.write(&[ahead]).unwrap();
                }
                8 => {
                    let entries = KEYS.map(|key| (key, executed.get(key.as_bytes()).cloned()));
                    storage
                        .write(&[checkpoint(slot, entries.to_vec())])
                        .unwrap();
                    durable = executed.clone();
                }
                _ => {
                    match durability {
                        Durability::None => storage.close().unwrap(),
                        Durability::Sync | Durability::Async => drop(storage),
                    }
                    let recovered;
                    (storage, recovered) = open();
                    let found: BTreeMap<Key, StoredValue> = state(&recovered).into_iter().collect();
                    assert_eq!(found, durable);
                    for (key, slot) in rows(&storage) {
                        assert_eq!(durable[&key].version, version(slot), "{key:?}");
                    }
                    // A replay of the log gives some values their versions again.
                    if rng.random() {
                        executed = durable.clone();
                    }
                }
            }
        }
    }
}

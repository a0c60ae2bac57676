//! Tests of syncs: those that fail, and those that other data waits for.
//!
//! A test cannot make a real disk fail. So the log writes to `/dev/null` instead of its segment: each
//! write succeeds, and each sync fails.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

use leasehold_leases::Slot;

use super::{
    Durability, Storage, StorageError, accepted, checkpoint, open, segments, stamp, stored,
};

/// Replaces the segment in use by a file that cannot be synced.
fn break_log(storage: &mut Storage) {
    let null = File::options().read(true).write(true).open("/dev/null");
    storage.log.replace_segment(null.unwrap());
}

fn assert_unsynced(result: Result<(), StorageError>) {
    match result {
        Err(StorageError::Engine { doing, .. }) => assert_eq!(doing, "syncing the log"),
        other => panic!("{other:?}"),
    }
}

/// A full disk would be tried again. A failed sync must not be: the next one may succeed, although
/// the data is lost.
#[test]
fn h119_a_failed_sync_is_final() {
    let dir = tempfile::tempdir().unwrap();
    let (mut storage, _) = open(dir.path());
    storage.write(&[accepted(1, "v")]).unwrap();
    break_log(&mut storage);
    let refused = storage.write(&[accepted(2, "v")]);
    assert!(!refused.as_ref().is_err_and(StorageError::is_full));
    assert_unsynced(refused);
}

/// Whether opening a directory writes to the file at `path`.
fn is_written_by_open(directory: &Path, path: &Path) -> bool {
    let earlier = SystemTime::now() - Duration::from_secs(3600);
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(earlier).unwrap();
    drop(file);
    drop(Storage::open(directory, &stamp(), Durability::Sync));
    let modified = fs::metadata(path).unwrap().modified().unwrap();
    modified > earlier + Duration::from_secs(60)
}

#[test]
fn h119_a_start_writes_again_what_it_has_found() {
    let dir = tempfile::tempdir().unwrap();
    let (mut storage, _) = open(dir.path());
    storage.write(&[accepted(1, "v")]).unwrap();
    drop(storage);
    let log = dir.path().join("log");
    let last = log.join(segments(dir.path()).pop().unwrap());
    assert!(is_written_by_open(dir.path(), &last));
    // The marker is written before the log is looked at. A later write of the marker is never
    // reached, because the log is gone.
    fs::remove_dir_all(log).unwrap();
    assert!(is_written_by_open(
        dir.path(),
        &dir.path().join("LEASEHOLD")
    ));
}

/// Returns the last slot that the state on a disk covers, as a start finds it after a kill.
fn executed_on_disk(path: &Path) -> Slot {
    let left = super::super::damage::lay_out(&super::super::damage::files(path));
    let (_, recovered) = open(left.path());
    recovered.state.executed
}

#[test]
fn h120_changes_are_not_applied_if_the_log_is_not_synced() {
    let dir = tempfile::tempdir().unwrap();
    let (mut storage, _) = open(dir.path());
    storage.write(&[accepted(1, "v")]).unwrap();
    break_log(&mut storage);
    let changes = checkpoint(2, "k", Some(stored("v", 2)));
    assert_unsynced(storage.write(&[accepted(2, "v"), changes]));
    let applier = storage.applier.as_ref().unwrap();
    assert_eq!(applier.finish().unwrap().commands, Slot(0));
}

/// With durability `async`, changes may be applied before the log is synced, but not flushed.
#[test]
fn h120_the_state_is_not_flushed_if_the_log_is_not_synced() {
    let dir = tempfile::tempdir().unwrap();
    let (mut storage, _) = Storage::open(dir.path(), &stamp(), Durability::Async).unwrap();
    let changes = checkpoint(1, "k", Some(stored("v", 1)));
    storage.write(&[accepted(1, "v"), changes]).unwrap();
    break_log(&mut storage);
    let flushed = storage.flush(Box::new(|flushed| panic!("{flushed:?}")));
    assert_unsynced(flushed);
    assert_eq!(executed_on_disk(dir.path()), Slot(0));
}

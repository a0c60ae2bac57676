//! Tests on a disk that is really full. The disk is a file system of a few MiB that the test
//! mounts. The path of the mount contains words that also occur in errors of RocksDB.

use std::path::{Path, PathBuf};
use std::process::Command;

use std::time::{Duration, Instant};

use super::tests::{accepted, checkpoint, stamp, stored};
use super::*;

/// A mounted file system. Dropping this value unmounts it.
pub(in crate::store) struct MountedDisk(tempfile::TempDir);

impl MountedDisk {
    /// Mounts a file system of `mib` MiB. If mounting is impossible, prints the reason on standard
    /// error and returns `None`.
    pub(in crate::store) fn new(mib: u32) -> Option<MountedDisk> {
        MountedDisk::with(&format!("size={mib}m"))
    }

    fn with(options: &str) -> Option<MountedDisk> {
        let dir = tempfile::tempdir().unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(dir.path())
            .output();
        match mount {
            Ok(done) if done.status.success() => Some(MountedDisk(dir)),
            Ok(refused) => {
                let why = String::from_utf8_lossy(&refused.stderr).into_owned();
                eprintln!("skipped, for no file system can be mounted: {}", why.trim());
                None
            }
            Err(error) => {
                eprintln!("skipped, for mount cannot be run: {error}");
                None
            }
        }
    }

    pub(in crate::store) fn resize(&self, mib: u32) {
        let mount = Command::new("mount")
            .args(["-o", &format!("remount,size={mib}m")])
            .arg(self.0.path())
            .status();
        assert!(mount.unwrap().success());
    }

    pub(in crate::store) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for MountedDisk {
    fn drop(&mut self) {
        // Unmounted lazily: a process that still has a file of the disk open closes the file later.
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

/// Writes until the disk has no space. Returns the slot of the refused write.
fn fill(storage: &mut Storage) -> u64 {
    let text = "x".repeat(64 << 10);
    for slot in 1..4096 {
        match storage.write(&[accepted(slot, &text)]) {
            Ok(()) => {}
            Err(StorageError::Full { .. }) => return slot,
            Err(error) => panic!("a full disk is not told from another failure: {error}"),
        }
    }
    panic!("the disk has no end");
}

/// Repeats a write until it is accepted, as the storage's thread does.
fn again(storage: &mut Storage, slot: u64) {
    for _ in 0..600 {
        match storage.write(&[accepted(slot, "after")]) {
            Ok(()) => return,
            Err(StorageError::Full { .. }) => {
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            Err(error) => panic!("a disk with room again is not written to: {error}"),
        }
    }
    panic!("the storage never goes on");
}

#[test]
fn a_disk_that_is_really_full_is_told_and_written_to_again_whatever_its_path() {
    for name in ["plain", "sync", "LOCK", "fsync: LOCK"] {
        let Some(disk) = MountedDisk::new(12) else {
            return;
        };
        let path: PathBuf = disk.path().join(name).join("A");
        let (mut storage, _) = Storage::open(&path, &stamp(), Durability::Sync).unwrap();
        let refused = fill(&mut storage);
        assert!(refused > 1, "something fits");
        disk.resize(256);
        again(&mut storage, refused);
        storage.close().unwrap();
        let (_, recovered) = Storage::open(&path, &stamp(), Durability::Sync).unwrap();
        let slots: Vec<u64> = recovered.accepted.iter().map(|e| e.slot.0).collect();
        let all: Vec<u64> = (1..=refused).collect();
        assert_eq!(slots, all, "{name}: what was acknowledged is there");
    }
}

#[test]
fn a_directory_in_use_is_told_from_a_full_disk() {
    let Some(disk) = MountedDisk::new(12) else {
        return;
    };
    let path = disk.path().join("No space left on device: sync");
    let (_storage, _) = Storage::open(&path, &stamp(), Durability::Sync).unwrap();
    let second = Storage::open(&path, &stamp(), Durability::Sync);
    assert!(matches!(second.err(), Some(StorageError::Locked { .. })));
}

/// Without a lock that is taken first, the second start may find files that the first is renaming.
#[test]
fn of_two_starts_at_the_same_moment_one_finds_the_directory_in_use() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..20 {
        // Half of the starts make the directory.
        let path = dir.path().join((round / 2).to_string());
        let open = || Storage::open(&path, &stamp(), Durability::Sync).map(|(storage, _)| storage);
        let opened = std::thread::scope(|scope| {
            [scope.spawn(open), scope.spawn(open)].map(|thread| thread.join().unwrap())
        });
        let refused = opened.iter().filter_map(|it| it.as_ref().err());
        let is_locked = |error: &StorageError| matches!(error, StorageError::Locked { .. });
        let refused: Vec<bool> = refused.map(is_locked).collect();
        assert_eq!(refused, [true]);
    }
}

#[test]
fn a_disk_that_is_mounted_for_reading_only_is_reported() {
    use crate::store::inspect::{StartEffect, StoppedDirectory};
    let Some(disk) = MountedDisk::new(64) else {
        return;
    };
    let path = disk.path().join("A");
    let (storage, _) = Storage::open(&path, &stamp(), Durability::Sync).unwrap();
    storage.close().unwrap();
    let effects = || {
        let problems = StoppedDirectory::open(&path).unwrap().verify().problems;
        problems.iter().map(|it| it.effect).collect::<Vec<_>>()
    };
    assert_eq!(effects(), []);
    let mut mount = Command::new("mount");
    mount.args(["-o", "remount,ro"]).arg(disk.path());
    assert!(mount.status().unwrap().success());
    assert_eq!(effects(), [StartEffect::Unwritable; 2]);
    assert!(Storage::open(&path, &stamp(), Durability::Sync).is_err());
}

/// Creates files in a new directory until the disk has no free inode. Dropping the returned
/// directory removes the files.
fn take_inodes(disk: &MountedDisk) -> tempfile::TempDir {
    let taken = tempfile::tempdir_in(disk.path()).unwrap();
    for number in 0.. {
        if std::fs::write(taken.path().join(number.to_string()), "").is_err() {
            break;
        }
    }
    taken
}

#[test]
fn a_disk_without_inodes_has_no_room_until_there_are_some_again() {
    let Some(disk) = MountedDisk::with("size=200m,nr_inodes=200") else {
        return;
    };
    let (mut storage, _) =
        Storage::open(&disk.path().join("A"), &stamp(), Durability::Sync).unwrap();
    assert!(storage.has_room().unwrap());
    let taken = take_inodes(&disk);
    let refused = fill(&mut storage);
    assert!(refused > 1, "something fits");
    assert!(!storage.has_room().unwrap());
    drop(taken);
    assert!(storage.has_room().unwrap());
    assert!(!disk.path().join("A").join(PROBE).exists());
}

#[test]
fn a_disk_that_is_said_to_be_full_has_no_room() {
    let dir = tempfile::tempdir().unwrap();
    let order = dir.path().join("full");
    let options = StorageOptions {
        tables: 64,
        full_while: Some(order.clone()),
        ..StorageOptions::default()
    };
    let (storage, _) = Storage::open_with(&dir.path().join("A"), &stamp(), options).unwrap();
    assert!(storage.has_room().unwrap());
    std::fs::write(&order, "").unwrap();
    assert!(!storage.has_room().unwrap());
}

const RESERVE: u64 = 24 << 20;

fn open_with_reserve(path: &Path) -> Result<Storage, StorageError> {
    let options = StorageOptions {
        tables: 64,
        reserve_bytes: RESERVE,
        ..StorageOptions::default()
    };
    Storage::open_with(path, &stamp(), options).map(|(storage, _)| storage)
}

/// Takes all space of the disk. Dropping the returned file frees the space.
fn take_space(disk: &MountedDisk) -> tempfile::NamedTempFile {
    let mut filler = tempfile::NamedTempFile::new_in(disk.path()).unwrap();
    let part = vec![1; 64 << 10];
    while filler.write_all(&part).is_ok() {}
    filler
}

/// Waits until the condition holds.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn flush(storage: &mut Storage) -> PerLog<Slot> {
    let (report, reports) = std::sync::mpsc::channel();
    let report = move |flushed| report.send(flushed).unwrap();
    storage.flush(Box::new(report)).unwrap();
    reports
        .recv_timeout(Duration::from_secs(60))
        .unwrap()
        .unwrap()
}

#[test]
fn a_full_disk_gives_up_the_reserve_for_what_was_refused_and_a_flush() {
    let Some(disk) = MountedDisk::new(80) else {
        return;
    };
    let mut storage = open_with_reserve(&disk.path().join("A")).unwrap();
    let value = Some(stored(&"v".repeat(1 << 20), 1));
    storage.write(&[checkpoint(1, "k", value)]).unwrap();
    let filler = take_space(&disk);
    assert!(!storage.lacks_reserve());
    let refused = fill(&mut storage);
    assert!(storage.lacks_reserve());
    // No room is made by anybody else.
    again(&mut storage, refused);
    assert_eq!(flush(&mut storage).commands, Slot(1));
    assert!(storage.lacks_reserve());
    drop(filler);
    until("the reserve is made again", || !storage.lacks_reserve());
    storage.close().unwrap();
}

#[test]
fn a_start_on_a_full_disk_gives_up_the_reserve() {
    let Some(disk) = MountedDisk::new(80) else {
        return;
    };
    let path = disk.path().join("A");
    open_with_reserve(&path).unwrap().close().unwrap();
    let filler = take_space(&disk);
    let mut storage = open_with_reserve(&path).unwrap();
    assert!(storage.lacks_reserve());
    storage.write(&[accepted(1, "v")]).unwrap();
    storage.close().unwrap();
    // The next start knows that the disk is full.
    let storage = open_with_reserve(&path).unwrap();
    assert!(storage.lacks_reserve());
    drop(filler);
    until("the reserve is made again", || !storage.lacks_reserve());
}

#[test]
fn a_first_start_on_a_full_disk_is_told_to_free_space() {
    let Some(disk) = MountedDisk::new(80) else {
        return;
    };
    let filler = take_space(&disk);
    let path = disk.path().join("A");
    let opened = open_with_reserve(&path).map(drop);
    assert!(
        matches!(opened, Err(StorageError::Full { .. })),
        "{opened:?}"
    );
    drop(filler);
    open_with_reserve(&path).unwrap().close().unwrap();
}

/// Opens a storage on the disk and applies a batch of changes, which is not flushed yet.
fn storage_to_flush(disk: &MountedDisk) -> Storage {
    let path = disk.path().join("A");
    let (mut storage, _) = Storage::open(&path, &stamp(), Durability::Sync).unwrap();
    let value = Some(stored(&"v".repeat(1 << 20), 1));
    storage.write(&[checkpoint(1, "k", value)]).unwrap();
    until("the batch is applied", || {
        !Store::check(&mut storage).unwrap()
    });
    storage
}

/// The log has room in its segment, so nothing else notices the full disk.
#[test]
fn a_flush_that_is_refused_is_noticed_although_nothing_else_is_written() {
    let Some(disk) = MountedDisk::new(80) else {
        return;
    };
    let mut storage = storage_to_flush(&disk);
    let filler = take_space(&disk);
    let (report, reports) = std::sync::mpsc::channel();
    let report = move |flushed: Result<_, _>| report.send(flushed.is_ok()).unwrap();
    storage.flush(Box::new(report)).unwrap();
    let mut is_refused = || matches!(Store::check(&mut storage), Err(StorageError::Full { .. }));
    until("the refusal is noticed", &mut is_refused);
    drop(filler);
    until("the flush goes on", || !is_refused());
    assert!(reports.recv_timeout(Duration::from_secs(60)).unwrap());
    assert!(!Store::check(&mut storage).unwrap());
}

/// RocksDB would repeat the refused flush for more than a minute before it closes.
#[test]
fn a_store_that_refuses_writes_is_closed_at_once() {
    let Some(disk) = MountedDisk::new(80) else {
        return;
    };
    let mut storage = storage_to_flush(&disk);
    let _filler = take_space(&disk);
    storage.flush(Box::new(|_| {})).unwrap();
    until("the refusal is noticed", || {
        Store::check(&mut storage).is_err()
    });
    let begun = Instant::now();
    storage.close().unwrap();
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
}

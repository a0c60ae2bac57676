//! Reserve of disk space: a file that holds no data, and is emptied when the disk is full.
//!
//! A truncation of the log frees space, but needs a flush of the state first, and the flush needs
//! space. RocksDB also stops for good if it lacks space for long. So the space of this file is
//! freed at the first write that the disk refuses. The space is meant for what was already
//! accepted: while the reserve is given up, the replica takes part in no new writes. When the free
//! space exceeds the length of the reserve by a quarter, the reserve is made again.
//!
//! # States of the file
//! - The file has its full length and takes its space: the reserve exists.
//! - The file is shorter: the reserve was given up. The file stays, so that the next start knows this.
//! - There is no file: the disk never had the space, the file system cannot reserve space, or an
//!   operator has removed the file. The replica then works without a reserve.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Mode, OFlags, Stat, fallocate, fstatvfs, openat, statat,
    unlinkat,
};

use super::RESERVE_MARGIN;
use super::log_files::is_full;

/// Name of the file.
pub(super) const NAME: &str = "reserve";
/// Interval between checks of the reserve.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of checks from one attempt to make the file to the next. After each failed
/// attempt, this number is doubled, because an attempt may take the last space for a moment.
const PATIENCE_MAX: u32 = 12;
/// Number of checks after which the missing reserve is reported again.
const REPORT_EVERY: u32 = 12;
/// Length, in bytes, of the blocks in which the operating system states the space of a file.
const BLOCK_BYTES: u64 = 512;
/// Permissions of the file, before the mask of the process is applied.
const MODE: u32 = 0o644;

/// Whether the reserve exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum ReserveState {
    /// The replica works without a reserve.
    Absent,
    /// The reserve exists.
    Whole,
    /// The reserve was given up, and is not made again yet.
    GivenUp,
}

/// The reserve of a data directory. The file is made at a start. Afterwards, a thread of its own
/// makes the file and gives it up, because a slow disk must not delay the threads that write.
pub(super) struct Reserve {
    state: Arc<AtomicU8>,
    orders: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Reserve {
    /// Makes the reserve if the disk has space for it, and starts the thread. `bytes` is the length
    /// of the reserve.
    ///
    /// # Errors
    /// The directory cannot be opened, or the operating system cannot start a thread.
    pub(super) fn start(directory: &Path, bytes: u64) -> io::Result<Reserve> {
        Reserve::start_every(CHECK_INTERVAL, directory, bytes)
    }

    fn start_every(interval: Duration, directory: &Path, bytes: u64) -> io::Result<Reserve> {
        let file = ReserveFile::new(directory, bytes)?;
        let state = Arc::new(AtomicU8::new(file.open_at_start() as u8));
        let (orders, ordered) = channel();
        let keeper = ReserveKeeper {
            file,
            state: state.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("reserve".to_owned())
            .spawn(move || keeper.run(interval, &ordered))?;
        Ok(Reserve {
            state,
            orders: Some(orders),
            thread: Some(thread),
        })
    }

    /// Gives the reserve up, if it exists. Returns at once; the thread frees the space.
    pub(super) fn give_up(&self) {
        let (whole, given_up) = (ReserveState::Whole as u8, ReserveState::GivenUp as u8);
        let ordering = Ordering::AcqRel;
        let changed = self
            .state
            .compare_exchange(whole, given_up, ordering, Ordering::Acquire);
        if changed.is_ok()
            && let Some(orders) = &self.orders
        {
            let _ = orders.send(());
        }
    }

    /// Whether the reserve was given up, and is not made again yet.
    pub(super) fn is_given_up(&self) -> bool {
        self.state.load(Ordering::Acquire) == ReserveState::GivenUp as u8
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Frees the space of the reserve for a start that finds the disk full. Returns whether any space
/// was freed.
pub(super) fn give_up_at_start(directory: &Path) -> bool {
    let Ok(file) = ReserveFile::new(directory, 0) else {
        return false;
    };
    let is_given_up = file.find().is_ok_and(|found| space(&found) > 0) && file.empty().is_ok();
    if is_given_up {
        let path = file.path.display();
        tracing::warn!("the disk is full: {path} is given up, so that the node can start");
    }
    is_given_up
}

/// State of the thread.
struct ReserveKeeper {
    file: ReserveFile,
    state: Arc<AtomicU8>,
}

impl ReserveKeeper {
    /// Gives the reserve up when this is ordered, and makes a missing reserve when the disk has the
    /// space. Returns when no further order can come.
    fn run(&self, interval: Duration, ordered: &Receiver<()>) {
        let (mut patience, mut waited, mut checks) = (1, 0, 0);
        loop {
            match ordered.recv_timeout(interval) {
                Ok(()) => {
                    self.file.give_up();
                    (patience, waited, checks) = (1, 0, 0);
                }
                Err(RecvTimeoutError::Timeout) => {
                    checks += 1;
                    waited += 1;
                    let is_due = waited >= patience;
                    match self.check(is_due, checks % REPORT_EVERY == 0) {
                        ReserveCheck::Done => patience = 1,
                        ReserveCheck::Failed => patience = (2 * patience).min(PATIENCE_MAX),
                        ReserveCheck::NotTried => {}
                    }
                    waited = if is_due { 0 } else { waited };
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Makes the reserve if it is missing, the disk has the space, and `tries` is true. Logs a
    /// warning if the replica waits for the reserve and `reports` is true. Also logs a warning if
    /// the replica stops waiting because the file cannot be made.
    fn check(&self, tries: bool, reports: bool) -> ReserveCheck {
        let before = self.state.load(Ordering::Acquire);
        let waits = before == ReserveState::GivenUp as u8;
        if self.file.is_whole() && waits {
            // The order to give it up is on its way.
            self.file.give_up();
            return ReserveCheck::NotTried;
        }
        if self.file.is_whole() {
            self.set(before, ReserveState::Whole);
            return ReserveCheck::Done;
        }
        let is_removed = self.file.find().is_err();
        if is_removed {
            // An operator wants the node to run without it.
            self.set(before, ReserveState::Absent);
        }
        let path = self.file.path.display();
        if !tries {
            return ReserveCheck::NotTried;
        }
        let Err(problem) = self.file.make() else {
            tracing::info!("the disk has enough space: {path} is made");
            self.set(self.state.load(Ordering::Acquire), ReserveState::Whole);
            return ReserveCheck::Done;
        };
        if !is_removed && !is_full(&problem) {
            self.set(before, ReserveState::Absent);
            if waits {
                tracing::warn!("{path} cannot be made again: {problem}. The node runs without it");
            }
        } else if !is_removed && waits && reports {
            tracing::warn!(
                "this replica still takes part in no writes, because {path} cannot be made again: \
                 {problem}. Free more space, or remove the file to run without it"
            );
        }
        // An error of the operating system has no inner error.
        let is_short = problem.kind() == ErrorKind::StorageFull && problem.get_ref().is_some();
        if is_short {
            ReserveCheck::NotTried
        } else {
            ReserveCheck::Failed
        }
    }

    /// Sets the state if it is still `before`.
    fn set(&self, before: u8, state: ReserveState) {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let _ = self
            .state
            .compare_exchange(before, state as u8, success, failure);
    }
}

/// Result of a check of the reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReserveCheck {
    /// The reserve exists.
    Done,
    /// The reserve is missing, and no attempt to make it was due or possible.
    NotTried,
    /// The attempt to make the reserve has failed.
    Failed,
}

/// The file. It is found through the open directory. So if another directory comes to the path of
/// the data directory, nothing is made there.
struct ReserveFile {
    directory: File,
    /// Path of the file, for messages.
    path: PathBuf,
    /// Length in bytes.
    bytes: u64,
}

impl ReserveFile {
    fn new(directory: &Path, bytes: u64) -> io::Result<ReserveFile> {
        Ok(ReserveFile {
            directory: File::open(directory)?,
            path: directory.join(NAME),
            bytes,
        })
    }

    /// Returns the properties of the file, or of anything else in its place.
    fn find(&self) -> io::Result<Stat> {
        Ok(statat(&self.directory, NAME, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Determines the state at a start. Makes the file if possible, and logs a warning otherwise.
    fn open_at_start(&self) -> ReserveState {
        let is_known = self.find().is_ok_and(|found| is_file(&found));
        let Err(problem) = self.make() else {
            return ReserveState::Whole;
        };
        let (path, mib) = (self.path.display(), self.bytes >> 20);
        // A file system that cannot reserve space is used without a reserve.
        if is_known && is_full(&problem) {
            tracing::warn!(
                "{path} was given up because the disk was full, and cannot be made again: {problem}. \
                 This replica takes part in no writes until {} MiB are free; or remove the file, to \
                 run without it",
                self.needed_mib()
            );
            // A crash may have left a part.
            let _ = self.empty();
            return ReserveState::GivenUp;
        }
        tracing::warn!(
            "{path}, a reserve of {mib} MiB for the case that the disk becomes full, cannot be made: \
             {problem}. The node runs without it; if the disk becomes full, the node may have to be \
             started again when the disk has space"
        );
        ReserveState::Absent
    }

    fn is_whole(&self) -> bool {
        // A copy of the directory may have the length, and no space.
        self.find().is_ok_and(|found| {
            is_file(&found) && found.st_size as u64 == self.bytes && space(&found) >= self.bytes
        })
    }

    /// Space besides the reserve that must be free, in bytes, so that the reserve is not given up
    /// again at once. With a larger margin, a truncation of the log might not free enough space on
    /// a disk that this replica has filled alone.
    fn margin(&self) -> u64 {
        self.bytes / RESERVE_MARGIN
    }

    /// Space that must be free before the reserve is made, in MiB.
    fn needed_mib(&self) -> u64 {
        (self.bytes + self.margin()) >> 20
    }

    /// Returns the free space of the disk in bytes.
    ///
    /// # Errors
    /// No inodes are free, or any error of the operating system.
    fn free(&self) -> io::Result<u64> {
        let found = fstatvfs(&self.directory)?;
        if found.f_files > 0 && found.f_favail == 0 {
            let problem = "no inodes are free";
            return Err(io::Error::new(ErrorKind::StorageFull, problem));
        }
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    /// Makes the file.
    ///
    /// # Errors
    /// The disk lacks the space, or any error of the operating system.
    fn make(&self) -> io::Result<()> {
        if self.is_whole() {
            return Ok(());
        }
        let free = self.free()?;
        if free < self.bytes + self.margin() {
            let (free, needed) = (free >> 20, self.needed_mib());
            let problem = format!("{free} MiB are free, and {needed} are needed");
            return Err(io::Error::new(ErrorKind::StorageFull, problem));
        }
        let is_new = self.find().is_err();
        let file = self.open(true)?;
        let made = fallocate(&file, FallocateFlags::empty(), 0, self.bytes)
            .map_err(io::Error::from)
            .and_then(|()| file.set_len(self.bytes))
            .and_then(|()| file.sync_all())
            .and_then(|()| self.check_made());
        if made.is_err() {
            // Nothing else frees the space that the part takes. An empty file would mean that the
            // reserve was given up.
            let _ = if is_new {
                unlinkat(&self.directory, NAME, AtFlags::empty()).map_err(io::Error::from)
            } else {
                file.set_len(0)
            };
        }
        made
    }

    /// Checks that the file takes its space, and that some space is left.
    ///
    /// # Errors
    /// Another program has taken the space meanwhile, or the file system reserves none.
    fn check_made(&self) -> io::Result<()> {
        if !self.is_whole() {
            return Err(io::Error::new(
                ErrorKind::Unsupported,
                "the file system reserves no space for it",
            ));
        }
        if self.free()? < self.margin() / 2 {
            return Err(io::Error::from_raw_os_error(
                rustix::io::Errno::NOSPC.raw_os_error(),
            ));
        }
        Ok(())
    }

    fn give_up(&self) {
        let path = self.path.display();
        match self.empty() {
            Ok(()) => tracing::warn!(
                "the disk is full: {path} is given up. This replica takes part in no writes until \
                 {} MiB are free; or remove the file, to run without it",
                self.needed_mib()
            ),
            Err(error) => {
                tracing::warn!("the disk is full, and {path} cannot be given up: {error}")
            }
        }
    }

    /// Frees the space of the file, and keeps the file.
    fn empty(&self) -> io::Result<()> {
        self.open(false)?.set_len(0)
    }

    /// Opens the file for writing. Does not follow links, and does not wait for the reader of a pipe.
    fn open(&self, makes: bool) -> io::Result<File> {
        let mut flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        if makes {
            flags |= OFlags::CREATE;
        }
        let mode = Mode::from_raw_mode(MODE);
        let file = File::from(openat(&self.directory, NAME, flags, mode)?);
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        Ok(file)
    }
}

fn is_file(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
}

/// Returns the space that a file takes on the disk, in bytes.
fn space(found: &Stat) -> u64 {
    found.st_blocks as u64 * BLOCK_BYTES
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    use super::*;
    use crate::store::rocks::small_disk::MountedDisk;

    const MIB: u64 = 1 << 20;
    const BYTES: u64 = 8 * MIB;
    const INTERVAL: Duration = Duration::from_millis(10);

    fn start(directory: &Path) -> Reserve {
        Reserve::start_every(INTERVAL, directory, BYTES).unwrap()
    }

    fn state(reserve: &Reserve) -> u8 {
        reserve.state.load(Ordering::Acquire)
    }

    fn until(condition: impl Fn() -> bool) {
        for _ in 0..1000 {
            if condition() {
                return;
            }
            std::thread::sleep(INTERVAL);
        }
        panic!("it never happens");
    }

    fn space(directory: &Path) -> u64 {
        let found = fs::symlink_metadata(directory.join(NAME));
        found.map_or(0, |found| found.blocks() * BLOCK_BYTES)
    }

    #[test]
    fn a_reserve_is_given_up_and_made_again_only_when_there_is_room_for_more() {
        let Some(disk) = MountedDisk::new(20) else {
            return;
        };
        let filler = disk.path().join("filler");
        let reserve = start(disk.path());
        assert_eq!(space(disk.path()), BYTES);
        assert!(!reserve.is_given_up());
        fs::write(&filler, vec![1; 11 << 20]).unwrap();
        reserve.give_up();
        assert!(reserve.is_given_up());
        until(|| space(disk.path()) == 0);
        // There is room for the reserve, but for nothing besides.
        std::thread::sleep(10 * INTERVAL);
        assert!(reserve.is_given_up());
        drop(reserve);
        // A start knows that the reserve was given up.
        let reserve = start(disk.path());
        assert!(reserve.is_given_up());
        fs::remove_file(&filler).unwrap();
        until(|| !reserve.is_given_up());
        assert_eq!(space(disk.path()), BYTES);
    }

    #[test]
    fn a_disk_without_room_for_the_reserve_is_used_without_it() {
        let Some(disk) = MountedDisk::new(9) else {
            return;
        };
        let reserve = start(disk.path());
        reserve.give_up();
        assert!(!reserve.is_given_up());
        assert!(!disk.path().join(NAME).exists());
        disk.resize(32);
        until(|| space(disk.path()) == BYTES);
        // An operator needs the space at once.
        disk.resize(9);
        fs::remove_file(disk.path().join(NAME)).unwrap();
        until(|| state(&reserve) == ReserveState::Absent as u8);
        assert!(!give_up_at_start(disk.path()));
    }

    #[test]
    fn nothing_is_made_in_another_directory_at_the_same_path() {
        let dir = tempfile::tempdir().unwrap();
        let (mine, other) = (dir.path().join("A"), dir.path().join("B"));
        fs::create_dir(&mine).unwrap();
        let reserve = start(&mine);
        if state(&reserve) != ReserveState::Whole as u8 {
            return; // The file system reserves no space.
        }
        fs::rename(&mine, &other).unwrap();
        fs::create_dir(&mine).unwrap();
        fs::remove_file(other.join(NAME)).unwrap();
        until(|| space(&other) == BYTES);
        assert!(!mine.join(NAME).exists());
    }

    #[test]
    fn a_reserve_whose_order_is_on_its_way_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let file = ReserveFile::new(dir.path(), BYTES).unwrap();
        let keeper = ReserveKeeper {
            state: Arc::new(AtomicU8::new(file.open_at_start() as u8)),
            file,
        };
        if !keeper.file.is_whole() {
            return; // The file system reserves no space.
        }
        let given_up = ReserveState::GivenUp as u8;
        keeper.state.store(given_up, Ordering::Release);
        assert_eq!(keeper.check(true, false), ReserveCheck::NotTried);
        assert_eq!(keeper.state.load(Ordering::Acquire), given_up);
        assert_eq!(space(dir.path()), 0);
    }

    #[test]
    fn a_copy_that_takes_no_space_is_no_reserve() {
        let Some(disk) = MountedDisk::new(32) else {
            return;
        };
        let copy = File::create(disk.path().join(NAME)).unwrap();
        copy.set_len(BYTES).unwrap();
        assert!(!give_up_at_start(disk.path()));
        let _reserve = start(disk.path());
        assert_eq!(space(disk.path()), BYTES);
        assert!(give_up_at_start(disk.path()));
        assert_eq!(space(disk.path()), 0);
    }

    #[test]
    fn what_stands_in_the_place_of_the_reserve_is_left_alone() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let dir = tempfile::tempdir().unwrap();
        let elsewhere = dir.path().join("elsewhere");
        fs::write(&elsewhere, "contents").unwrap();
        let path = dir.path().join(NAME);
        let link = || std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        let folder = || fs::create_dir(&path).unwrap();
        let pipe = || mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let places: [&dyn Fn(); 3] = [&link, &pipe, &folder];
        for place in places {
            let _ = fs::remove_file(&path);
            place();
            let reserve = start(dir.path());
            assert_eq!(state(&reserve), ReserveState::Absent as u8);
            assert!(!give_up_at_start(dir.path()));
        }
        assert_eq!(fs::read(&elsewhere).unwrap(), b"contents");
    }
}

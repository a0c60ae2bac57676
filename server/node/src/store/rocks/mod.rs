//! The store of a replica: the log in files of its own, and the executed state in RocksDB without a
//! write-ahead log ([`engine`]). Another thread than the log's changes the state ([`applier`]).
//!
//! Every value is stored with a checksum over its column family, its key and itself, because no
//! majority of replicas corrects a vote that is read with a flipped bit. The directory is stamped
//! with the name of its replica and cannot be opened for another replica (`open`). It also records
//! how much data it must contain ([`marker`]). `read` reads the rows that `records` writes.

mod applier;
#[cfg(test)]
pub(super) mod damage;
mod engine;
mod error_text;
mod errors;
pub(super) mod marker;
mod open;
pub(super) mod read;
pub(super) mod read_only;
pub mod records;
#[cfg(test)]
pub(super) mod small_disk;
pub mod staged;
mod takeover;
#[cfg(test)]
pub(super) mod tests;
mod wal;

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use leasehold_leases::Slot;
use leasehold_log::SegmentId;
use leasehold_replica::action::Record;
use leasehold_replica::message::{LogId, PerLog};

use self::applier::Applier;
use self::engine::Engine;
use super::log_files::LogFiles;
use super::reserve::Reserve;
use super::{
    DirectoryStamp, Durability, FlushReport, PreparedRead, StorageError, StorageOptions, Store,
};

/// Maximum total size in bytes of the memtables of all column families.
const WRITE_BUFFER_BYTES: usize = 64 << 20;
/// Name of the file that is written to test whether a full disk has space again. The file is large,
/// because RocksDB resumes writes only if the free space exceeds the size of its largest write
/// buffer.
const PROBE: &str = "LEASEHOLD.probe";
/// Size in bytes of the file [`PROBE`].
const PROBE_BYTES: usize = WRITE_BUFFER_BYTES / 2;

/// An open data directory.
pub struct Storage {
    /// Files of the log. They are closed before the database, because the database holds a lock of
    /// the directory, too.
    log: LogFiles,
    /// Thread that applies changes of the state; `None` while the directory is being opened.
    applier: Option<Applier>,
    engine: Arc<Engine>,
    durability: Durability,
    /// Number of records of a refused [`Storage::write`] call that are already in the log. These
    /// records are the first records of the call.
    logged: usize,
    /// Segments that the log no longer needs, with their lengths in bytes. The files of these
    /// segments must still be removed.
    unused: Vec<(SegmentId, usize)>,
    full_while: Option<PathBuf>,
    /// Lock of the directory; `None` while the directory is being opened. It is released last.
    lock: Option<File>,
}

impl Store for Storage {
    fn write(&mut self, records: &[Record]) -> Result<(), StorageError> {
        Storage::write(self, records)
    }

    fn prepare_read(
        &mut self,
        log: LogId,
        from: Slot,
        last: Slot,
        bytes_max: usize,
    ) -> Result<PreparedRead, StorageError> {
        let read = self.log.prepare_read(log, from, last, bytes_max)?;
        Ok(Box::new(|| read.perform()))
    }

    fn flush(&mut self, report: FlushReport) -> Result<(), StorageError> {
        Storage::flush(self, report)
    }

    fn truncate(&mut self, slots: PerLog<Slot>) -> Result<(), StorageError> {
        Storage::truncate(self, slots)
    }

    fn has_room(&self) -> Result<bool, StorageError> {
        Storage::has_room(self)
    }

    fn check(&mut self) -> Result<bool, StorageError> {
        let applier = self.applier.as_ref();
        applier.map_or(Ok(false), |it| it.check(&self.engine.path))
    }

    fn refusals(&self) -> u64 {
        self.engine.refusals.load(Ordering::Acquire)
    }

    fn lacks_reserve(&self) -> bool {
        let reserve = self.engine.reserve.as_ref();
        reserve.is_some_and(Reserve::is_given_up)
    }

    fn abandon(self: Box<Self>) {
        Storage::abandon(*self);
    }

    fn close(self: Box<Self>) -> Result<(), StorageError> {
        Storage::close(*self)
    }
}

impl Storage {
    /// Writes the records of the log atomically. Then hands the changes of the executed state over
    /// to the thread that applies them. Only a flush makes the changes durable.
    ///
    /// # Errors
    /// `Full`: the call must be repeated, and the repeated call may have further records. Any other
    /// error is final.
    pub fn write(&mut self, records: &[Record]) -> Result<(), StorageError> {
        self.refuse_by_order()?;
        self.log_once(records)?;
        if let Some(applier) = &self.applier {
            applier.wait_for_room(&self.engine.path)?;
        }
        self.hand_over(records)?;
        self.logged = 0;
        Ok(())
    }

    fn hand_over(&mut self, records: &[Record]) -> Result<(), StorageError> {
        let mut changes = records.iter().filter_map(|record| match record {
            Record::Changes(changes) => Some(changes),
            _ => None,
        });
        let Some(first) = changes.next() else {
            return Ok(());
        };
        // RocksDB may flush at any time, and the state must not get ahead of the log.
        let written = self.log.write_pending();
        written.map_err(|error| self.engine.unless_gone(error))?;
        // A directory that was taken away is noticed about a second after a write.
        self.engine.marker.check_place()?;
        self.log.check_place()?;
        if let Some(applier) = &self.applier {
            let all = [first].into_iter().chain(changes);
            all.for_each(|changes| applier.apply(changes.clone()));
        }
        Ok(())
    }

    /// Requests a flush of all changes that were written so far. The flush makes these changes
    /// durable. `report` is called when the flush has ended.
    ///
    /// # Errors
    /// The same errors as [`Storage::write`].
    pub fn flush(&mut self, report: FlushReport) -> Result<(), StorageError> {
        self.refuse_by_order()?;
        Store::check(self)?;
        // If the machine loses its power, the state should not be ahead of the log.
        let synced = self.log.sync_written();
        synced.map_err(|error| self.engine.unless_gone(error))?;
        self.mark_log()?;
        if let Some(applier) = &self.applier {
            applier.flush(report);
        }
        Ok(())
    }

    /// Forgets the log entries up to these slots, and removes the segments that the log no longer
    /// needs.
    ///
    /// # Errors
    /// The same errors as [`Storage::write`].
    pub fn truncate(&mut self, slots: PerLog<Slot>) -> Result<(), StorageError> {
        let truncated = self.log.truncate(slots);
        let unused = truncated.map_err(|error| self.engine.unless_gone(error))?;
        self.unused.extend(unused);
        if self.unused.is_empty() {
            return Ok(());
        }
        // A start must know that the segments are not missing.
        self.mark_log()?;
        let synced = self.engine.marker.sync();
        synced.map_err(|error| self.engine.unmarked(error))?;
        // Another directory may be at the path by now.
        self.engine.marker.check_place()?;
        self.log.remove_segments(std::mem::take(&mut self.unused));
        Ok(())
    }

    /// Writes records to the log, except those that a refused call has already written to it.
    fn log_once(&mut self, records: &[Record]) -> Result<(), StorageError> {
        let records = &records[self.logged..];
        // A run that ended as planned has left a restart wait of zero. If the next run lost the
        // wait that it wrote, the third run would vote while promises of the second are still
        // believed (hazard 15).
        let sync = self.durability == Durability::Sync
            || records.iter().any(|record| record.is_synced_always());
        let written = self.log.write(records, sync);
        written.map_err(|error| self.engine.unless_gone(error))?;
        self.logged += records.len();
        self.mark_log()
    }

    /// Notes in the marker file which groups of the log the next start must find. With durability
    /// `none`, only synced groups are noted, because other groups may be only in memory.
    fn mark_log(&self) -> Result<(), StorageError> {
        let is_synced = self.durability != Durability::Async;
        let marked = self.engine.marker.advance_log(self.log.marked(is_synced));
        marked.map_err(|error| self.engine.unmarked(error))
    }

    /// Writes all records that are only in memory to disk, and closes the directory. Leaves RocksDB
    /// open if it refuses writes, because it could then take more than a minute to close. The
    /// process must end after this call.
    ///
    /// # Errors
    /// `Full`, `Gone`, `Engine`.
    pub fn close(mut self) -> Result<(), StorageError> {
        let logged = self.complete_log();
        if self.applier.as_ref().is_some_and(Applier::is_full) {
            // The next start executes the log again.
            self.abandon();
            return logged;
        }
        logged?;
        let Some(applier) = self.applier.take() else {
            return Ok(());
        };
        let applied = applier.finish()?;
        drop(applier);
        match self.engine.flush(applied) {
            Err(StorageError::Full { .. }) => {
                self.abandon();
                Ok(())
            }
            flushed => flushed,
        }
    }

    /// Writes and syncs all groups of the log, and notes them in the marker file.
    fn complete_log(&mut self) -> Result<(), StorageError> {
        let synced = self.log.sync();
        synced.map_err(|error| self.engine.unless_gone(error))?;
        self.mark_log()
    }

    fn abandon(self) {
        if let Some(applier) = &self.applier {
            applier.stop();
        }
        std::mem::forget(self);
    }

    /// Returns true if a file of a few MiB can be created in the directory.
    ///
    /// # Errors
    /// `Gone`.
    fn has_room(&self) -> Result<bool, StorageError> {
        self.engine.marker.check_place()?;
        let probe = self.engine.path.join(PROBE);
        let has_room = !self.is_full_by_order() && fill(&probe).is_ok();
        // The file is overwritten if it cannot be removed.
        let _ = fs::remove_file(&probe);
        Ok(has_room)
    }

    /// Returns true if an experiment makes the store treat the disk as full.
    fn is_full_by_order(&self) -> bool {
        self.full_while.as_ref().is_some_and(|file| file.exists())
    }

    /// Refuses a write if an experiment makes the store treat the disk as full.
    fn refuse_by_order(&self) -> Result<(), StorageError> {
        if self.is_full_by_order() {
            let path = self.engine.path.clone();
            return Err(StorageError::Full { path });
        }
        Ok(())
    }
}

/// Creates a file of [`PROBE_BYTES`] bytes.
fn fill(path: &Path) -> io::Result<()> {
    let mut file = File::create(path)?;
    let part = vec![0; PROBE_BYTES / 8];
    (0..8).try_for_each(|_| file.write_all(&part))
}

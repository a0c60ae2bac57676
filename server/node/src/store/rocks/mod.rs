//! The store of a replica: the log in files of its own, and the executed state in RocksDB.
//!
//! Every value is stored with a checksum over its column family, its key and itself, because no
//! majority of replicas corrects a vote that is read with a flipped bit. The directory is stamped
//! with the name of its replica and cannot be opened for another replica (`open`). It also records
//! how much data it must contain ([`marker`]). `read` reads the rows that `records` writes.

#[cfg(test)]
mod damage;
mod error_text;
mod errors;
mod marker;
mod open;
mod read;
pub mod records;
#[cfg(test)]
mod small_disk;
pub mod staged;
mod takeover;
#[cfg(test)]
pub(super) mod tests;
mod wal;

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use leasehold_leases::Slot;
use leasehold_replica::action::Record;
use leasehold_replica::message::{LogId, Value};
use leasehold_replica::record_size_estimate;
use rocksdb::{DB, WriteBatch, WriteOptions};

use self::marker::Marker;
use self::records::Column;
use self::staged::StagedValues;
use super::log_files::LogFiles;
use super::{DirectoryStamp, Durability, StorageError, StorageOptions, Store, WRITE_BUFFER_BYTES};

/// Name of the file that is written to test whether a full disk has space again. RocksDB resumes
/// writes only if there is more space than its largest write buffer takes.
const PROBE: &str = "LEASEHOLD.probe";
/// Size of this file in bytes.
const PROBE_BYTES: usize = WRITE_BUFFER_BYTES / 2;

/// An open data directory.
pub struct Storage {
    /// Closed before the database, which holds the lock of the directory.
    log: LogFiles,
    db: DB,
    path: PathBuf,
    durability: Durability,
    /// Number of the first records of a refused [`Storage::write`] that are in the log already.
    logged: usize,
    marker: Marker,
    full_while: Option<PathBuf>,
    staged: StagedValues,
}

impl Store for Storage {
    fn write(&mut self, records: &[Record]) -> Result<(), StorageError> {
        Storage::write(self, records)
    }

    fn read_log(
        &self,
        log: LogId,
        from: Slot,
        last: Slot,
        bytes_max: usize,
    ) -> Result<Vec<(Slot, Value)>, StorageError> {
        Storage::read_log(self, log, from, last, bytes_max)
    }

    fn has_room(&self) -> Result<bool, StorageError> {
        Storage::has_room(self)
    }

    fn close(self: Box<Self>) -> Result<(), StorageError> {
        Storage::close(*self)
    }
}

impl Storage {
    /// Writes the records of the log atomically, and then those of the executed state atomically. A
    /// crash between them leaves a log that is ahead of the state, as any log is between two
    /// checkpoints.
    ///
    /// # Errors
    /// `Full`: the call must be repeated, and may have further records then. Any other error is
    /// final.
    pub fn write(&mut self, records: &[Record]) -> Result<(), StorageError> {
        self.refuse_by_order()?;
        self.log_once(records)?;
        let checkpoint = |record: &Record| matches!(record, Record::Checkpoint(_));
        let has_checkpoint = records.iter().any(checkpoint);
        if has_checkpoint {
            // The state must not get ahead of the log, also if the machine loses its power.
            let synced = self.log.sync_written();
            synced.map_err(|error| self.unless_gone(error))?;
        }
        if records.iter().any(records::is_of_state) {
            self.append(records, self.durability)?;
        }
        self.logged = 0;
        if !has_checkpoint {
            return Ok(());
        }
        if self.durability == Durability::Sync {
            let synced = self.marker.sync();
            synced.map_err(|error| self.unmarked(error))?;
        }
        self.marker.check_place()
    }

    /// Writes records to the log, except for those that are there since a refused call.
    fn log_once(&mut self, records: &[Record]) -> Result<(), StorageError> {
        let records = &records[self.logged..];
        // A run that ended as planned has left a restart wait of zero. If the next run lost the
        // wait that it wrote, the third run would vote while promises of the second are still
        // believed (hazard 15).
        let sync = self.durability == Durability::Sync
            || records.iter().any(|record| record.is_synced_always());
        let written = self.log.write(records, sync);
        written.map_err(|error| self.unless_gone(error))?;
        self.logged += records.len();
        self.mark_log()
    }

    /// Records in the marker file which groups of the log a start must find. With durability `none`
    /// only synced groups count, because others may be only in memory.
    fn mark_log(&self) -> Result<(), StorageError> {
        let is_synced = self.durability != Durability::Async;
        let marked = self.marker.advance_log(self.log.marked(is_synced));
        marked.map_err(|error| self.unmarked(error))
    }

    /// Writes all records that are only in memory to disk, and closes the directory.
    ///
    /// # Errors
    /// `Full`, `Gone`, `Engine`.
    pub fn close(mut self) -> Result<(), StorageError> {
        let synced = self.log.sync();
        synced.map_err(|error| self.unless_gone(error))?;
        let flushed = match self.durability {
            Durability::Sync => Ok(()),
            Durability::Async => self.db.flush_wal(true),
            Durability::None => {
                let columns = Column::ALL.map(|column| column.handle(&self.db));
                let flush = rocksdb::FlushOptions::default();
                self.db.flush_cfs_opt(&columns.each_ref(), &flush)
            }
        };
        flushed.map_err(|error| self.failed("closing", error))?;
        self.mark()?;
        self.mark_log()?;
        let synced = self.marker.sync();
        synced.map_err(|error| self.unmarked(error))?;
        self.marker.check_place()
    }

    fn append(&mut self, records: &[Record], durability: Durability) -> Result<(), StorageError> {
        // Without this capacity the batch is copied each time that it grows.
        let of_state = records.iter().filter(|it| records::is_of_state(it));
        let bytes = of_state.map(record_size_estimate).sum();
        let mut batch = WriteBatch::with_capacity_bytes(bytes);
        records::append(&self.db, records, &mut self.staged, &mut batch);
        let written = self.write_batch(batch, durability);
        match written {
            Ok(()) => self.staged.commit(),
            Err(_) => self.staged.abandon(),
        }
        written
    }

    /// Writes a row of the column family `meta` and syncs it, whatever the durability setting.
    fn put_meta(&self, key: &[u8], value: &[u8]) -> Result<(), StorageError> {
        let mut batch = WriteBatch::default();
        records::put(&self.db, Column::Meta, key, value, &mut batch);
        self.write_batch(batch, Durability::Sync)
    }

    /// Returns true if a file of a few MiB can be created in the directory.
    ///
    /// # Errors
    /// `Gone`.
    fn has_room(&self) -> Result<bool, StorageError> {
        self.marker.check_place()?;
        let probe = self.path.join(PROBE);
        let has_room = !self.is_full_by_order() && fill(&probe).is_ok();
        // The file is overwritten if it cannot be removed.
        let _ = fs::remove_file(&probe);
        Ok(has_room)
    }

    /// Returns true if an experiment requires that the disk be treated as full.
    fn is_full_by_order(&self) -> bool {
        self.full_while.as_ref().is_some_and(|file| file.exists())
    }

    /// Refuses a write if an experiment requires that the disk be treated as full.
    fn refuse_by_order(&self) -> Result<(), StorageError> {
        if self.is_full_by_order() {
            let path = self.path.clone();
            return Err(StorageError::Full { path });
        }
        Ok(())
    }

    fn write_batch(&self, batch: WriteBatch, durability: Durability) -> Result<(), StorageError> {
        let mut options = WriteOptions::default();
        options.set_sync(durability == Durability::Sync);
        options.disable_wal(durability == Durability::None);
        self.db
            .write_opt(batch, &options)
            .map_err(|error| self.failed("writing", error))?;
        if durability == Durability::None {
            return Ok(());
        }
        self.mark()
    }

    /// Records in the marker file that all writes so far are durable.
    fn mark(&self) -> Result<(), StorageError> {
        let marked = self.marker.advance(self.db.latest_sequence_number());
        marked.map_err(|error| self.unmarked(error))
    }
}

/// Creates a file of [`PROBE_BYTES`] bytes.
fn fill(path: &Path) -> io::Result<()> {
    let mut file = File::create(path)?;
    let part = vec![0; PROBE_BYTES / 8];
    (0..8).try_for_each(|_| file.write_all(&part))
}

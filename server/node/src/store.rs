//! The replica's disk: RocksDB, one directory a replica.
//!
//! What the core wants durable arrives as records and is written in groups, one
//! write and one sync for all that is waiting ([`Writer`]). Every value carries
//! a checksum over its column family, its key and itself: no majority corrects a vote
//! that was read from a flipped bit. The directory is stamped with its replica's name
//! and cannot be opened for another (`open`). It also records how much data it must
//! hold ([`marker`]). `read` reads back what is written here.

#[cfg(test)]
mod damage;
mod error;
mod error_text;
mod marker;
mod open;
mod read;
pub mod records;
#[cfg(test)]
mod small_disk;
pub mod staged;
#[cfg(test)]
mod tests;
mod wal;
mod writer;

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use leasehold_leases::ReplicaId;
use rocksdb::{DB, WriteBatch, WriteOptions};

pub use self::error::StorageError;
pub use self::writer::{PersistOutcome, StorageReport, Writer};

use self::marker::Marker;
use self::records::Column;
use self::staged::StagedValues;
use leasehold_replica::action::Record;
use leasehold_replica::record_size_estimate;

/// Bytes that the memtables of all column families may take together.
const WRITE_BUFFER_BYTES: usize = 64 << 20;

/// The file by which a full disk is asked for room: its name, and its size in bytes. RocksDB writes
/// again only with more room than its largest write buffer takes.
const PROBE: &str = "LEASEHOLD.probe";
const PROBE_BYTES: usize = WRITE_BUFFER_BYTES / 2;

/// When a write counts as durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// After fsync: survives power loss.
    #[default]
    Sync,
    /// After the write call: survives a crash of the process, not of the machine. One machine
    /// that loses power may lose votes that others rely on, so replicas may differ for good.
    Async,
    /// In memory, written later: a crash loses it, and with it votes that others rely on, so
    /// replicas may differ for good. Only for experiments.
    None,
}

impl Durability {
    /// The names an operator may write.
    pub const NAMES: [&'static str; 3] = ["sync", "async", "none"];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Durability::Sync => "sync",
            Durability::Async => "async",
            Durability::None => "none",
        }
    }
}

/// Cluster and replica to which a data directory belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryStamp {
    /// The cluster.
    pub cluster: String,
    /// The replica's name.
    pub name: String,
    /// Its id.
    pub replica: ReplicaId,
    /// The names of all replicas, in the order of their ids: quorums of other
    /// members need not meet those that were promised to.
    pub members: Vec<String>,
}

/// Settings for the use of a data directory.
#[derive(Clone, Debug, Default)]
pub struct StorageOptions {
    /// When a write counts as durable.
    pub durability: Durability,
    /// Tables kept open at most.
    pub tables: usize,
    /// While this file exists every write is refused as a full disk refuses it.
    pub full_while: Option<PathBuf>,
}

/// An open data directory.
pub struct Storage {
    db: DB,
    path: PathBuf,
    durability: Durability,
    marker: Marker,
    full_while: Option<PathBuf>,
    staged: StagedValues,
}

impl Storage {
    /// Makes all records durable, in order and as one.
    ///
    /// # Errors
    /// `Full`: nothing is written, and it may be tried again. Any other is final.
    pub fn write(&mut self, records: &[Record]) -> Result<(), StorageError> {
        if records.is_empty() {
            return Ok(());
        }
        if self.durability != Durability::Sync {
            self.sync_restart_waits(records)?;
        }
        self.append(records, self.durability)?;
        let checkpoint = |record: &Record| matches!(record, Record::Checkpoint(_));
        if !records.iter().any(checkpoint) {
            return Ok(());
        }
        if self.durability == Durability::Sync {
            let synced = self.marker.sync();
            synced.map_err(|error| self.unmarked(error))?;
        }
        self.marker.check_place()
    }

    /// Flushes everything that is only in memory to disk.
    ///
    /// # Errors
    /// `Full`, `Gone`, `Engine`.
    pub fn close(self) -> Result<(), StorageError> {
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
        let synced = self.marker.sync();
        synced.map_err(|error| self.unmarked(error))?;
        self.marker.check_place()
    }

    /// Restart waits are synced whatever the durability, before anything beside them. A run
    /// that ended as planned has left a wait of zero. Should the next one lose the wait that it
    /// wrote, the third would vote while promises of the second are believed (hazard 15).
    fn sync_restart_waits(&mut self, records: &[Record]) -> Result<(), StorageError> {
        let waits = records.iter().filter(|record| record.is_synced_always());
        let waits: Vec<Record> = waits.cloned().collect();
        if waits.is_empty() {
            return Ok(());
        }
        self.append(&waits, Durability::Sync)
    }

    fn append(&mut self, records: &[Record], durability: Durability) -> Result<(), StorageError> {
        // Else it is copied each time that it grows.
        let bytes = records.iter().map(record_size_estimate).sum();
        let mut batch = WriteBatch::with_capacity_bytes(bytes);
        records::append(&self.db, records, &mut self.staged, &mut batch);
        let written = self.write_batch(batch, durability);
        match written {
            Ok(()) => self.staged.commit(),
            Err(_) => self.staged.abandon(),
        }
        written
    }

    /// Synced whatever the durability: two runs with one incarnation would honour
    /// each other's promises.
    fn put_meta(&self, key: &[u8], value: &[u8]) -> Result<(), StorageError> {
        let mut batch = WriteBatch::default();
        records::put(&self.db, Column::Meta, key, value, &mut batch);
        self.write_batch(batch, Durability::Sync)
    }

    /// Returns true if a file of some MiB can be made in the directory.
    ///
    /// # Errors
    /// `Gone`.
    fn has_room(&self) -> Result<bool, StorageError> {
        self.marker.check_place()?;
        let probe = self.path.join(PROBE);
        let has_room = !self.is_full_by_order() && fill(&probe).is_ok();
        // It is overwritten where it cannot be removed.
        let _ = fs::remove_file(&probe);
        Ok(has_room)
    }

    /// Returns true if an experiment has the disk count as full.
    fn is_full_by_order(&self) -> bool {
        self.full_while.as_ref().is_some_and(|file| file.exists())
    }

    fn write_batch(&self, batch: WriteBatch, durability: Durability) -> Result<(), StorageError> {
        if self.is_full_by_order() {
            let path = self.path.clone();
            return Err(StorageError::Full { path });
        }
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

    /// Notes that all that was written so far is durable.
    fn mark(&self) -> Result<(), StorageError> {
        let marked = self.marker.advance(self.db.latest_sequence_number());
        marked.map_err(|error| self.unmarked(error))
    }
}

/// Makes a file of [`PROBE_BYTES`].
fn fill(path: &Path) -> io::Result<()> {
    let mut file = File::create(path)?;
    let part = vec![0; PROBE_BYTES / 8];
    (0..8).try_for_each(|_| file.write_all(&part))
}

//! The replica's disk, on which the log and the state of a replica become durable.
//!
//! Records of the replica are passed to a separate thread, which may wait for the disk
//! ([`Writer`]). That thread writes all waiting records as a group, with one write and one sync.
//! [`Store`] is the interface of a store. Today there is a single one: the log is in files of its
//! own (`log_files`), and the executed state is in RocksDB (`rocks`). This store is included if the
//! program is built with the feature `store`. A program without the feature can simulate clusters,
//! but cannot run a replica. `inspect` looks at the directory of a stopped replica.

mod error;
#[cfg(feature = "store")]
pub mod inspect;
#[cfg(feature = "store")]
mod kinds;
#[cfg(feature = "store")]
mod log_files;
#[cfg(feature = "store")]
mod reserve;
#[cfg(feature = "store")]
mod rocks;
#[cfg(feature = "store")]
mod spare;
mod writer;

use std::path::{Path, PathBuf};

use leasehold_leases::{ReplicaId, Slot};
use leasehold_replica::action::{Record, RecoveredState};
use leasehold_replica::message::{LogId, PerLog, Value};

pub use self::error::StorageError;
#[cfg(feature = "store")]
pub use self::rocks::{Storage, records, staged};
pub use self::writer::{PersistOutcome, StorageReport, Writer};

/// Length in bytes of the file that is given up when the disk is full. The space is enough for a
/// flush of all memtables, and for some new segments of the log.
pub(crate) const RESERVE_BYTES: u64 = 128 << 20;
/// Free space, in bytes, at which a node works normally again after its disk was full: the reserve
/// and its margin.
const WRITABLE_BYTES: u64 = RESERVE_BYTES + RESERVE_BYTES / RESERVE_MARGIN;
/// Divisor of the margin: the reserve is made only if a further 1/`RESERVE_MARGIN` of its length is
/// free.
const RESERVE_MARGIN: u64 = 4;

/// Point at which a write is considered durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// A write is durable after fsync: it survives a loss of power.
    #[default]
    Sync,
    /// A write is considered durable after the write call. It survives a crash of the process, but
    /// not a crash of the machine. A machine that loses power may lose votes that other replicas
    /// rely on. Then replicas may differ permanently.
    Async,
    /// A write is considered durable when it is in memory, and reaches the disk later. A crash
    /// loses the write, and also loses votes that other replicas rely on. Then replicas may differ
    /// permanently. This setting is only for experiments.
    None,
}

impl Durability {
    /// Names of the values, as operators write them.
    pub const NAMES: [&'static str; 3] = ["sync", "async", "none"];

    /// Returns the name of the value, as operators write it.
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
    /// Name of the cluster.
    pub cluster: String,
    /// Name of the replica.
    pub name: String,
    /// Id of the replica.
    pub replica: ReplicaId,
    /// Names of all replicas, in ascending order of their ids. The names are stored so that a
    /// change of the members is noticed. This replica has made promises to quorums of the stored
    /// members, and quorums of other members need not intersect these quorums.
    pub members: Vec<String>,
}

/// Settings for the use of a data directory.
#[derive(Clone, Debug, Default)]
pub struct StorageOptions {
    /// Point at which a write is considered durable.
    pub durability: Durability,
    /// Maximum number of table files that are kept open.
    pub tables: usize,
    /// Path of a file. While this file exists, every write is refused as if the disk were full.
    pub full_while: Option<PathBuf>,
    /// Length in bytes of the first log segment of a run; `None` for the default.
    pub segment_bytes: Option<usize>,
    /// Length in bytes of the file that is given up when the disk is full; 0 if there is none.
    pub reserve_bytes: u64,
}

/// Function that a store calls when a flush has ended. The argument is an error if the flush has
/// failed. Otherwise it contains, for each log, the last slot that the durable state covers.
pub type FlushReport = Box<dyn FnOnce(Result<PerLog<Slot>, StorageError>) + Send>;

/// A read of the log that a thread other than the writing thread performs. It returns the entries
/// in ascending order.
pub type PreparedRead = Box<dyn FnOnce() -> Result<Vec<(Slot, Value)>, StorageError> + Send>;

/// Operations that a replica needs from its store. Records become durable in the order in which
/// they are written. The log's records of one call become durable atomically: after a crash either
/// all of them are present or none. The changes of the executed state in one call also become
/// durable atomically, after the log's records.
///
/// A replica recovers [`RecoveredState`] from a store: its promises and accepted entries, a
/// checkpoint of the executed state, and the entries after the checkpoint.
pub trait Store: Send + 'static {
    /// Makes all records durable, in order.
    ///
    /// # Errors
    /// `Full`: the call must be repeated, and the repeated call may have further records. Any other
    /// error is final.
    fn write(&mut self, records: &[Record]) -> Result<(), StorageError>;

    /// Prepares a read of the entries of a log from slot `from` to slot `last`. The read ends early
    /// if further entries do not fit into `bytes_max`, but it returns at least one entry. A
    /// truncation after this call does not affect the read.
    ///
    /// # Errors
    /// `Directory`.
    fn prepare_read(
        &mut self,
        log: LogId,
        from: Slot,
        last: Slot,
        bytes_max: usize,
    ) -> Result<PreparedRead, StorageError>;

    /// Starts a flush of all changes of the state that were written so far. The flush makes these
    /// changes durable. `report` is called when the flush has ended, possibly by another thread.
    ///
    /// # Errors
    /// The same errors as [`Store::write`].
    fn flush(&mut self, report: FlushReport) -> Result<(), StorageError>;

    /// Frees the space of the log entries up to these slots. Requirement: the flushed state covers
    /// these entries, and no member needs these entries any more. The store may keep some of the
    /// entries.
    ///
    /// # Errors
    /// As [`Store::write`].
    fn truncate(&mut self, slots: PerLog<Slot>) -> Result<(), StorageError>;

    /// Whether the disk has space for writes. This check does not write to the store. If a store
    /// refuses writes although there is space, the store has failed.
    ///
    /// # Errors
    /// `Gone`.
    fn has_room(&self) -> Result<bool, StorageError>;

    /// Checks the changes of the state that were written earlier and are not applied yet, and the
    /// flushes that have not ended yet. Returns whether there are any.
    ///
    /// # Errors
    /// `Full`: such a change or flush is refused at present. Any other error is final.
    fn check(&mut self) -> Result<bool, StorageError> {
        Ok(false)
    }

    /// Returns the number of attempts that the disk has refused for lack of space. An attempt that
    /// is still in progress does not count.
    fn refusals(&self) -> u64;

    /// Whether the store has given up its reserve of disk space, and has not made it again yet.
    fn lacks_reserve(&self) -> bool {
        false
    }

    /// Leaves the store open, because it is stuck and would take long to close. The process must
    /// end.
    fn abandon(self: Box<Self>) {
        std::mem::forget(self);
    }

    /// Writes the records that are only in memory to disk, and closes the store.
    ///
    /// # Errors
    /// `Full`, `Gone`, `Engine`.
    fn close(self: Box<Self>) -> Result<(), StorageError>;
}

/// Opens or creates a data directory, raises its incarnation durably, and reads the state from
/// which the replica continues.
///
/// # Errors
/// Any [`StorageError`]. In a program without the feature `store` it is always `NotBuilt`.
pub fn open(
    path: &Path,
    stamp: &DirectoryStamp,
    options: StorageOptions,
) -> Result<(Box<dyn Store>, RecoveredState), StorageError> {
    #[cfg(feature = "store")]
    {
        let (storage, recovered) = Storage::open_with(path, stamp, options)?;
        Ok((Box::new(storage), recovered))
    }
    #[cfg(not(feature = "store"))]
    {
        _ = (path, stamp, options);
        Err(StorageError::NotBuilt)
    }
}

//! The replica's disk. The log and the state of a replica become durable here.
//!
//! Records of the replica go to a separate thread, which may wait for the disk ([`Writer`]). The
//! thread writes all waiting records as a group, with one write and one sync. [`Store`] is the
//! interface of a store. Today one store holds both the log and the state, on RocksDB (`rocks`);
//! the feature `store` builds it. A program without the feature can simulate clusters, but runs no
//! replica.

mod error;
#[cfg(feature = "store")]
mod rocks;
mod writer;

use std::path::{Path, PathBuf};

use leasehold_leases::{ReplicaId, Slot};
use leasehold_replica::action::{Record, RecoveredState};
use leasehold_replica::message::{LogId, Value};

pub use self::error::StorageError;
#[cfg(feature = "store")]
pub use self::rocks::{Storage, records, staged};
pub use self::writer::{PersistOutcome, StorageReport, Writer};

/// Maximum size in bytes of the memtables of all column families together.
const WRITE_BUFFER_BYTES: usize = 64 << 20;

/// Point at which a write is taken as durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// After fsync: the write survives a loss of power.
    #[default]
    Sync,
    /// After the write call: the write survives a crash of the process, but not of the machine. A
    /// machine that loses power may lose votes that other replicas rely on, and replicas may then
    /// differ permanently.
    Async,
    /// When the write is in memory; it is written to disk later. A crash loses the write, and with
    /// it votes that other replicas rely on, so replicas may differ permanently. Only for
    /// experiments.
    None,
}

impl Durability {
    /// Names that an operator may write.
    pub const NAMES: [&'static str; 3] = ["sync", "async", "none"];

    /// Returns the name that an operator writes.
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
    /// Names of all replicas, in the order of their ids. A quorum of other members need not
    /// intersect the quorums to which promises were made.
    pub members: Vec<String>,
}

/// Settings for the use of a data directory.
#[derive(Clone, Debug, Default)]
pub struct StorageOptions {
    /// Point at which a write is taken as durable.
    pub durability: Durability,
    /// Maximum number of tables that are kept open.
    pub tables: usize,
    /// While this file exists, every write is refused as by a full disk.
    pub full_while: Option<PathBuf>,
}

/// Operations that a replica needs of its store. Records become durable in the order in which they
/// are written. The records of one call become durable atomically: after a crash either all of them
/// are present or none.
///
/// A replica recovers [`RecoveredState`] from a store: its promises and accepted entries, a
/// checkpoint of the executed state, and the entries after the checkpoint.
pub trait Store: Send + 'static {
    /// Makes all records durable, in order and atomically.
    ///
    /// # Errors
    /// `Full`: nothing is written, and the same call may be repeated. Any other error is final.
    fn write(&mut self, records: &[Record]) -> Result<(), StorageError>;

    /// Returns entries of a log from `from` to `last` in ascending order of slot: at least one
    /// entry, and then as many as fit into `bytes_max`.
    ///
    /// # Errors
    /// `Damaged`, `Engine`.
    fn read_log(
        &self,
        log: LogId,
        from: Slot,
        last: Slot,
        bytes_max: usize,
    ) -> Result<Vec<(Slot, Value)>, StorageError>;

    /// Whether the disk has room for writes beside the store. A store that refuses writes despite
    /// such room has failed.
    ///
    /// # Errors
    /// `Gone`.
    fn has_room(&self) -> Result<bool, StorageError>;

    /// Makes records durable that are only in memory, and closes the store.
    ///
    /// # Errors
    /// `Full`, `Gone`, `Engine`.
    fn close(self: Box<Self>) -> Result<(), StorageError>;
}

/// Opens or creates the directory, raises its incarnation durably, and reads the state from which
/// the replica continues.
///
/// # Errors
/// Any [`StorageError`]: `NotBuilt` in a program without the feature `store`.
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

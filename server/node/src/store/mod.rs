//! The replica's disk. The log and the state of a replica become durable here.
//!
//! Records of the replica arrive at a thread of its own, which may wait for the disk ([`Writer`]). It
//! writes them in groups: one write and one sync for all that are waiting. [`Store`] says what it
//! needs of a store. Today the log and the state are in one, on RocksDB (`rocks`), which the feature
//! `store` builds. A program without it simulates, and runs no replica.

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

/// Bytes that the memtables of all column families may take together.
const WRITE_BUFFER_BYTES: usize = 64 << 20;

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

/// Operations that a replica needs of its store. Records become durable in the order in which they
/// are written, and those of one call as one: after a crash either all of them are there or none.
///
/// What a replica recovers from a store is [`RecoveredState`]: its promises and accepted entries, a
/// checkpoint of the executed state, and the entries after it.
pub trait Store: Send + 'static {
    /// Makes all records durable, in order and as one.
    ///
    /// # Errors
    /// `Full`: nothing is written, and the same call may be repeated. Any other is final.
    fn write(&mut self, records: &[Record]) -> Result<(), StorageError>;

    /// Entries of a log from `from` to `last`, rising by slot: as many as make up `bytes_max`, at
    /// least one.
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

    /// Whether there is room for writes beside the store. A store that refuses writes although there
    /// is has failed.
    ///
    /// # Errors
    /// `Gone`.
    fn has_room(&self) -> Result<bool, StorageError>;

    /// Makes durable what is only in memory, and closes the store.
    ///
    /// # Errors
    /// `Full`, `Gone`, `Engine`.
    fn close(self: Box<Self>) -> Result<(), StorageError>;
}

/// Opens or makes the directory, raises its incarnation durably, and reads what a replica needs to go
/// on.
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

//! The replica's disk: RocksDB, one directory a replica.
//!
//! What the core wants durable arrives as records and is written in groups, one
//! write and one sync for all that is waiting ([`Writer`]). Every value carries
//! a checksum over its column family, its key and itself, because a vote that
//! rests on a flipped bit is a lie that no majority corrects. The directory is
//! stamped with whose it is, and refuses to be anyone else's; and it says how much
//! of it must be there ([`marker`]).

#[cfg(test)]
mod damage;
mod marker;
pub mod records;
#[cfg(test)]
mod tests;
mod wal;
mod writer;

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use leases::{Incarnation, ReplicaId, Slot};
use prost::Message as _;
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamilyDescriptor, DB, DBCompressionType, DBRecoveryMode,
    Direction, IteratorMode, LogLevel, Options, ReadOptions, WriteBatch, WriteOptions,
};

pub use self::writer::{Report, Writer};

use self::marker::{Found, Marker};
use self::records::{Column, meta};
use crate::codec::{self, proto};
use crate::replica::action::{Checkpoint, Record, Recovered};
use crate::replica::message::{LogId, Reported, Value};

/// Raised when older binaries could no longer read the directory.
const FORMAT: u32 = 3;
/// What the memtables of all column families may take together.
const WRITE_BUFFER_BYTES: usize = 64 << 20;
const CACHE_BYTES: usize = 16 << 20;
/// Past this the oldest data in the write-ahead log is flushed to tables.
const WAL_BYTES: u64 = 256 << 20;

/// When a write counts as durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// After fsync: survives power loss.
    #[default]
    Sync,
    /// In the operating system's hands: survives a crash of the process.
    Async,
    /// In memory, written behind: a crash loses it. Only for experiments.
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

/// Whose a data directory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
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

/// Why the storage cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The directory cannot be made.
    #[error("data directory {}: {source}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Another process uses it.
    #[error(
        "data directory {} is in use by another process; stop that one, or give this replica \
         another directory", path.display()
    )]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// It was made by another version of this program.
    #[error(
        "data directory {}: its format version is {found}, this program's is {expected}; run the \
         program that made it, or start the whole cluster anew, on empty directories", path.display()
    )]
    Format {
        /// The directory.
        path: PathBuf,
        /// The directory's.
        found: u32,
        /// This program's.
        expected: u32,
    },
    /// It is another replica's.
    #[error(
        "data directory {}: its {what} is {found}, the configuration says {expected}; start it with \
         the configuration it was made under, or give this replica an empty directory of its own",
        path.display()
    )]
    Mismatch {
        /// The directory.
        path: PathBuf,
        /// Which part of the stamp.
        what: &'static str,
        /// What the directory says.
        found: String,
        /// What the configuration says.
        expected: String,
    },
    /// What was read is not what was written.
    #[error(
        "data directory {}: {what} is damaged ({problem}); the disk is not to be trusted: \
         bring the directory back whole from a copy made since this replica last ran, or leave it out \
         and let this replica join as a new member", path.display()
    )]
    Damaged {
        /// The directory.
        path: PathBuf,
        /// The file; or the column family and the key.
        what: String,
        /// What is wrong.
        problem: String,
    },
    /// The replica has run on another directory before (hazard 33).
    #[error(
        "data directory {}: this replica has run on another one before, which {witness} remembers; \
         what it has promised and accepted is not in this one, and others rely on it. Bring the \
         directory back whole from a copy made since this replica last ran, or leave it out. If no \
         client was ever told anything by this cluster, it may begin anew: on empty directories of \
         all its replicas", path.display()
    )]
    Wiped {
        /// The directory.
        path: PathBuf,
        /// The peer that remembers.
        witness: String,
    },
    /// There is no room. What was to be written is not.
    #[error(
        "data directory {}: no space left; free at least {} MiB, and it goes on by itself",
        path.display(), WRITE_BUFFER_BYTES >> 20
    )]
    Full {
        /// The directory.
        path: PathBuf,
    },
    /// Anything else: after a failed sync nothing is known of what is on disk.
    #[error("data directory {}: {doing} failed: {source}", path.display())]
    Engine {
        /// The directory.
        path: PathBuf,
        /// What was attempted.
        doing: &'static str,
        /// What RocksDB says.
        source: rocksdb::Error,
    },
}

/// An open data directory.
pub struct Storage {
    db: DB,
    path: PathBuf,
    durability: Durability,
    marker: Marker,
}

impl Storage {
    /// Opens or makes the directory, raises its incarnation durably, and reads
    /// what a replica needs to go on.
    ///
    /// # Errors
    /// Any but `Full`.
    pub fn open(
        path: &Path,
        stamp: &Stamp,
        durability: Durability,
    ) -> Result<(Storage, Recovered), StorageError> {
        std::fs::create_dir_all(path).map_err(|source| StorageError::Directory {
            path: path.to_owned(),
            source,
        })?;
        let Found::Marked(marker) = Marker::open(path, draw_life())? else {
            return Err(StorageError::Damaged {
                path: path.to_owned(),
                what: marker::NAME.to_owned(),
                problem: "it is missing, or an older version of this program made the directory"
                    .to_owned(),
            });
        };
        check_logs(path)?;
        let columns = Column::ALL
            .map(|column| ColumnFamilyDescriptor::new(column.name(), column_options(column)));
        let mut options = options(durability);
        options.create_if_missing(!marker.is_made());
        options.create_missing_column_families(!marker.is_made());
        let db = DB::open_cf_descriptors(&options, path, columns)
            .map_err(|error| unopened(path, &marker, error))?;
        marker.check_sequence(db.latest_sequence_number())?;
        let storage = Storage {
            db,
            path: path.to_owned(),
            durability,
            marker,
        };
        storage.claim(stamp)?;
        let incarnation = storage.raise_incarnation()?;
        let made = storage.marker.set_made();
        made.map_err(|error| storage.unmarked(error))?;
        let recovered = storage.recover(incarnation)?;
        Ok((storage, recovered))
    }

    /// Makes all records durable, in order and as one.
    ///
    /// # Errors
    /// `Full`: nothing is written, and it may be tried again. Any other is final.
    pub fn write(&self, records: &[Record]) -> Result<(), StorageError> {
        if records.is_empty() {
            return Ok(());
        }
        let mut batch = WriteBatch::default();
        records::append(&self.db, records, &mut batch);
        self.write_batch(batch, self.durability)?;
        let checkpoint = |record: &Record| matches!(record, Record::Checkpoint(_));
        if self.durability == Durability::Sync && records.iter().any(checkpoint) {
            let synced = self.marker.sync();
            synced.map_err(|error| self.unmarked(error))?;
        }
        Ok(())
    }

    /// What the log holds from `from` to `last`, rising by slot: as many entries
    /// as make up `bytes_max`, at least one.
    ///
    /// # Errors
    /// `Damaged`, `Engine`.
    pub fn read_log(
        &self,
        log: LogId,
        from: Slot,
        last: Slot,
        bytes_max: usize,
    ) -> Result<Vec<(Slot, Value)>, StorageError> {
        let mut entries = Vec::new();
        let mut bytes = 0;
        self.each(Column::of(log), &from.0.to_be_bytes(), |key, value| {
            let slot = self.slot(log, key)?;
            bytes += value.len();
            if slot > last || (bytes > bytes_max && !entries.is_empty()) {
                return Ok(false);
            }
            let decoded = codec::decode_entry(value);
            let (_, held) = self.intact(Column::of(log), key, decoded)?;
            entries.push((slot, held));
            Ok(bytes < bytes_max)
        })?;
        Ok(entries)
    }

    /// Leaves nothing behind in memory only.
    ///
    /// # Errors
    /// `Full`, `Engine`.
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
        self.marker.sync().map_err(|error| self.unmarked(error))
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

    /// Notes that all that was written so far is durable.
    fn mark(&self) -> Result<(), StorageError> {
        let marked = self.marker.advance(self.db.latest_sequence_number());
        marked.map_err(|error| self.unmarked(error))
    }

    fn failed(&self, doing: &'static str, source: rocksdb::Error) -> StorageError {
        engine(&self.path, doing, source)
    }

    fn unmarked(&self, source: std::io::Error) -> StorageError {
        if source.kind() == std::io::ErrorKind::StorageFull {
            let path = self.path.clone();
            return StorageError::Full { path };
        }
        let path = self.path.join(marker::NAME);
        StorageError::Directory { path, source }
    }

    fn damaged(&self, column: Column, key: &[u8], problem: String) -> StorageError {
        StorageError::Damaged {
            path: self.path.clone(),
            what: format!("{}/{}", column.name(), column.readable(key)),
            problem,
        }
    }

    fn intact<T>(
        &self,
        column: Column,
        key: &[u8],
        decoded: Result<T, codec::CodecError>,
    ) -> Result<T, StorageError> {
        decoded.map_err(|error| self.damaged(column, key, error.to_string()))
    }

    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        let found = self
            .db
            .get_cf(column.handle(&self.db), key)
            .map_err(|error| self.failed("reading", error))?;
        found
            .map(|value| {
                records::unseal(column, key, value.into())
                    .map_err(|problem| self.damaged(column, key, problem.to_owned()))
            })
            .transpose()
    }

    /// Visits a column family from `from` on, until the visitor returns false.
    fn each(
        &self,
        column: Column,
        from: &[u8],
        mut visit: impl FnMut(&[u8], Bytes) -> Result<bool, StorageError>,
    ) -> Result<(), StorageError> {
        let mut options = ReadOptions::default();
        options.fill_cache(false);
        let start = IteratorMode::From(from, Direction::Forward);
        let handle = column.handle(&self.db);
        for item in self.db.iterator_cf_opt(handle, options, start) {
            let (key, value) = item.map_err(|error| self.failed("reading", error))?;
            let value = records::unseal(column, &key, Bytes::from(value))
                .map_err(|problem| self.damaged(column, &key, problem.to_owned()))?;
            if !visit(&key, value)? {
                break;
            }
        }
        Ok(())
    }

    fn number(&self, column: Column, key: &[u8], bytes: &[u8]) -> Result<u64, StorageError> {
        let bytes = <[u8; 8]>::try_from(bytes)
            .map_err(|_| self.damaged(column, key, "not a number of 8 bytes".to_owned()))?;
        Ok(u64::from_be_bytes(bytes))
    }

    fn slot(&self, log: LogId, key: &[u8]) -> Result<Slot, StorageError> {
        self.number(Column::of(log), key, key).map(Slot)
    }

    /// Checks the stamp, or puts it on a new directory.
    fn claim(&self, stamp: &Stamp) -> Result<(), StorageError> {
        let wanted = proto::Identity {
            format: FORMAT,
            cluster: stamp.cluster.clone(),
            name: stamp.name.clone(),
            replica: stamp.replica.0.into(),
            members: stamp.members.clone(),
            life: self.marker.life(),
        };
        let Some(found) = self.get(Column::Meta, meta::IDENTITY)? else {
            self.assert_new(meta::IDENTITY)?;
            return self.put_meta(meta::IDENTITY, &wanted.encode_to_vec());
        };
        let decoded = proto::Identity::decode(found).map_err(codec::CodecError::from);
        let found = self.intact(Column::Meta, meta::IDENTITY, decoded)?;
        if found.format != FORMAT {
            return Err(StorageError::Format {
                path: self.path.clone(),
                found: found.format,
                expected: FORMAT,
            });
        }
        let parts = [
            ("cluster", (found.cluster, wanted.cluster)),
            ("replica name", (found.name, wanted.name)),
            (
                "replica id",
                (found.replica.to_string(), wanted.replica.to_string()),
            ),
            (
                "list of members",
                (found.members.join(", "), wanted.members.join(", ")),
            ),
        ];
        for (what, (found, expected)) in parts {
            if found != expected {
                let path = self.path.clone();
                return Err(StorageError::Mismatch {
                    path,
                    what,
                    found,
                    expected,
                });
            }
        }
        if found.life != wanted.life {
            return Err(StorageError::Damaged {
                path: self.path.clone(),
                what: marker::NAME.to_owned(),
                problem: "it is that of another directory".to_owned(),
            });
        }
        Ok(())
    }

    /// Only a directory in the making may lack what every run leaves in it.
    fn assert_new(&self, key: &[u8]) -> Result<(), StorageError> {
        match self.marker.is_made() {
            true => Err(self.damaged(Column::Meta, key, "it is missing".to_owned())),
            false => Ok(()),
        }
    }

    /// Synced whatever the durability: two runs with one incarnation would honour
    /// each other's promises.
    fn put_meta(&self, key: &[u8], value: &[u8]) -> Result<(), StorageError> {
        let mut batch = WriteBatch::default();
        records::put(&self.db, Column::Meta, key, value, &mut batch);
        self.write_batch(batch, Durability::Sync)
    }

    fn raise_incarnation(&self) -> Result<Incarnation, StorageError> {
        let last = match self.get(Column::Meta, meta::INCARNATION)? {
            Some(bytes) => self.number(Column::Meta, meta::INCARNATION, &bytes)?,
            None => {
                self.assert_new(meta::INCARNATION)?;
                0
            }
        };
        let raised = last + 1;
        self.put_meta(meta::INCARNATION, &raised.to_be_bytes())?;
        Ok(Incarnation(raised))
    }

    fn recover(&self, incarnation: Incarnation) -> Result<Recovered, StorageError> {
        let mut recovered = Recovered {
            incarnation,
            life: self.marker.life(),
            joined: self.get(Column::Meta, meta::JOINED)?.is_some(),
            lives: self.recover_lives()?,
            state: self.recover_state()?,
            ..Default::default()
        };
        if let Some(bytes) = self.get(Column::Meta, meta::PROMISED)? {
            let decoded = codec::decode_ballot(bytes);
            recovered.promised = self.intact(Column::Meta, meta::PROMISED, decoded)?;
        }
        if let Some(bytes) = self.get(Column::Meta, meta::RESTART_WAIT)? {
            let ns = self.number(Column::Meta, meta::RESTART_WAIT, &bytes)?;
            recovered.restart_wait = Some(Duration::from_nanos(ns));
        }
        self.recover_log_starts(&mut recovered)?;
        let unexecuted = recovered.state.executed.next();
        self.recover_log(LogId::Commands, unexecuted, &mut recovered.accepted)?;
        self.recover_log(LogId::Configs, Slot::ZERO, &mut recovered.accepted)?;
        Ok(recovered)
    }

    fn recover_state(&self) -> Result<Checkpoint, StorageError> {
        let mut state = Checkpoint::default();
        if let Some(bytes) = self.get(Column::Meta, meta::POSITION)? {
            let decoded = codec::decode_position(bytes);
            let position = self.intact(Column::Meta, meta::POSITION, decoded)?;
            state.executed = position.executed;
            state.config = position.config;
            state.log_time_ms = position.log_time_ms;
        }
        self.each(Column::State, &[], |key, value| {
            let decoded = codec::decode_stored(value);
            let stored = self.intact(Column::State, key, decoded)?;
            state
                .entries
                .push((Bytes::copy_from_slice(key), Some(stored)));
            Ok(true)
        })?;
        self.each(Column::Sessions, &[], |key, value| {
            let client = self.number(Column::Sessions, key, key)?;
            let decoded = codec::decode_session(value);
            let session = self.intact(Column::Sessions, key, decoded)?;
            state.sessions.push((client, Some(session)));
            Ok(true)
        })?;
        Ok(state)
    }

    fn recover_lives(&self) -> Result<Vec<(ReplicaId, u64)>, StorageError> {
        let mut lives = Vec::new();
        self.each(Column::Meta, meta::LIFE, |key, value| {
            if !key.starts_with(meta::LIFE) {
                return Ok(false);
            }
            let replica = meta::parse_life(key).ok_or_else(|| {
                self.damaged(Column::Meta, key, "not the key of a life".to_owned())
            })?;
            lives.push((replica, self.number(Column::Meta, key, &value)?));
            Ok(true)
        })?;
        Ok(lives)
    }

    fn recover_log_starts(&self, recovered: &mut Recovered) -> Result<(), StorageError> {
        self.each(Column::Meta, meta::LOG_START, |key, value| {
            if !key.starts_with(meta::LOG_START) {
                return Ok(false);
            }
            let (log, ballot) = meta::parse_log_start(key).ok_or_else(|| {
                self.damaged(Column::Meta, key, "not the key of a log start".to_owned())
            })?;
            let slot = Slot(self.number(Column::Meta, key, &value)?);
            recovered.log_starts.push((log, ballot, slot));
            Ok(true)
        })
    }

    fn recover_log(
        &self,
        log: LogId,
        from: Slot,
        accepted: &mut Vec<Reported>,
    ) -> Result<(), StorageError> {
        self.each(Column::of(log), &from.0.to_be_bytes(), |key, value| {
            let slot = self.slot(log, key)?;
            let decoded = codec::decode_entry(value);
            let (ballot, value) = self.intact(Column::of(log), key, decoded)?;
            accepted.push(Reported {
                log,
                slot,
                ballot,
                value,
            });
            Ok(true)
        })
    }
}

/// Never 0, and never drawn again.
fn draw_life() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let drawn = RandomState::new().hash_one((std::process::id(), std::time::SystemTime::now()));
    drawn.max(1)
}

fn check_logs(path: &Path) -> Result<(), StorageError> {
    let failed = |source| StorageError::Directory {
        path: path.to_owned(),
        source,
    };
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.ends_with(".log") && !name.starts_with("MANIFEST-") {
            continue;
        }
        if let Some(problem) = wal::problem(&entry.path()).map_err(failed)? {
            return Err(StorageError::Damaged {
                path: path.to_owned(),
                what: name,
                problem,
            });
        }
    }
    Ok(())
}

/// RocksDB blames the manifest for tables that it cannot read.
fn unopened(path: &Path, marker: &Marker, source: rocksdb::Error) -> StorageError {
    match engine(path, "opening", source) {
        StorageError::Damaged {
            path,
            what,
            problem,
        } if what.starts_with("MANIFEST-") && marker.knows_manifest() => StorageError::Damaged {
            path,
            what: "one of the tables (the .sst files)".to_owned(),
            problem,
        },
        error => error,
    }
}

fn engine(path: &Path, doing: &'static str, source: rocksdb::Error) -> StorageError {
    let message: &str = source.as_ref();
    if records::is_full(message) {
        let path = path.to_owned();
        return StorageError::Full { path };
    }
    if message.contains("LOCK") || message.contains("lock hold") {
        let path = path.to_owned();
        return StorageError::Locked { path };
    }
    let missing = message.contains("No such file") || message.contains("does not exist");
    if missing || source.kind() == rocksdb::ErrorKind::Corruption {
        return StorageError::Damaged {
            path: path.to_owned(),
            what: culprit(path, message),
            problem: message.to_owned(),
        };
    }
    StorageError::Engine {
        path: path.to_owned(),
        doing,
        source,
    }
}

/// The file that an error of RocksDB is about: it says so there, or, of its
/// write-ahead logs, in its own log only.
fn culprit(directory: &Path, message: &str) -> String {
    let named = |text: &str| {
        let words = text.split([' ', ':', ',', ';', '\n']);
        let names = words.filter_map(|word| word.rsplit('/').next());
        let mut files = names.filter(|name| {
            name.ends_with(".sst") || name.ends_with(".log") || name.starts_with("MANIFEST-")
        });
        files.next().map(str::to_owned)
    };
    let numbered = || {
        let (_, rest) = message.split_once("log number: ")?;
        let number = rest.split(|letter: char| !letter.is_ascii_digit()).next()?;
        Some(format!("{number:0>6}.log"))
    };
    let told = || {
        let log = std::fs::read(directory.join("LOG")).ok()?;
        let log = String::from_utf8_lossy(&log);
        let dropping = log
            .lines()
            .rev()
            .find(|line| line.contains(": dropping "))?;
        named(dropping)
    };
    named(message)
        .or_else(numbered)
        .or_else(told)
        .unwrap_or_else(|| "one of the store's files".to_owned())
}

/// Lean: a replica shares a small machine with others of its kind.
fn options(durability: Durability) -> Options {
    let mut options = Options::default();
    options.set_db_write_buffer_size(WRITE_BUFFER_BYTES);
    options.set_max_total_wal_size(WAL_BYTES);
    options.set_max_background_jobs(2);
    options.set_max_open_files(256);
    options.set_keep_log_file_num(2);
    options.set_max_log_file_size(4 << 20);
    options.set_log_level(LogLevel::Warn);
    // A record torn at the end was never acknowledged, as long as the marker agrees.
    // One damaged before the end may have been, and the default would forget all
    // that follows it.
    options.set_wal_recovery_mode(DBRecoveryMode::TolerateCorruptedTailRecords);
    // A log that is no longer written to must be there as long as it was.
    options.set_track_and_verify_wals_in_manifest(true);
    // Without a log, only this keeps the column families at one moment.
    options.set_atomic_flush(durability == Durability::None);
    options
}

fn column_options(column: Column) -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_lru_cache(CACHE_BYTES / Column::ALL.len()));
    table.set_block_size(16 << 10);
    // The first with a checksum over the footer, and over where a block belongs.
    table.set_format_version(6);
    let mut options = Options::default();
    options.set_block_based_table_factory(&table);
    options.set_compression_type(DBCompressionType::Lz4);
    let share = match column {
        Column::Log | Column::State => WRITE_BUFFER_BYTES / 4,
        Column::Configs | Column::Sessions | Column::Meta => WRITE_BUFFER_BYTES / 16,
    };
    options.set_write_buffer_size(share);
    options
}

//! Opening of data directories. A new directory is created and stamped with the name of its
//! replica. Every opened directory gets a new incarnation, which is higher than those of earlier
//! runs.

use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind::InvalidFilename, ErrorKind::InvalidInput};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use leasehold_leases::Incarnation;
use leasehold_log::Marked;
use prost::Message as _;
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamilyDescriptor, DB, DBCompressionType, DBRecoveryMode,
    DEFAULT_COLUMN_FAMILY_NAME, LogLevel, Options, WriteBatch,
};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::super::kinds::{self, WrongKind};
use super::super::log_files::LogFiles;
use super::super::reserve::{self, Reserve};
use super::applier::Applier;
use super::engine::Engine;
use super::errors::unopened;
use super::marker::{self, Marker, MarkerState};
use super::records::{self, Column, meta};
use super::{
    DirectoryStamp, Durability, PROBE, Storage, StorageError, StorageOptions, WRITE_BUFFER_BYTES,
    wal,
};
use leasehold_replica::action::RecoveredState;
use leasehold_replica::codec::{self, proto};

/// Version of the format of data directories. The version is raised when older binaries can no
/// longer read the directory.
pub(super) const FORMAT: u32 = 9;
/// Versions of formats that are converted to [`FORMAT`] when a directory is opened. Format 8 has no
/// transactions. Format 7 has all executed configurations in the state. Formats up to 6 have no
/// configurations in the state. Formats up to 5 have the log in RocksDB. Format 4 has no column
/// family `staged`.
pub(super) const FORMATS_OLDER: [u32; 5] = [8, 7, 6, 5, 4];
/// First format with a checkpoint of the configurations in the state.
const FORMAT_CONFIG_CHECKPOINT: u32 = 8;
/// First format with the log in files of its own.
const FORMAT_LOG_FILES: u32 = 6;
/// Length in bytes of the first segment of each run.
const SEGMENT_BYTES: usize = 1 << 20;
const CACHE_BYTES: usize = 16 << 20;
/// Maximum number of table files that are kept open if the caller sets no limit.
const TABLES_OPEN: usize = 246;
/// Maximum number of memtables of a column family, including those that are being flushed.
const WRITE_BUFFERS: i32 = 6;
/// Number of bytes that are written to a table file before the operating system is asked to write
/// these bytes to disk.
const SYNC_BYTES: u64 = 1 << 20;

impl Storage {
    /// Opens or creates a data directory, raises its incarnation durably, and reads the state from
    /// which the replica continues.
    ///
    /// # Errors
    /// Any [`StorageError`]. It is `Full` if the disk has no space for a file of the directory.
    pub fn open(
        path: &Path,
        stamp: &DirectoryStamp,
        durability: Durability,
    ) -> Result<(Storage, RecoveredState), StorageError> {
        let storage_options = StorageOptions {
            durability,
            tables: TABLES_OPEN,
            ..StorageOptions::default()
        };
        Storage::open_with(path, stamp, storage_options)
    }

    /// Opens a data directory like [`Storage::open`], but with the given options. If the disk is
    /// full, gives up the reserve and tries once more.
    ///
    /// # Errors
    /// The errors of [`Storage::open`].
    pub fn open_with(
        path: &Path,
        stamp: &DirectoryStamp,
        storage_options: StorageOptions,
    ) -> Result<(Storage, RecoveredState), StorageError> {
        let open = || Storage::open_once(path, stamp, storage_options.clone());
        let opened = make_and_lock(path).and_then(|lock| {
            let opened = match open() {
                Err(error) if error.is_full() && reserve::give_up_at_start(path) => open(),
                opened => opened,
            };
            let (mut storage, recovered) = opened?;
            storage.lock = Some(lock);
            Ok((storage, recovered))
        });
        opened.map_err(|error| {
            let path = path.to_owned();
            if error.is_full() {
                StorageError::Full { path }
            } else {
                error
            }
        })
    }

    fn open_once(
        path: &Path,
        stamp: &DirectoryStamp,
        storage_options: StorageOptions,
    ) -> Result<(Storage, RecoveredState), StorageError> {
        check_kinds(path)?;
        let MarkerState::Marked(marker) = Marker::open(path, draw_life())? else {
            return Err(StorageError::Damaged {
                path: path.to_owned(),
                what: marker::NAME.to_owned(),
                problem: "it is missing, or an older version of this program made the directory"
                    .to_owned(),
            });
        };
        if !marker.is_made() {
            sync_above(path);
        }
        // A run that was killed while it tested the disk for room may have left this file.
        _ = std::fs::remove_file(path.join(PROBE));
        check_logs(path)?;
        let db = open_db(path, &marker, options(storage_options.tables))?;
        marker.check_sequence(db.latest_sequence_number())?;
        let identity = DirectoryIdentity::read(path, &db, &marker, stamp)?;
        let marked = if identity.has_log_files() {
            // The log loses the segments that the marker does not need. A loss of power must not
            // bring back an older marker, which needs them.
            let synced = marker.sync_found();
            synced.map_err(|source| StorageError::Directory {
                path: path.join(marker::NAME),
                source,
            })?;
            marker.log()
        } else {
            // The log is made anew. An interrupted attempt may have left a log and its mark.
            LogFiles::remove(path)?;
            Marked::default()
        };
        let segment_bytes = storage_options.segment_bytes.unwrap_or(SEGMENT_BYTES);
        let mut storage = Storage {
            log: LogFiles::open(path, marker.life(), marked, segment_bytes)?,
            applier: None,
            engine: Arc::new(Engine {
                db: Arc::new(db),
                path: path.to_owned(),
                marker,
                reserve: None,
                refusals: AtomicU64::new(0),
            }),
            durability: storage_options.durability,
            logged: 0,
            unused: Vec::new(),
            full_while: storage_options.full_while,
            lock: None,
        };
        let incarnation = storage.begin_run(&identity)?;
        storage.start_threads(storage_options.reserve_bytes)?;
        if storage.durability == Durability::None {
            storage.log.keep_in_memory();
        }
        let recovered = storage.recover(incarnation, stamp.members.len())?;
        Ok((storage, recovered))
    }

    /// Makes the directory ready for a run, with a higher incarnation.
    fn begin_run(&mut self, identity: &DirectoryIdentity) -> Result<Incarnation, StorageError> {
        if !identity.has_log_files() {
            let converted = self.engine_mut().marker.convert();
            converted.map_err(|error| self.engine.unmarked(error))?;
        }
        let incarnation = self.log.begin_run(self.older_incarnation()?)?;
        if identity.has_log_in_engine() {
            self.take_over()?;
        }
        let mut batch = WriteBatch::default();
        if !identity.has_config_checkpoint() {
            self.condense_configs(identity.expected.members.len(), &mut batch)?;
        }
        let applied = self.engine.position()?;
        self.mark_log()?;
        // The identity must not become durable without the mark of the log.
        let synced = self.engine.marker.sync();
        synced.map_err(|error| self.engine.unmarked(error))?;
        if !identity.is_current() {
            // A new checkpoint of the configurations becomes durable with the format that reads it.
            let expected = identity.expected.encode_to_vec();
            records::put(
                &self.engine.db,
                Column::Meta,
                meta::IDENTITY,
                &expected,
                &mut batch,
            );
            self.engine.apply(batch)?;
            self.engine.flush(applied)?;
        }
        self.drop_older()?;
        let made = self.engine.marker.set_made();
        made.map_err(|error| self.engine.unmarked(error))?;
        Ok(incarnation)
    }

    /// Makes the reserve, and starts the threads that change the state.
    fn start_threads(&mut self, reserve_bytes: u64) -> Result<(), StorageError> {
        let path = self.engine.path.clone();
        let failed = |source| StorageError::Directory { path, source };
        let applied = self.engine.position()?;
        let started = if reserve_bytes > 0 {
            Reserve::start(&self.engine.path, reserve_bytes).map(Some)
        } else {
            Ok(None)
        };
        let started = started.and_then(|reserve| {
            self.engine_mut().reserve = reserve;
            Applier::start(self.engine.clone(), applied)
        });
        self.applier = Some(started.map_err(failed)?);
        Ok(())
    }

    /// Returns the engine. Must be called only while the directory is being opened, when nothing
    /// else uses the engine.
    pub(super) fn engine_mut(&mut self) -> &mut Engine {
        Arc::get_mut(&mut self.engine).expect("the applier is not started yet")
    }

    /// Returns RocksDB. Must be called only while the directory is being opened, when nothing else
    /// uses RocksDB.
    pub(super) fn db_mut(&mut self) -> &mut DB {
        Arc::get_mut(&mut self.engine_mut().db).expect("only the engine uses RocksDB")
    }

    /// Returns the incarnation that a directory of an older format holds.
    fn older_incarnation(&self) -> Result<Incarnation, StorageError> {
        let found = self.engine.get(Column::Meta, meta::INCARNATION)?;
        let number = found.map(|bytes| self.engine.number(Column::Meta, meta::INCARNATION, &bytes));
        Ok(Incarnation(number.transpose()?.unwrap_or_default()))
    }
}

/// The format that was found in a directory, and the identity that the directory should have.
struct DirectoryIdentity {
    /// Format that the directory has; `None` if the directory is new.
    format: Option<u32>,
    expected: proto::Identity,
}

impl DirectoryIdentity {
    /// Reads the stamp of the directory, and checks that the directory belongs to this replica and
    /// has a supported format.
    fn read(
        path: &Path,
        db: &DB,
        marker: &Marker,
        stamp: &DirectoryStamp,
    ) -> Result<DirectoryIdentity, StorageError> {
        let expected = proto::Identity {
            format: FORMAT,
            cluster: stamp.cluster.clone(),
            name: stamp.name.clone(),
            replica: stamp.replica.0.into(),
            members: stamp.members.clone(),
            life: marker.life(),
        };
        let found = db.get_cf(Column::Meta.handle(db), meta::IDENTITY);
        let Some(found) = found.map_err(|error| unopened(path, marker, error))? else {
            // The row may be missing only if the creation of the directory was never completed.
            if marker.is_made() {
                return Err(damaged_identity(path, "it is missing".to_owned()));
            }
            return Ok(DirectoryIdentity {
                format: None,
                expected,
            });
        };
        let found = decode_identity(path, found)?;
        let format = Some(found.format);
        check_identity(path, found, &expected)?;
        Ok(DirectoryIdentity { format, expected })
    }

    /// Whether the directory has the format of this program.
    fn is_current(&self) -> bool {
        self.format == Some(FORMAT)
    }

    /// Returns true if the state of the directory has a checkpoint of the configurations.
    fn has_config_checkpoint(&self) -> bool {
        self.format >= Some(FORMAT_CONFIG_CHECKPOINT)
    }

    /// Whether the directory has a log in files of its own.
    fn has_log_files(&self) -> bool {
        self.format >= Some(FORMAT_LOG_FILES)
    }

    /// Whether the log of the directory is in RocksDB.
    fn has_log_in_engine(&self) -> bool {
        self.format.is_some() && !self.has_log_files()
    }
}

/// Decodes the stamp of a directory.
///
/// # Errors
/// `Damaged`.
pub(super) fn decode_identity(path: &Path, row: Vec<u8>) -> Result<proto::Identity, StorageError> {
    let found = records::unseal(Column::Meta, meta::IDENTITY, row.into());
    let found = found.map_err(|problem| damaged_identity(path, problem.to_owned()))?;
    let found = proto::Identity::decode(found).map_err(codec::CodecError::from);
    found.map_err(|error| damaged_identity(path, error.to_string()))
}

pub(super) fn damaged_identity(path: &Path, problem: String) -> StorageError {
    StorageError::Damaged {
        path: path.to_owned(),
        what: "meta/identity".to_owned(),
        problem,
    }
}

/// Checks that the directory belongs to this replica, and has a supported format.
fn check_identity(
    path: &Path,
    found: proto::Identity,
    expected: &proto::Identity,
) -> Result<(), StorageError> {
    if found.format != FORMAT && !FORMATS_OLDER.contains(&found.format) {
        return Err(StorageError::Format {
            path: path.to_owned(),
            found: found.format,
            expected: expected.format,
        });
    }
    let same_life = found.life == expected.life;
    let found = stamped(found).into_iter();
    let mut pairs = found.zip(stamped(expected.clone()));
    if let Some(((what, found), (_, expected))) = pairs.find(|(a, b)| a != b) {
        return Err(StorageError::Mismatch {
            path: path.to_owned(),
            what,
            found,
            expected,
        });
    }
    if !same_life {
        return Err(StorageError::Damaged {
            path: path.to_owned(),
            what: marker::NAME.to_owned(),
            problem: "it is that of another directory".to_owned(),
        });
    }
    Ok(())
}

/// Makes the directory if it does not exist, and locks it until the returned file is closed. RocksDB
/// has a lock of its own, but takes it only after it has renamed its file `LOG`. So without this
/// lock, two processes that start at the same moment would disturb each other.
fn make_and_lock(path: &Path) -> Result<File, StorageError> {
    // Contents for which clients need a token must not be readable by every user of this machine.
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|source| not_made(path, source))?;
    let path = path.to_owned();
    let directory = match File::open(&path) {
        Ok(directory) => directory,
        Err(source) => return Err(StorageError::Directory { path, source }),
    };
    match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Err(StorageError::Locked { path }),
        // Some network file systems have no such locks.
        Ok(()) | Err(_) => Ok(directory),
    }
}

/// Checks that nothing stands in the place of a file.
fn check_kinds(path: &Path) -> Result<(), StorageError> {
    let found = kinds::find_wrong_kind(path).map_err(|source| StorageError::Directory {
        path: path.to_owned(),
        source,
    })?;
    found.map_or(Ok(()), |WrongKind { name, kind }| {
        Err(StorageError::Damaged {
            path: path.to_owned(),
            what: name,
            problem: format!("it is {kind}, not a file"),
        })
    })
}

/// Syncs the parent directories of a new directory, so that the new directory survives a loss of
/// power. Skips a parent directory that this process may not open, because this process has not
/// created that parent directory.
fn sync_above(path: &Path) {
    for above in path.ancestors().skip(1).filter(|it| it.parent().is_some()) {
        _ = std::fs::File::open(above).and_then(|above| above.sync_all());
    }
}

/// Returns the error for a directory that cannot be created. The cause is either the path of the
/// directory or a failure of the disk.
fn not_made(path: &Path, source: io::Error) -> StorageError {
    let is_other = |it: &&Path| it.metadata().is_ok_and(|found| !found.is_dir());
    let leads_back = |it: &&Path| it.metadata().is_err_and(|error| kinds::is_loop(&error));
    let in_the_way = path.ancestors().find(is_other);
    let looping = path.ancestors().filter(leads_back).last();
    let problem = match in_the_way {
        Some(found) => format!("{} is not a directory", found.display()),
        None if let Some(link) = looping => format!("{} is {}", link.display(), kinds::LOOP),
        None if matches!(source.kind(), InvalidFilename | InvalidInput) => source.to_string(),
        None => {
            let path = path.to_owned();
            return StorageError::Directory { path, source };
        }
    };
    StorageError::Path {
        path: path.to_owned(),
        problem,
    }
}

/// Returns the fields of a directory's stamp with their names, as text for operators.
fn stamped(identity: proto::Identity) -> [(&'static str, String); 4] {
    [
        ("cluster", identity.cluster),
        ("replica name", identity.name),
        ("replica id", identity.replica.to_string()),
        ("list of members", identity.members.join(", ")),
    ]
}

fn open_db(path: &Path, marker: &Marker, mut options: Options) -> Result<DB, StorageError> {
    let unopened = |error| unopened(path, marker, error);
    options.create_if_missing(!marker.is_made());
    let found = match DB::list_cf(&options, path) {
        Ok(found) => found,
        Err(error) if marker.is_made() => return Err(unopened(error)),
        // An earlier attempt to create the directory may have come to any point.
        Err(_) => Vec::new(),
    };
    let is_found = |column: Column| found.iter().any(|name| name == column.name());
    options.create_missing_column_families(!marker.is_made());
    let older = Column::OLDER.into_iter().filter(|it| is_found(*it));
    let columns = Column::ALL
        .into_iter()
        .chain(older)
        .map(|column| ColumnFamilyDescriptor::new(column.name(), column_options(column)));
    // The default column family is empty. But after a full disk RocksDB waits for as much room as
    // the largest write buffer of any column family takes, and the default for this one would be 64
    // MiB.
    let mut unused = Options::default();
    unused.set_write_buffer_size(WRITE_BUFFER_BYTES / 16);
    let unused = ColumnFamilyDescriptor::new(DEFAULT_COLUMN_FAMILY_NAME, unused);
    let columns = columns.chain([unused]);
    DB::open_cf_descriptors(&options, path, columns).map_err(unopened)
}

/// Opens RocksDB only for reading. Writes nothing, not even a diagnostic log.
pub(super) fn open_db_read_only(path: &Path) -> Result<DB, rocksdb::Error> {
    let columns = Column::ALL
        .map(|column| ColumnFamilyDescriptor::new(column.name(), column_options(column)));
    DB::open_cf_descriptors_read_only(&options(TABLES_OPEN), path, columns, false)
}

/// Returns a random number that identifies the life of a new directory. The number is never 0, and
/// two directories practically never get the same number.
fn draw_life() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let drawn = RandomState::new().hash_one((std::process::id(), std::time::SystemTime::now()));
    drawn.max(1)
}

/// Checks that RocksDB's logs consist of records.
///
/// # Errors
/// `Damaged`, `Directory`.
pub(super) fn check_logs(path: &Path) -> Result<(), StorageError> {
    log_problems(path)?.into_iter().next().map_or(Ok(()), Err)
}

/// Returns the errors for all logs of RocksDB that do not consist of records.
pub(super) fn log_problems(path: &Path) -> Result<Vec<StorageError>, StorageError> {
    let failed = |source| StorageError::Directory {
        path: path.to_owned(),
        source,
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.ends_with(".log") && !name.starts_with("MANIFEST-") {
            continue;
        }
        if let Some(problem) = wal::problem(&entry.path()).map_err(failed)? {
            found.push(StorageError::Damaged {
                path: path.to_owned(),
                what: name,
                problem,
            });
        }
    }
    Ok(found)
}

/// Returns the database options. Buffers are small, because several replicas may share a small
/// machine.
fn options(tables: usize) -> Options {
    let mut options = Options::default();
    // RocksDB reserves ten descriptors for its own purposes.
    options.set_max_open_files(tables as i32 + 10);
    options.set_db_write_buffer_size(WRITE_BUFFER_BYTES);
    options.set_max_background_jobs(2);
    // Otherwise a finished table is synced in one go, and acknowledgements wait for the sync.
    options.set_bytes_per_sync(SYNC_BYTES);
    options.set_keep_log_file_num(2);
    options.set_max_log_file_size(4 << 20);
    options.set_log_level(LogLevel::Warn);
    // Only directories of older formats have a write-ahead log. A record torn at its end was never
    // acknowledged, if the marker agrees. A record damaged before the end may have been
    // acknowledged, and RocksDB's default would forget all records after it.
    options.set_wal_recovery_mode(DBRecoveryMode::TolerateCorruptedTailRecords);
    // A finished log must still exist, with its full length.
    options.set_track_and_verify_wals_in_manifest(true);
    options.set_atomic_flush(true);
    options
}

fn column_options(column: Column) -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_lru_cache(CACHE_BYTES / Column::ALL.len()));
    table.set_block_size(16 << 10);
    // Version 6 is the first with checksums that cover the footer and a block's place.
    table.set_format_version(6);
    let mut options = Options::default();
    options.set_block_based_table_factory(&table);
    options.set_compression_type(DBCompressionType::Lz4);
    let share = match column {
        // After a full disk RocksDB waits for as much room as the largest buffer takes, and the
        // test for room must not ask for less.
        Column::State | Column::Sessions => WRITE_BUFFER_BYTES / 4,
        Column::Log | Column::Configs | Column::Staged | Column::Meta => WRITE_BUFFER_BYTES / 16,
    };
    options.set_write_buffer_size(share);
    // Writes go on while a slow flush holds some buffers.
    options.set_max_write_buffer_number(WRITE_BUFFERS);
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::rocks::tests::stamp;

    fn refused(path: &Path) -> StorageError {
        match Storage::open(path, &stamp(), Durability::Sync) {
            Err(error) => error,
            Ok(_) => panic!("{} is opened", path.display()),
        }
    }

    #[test]
    fn only_the_owner_reads_a_directory_that_is_made() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let above = dir.path().join("above");
        std::fs::create_dir(&above).unwrap();
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&above, open).unwrap();
        Storage::open(&above.join("data/CA"), &stamp(), Durability::Sync).unwrap();
        for (made, expected) in [("data/CA", 0o700), ("data", 0o700), ("", 0o755)] {
            let mode = above.join(made).metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, expected, "{made:?}");
        }
    }

    #[test]
    fn a_path_that_cannot_be_a_directory_is_told_from_a_disk_that_fails() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let other = format!("{} is not a directory", file.display());
        for (path, expected) in [
            (file.clone(), &*other),
            (file.join("CA"), &other),
            (file.join("data/CA"), &other),
            (dir.path().join("n".repeat(300)), "name"),
            (dir.path().join("a\0b"), "NUL"),
        ] {
            let StorageError::Path { problem, .. } = refused(&path) else {
                panic!("{} might be a directory", path.display());
            };
            assert!(problem.contains(expected), "{problem}");
        }
        // The target of the link may exist later.
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path().join("disk"), &link).unwrap();
        for path in [link.join("CA"), link] {
            let error = refused(&path);
            assert!(matches!(error, StorageError::Directory { .. }), "{error}");
        }
    }
}

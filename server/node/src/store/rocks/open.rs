//! Opening of data directories. A new directory is created and stamped with the name of its
//! replica. Every opened directory gets a new incarnation, which is higher than those of earlier
//! runs.

use std::fs::DirBuilder;
use std::io::{self, ErrorKind::InvalidFilename, ErrorKind::InvalidInput};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use leasehold_leases::Incarnation;
use prost::Message as _;
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamilyDescriptor, DB, DBCompressionType, DBRecoveryMode,
    DEFAULT_COLUMN_FAMILY_NAME, LogLevel, Options,
};

use super::errors::unopened;
use super::marker::{self, Marker, MarkerState};
use super::records::{Column, meta};
use super::staged::StagedValues;
use super::{
    DirectoryStamp, Durability, PROBE, Storage, StorageError, StorageOptions, WRITE_BUFFER_BYTES,
    wal,
};
use leasehold_replica::action::RecoveredState;
use leasehold_replica::codec::{self, proto};

/// Version of the format of data directories. It is raised when older binaries can no longer read
/// the directory.
pub(super) const FORMAT: u32 = 5;
/// Version of the format without the column family `staged`. Opening such a directory converts it
/// to [`FORMAT`].
pub(super) const FORMAT_UNSTAGED: u32 = 4;
const CACHE_BYTES: usize = 16 << 20;
/// Maximum number of table files that are kept open if the caller sets no limit.
const TABLES_OPEN: usize = 246;
/// Size of the write-ahead log in bytes above which its oldest data is flushed to tables. RocksDB
/// then deletes several log files at once, and a sync at that time waits until the file system has
/// freed them. So a smaller log means a shorter wait. The size is twice the amount that fills a
/// table of the column family `log`.
const WAL_BYTES: u64 = 32 << 20;
/// Number of bytes written to a table file after which the operating system is asked to write these
/// bytes to disk.
const SYNC_BYTES: u64 = 1 << 20;

impl Storage {
    /// Opens or creates a data directory, raises its incarnation durably, and reads the state from
    /// which the replica continues.
    ///
    /// # Errors
    /// Any [`StorageError`] but `Full`.
    pub fn open(
        path: &Path,
        stamp: &DirectoryStamp,
        durability: Durability,
    ) -> Result<(Storage, RecoveredState), StorageError> {
        let (tables, full_while) = (TABLES_OPEN, None);
        let storage_options = StorageOptions {
            durability,
            tables,
            full_while,
        };
        Storage::open_with(path, stamp, storage_options)
    }

    /// Opens a data directory like [`Storage::open`], but with the given options.
    ///
    /// # Errors
    /// Any error of [`Storage::open`], and `Full`.
    pub fn open_with(
        path: &Path,
        stamp: &DirectoryStamp,
        storage_options: StorageOptions,
    ) -> Result<(Storage, RecoveredState), StorageError> {
        // Contents for which clients need a token must not be readable by every user of this
        // machine.
        let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(|source| not_made(path, source))?;
        let MarkerState::Marked(marker) = Marker::open(path, draw_life())? else {
            return Err(StorageError::Damaged {
                path: path.to_owned(),
                what: marker::NAME.to_owned(),
                problem: "it is missing, or an older version of this program made the directory"
                    .to_owned(),
            });
        };
        // A run that was killed while it tested the disk for room may have left this file.
        _ = std::fs::remove_file(path.join(PROBE));
        check_logs(path)?;
        let db = open_db(
            path,
            &marker,
            options(storage_options.durability, storage_options.tables),
        )?;
        marker.check_sequence(db.latest_sequence_number())?;
        let mut storage = Storage {
            db,
            path: path.to_owned(),
            durability: storage_options.durability,
            marker,
            full_while: storage_options.full_while,
            staged: StagedValues::default(),
        };
        storage.claim(stamp)?;
        let incarnation = storage.raise_incarnation()?;
        let made = storage.marker.set_made();
        made.map_err(|error| storage.unmarked(error))?;
        let recovered = storage.recover(incarnation)?;
        Ok((storage, recovered))
    }

    /// Checks the stamp of the directory, or stamps a new directory.
    fn claim(&self, stamp: &DirectoryStamp) -> Result<(), StorageError> {
        let expected = proto::Identity {
            format: FORMAT,
            cluster: stamp.cluster.clone(),
            name: stamp.name.clone(),
            replica: stamp.replica.0.into(),
            members: stamp.members.clone(),
            life: self.marker.life(),
        };
        let Some(found) = self.get(Column::Meta, meta::IDENTITY)? else {
            self.assert_new(meta::IDENTITY)?;
            return self.put_meta(meta::IDENTITY, &expected.encode_to_vec());
        };
        let decoded = proto::Identity::decode(found).map_err(codec::CodecError::from);
        let found = self.intact(Column::Meta, meta::IDENTITY, decoded)?;
        let is_older = found.format != FORMAT;
        let identity = is_older.then(|| expected.encode_to_vec());
        self.check_identity(found, expected)?;
        identity.map_or(Ok(()), |it| self.put_meta(meta::IDENTITY, &it))
    }

    /// Checks that the directory belongs to this replica, and has a supported format.
    fn check_identity(
        &self,
        found: proto::Identity,
        expected: proto::Identity,
    ) -> Result<(), StorageError> {
        if ![FORMAT, FORMAT_UNSTAGED].contains(&found.format) {
            return Err(StorageError::Format {
                path: self.path.clone(),
                found: found.format,
                expected: expected.format,
            });
        }
        let same_life = found.life == expected.life;
        let found = stamped(found).into_iter();
        let mut pairs = found.zip(stamped(expected));
        if let Some(((what, found), (_, expected))) = pairs.find(|(a, b)| a != b) {
            return Err(StorageError::Mismatch {
                path: self.path.clone(),
                what,
                found,
                expected,
            });
        }
        if !same_life {
            return Err(StorageError::Damaged {
                path: self.path.clone(),
                what: marker::NAME.to_owned(),
                problem: "it is that of another directory".to_owned(),
            });
        }
        Ok(())
    }

    /// Refuses a directory in which the row `key` is missing, unless the creation of the directory
    /// was never completed.
    fn assert_new(&self, key: &[u8]) -> Result<(), StorageError> {
        if self.marker.is_made() {
            Err(self.damaged(Column::Meta, key, "it is missing".to_owned()))
        } else {
            Ok(())
        }
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
}

/// Returns the error for a directory that cannot be created. The cause is a problem of its path or
/// a failure of the disk.
fn not_made(path: &Path, source: io::Error) -> StorageError {
    let is_other = |it: &&Path| it.metadata().is_ok_and(|found| !found.is_dir());
    let in_the_way = path.ancestors().find(is_other);
    let problem = match in_the_way {
        Some(found) => format!("{} is not a directory", found.display()),
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
    let is_older = marker.is_made() && {
        let found = DB::list_cf(&options, path).map_err(unopened)?;
        !found.iter().any(|name| name == Column::Staged.name())
    };
    options.create_missing_column_families(!marker.is_made() || is_older);
    let columns = Column::ALL
        .map(|column| ColumnFamilyDescriptor::new(column.name(), column_options(column)));
    // The default column family is empty. But after a full disk RocksDB waits for as much room as
    // the largest write buffer of any column family takes, and the default for this one would be 64
    // MiB.
    let mut unused = Options::default();
    unused.set_write_buffer_size(WRITE_BUFFER_BYTES / 16);
    let unused = ColumnFamilyDescriptor::new(DEFAULT_COLUMN_FAMILY_NAME, unused);
    let columns = columns.into_iter().chain([unused]);
    DB::open_cf_descriptors(&options, path, columns).map_err(unopened)
}

/// Returns a random number that identifies the life of a new directory. It is never 0, and
/// practically never the same twice.
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

/// Returns the database options. Buffers are small, because several replicas may share a small
/// machine.
fn options(durability: Durability, tables: usize) -> Options {
    let mut options = Options::default();
    // RocksDB reserves ten descriptors for its own purposes.
    options.set_max_open_files(tables as i32 + 10);
    options.set_db_write_buffer_size(WRITE_BUFFER_BYTES);
    options.set_max_total_wal_size(WAL_BYTES);
    options.set_max_background_jobs(2);
    // Otherwise a finished table is synced in one go, and acknowledgements wait for the sync.
    options.set_bytes_per_sync(SYNC_BYTES);
    options.set_keep_log_file_num(2);
    options.set_max_log_file_size(4 << 20);
    options.set_log_level(LogLevel::Warn);
    // A record torn at the end was never acknowledged, if the marker agrees. A record damaged
    // before the end may have been acknowledged, and RocksDB's default would forget all records
    // after it.
    options.set_wal_recovery_mode(DBRecoveryMode::TolerateCorruptedTailRecords);
    // A finished log must still exist, with its full length.
    options.set_track_and_verify_wals_in_manifest(true);
    // Without a write-ahead log, only an atomic flush keeps the column families consistent with
    // each other.
    options.set_atomic_flush(durability == Durability::None);
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
        Column::Log | Column::State | Column::Staged => WRITE_BUFFER_BYTES / 4,
        Column::Configs | Column::Sessions | Column::Meta => WRITE_BUFFER_BYTES / 16,
    };
    options.set_write_buffer_size(share);
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

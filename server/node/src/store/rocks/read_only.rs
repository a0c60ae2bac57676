//! RocksDB of a stopped replica, opened only for reading.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use leasehold_leases::ReplicaId;
use leasehold_replica::codec::{self, CodecError, Position};
use rocksdb::{DB, IteratorMode, ReadOptions};

use super::errors::{error_of, unopened};
use super::marker::Marker;
use super::open::{self, FORMAT, FORMATS_OLDER};
use super::records::{self, Column, meta};
use super::{DirectoryStamp, StorageError};

/// Version of the format of data directories that this program reads.
pub(in crate::store) const READABLE_FORMAT: u32 = FORMAT;

/// Returns true if a start of this program converts directories of this format.
pub(in crate::store) fn is_converted(format: u32) -> bool {
    FORMATS_OLDER.contains(&format)
}

/// Whether a start reads this row.
pub(in crate::store) fn is_read_at_start(column: Column, key: &[u8]) -> bool {
    let facts = [
        meta::IDENTITY,
        meta::POSITION,
        meta::FRAMES,
        meta::INCARNATION,
    ];
    column != Column::Meta || facts.contains(&key) || key.starts_with(meta::LISTED)
}

/// Returns one error for each log of RocksDB that does not consist of records. RocksDB could hang
/// on such a log.
pub(in crate::store) fn log_problems(path: &Path) -> Result<Vec<StorageError>, StorageError> {
    open::log_problems(path)
}

/// Stamp of a data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundStamp {
    /// Version of the format of the directory.
    pub format: u32,
    /// Life of the directory.
    pub life: u64,
    /// Cluster and replica to which the directory belongs.
    pub stamp: DirectoryStamp,
}

/// Function that receives a row: the key, and the value or an error if its checksum is wrong.
type RowVisitor<'a> = &'a mut dyn FnMut(&[u8], Result<Bytes, StorageError>);

/// The executed state of a stopped replica.
pub(in crate::store) struct StateReader {
    db: DB,
    path: PathBuf,
}

impl StateReader {
    /// Opens RocksDB. `marker` is used only for the text of errors.
    ///
    /// # Errors
    /// `Damaged`, `Engine`.
    pub(in crate::store) fn open(
        path: &Path,
        marker: Option<&Marker>,
    ) -> Result<StateReader, StorageError> {
        open::check_logs(path)?;
        let db = open::open_db_read_only(path).map_err(|error| match marker {
            Some(marker) => unopened(path, marker, error),
            None => error_of(path, "opening", error),
        })?;
        Ok(StateReader {
            db,
            path: path.to_owned(),
        })
    }

    /// Returns the stamp of the directory; `None` if there is none.
    ///
    /// # Errors
    /// `Damaged`, `Engine`.
    pub(in crate::store) fn stamp(&self) -> Result<Option<FoundStamp>, StorageError> {
        let row = self.row(meta::IDENTITY)?;
        let found = row.map(|row| open::decode_identity(&self.path, row));
        let Some(found) = found.transpose()? else {
            return Ok(None);
        };
        let replica = u8::try_from(found.replica).map_err(|_| {
            open::damaged_identity(&self.path, format!("replica id {}", found.replica))
        })?;
        Ok(Some(FoundStamp {
            format: found.format,
            life: found.life,
            stamp: DirectoryStamp {
                cluster: found.cluster,
                name: found.name,
                replica: ReplicaId(replica),
                members: found.members,
            },
        }))
    }

    /// Returns the position up to which the logs are executed; `None` if nothing was executed.
    ///
    /// # Errors
    /// `Damaged`, `Engine`.
    pub(in crate::store) fn position(&self) -> Result<Option<Position>, StorageError> {
        let row = self.row(meta::POSITION)?.map(|row| {
            let value = records::unseal(Column::Meta, meta::POSITION, row.into());
            let value = value.map_err(ToOwned::to_owned)?;
            codec::decode_position(value).map_err(|error: CodecError| error.to_string())
        });
        let damaged = |problem| self.damaged(Column::Meta, meta::POSITION, problem);
        row.transpose().map_err(damaged)
    }

    /// Visits all rows of a column family, in order of their keys.
    ///
    /// # Errors
    /// `Damaged`, `Engine`: the remaining rows cannot be read.
    pub(in crate::store) fn each_row(
        &self,
        column: Column,
        visit: RowVisitor<'_>,
    ) -> Result<(), StorageError> {
        let mut options = ReadOptions::default();
        options.fill_cache(false);
        let rows = self
            .db
            .iterator_cf_opt(column.handle(&self.db), options, IteratorMode::Start);
        for row in rows {
            let (key, value) = row.map_err(|error| error_of(&self.path, "reading", error))?;
            let value = records::unseal(column, &key, Bytes::from(value));
            let value = value.map_err(|problem| self.damaged(column, &key, problem.to_owned()));
            visit(&key, value);
        }
        Ok(())
    }

    /// Returns the name and the length in bytes of each table, according to RocksDB's manifest.
    ///
    /// # Errors
    /// `Engine`.
    pub(in crate::store) fn tables(&self) -> Result<Vec<(String, u64)>, StorageError> {
        let files = self.db.live_files();
        let files = files.map_err(|error| error_of(&self.path, "listing the tables", error))?;
        let tables = files.into_iter().map(|file| {
            let name = file.name.trim_start_matches('/').to_owned();
            (name, file.size as u64)
        });
        Ok(tables.collect())
    }

    pub(in crate::store) fn damaged(
        &self,
        column: Column,
        key: &[u8],
        problem: String,
    ) -> StorageError {
        StorageError::Damaged {
            path: self.path.clone(),
            what: format!("{}/{}", column.name(), column.readable(key)),
            problem,
        }
    }

    fn row(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        let found = self.db.get_cf(Column::Meta.handle(&self.db), key);
        found.map_err(|error| error_of(&self.path, "reading", error))
    }
}

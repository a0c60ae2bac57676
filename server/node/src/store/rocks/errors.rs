//! Conversion of RocksDB's errors to errors of the store: a full disk, a lost directory, damage.

use std::path::Path;

use super::super::log_files::is_full;
use super::StorageError;
use super::engine::Engine;
use super::error_text::{ErrorCause, cause, culprit};
use super::marker::{self, Marker};
use super::records::Column;

impl Engine {
    pub(super) fn failed(&self, doing: &'static str, source: rocksdb::Error) -> StorageError {
        self.unless_gone(error_of(&self.path, doing, source))
    }

    pub(super) fn unmarked(&self, source: std::io::Error) -> StorageError {
        if is_full(&source) {
            return self.full();
        }
        let path = self.path.join(marker::NAME);
        self.gone_error()
            .unwrap_or(StorageError::Directory { path, source })
    }

    /// Returns the error `Gone` if the missing directory is the cause of `error`; otherwise returns
    /// `error`. Notes a refusal if `error` is `Full`.
    pub(super) fn unless_gone(&self, error: StorageError) -> StorageError {
        match error {
            StorageError::Full { .. } => self.full(),
            error => self.gone_error().unwrap_or(error),
        }
    }

    /// Returns the error `Gone` if the directory is no longer at its path. Callers then return this
    /// error instead of their own, because the missing directory is the cause of both.
    fn gone_error(&self) -> Option<StorageError> {
        let found = self.marker.check_place().err()?;
        matches!(found, StorageError::Gone { .. }).then_some(found)
    }

    pub(super) fn damaged(&self, column: Column, key: &[u8], problem: String) -> StorageError {
        StorageError::Damaged {
            path: self.path.clone(),
            what: format!("{}/{}", column.name(), column.readable(key)),
            problem,
        }
    }
}

/// Returns the error for a failed attempt to open RocksDB. Corrects an error text that names the
/// manifest as damaged, although the unreadable file is a table file.
pub(super) fn unopened(path: &Path, marker: &Marker, source: rocksdb::Error) -> StorageError {
    match error_of(path, "opening", source) {
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

/// Converts an error of RocksDB to an error of the store.
pub(super) fn error_of(path: &Path, doing: &'static str, source: rocksdb::Error) -> StorageError {
    let message: &str = source.as_ref();
    let path = path.to_owned();
    match cause(message) {
        ErrorCause::Full => StorageError::Full { path },
        ErrorCause::Locked => StorageError::Locked { path },
        ErrorCause::Damaged => StorageError::Damaged {
            what: culprit(&path, message),
            problem: message.to_owned(),
            path,
        },
        ErrorCause::Other => StorageError::Engine {
            path,
            doing,
            source: source.into(),
        },
    }
}

//! Why a data directory cannot be used, each with what to do about it.

use std::path::{Path, PathBuf};

use super::marker::{self, Marker};
use super::records::Column;
use super::{Storage, WRITE_BUFFER_BYTES};
use crate::store::error_text::{ErrorCause, cause, culprit};
use leasehold_replica::BACKLOG_BYTES_MAX;

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
    /// There can be no directory at this path, whatever the disk does.
    #[error(
        "data directory {}: {problem}; give another path as `data` in the configuration, or make \
         way for it", path.display()
    )]
    Path {
        /// The path.
        path: PathBuf,
        /// Why.
        problem: String,
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
         the configuration it was made under; a replica that has never run begins on an empty \
         directory of its own",
        path.display()
    )]
    Mismatch {
        /// The directory.
        path: PathBuf,
        /// Part of the stamp.
        what: &'static str,
        /// Value in the directory.
        found: String,
        /// Value in the configuration.
        expected: String,
    },
    /// Data that was read is not what was written.
    #[error(
        "data directory {}: {what} is damaged ({problem}); the disk is not to be trusted: \
         bring the directory back whole from a copy made since this replica last ran; without \
         one leave this replica off, the others go on while they are a majority", path.display()
    )]
    Damaged {
        /// The directory.
        path: PathBuf,
        /// The file; or the column family and the key.
        what: String,
        /// Problem that was found.
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
    /// The directory that is open is not at its path any more.
    #[error(
        "data directory {}: it {problem}, while this node ran; no start would find what the node \
         writes now. Mount the file system again, or move the directory back, then start the node; if \
         the directory is lost leave the node off, the others go on while they are a majority",
        path.display()
    )]
    Gone {
        /// The directory.
        path: PathBuf,
        /// Cause of its absence, as words that follow "it".
        problem: &'static str,
    },
    /// There is no room. What was to be written is not.
    #[error(
        "data directory {}: no space left; free at least {} MiB, then start the node again \
         (one that runs goes on by itself)",
        path.display(), (WRITE_BUFFER_BYTES + BACKLOG_BYTES_MAX) >> 20
    )]
    Full {
        /// The directory.
        path: PathBuf,
    },
    /// The store says that there is no room, and there is.
    #[error(
        "data directory {}: there is room again, and the store still refuses every write: it has to \
         be opened anew, so the process ends. Start the node again; nothing that was acknowledged is \
         lost", path.display()
    )]
    Stuck {
        /// The directory.
        path: PathBuf,
    },
    /// Anything else: after a failed sync nothing is known of what is on disk.
    #[error("data directory {}: {doing} failed: {source}", path.display())]
    Engine {
        /// The directory.
        path: PathBuf,
        /// Operation that was attempted.
        doing: &'static str,
        /// Error that RocksDB reports.
        source: rocksdb::Error,
    },
}

impl Storage {
    pub(super) fn failed(&self, doing: &'static str, source: rocksdb::Error) -> StorageError {
        match engine(&self.path, doing, source) {
            full @ StorageError::Full { .. } => full,
            error => self.gone_error().unwrap_or(error),
        }
    }

    pub(super) fn unmarked(&self, source: std::io::Error) -> StorageError {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        if matches!(source.kind(), StorageFull | QuotaExceeded) {
            let path = self.path.clone();
            return StorageError::Full { path };
        }
        let path = self.path.join(marker::NAME);
        self.gone_error()
            .unwrap_or(StorageError::Directory { path, source })
    }

    /// Returns `Gone` if the directory is not at its path any more: that explains any other
    /// error.
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

/// RocksDB blames the manifest for tables that it cannot read.
pub(super) fn unopened(path: &Path, marker: &Marker, source: rocksdb::Error) -> StorageError {
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
            source,
        },
    }
}

//! Why a data directory cannot be used, each with what to do about it; and what
//! RocksDB's errors, which are text, mean in those terms.

use std::path::{Path, PathBuf};

use super::marker::{self, Marker};
use super::records::Column;
use super::{Storage, WRITE_BUFFER_BYTES};

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
         the configuration it was made under; a replica that has never run begins on an empty \
         directory of its own",
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
         bring the directory back whole from a copy made since this replica last ran; without \
         one leave this replica off, the others go on while they are a majority", path.display()
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

impl Storage {
    pub(super) fn failed(&self, doing: &'static str, source: rocksdb::Error) -> StorageError {
        engine(&self.path, doing, source)
    }

    pub(super) fn unmarked(&self, source: std::io::Error) -> StorageError {
        if source.kind() == std::io::ErrorKind::StorageFull {
            let path = self.path.clone();
            return StorageError::Full { path };
        }
        let path = self.path.join(marker::NAME);
        StorageError::Directory { path, source }
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
    if is_full(message) {
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

/// Whether an error of the store means that there is no room. One met while
/// syncing is not meant: it leaves in doubt what was written before.
pub(super) fn is_full(message: &str) -> bool {
    let full = message.contains("No space left") || message.contains("quota exceeded");
    full && !message.contains("sync")
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

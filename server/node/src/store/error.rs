//! Reasons for which a data directory cannot be used, each with an action that fixes it.

use std::path::PathBuf;

use super::WRITABLE_BYTES;

/// Reason why the storage cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The operating system refused an operation on the directory or on one of its files.
    #[error("data directory {}: {source}", path.display())]
    Directory {
        /// Path of the data directory.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// No directory can be created at this path, regardless of the state of the disk.
    #[error(
        "data directory {}: {problem}; give another path as `data` in the configuration, or make \
         way for it", path.display()
    )]
    Path {
        /// The configured path.
        path: PathBuf,
        /// Problem with the path.
        problem: String,
    },
    /// Another process uses the directory.
    #[error(
        "data directory {} is in use by another process; stop that one, or give this replica \
         another directory", path.display()
    )]
    Locked {
        /// Path of the data directory.
        path: PathBuf,
    },
    /// The directory was created by another version of this program.
    #[error(
        "data directory {}: its format version is {found}, this program's is {expected}; run the \
         program that made it, or start the whole cluster anew, on empty directories", path.display()
    )]
    Format {
        /// Path of the data directory.
        path: PathBuf,
        /// Format version of the directory.
        found: u32,
        /// Format version of this program.
        expected: u32,
    },
    /// The directory belongs to another replica.
    #[error(
        "data directory {}: its {what} is {found}, the configuration says {expected}; start it with \
         the configuration it was made under; a replica that has never run begins on an empty \
         directory of its own",
        path.display()
    )]
    Mismatch {
        /// Path of the data directory.
        path: PathBuf,
        /// Name of the field that differs in the directory's stamp.
        what: &'static str,
        /// Value of the field in the directory.
        found: String,
        /// Value of the field in the configuration.
        expected: String,
    },
    /// Bytes that were read differ from the bytes that were written.
    #[error(
        "data directory {}: {what} is damaged ({problem}); the disk is not to be trusted: \
         bring the directory back whole from a copy made since this replica last ran; without \
         one leave this replica off, the others go on while they are a majority", path.display()
    )]
    Damaged {
        /// Path of the data directory.
        path: PathBuf,
        /// The damaged file, or the column family and key of the damaged value.
        what: String,
        /// Problem that was found.
        problem: String,
    },
    /// The replica has previously run on another directory (hazard 33).
    #[error(
        "data directory {}: this replica has run on another one before, which {witness} remembers; \
         what it has promised and accepted is not in this one, and others rely on it. Bring the \
         directory back whole from a copy made since this replica last ran, or leave it out. If no \
         client was ever told anything by this cluster, it may begin anew: on empty directories of \
         all its replicas", path.display()
    )]
    Wiped {
        /// Path of the data directory.
        path: PathBuf,
        /// Name of the peer that remembers the other directory.
        witness: String,
    },
    /// The open directory is no longer at its path.
    #[error(
        "data directory {}: it {problem}, while this node ran; no start would find what the node \
         writes now. Mount the file system again, or move the directory back, then start the node; if \
         the directory is lost leave the node off, the others go on while they are a majority",
        path.display()
    )]
    Gone {
        /// Path of the data directory.
        path: PathBuf,
        /// Reason why the directory is absent, as words that follow "it" in a sentence.
        problem: &'static str,
    },
    /// The disk has no space. If a write was refused, its records were not written.
    #[error(
        "data directory {}: no space left, or no inodes (`df -i`); free at least {} MiB or some files, then \
         start the node again (a running node continues by itself)",
        path.display(), WRITABLE_BYTES >> 20
    )]
    Full {
        /// Path of the data directory.
        path: PathBuf,
    },
    /// The store reports that the disk has no space, although the disk has space.
    #[error(
        "data directory {}: there is room again, and the store still refuses every write: it has to \
         be opened anew, so the process ends. Start the node again, and if this repeats, free as much space \
         as the directory takes; nothing that was synced is lost", path.display()
    )]
    Stuck {
        /// Path of the data directory.
        path: PathBuf,
    },
    /// Another error occurred. After a failed sync the contents of the disk are unknown.
    #[error("data directory {}: {doing} failed: {source}", path.display())]
    Engine {
        /// Path of the data directory.
        path: PathBuf,
        /// Operation that was attempted.
        doing: &'static str,
        /// Error that RocksDB reports.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The program was built without a store, so it cannot run replicas.
    #[error(
        "this program was built without its store (the feature `store`): it simulates clusters, and \
         runs no replica. Build it with the store: `make build`"
    )]
    NotBuilt,
}

impl StorageError {
    /// Whether the cause is a disk without space.
    #[cfg(feature = "store")]
    pub(super) fn is_full(&self) -> bool {
        match self {
            StorageError::Full { .. } => true,
            StorageError::Directory { source, .. } => super::log_files::is_full(source),
            _ => false,
        }
    }
}

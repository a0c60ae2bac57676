//! Problems of a data directory, each with its effect on a start and the advice for operators.

use std::path::Path;

use leasehold_log::LogDamage;

use super::super::StorageError;
use super::super::log_files;

/// Effect of a problem on a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartEffect {
    /// A start refuses the directory.
    Refused,
    /// A start succeeds, but the process ends with an error later, when the replica reads the
    /// record.
    EndsLater,
    /// A start succeeds, although votes are lost.
    Unnoticed,
    /// A start does not read the damaged bytes.
    Unread,
    /// The operating system refuses to read the file.
    Unreadable,
    /// A start cannot write to the directory.
    Unwritable,
}

impl StartEffect {
    /// Returns the name of the effect, for machines.
    pub fn name(self) -> &'static str {
        match self {
            StartEffect::Refused => "refused",
            StartEffect::EndsLater => "ends_later",
            StartEffect::Unnoticed => "unnoticed",
            StartEffect::Unread => "unread",
            StartEffect::Unreadable => "unreadable",
            StartEffect::Unwritable => "unwritable",
        }
    }

    /// Describes the effect in words.
    pub fn words(self) -> &'static str {
        match self {
            StartEffect::Refused => "a start refuses the directory",
            StartEffect::EndsLater => "a start succeeds, but the replica ends if it reads this",
            StartEffect::Unnoticed => {
                "a start does not notice this; the replica would take part without its lost votes"
            }
            StartEffect::Unread => "a start does not read this, but the disk has changed it",
            StartEffect::Unreadable => "nothing is known about this file",
            StartEffect::Unwritable => "a start fails, and loses nothing",
        }
    }

    /// Returns the advice for operators.
    pub fn advice(self) -> &'static str {
        match self {
            StartEffect::Unreadable => {
                "run this command as the user of the node; if that does not help, repair the disk"
            }
            StartEffect::Unwritable => {
                "mount the file system for writing, or give the directory to the user of the node; run \
                 this command as that user"
            }
            StartEffect::EndsLater | StartEffect::Unread => {
                "replace the disk; bring the directory back whole from a copy made since this replica \
                 last ran, if there is one"
            }
            StartEffect::Refused | StartEffect::Unnoticed => {
                "do not start it; bring the directory back whole from a copy made since this replica \
                 last ran. Without one leave this replica off, the others go on while they are a majority"
            }
        }
    }
}

/// A problem of a data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryProblem {
    /// Path of the file within the directory, or the column family and the key of a row.
    pub file: String,
    /// Offset in the file, in bytes; `None` if the problem concerns no particular place.
    pub byte: Option<usize>,
    /// Description of the problem.
    pub problem: String,
    /// Effect on a start.
    pub effect: StartEffect,
}

impl DirectoryProblem {
    /// Creates a problem with the effect [`StartEffect::Refused`].
    pub(super) fn refused(file: &str, problem: &str) -> DirectoryProblem {
        DirectoryProblem {
            file: file.to_owned(),
            byte: None,
            problem: problem.to_owned(),
            effect: StartEffect::Refused,
        }
    }

    /// Converts an error of the store.
    pub(super) fn of(directory: &Path, error: StorageError) -> DirectoryProblem {
        match error {
            StorageError::Damaged { what, problem, .. } => {
                DirectoryProblem::refused(&what, &problem)
            }
            StorageError::Directory { path, source } => {
                let within = path.strip_prefix(directory).unwrap_or(&path);
                let effect = StartEffect::Unreadable;
                DirectoryProblem {
                    effect,
                    ..DirectoryProblem::refused(&within.to_string_lossy(), &source.to_string())
                }
            }
            StorageError::Engine { doing, source, .. } => DirectoryProblem {
                effect: StartEffect::Unreadable,
                ..DirectoryProblem::refused("RocksDB", &format!("{doing} failed: {source}"))
            },
            other => DirectoryProblem::refused("directory", &other.to_string()),
        }
    }
}

impl From<LogDamage> for DirectoryProblem {
    fn from(damage: LogDamage) -> DirectoryProblem {
        DirectoryProblem {
            byte: Some(damage.offset),
            ..DirectoryProblem::refused(&log_files::name_of(damage.segment), &damage.problem)
        }
    }
}

impl std::fmt::Display for DirectoryProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.file)?;
        if let Some(byte) = self.byte {
            write!(f, ", byte {byte}")?;
        }
        write!(f, ": {}", self.problem)
    }
}

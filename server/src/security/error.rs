//! Why nobody can be identified, in words that say what to do.

use std::io;
use std::path::PathBuf;

/// Why a node has no certificate that it could show, or none can be made.
#[derive(Debug, thiserror::Error)]
pub enum SecurityError {
    /// A file cannot be read.
    #[error("{}: {source}; {mend}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
        /// What to do.
        mend: String,
    },
    /// A file cannot be written.
    #[error("{}: {source}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others than its owner may read or write a file that is secret.
    #[error("{} is open to others than its owner (mode {mode:04o}): chmod 600 {}", file.display(), file.display())]
    Loose {
        /// The file.
        file: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// A file does not hold what it should.
    #[error("{}: {problem}", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// What is wrong, and how to mend it.
        problem: String,
    },
    /// A library refuses.
    #[error("{doing}: {problem}")]
    Failed {
        /// What was attempted.
        doing: &'static str,
        /// Why.
        problem: String,
    },
}

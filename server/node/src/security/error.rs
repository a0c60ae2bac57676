//! Reasons for which a node cannot prove its identity, in words that say how to fix them.

use std::io;
use std::path::PathBuf;

use crate::config::{ClusterConfig, Identity};

/// Reason why a node has no usable certificate, or why no certificate can be made.
#[derive(Debug, thiserror::Error)]
pub enum SecurityError {
    /// A file cannot be read.
    #[error("{}: {source}; {fix}", file.display())]
    Read {
        /// Path of the file.
        file: PathBuf,
        /// Error of the operating system.
        source: io::Error,
        /// Action that fixes the problem.
        fix: String,
    },
    /// A file cannot be written.
    #[error("{}: {source}", file.display())]
    Write {
        /// Path of the file.
        file: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A secret file may be read or written by users other than its owner.
    #[error("{} is open to others than its owner (mode {mode:04o}): chmod 600 {}", file.display(), file.display())]
    Loose {
        /// Path of the file.
        file: PathBuf,
        /// Permission bits of the file.
        mode: u32,
    },
    /// A file does not hold the expected contents.
    #[error("{}: {problem}", file.display())]
    Malformed {
        /// Path of the file.
        file: PathBuf,
        /// Problem with the file, and how to fix it.
        problem: String,
    },
    /// A configured file cannot be used.
    #[error("{}: {field}: {source}", config.display())]
    Configured {
        /// Path of the configuration file.
        config: PathBuf,
        /// Name of the field in the configuration.
        field: &'static str,
        /// Reason why the file cannot be used.
        source: Box<SecurityError>,
    },
    /// A library returned an error.
    #[error("{doing}: {problem}")]
    Failed {
        /// Operation that was attempted.
        doing: &'static str,
        /// Error text of the library.
        problem: String,
    },
}

impl SecurityError {
    /// Returns this error with the name of the configuration field that refers to the file.
    pub(super) fn of(self, config: &ClusterConfig) -> SecurityError {
        let field = match config.security.identity {
            Identity::None => "security",
            Identity::Certificates(_) => "security.certificates",
            Identity::Secret(_) => "security.secret",
        };
        SecurityError::Configured {
            config: config.file.clone(),
            field,
            source: Box::new(self),
        }
    }
}

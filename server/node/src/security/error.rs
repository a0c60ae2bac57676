//! Why nobody can be identified, in words that say what to do.

use std::io;
use std::path::PathBuf;

use crate::config::{ClusterConfig, Identity};

/// Why a node has no certificate that it could show, or none can be made.
#[derive(Debug, thiserror::Error)]
pub enum SecurityError {
    /// A file cannot be read.
    #[error("{}: {source}; {fix}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
        /// Action that fixes it.
        fix: String,
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
        /// Problem with the file, and how to fix it.
        problem: String,
    },
    /// Something that a configuration names cannot be used.
    #[error("{}: {field}: {source}", config.display())]
    Configured {
        /// The configuration.
        config: PathBuf,
        /// Its field.
        field: &'static str,
        /// Reason why it cannot be used.
        source: Box<SecurityError>,
    },
    /// A library refuses.
    #[error("{doing}: {problem}")]
    Failed {
        /// Operation that was attempted.
        doing: &'static str,
        /// Why.
        problem: String,
    },
}

impl SecurityError {
    /// The same, with the field of the configuration that it is about.
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

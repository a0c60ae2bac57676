//! Reasons why a node did not start or stopped, each with the exit status of its process.

use std::io;
use std::path::PathBuf;

use super::config::ConfigError;
use crate::front::access::AccessError;
use crate::security::SecurityError;
use crate::store::StorageError;

/// Reason why a node did not start, or why it stopped.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The configuration does not contain the requested node.
    #[error(
        "there is no node {name:?} in {}; it has {}; give one of these names, or add a [[node]]",
        file.display(), known.join(", ")
    )]
    UnknownNode {
        /// Name of the node that was requested.
        name: String,
        /// Names of the nodes in the configuration.
        known: Vec<String>,
        /// Path of the configuration file.
        file: PathBuf,
    },
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The node cannot prove its identity.
    #[error(transparent)]
    Security(#[from] SecurityError),
    /// The node cannot listen on a port.
    #[error(
        "node {node}: cannot listen on {field} = {address:?}: {source}; give the node an address of this \
         machine and a port that is free: `{field}` of node {node} in {}", file.display()
    )]
    Bind {
        /// Name of the node.
        node: String,
        /// Name of the field of the address: `client` or `peer`.
        field: &'static str,
        /// Address in the configuration.
        address: String,
        /// Path of the configuration file.
        file: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The storage cannot be opened, or has failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The token file cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The events file cannot be opened.
    #[error("--events {}: {source}", path.display())]
    Events {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The limit on open files and connections is too low for the node.
    #[error(
        "this process may have {limit} files and connections open, node {node} needs {needed}: \
         raise the hard limit (`ulimit -Hn`, or LimitNOFILE= of its service)"
    )]
    Descriptors {
        /// Name of the node.
        node: String,
        /// Limit on open files, after it was raised as far as allowed.
        limit: usize,
        /// Smallest limit that is enough.
        needed: usize,
    },
    /// The operating system refuses something that every node needs.
    #[error("{doing}: {source}")]
    System {
        /// Action that was attempted.
        doing: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
}

impl NodeError {
    /// Exit status of a process that should not be started again, because the next start would also
    /// fail. It is 78, which `sysexits.h` calls a configuration error.
    pub const FINAL_STATUS: u8 = 78;
    /// Exit status of a process that lost its data directory while it ran. The process should not
    /// be started again, because a new start does not help.
    pub const GONE_STATUS: u8 = 3;

    /// Returns the exit status of a process that ended with this error.
    pub fn status(&self) -> u8 {
        match self {
            NodeError::Storage(StorageError::Gone { .. }) => NodeError::GONE_STATUS,
            NodeError::UnknownNode { .. }
            | NodeError::Config(_)
            | NodeError::Security(_)
            | NodeError::Access(_)
            | NodeError::Storage(
                StorageError::NotBuilt
                | StorageError::Path { .. }
                | StorageError::Wiped { .. }
                | StorageError::Damaged { .. }
                | StorageError::Format { .. }
                | StorageError::Mismatch { .. },
            ) => NodeError::FINAL_STATUS,
            _ => 1,
        }
    }

    /// Returns true if a restart cannot help a node that ended with this status. The operator must
    /// fix the cause first.
    pub fn is_final(status: i32) -> bool {
        [NodeError::FINAL_STATUS, NodeError::GONE_STATUS]
            .map(i32::from)
            .contains(&status)
    }
}

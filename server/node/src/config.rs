//! The cluster's configuration: one TOML file, which is the same for every node.
//!
//! Operators read errors of the configuration under pressure. So each error names the file, the
//! field, the value found and the values accepted.

mod check;
mod depth;
mod lease;
mod limits;
mod ranges;
mod raw;
mod security;
mod sessions;
mod strategies;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use leasehold_leases::{LeaseParams, RangeMap, ReplicaId, StrategySpec};

pub use self::depth::from_toml;
pub use self::lease::{LeaseSection, RangeSection, UnlistedName};
pub use self::limits::Limits;
pub use self::security::{Identity, Security};

use crate::store::Durability;
use leasehold_replica::settings::{
    AcceptReplies, ElectionSettings, SessionLimits, Settings, Timing,
};

/// A cluster's configuration that has passed all checks.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterConfig {
    /// File from which the configuration was read.
    pub file: PathBuf,
    /// Name of the cluster. Replicas and clients of another cluster are refused.
    pub cluster: String,
    /// Replica that should be the leader whenever it can; `None` for no preference.
    pub leader: Option<ReplicaId>,
    /// Point at which a write is considered durable.
    pub durability: Durability,
    /// Directory that contains a data directory for each node.
    pub data: PathBuf,
    /// Lease strategy of each key range. A strategy decides which replicas may read locally.
    pub strategies: RangeMap<StrategySpec>,
    /// Lease durations.
    pub params: LeaseParams,
    /// Intervals and timeouts of the replicas.
    pub timing: Timing,
    /// Replicas that receive the votes of acceptors.
    pub accept_replies: AcceptReplies,
    /// Maximum number of commands in one slot of the log.
    pub batch_max: usize,
    /// Maximum memory, in MiB, for counting the requests for each key.
    pub demand_mb: u64,
    /// Maximum traffic for choosing lease holders, in KB per second at each replica; see
    /// [`Settings::holders_bytes_s`].
    pub holders_kb_s: u64,
    /// Limits on the resources that clients may take from a replica.
    pub limits: Limits,
    /// Conditions under which replicas and clients may connect.
    pub security: Security,
    /// Limits on clients' sessions.
    pub sessions: SessionLimits,
    /// The replicas, in ascending order of their ids.
    pub nodes: Vec<NodeConfig>,
}

/// Configuration of one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// Name of the replica, which is also the name of its data directory.
    pub name: String,
    /// Address for clients, as `host:port`.
    pub client: String,
    /// Address for the other replicas, as `host:port`.
    pub peer: String,
    /// Addresses that this replica dials instead of the `peer` addresses of other replicas. The
    /// keys are the names of those other replicas. An address may belong to a relay, for example.
    pub via: BTreeMap<String, String>,
}

/// Returns a parser's message with plain words in place of the names of Rust types.
fn in_plain_words(problem: &str) -> String {
    problem
        .replace(", expected u64", ", expected a whole number, 0 or more")
        .replace(", expected f64", ", expected a number")
        .replace(", expected a boolean", ", expected true or false")
}

/// Reason why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {source}; give the path of the cluster's configuration", file.display())]
    Read {
        /// Path of the file.
        file: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The file is not TOML, or has fields of the wrong name or type.
    #[error("{}: {problem}", file.display())]
    Syntax {
        /// Path of the file.
        file: PathBuf,
        /// Position and description of the problem, in the parser's words.
        problem: String,
    },
    /// A field has a value that is not accepted.
    #[error("{}: {field} is {found}; {accepted}", file.display())]
    Field {
        /// Path of the file.
        file: PathBuf,
        /// Name of the field as it is written in the file.
        field: String,
        /// Value of the field in the file.
        found: String,
        /// Values that the field accepts, and advice on a fix.
        accepted: String,
    },
}

impl ClusterConfig {
    /// Reads a configuration file and checks it.
    ///
    /// # Errors
    /// Returns the first problem with the file.
    pub fn load(file: &Path) -> Result<ClusterConfig, ConfigError> {
        let text = std::fs::read_to_string(file).map_err(|source| ConfigError::Read {
            file: file.to_owned(),
            source,
        })?;
        ClusterConfig::parse(&text, file)
    }

    /// Reads and checks the text of a configuration file. Relative paths in the text start at the
    /// directory of `file`.
    ///
    /// # Errors
    /// Returns the first problem with the text.
    pub fn parse(text: &str, file: &Path) -> Result<ClusterConfig, ConfigError> {
        let raw = from_toml(text).map_err(|error| ConfigError::Syntax {
            file: file.to_owned(),
            problem: in_plain_words(&error.to_string()),
        })?;
        check::check(raw, file)
    }

    /// Returns the id of the node called `name`.
    pub fn replica(&self, name: &str) -> Option<ReplicaId> {
        let found = self.nodes.iter().position(|node| node.name == name)?;
        Some(ReplicaId(found as u8))
    }

    /// Returns the names of all nodes, in ascending order of their ids.
    pub fn names(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.name.clone()).collect()
    }

    /// Returns the settings with which replica `me` starts.
    pub fn settings(&self, me: ReplicaId) -> Settings {
        Settings {
            strategies: self.strategies.clone(),
            params: self.params,
            timing: self.timing,
            elections: ElectionSettings {
                preferred: self.leader,
                ..ElectionSettings::default()
            },
            accept_replies: self.accept_replies,
            batch_max: self.batch_max,
            demand_bytes_max: (self.demand_mb as usize) << 20,
            holders_bytes_s: self.holders_kb_s as usize * 1000,
            sessions: self.sessions,
            ..Settings::new(me, self.nodes.len())
        }
    }
}

//! The cluster's configuration: one TOML file, the same for every node.
//!
//! Operators read these errors under pressure. So each error names the file, the field, the value
//! found and the values accepted.

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

/// A cluster's configuration, after all checks.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterConfig {
    /// File from which the configuration was read.
    pub file: PathBuf,
    /// Name of the cluster. Replicas and clients of another cluster are refused.
    pub cluster: String,
    /// Replica that should lead when it can; `None` for no preference.
    pub leader: Option<ReplicaId>,
    /// Point at which a write is taken as durable.
    pub durability: Durability,
    /// Directory that holds one directory for each node.
    pub data: PathBuf,
    /// Strategies by key range, which decide the replicas that may read locally.
    pub strategies: RangeMap<StrategySpec>,
    /// Lease durations.
    pub params: LeaseParams,
    /// Timers.
    pub timing: Timing,
    /// Replicas that receive votes.
    pub accept_replies: AcceptReplies,
    /// Maximum number of commands in a slot.
    pub batch_max: usize,
    /// Maximum memory for counting the keys that clients request, in MiB.
    pub demand_mb: u64,
    /// Maximum traffic for choosing holders, in KB a second at each replica; see
    /// [`Settings::holders_bytes_s`].
    pub holders_kb_s: u64,
    /// Limits on the resources that clients may take.
    pub limits: Limits,
    /// Conditions under which replicas and clients may connect.
    pub security: Security,
    /// Limits on clients' sessions.
    pub sessions: SessionLimits,
    /// The replicas, in the order of their ids.
    pub nodes: Vec<NodeConfig>,
}

/// One replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// Name of the replica, and of its directory.
    pub name: String,
    /// Address for clients, as `host:port`.
    pub client: String,
    /// Address for the other replicas, as `host:port`.
    pub peer: String,
    /// Addresses, by name of the other replica, at which this replica dials others instead of at
    /// their `peer`. They may be addresses of relays, for example.
    pub via: BTreeMap<String, String>,
}

/// A parser's message in which names of Rust types are replaced by plain words.
fn in_plain_words(problem: &str) -> String {
    problem
        .replace(", expected u64", ", expected a whole number, 0 or more")
        .replace(", expected f64", ", expected a number")
        .replace(", expected a boolean", ", expected true or false")
}

/// Reason for which a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {source}; give the path of the cluster's configuration", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The file is not TOML, or has fields of the wrong name or type.
    #[error("{}: {problem}", file.display())]
    Syntax {
        /// The file.
        file: PathBuf,
        /// Position and description of the problem, in the parser's words.
        problem: String,
    },
    /// A field has a value that is not accepted.
    #[error("{}: {field} is {found}; {accepted}", file.display())]
    Field {
        /// The file.
        file: PathBuf,
        /// Name of the field as it is written in the file.
        field: String,
        /// Value of the field in the file.
        found: String,
        /// Values that the field accepts, and how to fix it.
        accepted: String,
    },
}

impl ClusterConfig {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// The first problem with the file.
    pub fn load(file: &Path) -> Result<ClusterConfig, ConfigError> {
        let text = std::fs::read_to_string(file).map_err(|source| ConfigError::Read {
            file: file.to_owned(),
            source,
        })?;
        ClusterConfig::parse(&text, file)
    }

    /// Checks the text of a file. Relative paths in it start at the directory of `file`.
    ///
    /// # Errors
    /// The first problem with the text.
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

    /// Returns the names of all nodes, in the order of their ids.
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

//! The cluster's configuration: one TOML file, the same for every node.
//!
//! An operator reads these errors at a bad hour. Each names the file, the field,
//! what was found there and what is accepted.

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

/// A cluster's configuration, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterConfig {
    /// Where it was read from.
    pub file: PathBuf,
    /// The cluster's name: replicas and clients of another are refused.
    pub cluster: String,
    /// Replica that should lead when it can.
    pub leader: Option<ReplicaId>,
    /// When a write counts as durable.
    pub durability: Durability,
    /// The directory that holds one directory for each node.
    pub data: PathBuf,
    /// Strategies by key range, which decide the replicas that may read locally.
    pub strategies: RangeMap<StrategySpec>,
    /// Lease durations.
    pub params: LeaseParams,
    /// Timers.
    pub timing: Timing,
    /// Replicas to which votes are sent.
    pub accept_replies: AcceptReplies,
    /// Maximum number of commands in a slot.
    pub batch_max: usize,
    /// Most memory for counting what clients ask, in MiB.
    pub demand_mb: u64,
    /// Most traffic for choosing holders, in KB a second at each replica: see
    /// [`Settings::holders_bytes_s`].
    pub holders_kb_s: u64,
    /// Limits on what clients may take.
    pub limits: Limits,
    /// Conditions under which replicas and clients may connect.
    pub security: Security,
    /// Limits on clients' sessions.
    pub sessions: SessionLimits,
    /// The replicas, by id.
    pub nodes: Vec<NodeConfig>,
}

/// One replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// Its name, also of its directory.
    pub name: String,
    /// `host:port` for clients.
    pub client: String,
    /// `host:port` for the other replicas.
    pub peer: String,
    /// Addresses at which this replica dials others, by their names, instead of at their
    /// `peer`: those of relays, for example.
    pub via: BTreeMap<String, String>,
}

/// A parser's message without the names that types have in this language.
fn in_plain_words(problem: &str) -> String {
    problem
        .replace(", expected u64", ", expected a whole number, 0 or more")
        .replace(", expected f64", ", expected a number")
        .replace(", expected a boolean", ", expected true or false")
}

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {source}; give the path of the cluster's configuration", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Not TOML, or not these fields.
    #[error("{}: {problem}", file.display())]
    Syntax {
        /// The file.
        file: PathBuf,
        /// Where and what, as the parser says.
        problem: String,
    },
    /// A field has a value that is not accepted.
    #[error("{}: {field} is {found}; {accepted}", file.display())]
    Field {
        /// The file.
        file: PathBuf,
        /// The field, as it is written in the file.
        field: String,
        /// Value that it holds.
        found: String,
        /// Values that it may hold, and how to fix it.
        accepted: String,
    },
}

impl ClusterConfig {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn load(file: &Path) -> Result<ClusterConfig, ConfigError> {
        let text = std::fs::read_to_string(file).map_err(|source| ConfigError::Read {
            file: file.to_owned(),
            source,
        })?;
        ClusterConfig::parse(&text, file)
    }

    /// Checks the text of a file; relative paths in it begin where `file` lies.
    ///
    /// # Errors
    /// As [`ClusterConfig::load`].
    pub fn parse(text: &str, file: &Path) -> Result<ClusterConfig, ConfigError> {
        let raw = from_toml(text).map_err(|error| ConfigError::Syntax {
            file: file.to_owned(),
            problem: in_plain_words(&error.to_string()),
        })?;
        check::check(raw, file)
    }

    /// The id of the node called `name`.
    pub fn replica(&self, name: &str) -> Option<ReplicaId> {
        let found = self.nodes.iter().position(|node| node.name == name)?;
        Some(ReplicaId(found as u8))
    }

    /// The names of all nodes, in the order of their ids.
    pub fn names(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.name.clone()).collect()
    }

    /// The settings that replica `me` starts with.
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

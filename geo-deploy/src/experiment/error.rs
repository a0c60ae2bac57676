//! Why an experiment cannot be run as asked.

/// Why an experiment cannot be run as asked.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// No built-in experiment of that name.
    #[error(
        "no experiment is called {name:?}; there are {known}, or give the path of a .toml file"
    )]
    Unknown {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The file cannot be read.
    #[error("experiment file {path}: {source}")]
    Unreadable {
        /// The file asked for.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Not TOML, or a field that does not exist or has the wrong type.
    #[error("experiment {name}: {message}")]
    Malformed {
        /// The experiment or its file.
        name: String,
        /// Where and why.
        message: String,
    },
    /// An override that is not `key=value`.
    #[error("--set {found}: write key=value, as in --set requests=1000")]
    NotAPair {
        /// What was written.
        found: String,
    },
    /// An override of something that does not exist.
    #[error("--set {key}: there is no such setting; there are {known}")]
    UnknownKey {
        /// The key.
        key: String,
        /// Everything that can be set.
        known: String,
    },
    /// An override with a value that the field does not accept.
    #[error("--set {key}={value}: {message}")]
    BadValue {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// What is accepted.
        message: String,
    },
    /// The overridden topology.
    #[error("--set topology: {0}")]
    Topology(#[from] crate::topology::TopologyError),
    /// A field whose value makes no sense, alone or beside another.
    #[error("{field} = {found}: {mend}")]
    Invalid {
        /// The field, dotted.
        field: String,
        /// Its value.
        found: String,
        /// What is accepted, or what to change.
        mend: String,
    },
}

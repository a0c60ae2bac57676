//! Why an experiment cannot be run as asked.

/// Why an experiment cannot be run as asked.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum ExperimentError {
    /// No built-in experiment of that name.
    #[error(
        "no experiment is called {name:?}; there are {known}, or give the path of a .toml file"
    )]
    Unknown { name: String, known: String },
    /// The file cannot be read.
    #[error("experiment file {path}: {source}")]
    Unreadable {
        path: String,
        source: std::io::Error,
    },
    /// Not TOML, or a field that does not exist or has the wrong type.
    #[error("experiment {name}: {message}")]
    Malformed { name: String, message: String },
    /// An override that is not `key=value`.
    #[error("--set {found}: write key=value, as in --set requests=1000")]
    NotAPair { found: String },
    /// An override of something that does not exist.
    #[error("--set {key}: there is no such setting; there are {known}")]
    UnknownKey { key: String, known: String },
    /// An override of a fault, or of a field of one, that does not exist.
    #[error(
        "--set {key}: there is no such setting; write fault.<number>.<field>. The experiment has \
         {faults} [[fault]] for all strategies, the first has number 1, and others are written in \
         its file (see `exp show`); fields are {fields}"
    )]
    UnknownFault {
        key: String,
        faults: usize,
        fields: String,
    },
    /// An override with a value that the field does not accept.
    #[error("--set {key}={value}: {message}")]
    BadValue {
        key: String,
        value: String,
        message: String,
    },
    /// The overridden topology.
    #[error("--set topology: {0}")]
    Topology(#[from] crate::topology::TopologyError),
    /// A field with a value that makes no sense, alone or beside another.
    #[error("{field} = {found}: {fix}")]
    Invalid {
        field: String,
        found: String,
        fix: String,
    },
}

//! Errors of experiments.

/// Reason why an experiment cannot be run as requested.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum ExperimentError {
    /// No built-in experiment has this name.
    #[error(
        "no experiment is called {name:?}; there are {known}, or give the path of a .toml file"
    )]
    Unknown { name: String, known: String },
    /// The file of the experiment cannot be read.
    #[error("experiment file {path}: {source}")]
    Unreadable {
        path: String,
        source: std::io::Error,
    },
    /// The text is not TOML, or a field does not exist or has the wrong type.
    #[error("experiment {name}: {message}")]
    Malformed { name: String, message: String },
    /// An override that is not `key=value`.
    #[error("--set {found}: write key=value, as in --set requests=1000")]
    NotAPair { found: String },
    /// An override of a setting that does not exist.
    #[error("--set {key}: there is no such setting; there are {known}")]
    UnknownKey { key: String, known: String },
    /// An override of a fault that does not exist, or of a field that faults do not have.
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
    /// The topology that an override names is wrong.
    #[error("--set topology: {0}")]
    Topology(#[from] crate::topology::TopologyError),
    /// A field with a value that makes no sense, by itself or together with another field.
    #[error("{field} = {found}: {fix}")]
    Invalid {
        field: String,
        found: String,
        fix: String,
    },
}

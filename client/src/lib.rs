//! The client library of Leasehold: a pipelined client with sessions and retries.

mod backoff;
mod client;
mod connection;
mod copies;
mod error;
mod options;
mod replicas;
mod routing;
mod session;

pub use client::{CasOutcome, Client, Reply};
pub use copies::OperationTrace;
pub use error::{Error, FailedAttempt};
pub use leasehold_transport::Secret;
pub use leasehold_wire::Path;
pub use options::{ClientOptions, LivenessChange, ReplicaChange, Watcher};
pub use replicas::{Health, ReplicaHealth};
pub use routing::Routing;

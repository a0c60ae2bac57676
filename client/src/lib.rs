//! The client's side of Leasehold: the wire protocol, a pipelined client with
//! sessions and retries, the history of a run, and the
//! checkers that judge it: key by key, or transactions on several.

mod client;
mod connection;
mod copies;
mod error;
mod flap;
pub mod history;
pub mod linearizability;
mod options;
mod pause;
mod reach;
mod replicas;
mod routing;
mod secret;
pub mod serializability;
mod session;
pub mod tls;
pub mod wire;

pub use client::{Client, Reply, Swap};
pub use copies::Trace;
pub use error::{Error, Tried};
pub use flap::FlapBackoff;
pub use history::{Action, Event, History, HistoryError, ValueId};
pub use linearizability::{Verdict, check};
pub use options::{ClientOptions, Liveness, ReplicaChange, Watcher};
pub use reach::is_loopback;
pub use replicas::{Health, ReplicaHealth};
pub use routing::Routing;
pub use secret::{PrivateFileError, Secret, read_private};
pub use wire::Path;

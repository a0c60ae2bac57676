//! The client's side of Leasehold: the wire protocol, a pipelined client with
//! sessions and retries, the history of a run, and the
//! checkers that judge it: key by key, or transactions on several.

mod client;
mod connection;
mod error;
pub mod history;
pub mod linearizability;
pub mod serializability;
mod session;
pub mod wire;

pub use client::{Client, ClientOptions, Reply, Swap};
pub use error::Error;
pub use history::{Action, Event, History, HistoryError, ValueId};
pub use linearizability::{Verdict, check};
pub use wire::Path;

//! The client's side of Leasehold: the wire protocol, a pipelined client with
//! sessions and retries, the history of a run, and the checker that judges it.

mod client;
mod connection;
mod error;
pub mod history;
pub mod linearizability;
mod session;
pub mod wire;

pub use client::{Client, ClientOptions, Reply, Swap};
pub use error::Error;
pub use history::{Action, Event, History, HistoryError, ValueId};
pub use linearizability::{Verdict, check};
pub use wire::Path;

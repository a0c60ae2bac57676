//! The shell around the replica: sockets, disk, the clock, and one loop.
//!
//! Sockets and the replica share one thread (`driver`), so a local read takes
//! no lock and wakes nobody: a connection's task leaves what arrived in the
//! `inbox`, the driver steps the replica through all of it, and writes the
//! answers itself, once per connection. Only the disk, which may block, has a
//! thread of its own ([`storage`]).

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::disallowed_macros,
    reason = "the shell: the one room that touches sockets, disk and clock"
)]

pub mod access;
mod addresses;
pub mod clock;
pub mod config;
mod connection;
mod demand_passes;
mod descriptors;
mod driver;
mod ending;
mod ends;
mod error;
mod events;
pub mod frames;
mod handshakes;
mod inbound;
mod inbox;
mod large_answers;
mod large_writes;
mod lease_wishes;
mod limits;
mod listener;
mod moves;
mod operators;
mod outbox;
mod places;
mod renewal;
mod reread;
pub mod security;
mod seldom;
mod serve;
mod sockets;
mod step_watch;
pub mod storage;
#[cfg(test)]
mod tests;
mod timeout_watch;
mod transport;

pub use config::{ClusterConfig, ConfigError};
pub use error::NodeError;
pub use serve::{ServeOptions, serve, serve_until, terminated};
pub use transport::MAGIC as PEER_MAGIC;

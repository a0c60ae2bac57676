//! The node around a replica: sockets, disk, the clock, and one event loop.
//!
//! Sockets and the replica share one thread (`driver`), so a local read takes no lock and wakes no
//! other thread. The task of a connection puts requests that have arrived into the
//! `front::inbox`. The driver steps the replica through all of them, and writes the answers
//! itself, with one write per connection. Only the disk, which may block, has a thread of its own
//! ([`store`]).
//!
//! | module | part |
//! |---|---|
//! | `serve`, `driver`, `shutdown` | a process, its one loop, and its end |
//! | `front` | clients: port, connections, tokens, and `admission`, every bound on one page |
//! | `peers` | connections to the other replicas |
//! | `admin` | requests of operators, and the registry of metrics |
//! | `store` | the disk |
//! | `security` | certificates, handshakes, and halves of a connection, plain or over TLS |
//! | `watch` | observers of the node itself |

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::disallowed_macros,
    reason = "the shell: the one room that touches sockets, disk and clock"
)]

mod admin;
pub mod config;
mod driver;
mod error;
mod events;
mod front;
mod peers;
pub mod security;
mod serve;
mod shutdown;
mod sockets;
pub mod store;
#[cfg(all(test, feature = "store"))]
mod tests;
mod watch;

pub use config::{ClusterConfig, ConfigError};
pub use error::NodeError;
pub use front::{access, frames};
pub use peers::transport::MAGIC as PEER_MAGIC;
pub use serve::{ServeOptions, serve, serve_until, terminated};

/// Whether this program was built with the feature `store`, which is needed to run replicas.
pub const HAS_STORE: bool = cfg!(feature = "store");

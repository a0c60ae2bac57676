//! Requests of clients connected to this replica, and of peers for their clients. Reads look at the
//! other parts of the replica through a [`View`]. This module does not change those parts.

mod answers;
mod disconnected;
mod forwarded_reads;
mod many;
mod merge_queues;
mod placeholder;
mod read_index;
mod reads;
mod session_opens;
mod view;
mod writes;

pub(super) use answers::ReadRequest;
pub(super) use disconnected::DisconnectedClients;
pub(super) use many::read_many;
pub use placeholder::placeholder;
pub(super) use reads::Reads;
pub(super) use session_opens::SessionOpenLimiter;
pub(super) use view::View;
pub(super) use writes::Writes;

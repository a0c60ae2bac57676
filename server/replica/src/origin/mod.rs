//! Clients that wait here, at the replica they are connected to, and peers with such clients. Reads
//! look at the other parts through a [`View`]; nothing here changes them.

mod answers;
mod asking;
mod indexing;
mod leavers;
mod logged;
mod many;
mod merging;
mod openings;
mod reads;
mod view;
mod writes;

pub(super) use answers::ReadRequest;
pub(super) use leavers::DisconnectedClients;
pub use logged::placeholder;
pub(super) use many::read_many;
pub(super) use openings::SessionOpenLimiter;
pub(super) use reads::Reads;
pub(super) use view::View;
pub(super) use writes::Writes;

//! Who may do what: tokens with rights, for clients.
//!
//! A connection says a token in its first message. What it may do is looked up then, and is
//! looked up again for all connections when the file of tokens has changed or a token has
//! expired. So a request costs no look at the file, the clock or a table.
//!
//! The replica that a client asks checks its rights. What one replica forwards to another is
//! not checked again.

mod clients;
mod reload;
pub mod rights;
mod table;
#[cfg(test)]
pub(crate) mod tests;
pub mod tokens;

pub(super) use reload::Access;
pub(super) use table::Pass;
pub use table::Table;
pub use tokens::AccessError;

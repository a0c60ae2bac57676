//! Access control for clients: tokens, and the rights that tokens give.
//!
//! A client sends a token in the first message of its connection. At that time the rights of the
//! token are looked up. They are looked up again for all connections when the token file has
//! changed or a token has expired. So handling a request needs no access to the file, the clock or
//! the table of tokens.
//!
//! The replica that receives a client's request checks the client's rights. A request that one
//! replica forwards to another is not checked again.

mod clients;
mod reload;
pub mod rights;
mod table;
#[cfg(test)]
pub(crate) mod tests;
pub mod tokens;

pub(crate) use reload::Access;
pub(crate) use table::AuthState;
pub use table::TokenTable;
pub use tokens::AccessError;

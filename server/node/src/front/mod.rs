//! Clients' side of the node: their port, connections, tokens, limits and answers.
//!
//! A connection's task decodes what arrives ([`frames`]), checks the token's rights ([`access`]) and
//! leaves requests in the [`inbox`], as far as [`admission`] lets it. The driver steps the replica
//! through them and writes the answers itself ([`outbox`]).

pub mod access;
pub(crate) mod admission;
pub(crate) mod connection;
pub mod frames;
pub(crate) mod inbox;
pub(crate) mod listener;
pub(crate) mod outbox;

//! Clients' side of the node: their port, connections, tokens, limits and answers.
//!
//! A connection's task decodes the bytes that arrive ([`frames`]), checks the rights of its token
//! ([`access`]), and puts requests into the [`inbox`] as far as [`admission`] lets it. The driver
//! steps the replica through the requests and writes the answers itself ([`outbox`]).

pub mod access;
pub(crate) mod admission;
pub(crate) mod connection;
pub mod frames;
pub(crate) mod inbox;
pub(crate) mod listener;
pub(crate) mod outbox;

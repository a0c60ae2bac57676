//! The part of the node that serves clients: their port, connections, tokens, limits and answers.
//!
//! The task of a connection decodes the bytes that arrive ([`frames`]) and checks the rights of the
//! client's token ([`access`]). It puts requests into the [`inbox`] as far as the limits allow
//! ([`admission`]). The driver steps the replica through the requests and writes the answers itself
//! ([`outbox`]).

pub mod access;
pub(crate) mod admission;
pub(crate) mod connection;
pub mod frames;
pub(crate) mod inbox;
pub(crate) mod listener;
pub(crate) mod outbox;

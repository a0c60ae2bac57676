//! Connections to the other replicas: those that this node dials ([`transport`]), and those that it
//! accepts ([`inbound`]).

pub(crate) mod inbound;
pub(crate) mod transport;

//! The client's side of Leasehold: the wire protocol, a pipelined client with
//! sessions and retries, the history of a run, and the checker that judges it.

pub mod wire;

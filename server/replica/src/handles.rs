//! Identifiers that inputs and actions share. They identify clients' requests, persists, and the
//! clients and replicas that made requests.

use leasehold_leases::{Incarnation, Key, ReplicaId};
use leasehold_wire::Command;

use super::message::RequestId;

/// Identifier of a client's request: the connection, and the ID of the request on this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientHandle {
    /// ID of the connection. The ID is never used for another connection of this process.
    pub connection: u64,
    /// Id that the client gave to the request.
    pub request: u64,
}

/// Sequence number of an `Action::Persist` within a run. The first `Action::Persist` has the number
/// 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Sequence(pub u64);

/// Replica that made a request, and the run in which the replica made it. Only this run may receive
/// the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Requester {
    /// Replica that made the request.
    pub replica: ReplicaId,
    /// Run of the replica in which the request was made.
    pub incarnation: Incarnation,
}

/// Client or peer that requested a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadFrom {
    /// A client of this replica.
    Client(ClientHandle),
    /// A peer that forwarded the read, and the name that the peer gave to the attempt.
    Peer(ReplicaId, RequestId),
}

/// A read that must be repeated if its permit has ended before the answer is sent.
#[derive(Clone, Debug)]
pub enum FencedRead {
    /// A read of one key.
    Key(Key),
    /// A client's read of several keys.
    Command(Box<Command>),
}

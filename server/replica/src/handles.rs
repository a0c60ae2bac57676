//! Names that inputs and actions share: of clients' requests, of persists, and of the clients and
//! replicas that asked.

use leasehold_leases::{Incarnation, Key, ReplicaId};
use leasehold_wire::Command;

use super::message::RequestId;

/// A request of a client, as the shell names it: connection and request id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientHandle {
    /// Never used again for another connection of this process.
    pub connection: u64,
    /// The client's id for the request.
    pub request: u64,
}

/// Numbers the persists of a run, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Sequence(pub u64);

/// A replica, and the run of it, that asked for something which takes a while: the
/// answer is for that run alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Requester {
    /// Replica that asked.
    pub replica: ReplicaId,
    /// Run of the replica that asked.
    pub incarnation: Incarnation,
}

/// Client or peer that a read is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadFrom {
    /// A client of this replica.
    Client(ClientHandle),
    /// A peer that forwarded it.
    Peer(ReplicaId, RequestId),
}

/// Read to repeat when a fence was missed.
#[derive(Clone, Debug)]
pub enum FencedRead {
    /// One key.
    Key(Key),
    /// A client's read of several.
    Command(Box<Command>),
}

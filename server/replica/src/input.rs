//! Inputs of a replica: every event that it can handle.

use leasehold_leases::Slot;
use leasehold_wire::Command;

pub use super::handles::{FencedRead, ReadFrom};

use super::handles::{ClientHandle, Requester, Sequence};
use super::lease_set::LeaseSet;
use super::message::{Envelope, LogId, Value};
use super::per_log::PerLog;

/// One event. The time `now` of a step is sampled after the input of the step has arrived.
#[derive(Clone, Debug)]
pub enum Input {
    /// A client sends a command that has already been validated (`leasehold_wire::validate`).
    Client {
        /// Client to answer.
        from: ClientHandle,
        /// Command that the client requests.
        command: Command,
    },
    /// A client's connection has ended. No client waits for answers on the connection, and no more
    /// commands arrive on it. The replica may drop requests of this connection, but it answers even
    /// the dropped requests.
    ClientDisconnected {
        /// ID of the connection, as in `ClientHandle::connection`.
        connection: u64,
    },
    /// The permit of a fenced reply had already ended when the clock was sampled. The replica must
    /// repeat the read.
    FenceMissed {
        /// Client or peer to answer.
        from: ReadFrom,
        /// Read that must be repeated. The fenced reply contained it.
        again: FencedRead,
    },
    /// A message of a peer arrived.
    Peer(Envelope),
    /// All records are durable, up to and including those of the `Action::Persist` with this
    /// sequence number.
    Persisted(Sequence),
    /// Answer to `Action::Flush`: the executed state up to these slots is durable.
    Flushed(PerLog<Slot>),
    /// Answer to `Action::ReadLog`: entries from the requested slots of the log on disk.
    LogRead {
        /// Log that was read.
        log: LogId,
        /// Requester of the entries, as in `Action::ReadLog`.
        to: Requester,
        /// Entries in rising order of slots.
        entries: Vec<(Slot, Value)>,
    },
    /// Whether the storage accepts writes. A full or stalled storage accepts none. An fsync error
    /// is different: it stops the process.
    StorageWritable(bool),
    /// Whether the clock from which `now` is read is trusted.
    ClockTrusted(bool),
    /// The operator of the cluster makes a request.
    Operator(OperatorRequest),
    /// The process is to end. This replica hands over everything that others would wait for, and
    /// then returns `Event::Left`.
    Stop,
    /// Time has passed, so deadlines may have been reached.
    Tick,
}

/// Requests that an operator may make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorRequest {
    /// Transfer leadership to the replica with this ID, once all proposals are committed. A replica
    /// that does not lead passes the request on to the leader.
    Transfer(leasehold_leases::ReplicaId),
    /// Change the strategies and durations of leases. A replica that does not lead passes the
    /// request on to the leader. `Event::LeaseAnswered` reports the result. If the leader is lost,
    /// no such event occurs, and the request may then be repeated.
    Lease {
        /// ID of the request. The answer contains the same ID.
        ask: u64,
        /// Changes that the operator wants.
        set: LeaseSet,
    },
}

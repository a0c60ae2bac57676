//! Everything that can happen to a replica.

use leasehold_leases::Slot;
use leasehold_wire::Command;

pub use super::handles::{FencedRead, ReadFrom};

use super::handles::{ClientHandle, Requester, Sequence};
use super::lease_set::LeaseSet;
use super::message::{Envelope, LogId, Value};

/// One thing that happened. `now` of a step is sampled after its input arrived.
#[derive(Clone, Debug)]
pub enum Input {
    /// A client asks. The command has been validated (`leasehold_wire::validate`).
    Client {
        /// Client to answer.
        from: ClientHandle,
        /// Command that the client asks for.
        command: Command,
    },
    /// This connection of a client has ended: nobody waits for its answers. No command of it
    /// follows. The replica answers those that it drops, too.
    ClientDisconnected {
        /// As in `ClientHandle::connection`.
        connection: u64,
    },
    /// A reply's fence had passed when the clock was sampled: read again.
    FenceMissed {
        /// Client or peer to answer.
        from: ReadFrom,
        /// Read to repeat, as the reply said.
        again: FencedRead,
    },
    /// A peer says something.
    Peer(Envelope),
    /// Everything up to this `Action::Persist` is durable.
    Persisted(Sequence),
    /// The answer to `Action::ReadLog`: what the log on disk holds there.
    LogRead {
        /// Log that was read.
        log: LogId,
        /// Requester of the entries, as in `Action::ReadLog`.
        to: Requester,
        /// Rising by slot.
        entries: Vec<(Slot, Value)>,
    },
    /// The storage takes no writes for now (full, stalled), or takes them again.
    /// An fsync error is not this: it stops the process.
    StorageWritable(bool),
    /// The clock that `now` is read from is not to be believed for now, or is again.
    ClockTrusted(bool),
    /// The operator of the cluster asks.
    Operator(OperatorRequest),
    /// The process is to end: this replica transfers what others would wait for, and says
    /// with `Event::Left` when it has.
    Stop,
    /// A deadline may have passed.
    Tick,
}

/// Requests that an operator may make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorRequest {
    /// Transfer leadership to this replica, once everything proposed is committed. A replica that
    /// does not lead passes the request on to the leader.
    Transfer(leasehold_leases::ReplicaId),
    /// Put other strategies and durations in force. A replica that does not lead passes the request
    /// on to the leader. `Event::LeaseAnswered` reports how it ended, unless the leader is lost:
    /// then it may be asked for again.
    Lease {
        /// A number of its own, for the answer.
        ask: u64,
        /// Changes that the operator asks for.
        set: LeaseSet,
    },
}

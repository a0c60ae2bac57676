//! Host that performs the actions of a replica, and how an action reaches it.

use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{ReplicaId, Slot, Time};
use leasehold_wire::{Outcome, Path};

use crate::Input;
use crate::action::{Action, ClientHandle, Event, Record, Requester, Sequence};
use crate::input::{FencedRead, ReadFrom};
use crate::message::{Envelope, LogId};

/// Performs what a replica asks for. The node does so; in its place the simulator, tests and
/// benchmarks do. Each method performs the [`Action`] of its name.
pub trait Host {
    /// Sends to a peer. May lose the message.
    fn send(&mut self, to: ReplicaId, envelope: Envelope);

    /// Makes all records durable, in order and as one, and returns
    /// [`Input::Persisted`] afterwards.
    fn persist(&mut self, sequence: Sequence, records: Vec<Record>);

    /// Answers a client.
    fn reply(&mut self, to: ClientHandle, path: Path, outcome: Outcome);

    /// Answers a read made under leases if it [may still leave](FencedReply::may_leave).
    /// Otherwise returns [`Input::FenceMissed`].
    fn fenced_reply(&mut self, read: FencedReply);

    /// Reads committed entries from `from` to `last` (or fewer), and returns
    /// [`Input::LogRead`].
    fn read_log(&mut self, log: LogId, to: Requester, from: Slot, last: Slot);

    /// Notifies the operator.
    fn event(&mut self, event: Event);
}

/// A read made under leases. Its answer waits until the clock has been read again.
#[derive(Clone, Debug)]
pub struct FencedReply {
    /// Client or peer that asked.
    pub to: ReadFrom,
    /// Path by which it was served.
    pub path: Path,
    /// The answer.
    pub outcome: Outcome,
    /// Time at which its permit ends, by the clock of its replica.
    pub until: Time,
    /// Read to make again if the permit has ended.
    pub again: FencedRead,
}

impl FencedReply {
    /// Whether the answer may leave, by a clock that was sampled *after* the read was made
    /// (protocol §3.5). A process that was stopped between the two has a value that others
    /// may have replaced (hazard 4).
    pub fn may_leave(&self, sampled: Time) -> bool {
        sampled < self.until || off(Rule::H04Fence)
    }

    /// Returns the input that notifies the replica that the answer may not leave: it reads again.
    pub fn missed(self) -> Input {
        let (from, again) = (self.to, self.again);
        Input::FenceMissed { from, again }
    }
}

/// Has `host` perform one action. Callers perform the actions of a step in order; the
/// simulator stops or ends a process between two of them.
pub fn perform(action: Action, host: &mut impl Host) {
    match action {
        Action::Send { to, envelope } => host.send(to, envelope),
        Action::Persist { sequence, records } => host.persist(sequence, records),
        Action::Reply { to, path, outcome } => host.reply(to, path, outcome),
        Action::FencedReply {
            to,
            path,
            outcome,
            until,
            again,
        } => host.fenced_reply(FencedReply {
            to,
            path,
            outcome,
            until,
            again,
        }),
        Action::ReadLog {
            log,
            to,
            from,
            last,
        } => host.read_log(log, to, from, last),
        Action::Event(event) => host.event(event),
    }
}

//! The trait of a host that performs the actions of a replica, and the function that passes each
//! action to the right method of the host.

use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{ReplicaId, Slot, Time};
use leasehold_wire::{Outcome, Path};

use crate::Input;
use crate::action::{Action, ClientHandle, Event, Record, Requester, Sequence};
use crate::input::{FencedRead, ReadFrom};
use crate::message::{Envelope, LogId, PerLog};

/// Performs the actions of a replica. The node implements this trait, and so do the simulator,
/// tests and benchmarks. Each method performs the [`Action`] of the same name.
pub trait Host {
    /// Sends a message to a peer. The message may be lost.
    fn send(&mut self, to: ReplicaId, envelope: Envelope);

    /// Makes all records durable, in order and atomically. Afterwards the host passes
    /// [`Input::Persisted`] to the replica.
    fn persist(&mut self, sequence: Sequence, records: Vec<Record>);

    /// Flushes the changes of the state that were persisted so far, so that they are durable. On a
    /// full disk, the flush may cover fewer changes. Afterwards the host passes [`Input::Flushed`]
    /// to the replica.
    fn flush(&mut self);

    /// Frees the space of log entries up to these slots. The host may also free only some of them.
    fn truncate(&mut self, slots: PerLog<Slot>);

    /// Answers a client.
    fn reply(&mut self, to: ClientHandle, path: Path, outcome: Outcome);

    /// Answers a read made under leases if the answer [may still leave](FencedReply::may_leave).
    /// Otherwise the host passes [`Input::FenceMissed`] to the replica.
    fn fenced_reply(&mut self, read: FencedReply);

    /// Reads the committed entries in slots `from` to `last`. The host may read only the first few
    /// of these entries. Afterwards the host passes [`Input::LogRead`] to the replica.
    fn read_log(&mut self, log: LogId, to: Requester, from: Slot, last: Slot);

    /// Reports an event to the operator.
    fn event(&mut self, event: Event);
}

/// A read made under leases. Its answer waits until the clock has been read again.
#[derive(Clone, Debug)]
pub struct FencedReply {
    /// Client or peer that requested the read.
    pub to: ReadFrom,
    /// Path by which the read was served.
    pub path: Path,
    /// Answer to the read.
    pub outcome: Outcome,
    /// Time at which the permit ends, by the clock of this replica.
    pub until: Time,
    /// Read that must be repeated if the permit has ended.
    pub again: FencedRead,
}

impl FencedReply {
    /// Whether the answer may still be sent. The caller must read the clock *after* the read, and
    /// pass this reading as `sampled` (protocol §3.5). If the process was stopped between the read
    /// and the reading of the clock, other replicas may have replaced the value (hazard 4).
    pub fn may_leave(&self, sampled: Time) -> bool {
        sampled < self.until || off(Rule::H04Fence)
    }

    /// Returns the input that makes the replica repeat the read, because the answer may no longer
    /// be sent.
    pub fn missed(self) -> Input {
        let (from, again) = (self.to, self.again);
        Input::FenceMissed { from, again }
    }
}

/// Makes `host` perform one action. Callers must perform the actions of a step in order. The
/// simulator may stop or end a process between two actions.
pub fn perform(action: Action, host: &mut impl Host) {
    match action {
        Action::Send { to, envelope } => host.send(to, envelope),
        Action::Persist { sequence, records } => host.persist(sequence, records),
        Action::Flush => host.flush(),
        Action::Truncate(slots) => host.truncate(slots),
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
